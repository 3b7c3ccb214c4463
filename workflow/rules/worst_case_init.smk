# Nearly tight black-box auditing: ideal audits. Models are trained by the rules of training.smk.


use rule bound as bound_worst_case_init with:
    wildcard_constraints:
        family="worst_case_init",
        cell=cell_names("worst_case_init", "bounds"),
    message:
        "worst_case_init: simulated ideal audits, {wildcards.cell}"
