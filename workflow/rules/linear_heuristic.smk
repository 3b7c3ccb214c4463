# The Last Iterate Advantage: the heuristic, its counterexamples and its audits.


use rule simulate as simulate_linear_heuristic with:
    wildcard_constraints:
        family="linear_heuristic",
        cell=cell_names("linear_heuristic", "scores"),


use rule bound as bound_linear_heuristic with:
    wildcard_constraints:
        family="linear_heuristic",
        cell=cell_names("linear_heuristic", "bounds"),
    message:
        "linear_heuristic: accounting, {wildcards.cell}"
