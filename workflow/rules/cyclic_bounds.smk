# Privacy of the last iterate in cyclically-sampled DP-SGD on nonconvex composite losses.


use rule simulate as simulate_cyclic_bounds with:
    wildcard_constraints:
        family="cyclic_bounds",
        cell=cell_names("cyclic_bounds", "scores"),


use rule bound as bound_cyclic_bounds with:
    wildcard_constraints:
        family="cyclic_bounds",
        cell=cell_names("cyclic_bounds", "bounds"),
    message:
        "cyclic_bounds: bounds and exact values, {wildcards.cell}"
