# The rules of one paper: those that its file in this folder names are used under the paper's name,
# such as encoding_loss_simulate. `config["family"]` says which paper.


include: "common.smk"
include: "jobs.smk"


# Simulations and bounds take seconds, as starting a job does: neighbours share one. A rule for each,
# for its outputs are files of no pattern.
for NAME, CELLS in forecast.shared(COMPUTED).items():

    rule:
        name:
            NAME
        output:
            [result(job) for job in CELLS],
        log:
            f"{LOGS}/{FAMILY}/{NAME}.log",
        benchmark:
            f"{LOGS}/{FAMILY}/{NAME}.tsv"
        conda:
            "../../envs/hiddenstate.yaml"
        threads: 1
        resources:
            mem_mb=growing(2000),
            runtime=minutes_for(forecast.cost(CELLS)),
        params:
            family=FAMILY,
            config=literally(SCALE_FILE),
            kind=CELLS[0].work.kind,
            cells=[job.cell.name for job in CELLS],
            identities=[{"seed": SEED, **job.identity} for job in CELLS],
        message:
            f"{FAMILY}: {several(CELLS)}"
        shell:
            "hiddenstate job {params.kind:q} {params.family} --config {params.config:q}"
            " --cell {params.cells:q} --out {output:q} > {log:q} 2>&1"


if JOBS["start"]:

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
        # Before anything else: the most expensive training waits for it.
        priority: 1000
        conda:
            "../../envs/hiddenstate.yaml"
        threads: 1
        resources:
            mem_mb=growing(3000),
            runtime=minutes_of("start"),
            gpu=int(config["device"] != "cpu"),
            device=config["device"],
            cached=CACHED_SCORES,
        params:
            family=FAMILY,
            config=literally(SCALE_FILE),
            cell=identity_of("start"),
        message:
            f"{FAMILY}: initial parameters {{wildcards.cell}}"
        shell:
            "hiddenstate job start {params.family} --config {params.config:q}"
            " --cell {wildcards.cell:q} --device {resources.device} --cached {resources.cached:q}"
            " --out {output:q} > {log:q} 2>&1"


if JOBS["train"]:

    # The device is a resource, not a parameter: another one is no reason to train again. A thread
    # trains one model at a time; cells side by side use cores better than the threads of one.
    rule train:
        input:
            absent_data_of("train"),
            start=start_of,
            parts=parts_of,
        output:
            f"{HERE}/scores/{{cell}}.parquet",
        log:
            f"{LOGS}/{FAMILY}/scores/{{cell}}.log",
        benchmark:
            f"{LOGS}/{FAMILY}/scores/{{cell}}.tsv"
        wildcard_constraints:
            cell=any_of(JOBS["train"].keys() - CACHED),
        priority: cost_of
        conda:
            "../../envs/hiddenstate.yaml"
        threads: 1
        resources:
            mem_mb=growing(4000),
            models_mb=MODELS_MB,
            runtime=minutes_of("train", gathers=True),
            gpu=int(config["device"] != "cpu"),
            device=config["device"],
            parts=number_of_parts,
            own_parts=f"{HERE}/parts",
            cached_parts=f"{CACHED_SCORES}/parts",
        params:
            family=FAMILY,
            config=literally(SCALE_FILE),
            cell=identity_of("train"),
            checkpoint=f"{HERE}/checkpoints/{{cell}}",
        message:
            f"{FAMILY}: train {{wildcards.cell}}"
        shell:
            "hiddenstate job train {params.family} --config {params.config:q}"
            " --cell {wildcards.cell:q} --checkpoint {params.checkpoint:q}"
            " --device {resources.device} --workers {threads} --memory {resources.models_mb}"
            " --gathers {resources.parts} --parts {resources.own_parts:q}"
            " {resources.cached_parts:q}"
            " --out {output:q} --start {input.start:q} > {log:q} 2>&1"


