# Nearly tight black-box auditing of differentially private machine learning.


module worst_case_init:
    snakefile:
        "family.smk"
    config:
        {**config, "family": "worst_case_init"}


use rule * from worst_case_init as worst_case_init_*
