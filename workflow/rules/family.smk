# The rules of one paper: those that its file in this folder names are used under the paper's name,
# such as encoding_loss_simulate. `config["family"]` says which paper.


include: "common.smk"


FAMILY = config["family"]
PAPER = papers.load(FAMILY)
SEED = read_scale().seed
GRID = getattr(read_scale(), FAMILY)
try:
    JOBS = PAPER.jobs(GRID)
except InputError as error:
    raise WorkflowError(f"{SCALE_FILE}: {FAMILY}: {error}")
HERE = f"{RESULTS}/{FAMILY}"


def result(job):
    """Where a job's result goes."""
    return f"{HERE}/{job.work.folder}/{job.cell.name}.parquet"


def cached(name):
    """Where the cached scores of a cell are, if there are any."""
    return f"{CACHE}/{FAMILY}/{name}.parquet"


def checked_cache():
    """Names of the cached cells; a file that is damaged or of another cell stops the run."""
    found = []
    for name, job in JOBS["train"].items():
        if Path(cached(name)).exists():
            try:
                scores.check(cached(name), job.identity, SEED)
            except InputError as error:
                raise WorkflowError(
                    f"{error}\nRemove the file, or ignore the cache with --config scores=train"
                )
            found.append(name)
    return found


CACHED = checked_cache() if config["scores"] == "cached" else []
# Scores that are neither here nor cached: they have to be trained, or left out, or are an error.
LACKING = [
    name
    for name, job in JOBS["train"].items()
    if name not in CACHED and not scores.computed(result(job), job.identity, SEED)
]
if LACKING and config["scores"] == "cached" and config["missing_scores"] == "error":
    raise WorkflowError(
        "missing_scores is 'error', and cached files are missing (missing_scores=train trains "
        "their cells instead):\n" + "\n".join(map(cached, LACKING))
    )
SKIPPED = LACKING if config["missing_scores"] == "skip" else []


def identity_of(kind):
    """Parameter function of the jobs of a kind; Snakemake runs a job again when it changes."""

    def identity(wildcards):
        return {"seed": SEED, **JOBS[kind][wildcards.cell].identity}

    return identity


def start_of(wildcards):
    """The initial parameters of a cell, if it has any; only their parameters' change matters."""
    start = JOBS["train"][wildcards.cell].start
    return ancient(result(start)) if start else []


def absent_data(job):
    """Where data sets that a job needs were looked for and are not."""
    places = [data.place(source) for source in job.data]
    return [str(place) for place in places if place and not place.exists()]


def absent_data_of(kind):
    """Input function: data sets that are not there, which no rule makes, so that no job starts."""

    def absent(wildcards):
        return absent_data(JOBS[kind][wildcards.cell])

    return absent


def cost_of(wildcards):
    """The most expensive cells first, or the last of them runs alone at the end."""
    return int(JOBS["train"][wildcards.cell].cost)


def minutes_of(kind):
    """Resource function: four times what a cell is estimated to take, more for each attempt."""

    def minutes(wildcards, attempt):
        return attempt * max(15, int(JOBS[kind][wildcards.cell].cost / 15))

    return minutes


def beside(wildcards, output):
    """The folder of the family's scores and bounds, where its estimates are as well."""
    return os.path.dirname(output[0])


def cell_files(wildcards):
    """Every score and bound of the family."""
    return [
        result(job)
        for kind in ("train", "simulate", "bound")
        for name, job in JOBS[kind].items()
        if name not in SKIPPED
    ]


def caption(wildcards):
    """Caption of a figure or table, with the scale and data it shows."""
    shown = {**PAPER.tables, **PAPER.figures}[wildcards.name]
    return f"{shown.caption} Scale {SCALE}: {GRID.shows}."


def title(wildcards):
    """Title of a figure or table."""
    return {**PAPER.tables, **PAPER.figures}[wildcards.name].title


for source in sorted({s for name in LACKING for s in JOBS["train"][name].data}):
    try:
        if not SKIPPED:
            data.require(source)
    except InputError as error:
        logger.warning(f"{FAMILY}: some of its models cannot be trained: {error}")


