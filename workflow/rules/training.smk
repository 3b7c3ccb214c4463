# Scores of trained models, for every family that has any: restored, or trained from a start.


rule start:
    input:
        start_data,
    output:
        f"{RESULTS}/{{family}}/starts/{{cell}}.parquet",
    log:
        f"{LOGS}/{{family}}/starts/{{cell}}.log",
    benchmark:
        f"{LOGS}/{{family}}/starts/{{cell}}.tsv"
    wildcard_constraints:
        family=any_of(TRAINED),
        cell=start_names(),
    conda:
        "../../envs/hiddenstate.yaml"
    threads: 1
    resources:
        mem_mb=4000,
        runtime=240,
        gpu=int(config["device"] != "cpu"),
        device=config["device"],
    params:
        config=SCALE_FILE,
        cell=parameters_of("start"),
    message:
        "{wildcards.family}: initial parameters {wildcards.cell}"
    shell:
        "hiddenstate start {wildcards.family} --config {params.config} --cell {wildcards.cell}"
        " --device {resources.device} --out {output} > {log} 2>&1"


# The device is a resource, not a parameter: another one is no reason to train again. A thread trains
# one model at a time; cells side by side use cores better than the threads of one.
rule train_scores:
    input:
        train_input,
    output:
        f"{RESULTS}/{{family}}/scores/{{cell}}.parquet",
    log:
        f"{LOGS}/{{family}}/scores/{{cell}}.log",
    benchmark:
        f"{LOGS}/{{family}}/scores/{{cell}}.tsv"
    wildcard_constraints:
        family=any_of(TRAINED),
        cell=train_names(restored=False),
    priority: train_cost
    conda:
        "../../envs/hiddenstate.yaml"
    threads: 1
    resources:
        mem_mb=6000,
        models_mb=3000,
        runtime=1440,
        gpu=int(config["device"] != "cpu"),
        device=config["device"],
    params:
        config=SCALE_FILE,
        cell=parameters_of("train"),
        checkpoint=f"{RESULTS}/{{family}}/checkpoints/{{cell}}",
    message:
        "{wildcards.family}: train {wildcards.cell}"
    shell:
        "hiddenstate train {wildcards.family} --config {params.config} --cell {wildcards.cell}"
        " --start {input} --checkpoint {params.checkpoint} --device {resources.device}"
        " --workers {threads} --memory {resources.models_mb} --out {output} > {log} 2>&1"


rule restore_scores:
    input:
        restore_input,
    output:
        f"{RESULTS}/{{family}}/scores/{{cell}}.parquet",
    log:
        f"{LOGS}/{{family}}/scores/{{cell}}.log",
    benchmark:
        f"{LOGS}/{{family}}/scores/{{cell}}.tsv"
    wildcard_constraints:
        family=any_of(TRAINED),
        cell=train_names(restored=True),
    conda:
        "../../envs/hiddenstate.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    params:
        config=SCALE_FILE,
        cell=parameters_of("train"),
    message:
        "{wildcards.family}: restore {wildcards.cell}"
    shell:
        "hiddenstate restore {wildcards.family} --config {params.config} --cell {wildcards.cell}"
        " --cached {input} --out {output} > {log} 2>&1"


rule verify_scores:
    input:
        cached=restore_input,
        start=verify_input,
    output:
        f"{RESULTS}/{{family}}/verified/{{cell}}.csv",
    log:
        f"{LOGS}/{{family}}/verified/{{cell}}.log",
    benchmark:
        f"{LOGS}/{{family}}/verified/{{cell}}.tsv"
    wildcard_constraints:
        family=any_of(TRAINED),
        cell=any_of(cell for family, cell in CACHED),
    conda:
        "../../envs/hiddenstate.yaml"
    threads: 1
    resources:
        mem_mb=6000,
        models_mb=3000,
        runtime=1440,
        gpu=int(config["device"] != "cpu"),
        device=config["device"],
    params:
        config=SCALE_FILE,
        cell=parameters_of("train"),
        checkpoint=f"{RESULTS}/{{family}}/checkpoints/verified-{{cell}}",
        models=config["verify_models"],
    message:
        "{wildcards.family}: verify {wildcards.cell}"
    shell:
        "hiddenstate verify {wildcards.family} --config {params.config} --cell {wildcards.cell}"
        " --cached {input.cached} --start {input.start} --checkpoint {params.checkpoint}"
        " --models {params.models} --device {resources.device} --workers {threads}"
        " --memory {resources.models_mb} --out {output} > {log} 2>&1"


# The verdicts are no declared output, for Snakemake would delete them when one is bad.
rule verify_cache:
    input:
        verified_files,
    log:
        f"{LOGS}/verified.log",
    localrule: True
    conda:
        "../../envs/hiddenstate.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    params:
        verdicts=f"{RESULTS}/verified.csv",
    message:
        "verdicts on cached scores"
    shell:
        "hiddenstate verified {input} --out {params.verdicts} 2>&1 | tee {log}"
