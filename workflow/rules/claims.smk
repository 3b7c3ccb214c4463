# Claims of the papers and their verdicts.


rule judge_claims:
    input:
        claims="workflow/config/claims.yaml",
        estimates=expand(f"{RESULTS}/{{family}}/estimates.csv", family=FAMILIES),
    output:
        csv=report(
            f"{RESULTS}/claims.csv",
            caption="../report/claims.rst",
            category="Claims",
            labels={"table": "verdicts"},
        ),
        md=f"{RESULTS}/claims.md",
    log:
        f"{LOGS}/claims.log",
    benchmark:
        f"{LOGS}/claims.tsv"
    conda:
        "../../envs/hiddenstate.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    params:
        scale=SCALE,
        code=CODE,
        estimates=estimates_by_family,
    message:
        "claims and verdicts"
    shell:
        "hiddenstate claims --claims {input.claims} --scale {params.scale}"
        " --estimates {params.estimates} --csv {output.csv} --markdown {output.md} > {log} 2>&1"
