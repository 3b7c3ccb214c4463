# The Last Iterate Advantage: the heuristic, its counterexamples and its audits.


module linear_heuristic:
    snakefile:
        "family.smk"
    config:
        {**config, "family": "linear_heuristic"}


use rule * from linear_heuristic as linear_heuristic_*
