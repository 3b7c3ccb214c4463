# How far the lower bounds can be trusted: calibration of the estimators, detection of mistakes.


rule run_mistakes_estimators:
    output:
        f"{RESULTS}/{{family}}/scores/{{cell}}.parquet",
    log:
        f"{LOGS}/{{family}}/scores/{{cell}}.log",
    benchmark:
        f"{LOGS}/{{family}}/scores/{{cell}}.tsv"
    wildcard_constraints:
        family="estimators",
    conda:
        "../../envs/hiddenstate.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=5,
    params:
        config=SCALE_FILE,
        cell=parameters_of("scores"),
    message:
        "estimators: run DP-SGD with its {wildcards.cell}"
    shell:
        "hiddenstate scores {wildcards.family} --config {params.config} --cell {wildcards.cell}"
        " --out {output} > {log} 2>&1"


rule calibrate_estimators:
    output:
        f"{RESULTS}/{{family}}/bounds/{{cell}}.parquet",
    log:
        f"{LOGS}/{{family}}/bounds/{{cell}}.log",
    benchmark:
        f"{LOGS}/{{family}}/bounds/{{cell}}.tsv"
    wildcard_constraints:
        family="estimators",
    conda:
        "../../envs/hiddenstate.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        config=SCALE_FILE,
        cell=parameters_of("bounds"),
    message:
        "estimators: simulated audits of {wildcards.cell}"
    shell:
        "hiddenstate bounds {wildcards.family} --config {params.config} --cell {wildcards.cell}"
        " --out {output} > {log} 2>&1"
