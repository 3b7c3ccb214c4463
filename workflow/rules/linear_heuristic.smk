# The Last Iterate Advantage: the heuristic, its counterexamples and its audits.


rule simulate_linear_heuristic:
    output:
        f"{RESULTS}/{{family}}/scores/{{cell}}.parquet",
    log:
        f"{LOGS}/{{family}}/scores/{{cell}}.log",
    benchmark:
        f"{LOGS}/{{family}}/scores/{{cell}}.tsv"
    wildcard_constraints:
        family="linear_heuristic",
    conda:
        "../../envs/hiddenstate.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        config=SCALE_FILE,
        cell=parameters_of("scores"),
    message:
        "linear_heuristic: simulate {wildcards.cell}"
    shell:
        "hiddenstate scores {wildcards.family} --config {params.config} --cell {wildcards.cell}"
        " --out {output} > {log} 2>&1"


rule bound_linear_heuristic:
    output:
        f"{RESULTS}/{{family}}/bounds/{{cell}}.parquet",
    log:
        f"{LOGS}/{{family}}/bounds/{{cell}}.log",
    benchmark:
        f"{LOGS}/{{family}}/bounds/{{cell}}.tsv"
    wildcard_constraints:
        family="linear_heuristic",
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
        "linear_heuristic: accounting, {wildcards.cell}"
    shell:
        "hiddenstate bounds {wildcards.family} --config {params.config} --cell {wildcards.cell}"
        " --out {output} > {log} 2>&1"