rule simulate:
    output:
        f"{HERE}/scores/{{cell}}.parquet",
    log:
        f"{LOGS}/{FAMILY}/scores/{{cell}}.log",
    benchmark:
        f"{LOGS}/{FAMILY}/scores/{{cell}}.tsv"
    wildcard_constraints:
        cell=any_of(JOBS["simulate"]),
    conda:
        "../../envs/hiddenstate.yaml"
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=minutes_of("simulate"),
    params:
        family=FAMILY,
        config=SCALE_FILE,
        cell=identity_of("simulate"),
    message:
        f"{FAMILY}: simulate {{wildcards.cell}}"
    shell:
        "hiddenstate simulate {params.family} --config {params.config:q}"
        " --cell {wildcards.cell:q} --out {output:q} > {log:q} 2>&1"


rule bound:
    output:
        f"{HERE}/bounds/{{cell}}.parquet",
    log:
        f"{LOGS}/{FAMILY}/bounds/{{cell}}.log",
    benchmark:
        f"{LOGS}/{FAMILY}/bounds/{{cell}}.tsv"
    wildcard_constraints:
        cell=any_of(JOBS["bound"]),
    conda:
        "../../envs/hiddenstate.yaml"
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=minutes_of("bound"),
    params:
        family=FAMILY,
        config=SCALE_FILE,
        cell=identity_of("bound"),
    message:
        f"{FAMILY}: bounds, {{wildcards.cell}}"
    shell:
        "hiddenstate bound {params.family} --config {params.config:q}"
        " --cell {wildcards.cell:q} --out {output:q} > {log:q} 2>&1"


rule start:
    input:
        absent_data_of("start"),
    output:
        f"{HERE}/starts/{{cell}}.parquet",
    log:
        f"{LOGS}/{FAMILY}/starts/{{cell}}.log",
    benchmark:
        f"{LOGS}/{FAMILY}/starts/{{cell}}.tsv"
    wildcard_constraints:
        cell=any_of(JOBS["start"]),
    conda:
        "../../envs/hiddenstate.yaml"
    threads: 1
    resources:
        mem_mb=growing(3000),
        runtime=minutes_of("start"),
        gpu=int(config["device"] != "cpu"),
        device=config["device"],
    params:
        family=FAMILY,
        config=SCALE_FILE,
        cell=identity_of("start"),
    message:
        f"{FAMILY}: initial parameters {{wildcards.cell}}"
    shell:
        "hiddenstate start {params.family} --config {params.config:q}"
        " --cell {wildcards.cell:q} --device {resources.device} --out {output:q} > {log:q} 2>&1"


# The device is a resource, not a parameter: another one is no reason to train again. A thread
# trains one model at a time; cells side by side use cores better than the threads of one.
rule train:
    input:
        absent_data_of("train"),
        start=start_of,
    output:
        f"{HERE}/scores/{{cell}}.parquet",
    log:
        f"{LOGS}/{FAMILY}/scores/{{cell}}.log",
    benchmark:
        f"{LOGS}/{FAMILY}/scores/{{cell}}.tsv"
    wildcard_constraints:
        cell=any_of(JOBS["train"]),
    priority: cost_of
    conda:
        "../../envs/hiddenstate.yaml"
    threads: 1
    resources:
        mem_mb=growing(4000),
        models_mb=3000,
        runtime=minutes_of("train"),
        gpu=int(config["device"] != "cpu"),
        device=config["device"],
    params:
        family=FAMILY,
        config=SCALE_FILE,
        cell=identity_of("train"),
        checkpoint=f"{HERE}/checkpoints/{{cell}}",
    message:
        f"{FAMILY}: train {{wildcards.cell}}"
    shell:
        "hiddenstate train {params.family} --config {params.config:q}"
        " --cell {wildcards.cell:q} --checkpoint {params.checkpoint:q}"
        " --device {resources.device} --workers {threads} --memory {resources.models_mb}"
        " --out {output:q} --start {input.start:q} > {log:q} 2>&1"


rule restore:
    input:
        cached("{cell}"),
    output:
        f"{HERE}/scores/{{cell}}.parquet",
    log:
        f"{LOGS}/{FAMILY}/scores/{{cell}}.log",
    benchmark:
        f"{LOGS}/{FAMILY}/scores/{{cell}}.tsv"
    wildcard_constraints:
        cell=any_of(JOBS["train"]),
    conda:
        "../../envs/hiddenstate.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=15,
    params:
        family=FAMILY,
        config=SCALE_FILE,
        cell=identity_of("train"),
    message:
        f"{FAMILY}: restore {{wildcards.cell}}"
    shell:
        "hiddenstate restore {params.family} --config {params.config:q}"
        " --cell {wildcards.cell:q} --cached {input:q} --out {output:q} > {log:q} 2>&1"