if PARTS:

    # Some models of a cell whose training takes too long for one job. They are kept in the cell's
    # checkpoint, where the job that writes the scores finds them.
    rule part:
        input:
            absent_data_of("train"),
            start=start_of,
        output:
            temp(f"{HERE}/parts/{{cell}}.part-{{part}}-of-{{parts}}.parquet"),
        log:
            f"{LOGS}/{FAMILY}/scores/{{cell}}-part{{part}}of{{parts}}.log",
        benchmark:
            f"{LOGS}/{FAMILY}/scores/{{cell}}-part{{part}}of{{parts}}.tsv"
        wildcard_constraints:
            cell=any_of(PARTS),
            part="[0-9]+",
            parts="[0-9]+",
        priority: cost_of
        conda:
            "../../envs/hiddenstate.yaml"
        threads: 1
        resources:
            mem_mb=growing(4000),
            models_mb=MODELS_MB,
            runtime=minutes_of("train", part=True),
            gpu=int(config["device"] != "cpu"),
            device=config["device"],
            cached_parts=f"{CACHED_SCORES}/parts",
        params:
            family=FAMILY,
            config=literally(SCALE_FILE),
            cell=identity_of("train"),
            checkpoint=f"{HERE}/checkpoints/{{cell}}",
        message:
            f"{FAMILY}: train {{wildcards.cell}}, part {{wildcards.part}} of {{wildcards.parts}}"
        shell:
            "hiddenstate job train {params.family} --config {params.config:q}"
            " --cell {wildcards.cell:q} --checkpoint {params.checkpoint:q}"
            " --device {resources.device} --workers {threads} --memory {resources.models_mb}"
            " --part {wildcards.part:q}/{wildcards.parts:q} --parts {resources.cached_parts:q}"
            " --out {output:q} --start {input.start:q} > {log:q} 2>&1"


if FROM_CACHE:

    # One job for all cells: each would take longer to start than to run.
    rule restore:
        input:
            literally([str(kept(job)) for job in FROM_CACHE]),
        output:
            [result(job) for job in FROM_CACHE],
        log:
            f"{LOGS}/{FAMILY}/restore.log",
        benchmark:
            f"{LOGS}/{FAMILY}/restore.tsv"
        conda:
            "../../envs/hiddenstate.yaml"
        threads: 1
        resources:
            mem_mb=1000,
            runtime=15,
        params:
            family=FAMILY,
            config=literally(SCALE_FILE),
            cached=literally(f"{CACHE}/{FAMILY}"),
            kept=content(*[kept(job) for job in FROM_CACHE]),
            results=literally(HERE),
        message:
            f"{FAMILY}: restore cached results"
        shell:
            "hiddenstate job restore {params.family} --config {params.config:q}"
            " --cached {params.cached:q} --out {params.results:q} > {log:q} 2>&1"


if JOBS["train"]:

    rule verify:
        input:
            absent_data_of("train", again=True),
            cached=cached_scores,
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
            models_mb=MODELS_MB,
            runtime=minutes_of("train"),
            gpu=int(config["device"] != "cpu"),
            device=config["device"],
        params:
            family=FAMILY,
            config=literally(SCALE_FILE),
            cell=identity_of("train"),
            trained_by=trained_by,
            checkpoint=f"{HERE}/checkpoints/verified-{{cell}}",
            models=config["verify_models"],
        message:
            f"{FAMILY}: verify {{wildcards.cell}}"
        shell:
            "hiddenstate job verify {params.family} --config {params.config:q}"
            " --cell {wildcards.cell:q} --cached {input.cached:q} --checkpoint {params.checkpoint:q}"
            " --models {params.models} --device {resources.device} --workers {threads}"
            " --memory {resources.models_mb} --out {output:q} --start {input.start:q} > {log:q} 2>&1"


