# It's Our Loss: no privacy amplification for hidden-state DP-SGD with non-convex loss.


rule simulate_encoding_loss:
    output:
        f"{RESULTS}/{{family}}/scores/{{cell}}.parquet",
    log:
        f"{LOGS}/{{family}}/scores/{{cell}}.log",
    benchmark:
        f"{LOGS}/{{family}}/scores/{{cell}}.tsv"
    wildcard_constraints:
        family="encoding_loss",
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
        "encoding_loss: simulate {wildcards.cell}"
    shell:
        "hiddenstate scores {wildcards.family} --config {params.config} --cell {wildcards.cell}"
        " --out {output} > {log} 2>&1"


rule bound_encoding_loss:
    output:
        f"{RESULTS}/{{family}}/bounds/{{cell}}.parquet",
    log:
        f"{LOGS}/{{family}}/bounds/{{cell}}.log",
    benchmark:
        f"{LOGS}/{{family}}/bounds/{{cell}}.tsv"
    wildcard_constraints:
        family="encoding_loss",
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
        "encoding_loss: trade-off curves of all iterates, {wildcards.cell}"
    shell:
        "hiddenstate bounds {wildcards.family} --config {params.config} --cell {wildcards.cell}"
        " --out {output} > {log} 2>&1"
