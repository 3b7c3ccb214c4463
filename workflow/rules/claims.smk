# All verdicts together, compared with those that are committed for the scale, and their page.


rule collect_claims:
    input:
        families=expand(f"{RESULTS}/{{family}}/claims.csv", family=FAMILIES),
        expected=literally(expected_verdicts()),
    output:
        csv=f"{RESULTS}/claims.csv",
        md=f"{RESULTS}/claims.md",
    log:
        f"{LOGS}/claims.log",
    benchmark:
        f"{LOGS}/claims.tsv"
    conda:
        "../../envs/hiddenstate.yaml"
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=growing(15),
    params:
        config=literally(SCALE_FILE),
        expected=literally([f"--expected={path}" for path in expected_verdicts()]),
        compared=content(*expected_verdicts()),
        out=literally(RESULTS),
        code=code.digest("hiddenstate.study.verdicts"),
    message:
        "verdicts"
    shell:
        "hiddenstate job collect {input.families:q} --config {params.config:q}"
        " {params.expected:q} --out {params.out:q} > {log:q} 2>&1"


# The page that a reviewer reads. What the cells took is in the files that the estimates are from.
rule page:
    input:
        verdicts=f"{RESULTS}/claims.csv",
        shown=shown_parts(),
    output:
        report(
            f"{RESULTS}/report.html",
            caption="../report/claims.rst",
            category="Claims",
            labels={"page": "claims, figures and tables"},
        ),
    log:
        f"{LOGS}/report.log",
    benchmark:
        f"{LOGS}/report.tsv"
    conda:
        "../../envs/hiddenstate.yaml"
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=growing(15),
    params:
        config=literally(SCALE_FILE),
        figures=literally(FIGURES),
        results=literally(RESULTS),
        cached=literally(CACHE),
        code=code.digest("hiddenstate.study.page"),
    message:
        "report: every claim, figure and table on one page"
    shell:
        "hiddenstate job report --config {params.config:q} --verdicts {input.verdicts:q}"
        " --figures {params.figures:q} --results {params.results:q}"
        " --cached {params.cached:q} --out {output:q} > {log:q} 2>&1"


# What the scale would take, printed before anything runs; it makes no file.
rule plan:
    log:
        f"{LOGS}/plan.log",
    localrule: True
    conda:
        "../../envs/hiddenstate.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=15,
    params:
        config=literally(SCALE_FILE),
        results=RESULTS,
        cached=literally(["--cached", CACHE] if config["scores"] == "cached" else []),
        missing="skip" if config["missing_scores"] == "skip" else "train",
        cores=side_by_side,
        hours=config["part_hours"],
    message:
        "plan of the scale"
    shell:
        "hiddenstate plan --config {params.config:q} --results {params.results:q}"
        " {params.cached:q} --missing {params.missing} --cores {params.cores:q}"
        " --part-hours {params.hours:q} 2>&1 | tee {log:q}"


# The verdicts are no declared output, for Snakemake would delete them when one is bad.
rule verify_cache:
    input:
        verified_files(),
    log:
        f"{LOGS}/verified.log",
    localrule: True
    conda:
        "../../envs/hiddenstate.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=15,
    params:
        verdicts=f"{RESULTS}/verified.csv",
    message:
        "verdicts on cached scores"
    shell:
        "hiddenstate job verified {input:q} --out {params.verdicts:q} 2>&1 | tee {log:q}"
