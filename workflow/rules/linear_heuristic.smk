# The Last Iterate Advantage: the heuristic, its counterexamples and its audits.


module linear_heuristic:
    snakefile:
        "family.smk"
    config:
        {**config, "family": "linear_heuristic"}


use rule * from linear_heuristic exclude start as linear_heuristic_*


if config["scores"] == "cached":

    ruleorder: linear_heuristic_restore > linear_heuristic_train

else:

    ruleorder: linear_heuristic_train > linear_heuristic_restore
