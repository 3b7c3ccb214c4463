# Privacy of the last iterate in cyclically-sampled DP-SGD on nonconvex composite losses.


rule simulate_cyclic_bounds:
    output:
        f"{RESULTS}/{{family}}/scores/{{cell}}.parquet",
    log:
        f"{LOGS}/{{family}}/scores/{{cell}}.log",
    benchmark:
        f"{LOGS}/{{family}}/scores/{{cell}}.tsv"
    wildcard_constraints:
        family="cyclic_bounds",
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
        "cyclic_bounds: simulate {wildcards.cell}"
    shell:
        "hiddenstate scores {wildcards.family} --config {params.config} --cell {wildcards.cell}"
        " --out {output} > {log} 2>&1"


rule bound_cyclic_bounds:
    output:
        f"{RESULTS}/{{family}}/bounds/{{cell}}.parquet",
    log:
        f"{LOGS}/{{family}}/bounds/{{cell}}.log",
    benchmark:
        f"{LOGS}/{{family}}/bounds/{{cell}}.tsv"
    wildcard_constraints:
        family="cyclic_bounds",
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
        "cyclic_bounds: bounds and exact values, {wildcards.cell}"
    shell:
        "hiddenstate bounds {wildcards.family} --config {params.config} --cell {wildcards.cell}"
        " --out {output} > {log} 2>&1"
