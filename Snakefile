# How much does the last iterate of DP-SGD leak? Five papers, one workflow.
#
#   snakemake --cores all figures                       every figure, laptop scale
#   snakemake --cores all all --config scale=smoke      everything once, tiny
#   snakemake --cores all encoding_loss                 one paper
#   snakemake --cores all encoding_loss_figure2         one figure

from snakemake.utils import min_version

min_version("9.10")


configfile: f"{workflow.basedir}/workflow/config/config.yaml"


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"


checked_config()
GRID = read_scale()
FAMILIES = {name: papers.load(name) for name in scale_files.families(GRID)}


def shown_files(family):
    """Figures and tables of a paper that the scale has the cells for, by target name."""
    grid = getattr(GRID, family)
    figures, tables = FAMILIES[family].figures, FAMILIES[family].tables
    return {
        name: f"{FIGURES}/{family}/{name}.pdf"
        for name, figure in figures.items()
        if figure.when(grid)
    }, [
        f"{RESULTS}/{family}/tables/{name}.md"
        for name, table in tables.items()
        if table.when(grid)
    ]


def verified_files():
    """The cells that verify_cache trains anew: a few cached ones, drawn at random."""
    models = int(config["verify_models"])
    able = []
    for name, family in FAMILIES.items():
        for cell, job in family.jobs(getattr(GRID, name))["train"].items():
            trained, repeats = job.work.size(job.cell)
            if Path(f"{CACHE}/{name}/{cell}.parquet").exists():
                if verification.can_disagree(trained * repeats, models * repeats):
                    able.append(f"{RESULTS}/{name}/verified/{cell}.csv")
    few = min(int(config["verify_cells"]), len(able))
    return random.Random(int(config["verify_seed"])).sample(sorted(able), few)


SHOWN = {family: shown_files(family) for family in FAMILIES}


localrules:
    figures,
    tables,
    claims,
    all,


rule figures:
    input:
        [path for figures, _ in SHOWN.values() for path in figures.values()],


rule tables:
    input:
        [path for _, tables in SHOWN.values() for path in tables],


rule claims:
    input:
        f"{RESULTS}/claims.md",


rule all:
    input:
        rules.figures.input,
        rules.tables.input,
        rules.claims.input,


# Each paper has rules of its own, one target for all it shows, and one per figure.
for family in FAMILIES:

    include: f"workflow/rules/{family}.smk"

    rule:
        name:
            family
        input:
            SHOWN[family][0].values(),
            SHOWN[family][1],
        localrule: True

    for name, path in SHOWN[family][0].items():

        rule:
            name:
                f"{family}_{name}"
            input:
                path,
            localrule: True


include: "workflow/rules/claims.smk"
