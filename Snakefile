# How much does the last iterate of DP-SGD leak? Five papers, one workflow.
#
#   snakemake --cores all figures                       every figure, laptop scale
#   snakemake --cores all all --config scale=smoke      everything once, tiny
#   snakemake --cores all encoding_loss                 one paper
#   snakemake --cores all encoding_loss_figure2         one figure

from snakemake.utils import min_version

min_version("9.10")


configfile: "workflow/config/config.yaml"


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"


localrules:
    figures,
    tables,
    claims,
    all,


rule figures:
    input:
        [path for family in FAMILIES for path in figure_files(family)],


rule tables:
    input:
        [path for family in FAMILIES for path in table_files(family)],


rule claims:
    input:
        f"{RESULTS}/claims.md",


rule all:
    input:
        rules.figures.input,
        rules.tables.input,
        rules.claims.input,


include: "workflow/rules/targets.smk"
include: "workflow/rules/results.smk"
include: "workflow/rules/claims.smk"
include: "workflow/rules/cells.smk"
include: "workflow/rules/training.smk"
include: "workflow/rules/encoding_loss.smk"
include: "workflow/rules/estimators.smk"
include: "workflow/rules/linear_heuristic.smk"
include: "workflow/rules/cyclic_bounds.smk"
include: "workflow/rules/worst_case_init.smk"
