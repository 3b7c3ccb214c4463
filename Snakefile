# How much does the last iterate of DP-SGD leak? The papers, one workflow.
#   snakemake --cores all figures     every figure, laptop scale (docs/run.md: other targets)

from snakemake.utils import min_version

min_version("9.10")


configfile: f"{workflow.current_basedir}/workflow/config/config.yaml"


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/papers.smk"
include: "workflow/rules/targets.smk"
include: "workflow/rules/claims.smk"
include: "workflow/rules/hooks.smk"


localrules:
    report,
    figures,
    tables,
    claims,
    all,


rule report:
    default_target: True
    input:
        WHOLE,
        rules.collect_claims.output,
        rules.page.output,


rule figures:
    input:
        WHOLE,
        rules.collect_claims.output,


rule tables:
    input:
        *STANDS_ON.values(),
        *TOLD.values(),


rule claims:
    input:
        *STANDS_ON.values(),
        *TOLD.values(),
        rules.collect_claims.output,


rule all:
    input:
        rules.report.input,
