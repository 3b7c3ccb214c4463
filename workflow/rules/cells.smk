# What the rules of cells share. Each family uses them under names, messages and times of its own.


rule simulate:
    output:
        f"{RESULTS}/{{family}}/scores/{{cell}}.parquet",
    log:
        f"{LOGS}/{{family}}/scores/{{cell}}.log",
    benchmark:
        f"{LOGS}/{{family}}/scores/{{cell}}.tsv"
    wildcard_constraints:
        cell=NOTHING,
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
        "{wildcards.family}: simulate {wildcards.cell}"
    shell:
        "hiddenstate scores {wildcards.family} --config {params.config} --cell {wildcards.cell}"
        " --out {output} > {log} 2>&1"


rule bound:
    output:
        f"{RESULTS}/{{family}}/bounds/{{cell}}.parquet",
    log:
        f"{LOGS}/{{family}}/bounds/{{cell}}.log",
    benchmark:
        f"{LOGS}/{{family}}/bounds/{{cell}}.tsv"
    wildcard_constraints:
        cell=NOTHING,
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
        "{wildcards.family}: bounds, {wildcards.cell}"
    shell:
        "hiddenstate bounds {wildcards.family} --config {params.config} --cell {wildcards.cell}"
        " --out {output} > {log} 2>&1"