rule verify:
    input:
        absent_data_of("train"),
        cached=cached("{cell}"),
        start=start_of,
    output:
        f"{HERE}/verified/{{cell}}.csv",
    log:
        f"{LOGS}/{FAMILY}/verified/{{cell}}.log",
    benchmark:
        f"{LOGS}/{FAMILY}/verified/{{cell}}.tsv"
    wildcard_constraints:
        cell=any_of(JOBS["train"]),
    priority: cost_of
    conda:
        "../../envs/hiddenstate.yaml"
    threads: 1
    resources:
        mem_mb=growing(4000),
        models_mb=3000,
        runtime=minutes_of("train"),
        gpu=int(config["device"] != "cpu"),
        device=config["device"],
    params:
        family=FAMILY,
        config=SCALE_FILE,
        cell=identity_of("train"),
        checkpoint=f"{HERE}/checkpoints/verified-{{cell}}",
        models=config["verify_models"],
    message:
        f"{FAMILY}: verify {{wildcards.cell}}"
    shell:
        "hiddenstate verify {params.family} --config {params.config:q}"
        " --cell {wildcards.cell:q} --cached {input.cached:q} --checkpoint {params.checkpoint:q}"
        " --models {params.models} --device {resources.device} --workers {threads}"
        " --memory {resources.models_mb} --out {output:q} --start {input.start:q} > {log:q} 2>&1"


rule estimate:
    input:
        cell_files,
    output:
        f"{HERE}/estimates.csv",
    log:
        f"{LOGS}/{FAMILY}/estimate.log",
    benchmark:
        f"{LOGS}/{FAMILY}/estimate.tsv"
    conda:
        "../../envs/hiddenstate.yaml"
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(15),
    params:
        family=FAMILY,
        config=SCALE_FILE,
        grid=GRID.model_dump(mode="json"),
        code=code.digest(PAPER.estimate.__module__),
        results=beside,
        missing="skip" if config["missing_scores"] == "skip" else "error",
    message:
        f"{FAMILY}: estimates from scores and bounds"
    shell:
        "hiddenstate estimate {params.family} --config {params.config:q}"
        " --results {params.results:q} --missing {params.missing} --out {output:q} > {log:q} 2>&1"


rule figure:
    input:
        f"{HERE}/estimates.csv",
    output:
        pdf=f"{FIGURES}/{FAMILY}/{{name}}.pdf",
        png=report(
            f"{FIGURES}/{FAMILY}/{{name}}.png",
            caption="../report/caption.rst",
            category="Figures",
            subcategory=FAMILY,
            labels={"figure": "{name}"},
        ),
    log:
        f"{LOGS}/{FAMILY}/figure_{{name}}.log",
    benchmark:
        f"{LOGS}/{FAMILY}/figure_{{name}}.tsv"
    wildcard_constraints:
        name=any_of(PAPER.figures),
    conda:
        "../../envs/hiddenstate.yaml"
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=growing(15),
    params:
        family=FAMILY,
        config=SCALE_FILE,
        code=code.digest(*PAPER.modules_of(Figure)),
        title=title,
        caption=caption,
    message:
        f"{FAMILY}: {{params.title}}"
    shell:
        "hiddenstate figure {params.family} {wildcards.name} --config {params.config:q}"
        " --estimates {input:q} --out {output.pdf:q} {output.png:q} > {log:q} 2>&1"


rule table:
    input:
        f"{HERE}/estimates.csv",
    output:
        csv=report(
            f"{HERE}/tables/{{name}}.csv",
            caption="../report/caption.rst",
            category="Tables",
            subcategory=FAMILY,
            labels={"table": "{name}"},
        ),
        md=f"{HERE}/tables/{{name}}.md",
        tex=f"{HERE}/tables/{{name}}.tex",
    log:
        f"{LOGS}/{FAMILY}/table_{{name}}.log",
    benchmark:
        f"{LOGS}/{FAMILY}/table_{{name}}.tsv"
    wildcard_constraints:
        name=any_of(PAPER.tables),
    conda:
        "../../envs/hiddenstate.yaml"
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=growing(15),
    params:
        family=FAMILY,
        config=SCALE_FILE,
        code=code.digest(*PAPER.modules_of(Table)),
        title=title,
        caption=caption,
    message:
        f"{FAMILY}: {{params.title}}"
    shell:
        "hiddenstate table {params.family} {wildcards.name} --config {params.config:q}"
        " --estimates {input:q} --out {output.csv:q} {output.md:q} {output.tex:q} > {log:q} 2>&1"