if RESTORED["simulate"] or RESTORED["bound"]:

    rule recompute:
        input:
            cached_result,
        output:
            f"{HERE}/recomputed/{{kind}}/{{cell}}.csv",
        log:
            f"{LOGS}/{FAMILY}/recomputed/{{kind}}/{{cell}}.log",
        benchmark:
            f"{LOGS}/{FAMILY}/recomputed/{{kind}}/{{cell}}.tsv"
        wildcard_constraints:
            kind="simulate|bound",
            cell=any_of({*RESTORED["simulate"], *RESTORED["bound"]}),
        conda:
            "../../envs/hiddenstate.yaml"
        threads: 1
        resources:
            mem_mb=growing(2000),
            runtime=growing(15),
        params:
            family=FAMILY,
            config=literally(SCALE_FILE),
            identity=identity_of_result,
        message:
            f"{FAMILY}: compute {{wildcards.cell}} again"
        shell:
            "hiddenstate job recompute {params.family} --config {params.config:q}"
            " --kind {wildcards.kind:q} --cell {wildcards.cell:q} --cached {input:q}"
            " --out {output:q} > {log:q} 2>&1"


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
        config=literally(SCALE_FILE),
        grid=literally(GRID.model_dump(mode="json")),
        code=code.digest(PAPER.estimate.__module__, "hiddenstate.pipeline.estimates"),
        results=beside,
        missing="skip" if config["missing_scores"] == "skip" else "error",
    message:
        f"{FAMILY}: estimates from scores and bounds"
    shell:
        "hiddenstate job estimate {params.family} --config {params.config:q}"
        " --results {params.results:q} --missing {params.missing} --out {output:q} > {log:q} 2>&1"


if FIGURE_TITLES:

    # What is shown is drawn in one job, for starting one takes longer than drawing. Snakemake's report
    # has one caption for a rule; each figure's own stands in results/<scale>/report.html.
    rule figures:
        input:
            f"{HERE}/estimates.csv",
        output:
            pdf=expand(f"{FIGURES}/{FAMILY}/{{name}}.pdf", name=FIGURE_TITLES),
            png=[
                report(
                    f"{FIGURES}/{FAMILY}/{name}.png",
                    caption="../report/family.rst",
                    category="Figures",
                    subcategory=FAMILY,
                    labels={"figure": name, "title": title},
                )
                for name, title in FIGURE_TITLES.items()
            ],
            digests=f"{FIGURES}/{FAMILY}/digests.json",
        log:
            f"{LOGS}/{FAMILY}/figures.log",
        benchmark:
            f"{LOGS}/{FAMILY}/figures.tsv"
        conda:
            "../../envs/hiddenstate.yaml"
        threads: 1
        resources:
            mem_mb=growing(1000),
            runtime=growing(15),
        params:
            family=FAMILY,
            config=literally(SCALE_FILE),
            code=code.digest(*PAPER.modules_of(Figure)),
            paper=literally(PAPER.title),
            shows=literally(GRID.shows),
            out=beside,
        message:
            f"{FAMILY}: figures"
        shell:
            "hiddenstate job figures {params.family} --config {params.config:q}"
            " --estimates {input:q} --out {params.out:q} > {log:q} 2>&1"


# With the tables, for starting a job takes as long.
rule claims:
    input:
        claims=literally(f"{PREFIX}workflow/config/claims/{FAMILY}.yaml"),
        estimates=f"{HERE}/estimates.csv",
    output:
        [
            report(
                f"{HERE}/tables/{name}.csv",
                caption="../report/family.rst",
                category="Tables",
                subcategory=FAMILY,
                labels={"table": name, "title": title},
            )
            for name, title in TABLE_TITLES.items()
        ],
        expand(
            f"{HERE}/tables/{{name}}.{{kind}}", name=TABLE_TITLES, kind=("md", "tex")
        ),
        [f"{HERE}/tables/digests.json"] * bool(TABLE_TITLES),
        csv=f"{HERE}/claims.csv",
        md=f"{HERE}/claims.md",
    log:
        f"{LOGS}/{FAMILY}/claims.log",
    benchmark:
        f"{LOGS}/{FAMILY}/claims.tsv"
    conda:
        "../../envs/hiddenstate.yaml"
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=growing(15),
    params:
        family=FAMILY,
        config=literally(SCALE_FILE),
        code=code.digest(
            "hiddenstate.study.claims",
            "hiddenstate.study.verdicts",
            *PAPER.modules_of(Check),
            *PAPER.modules_of(Table),
        ),
        stated=content(f"{PREFIX}workflow/config/claims/{FAMILY}.yaml"),
        paper=literally(PAPER.title),
        shows=literally(GRID.shows),
        out=literally(HERE),
        tables=literally(f"{HERE}/tables"),
    message:
        f"{FAMILY}: claims and tables"
    shell:
        "hiddenstate job claims {params.family} --config {params.config:q} --claims {input.claims:q}"
        " --estimates {input.estimates:q} --tables {params.tables:q} --out {params.out:q}"
        " > {log:q} 2>&1"
