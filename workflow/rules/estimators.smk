# How far the lower bounds can be trusted: calibration of the estimators, detection of mistakes.


use rule simulate as run_mistakes_estimators with:
    wildcard_constraints:
        family="estimators",
        cell=cell_names("estimators", "scores"),
    resources:
        mem_mb=2000,
        runtime=5,
    message:
        "estimators: run DP-SGD with its {wildcards.cell}"


use rule bound as calibrate_estimators with:
    wildcard_constraints:
        family="estimators",
        cell=cell_names("estimators", "bounds"),
    message:
        "estimators: simulated audits of {wildcards.cell}"
