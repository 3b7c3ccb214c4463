# The jobs of one paper: what decides them, what they need and where their results go.

FAMILY = config["family"]
PAPER = papers.load(FAMILY)
WHOLE = read_scale()
SEED, GRID = WHOLE.seed, getattr(WHOLE, FAMILY)
try:
    JOBS = PAPER.jobs(GRID)
except InputError as error:
    raise WorkflowError(f"{SCALE_FILE}: {FAMILY}: {error}")
HERE = f"{RESULTS}/{FAMILY}"
# Memory of the models that a job trains at once, in MB; 0: what the device has free.
MODELS_MB = 3000 if config["device"] == "cpu" else 0


def result(job):
    """Where a job's result goes."""
    return f"{HERE}/{job.work.folder}/{job.cell.name}.parquet"


def cached(name):
    """Where the cached scores of a cell are, if there are any."""
    return f"{CACHE}/{FAMILY}/{name}.parquet"


# Where part files and initial parameters are looked for; nowhere if the cache is to be ignored. A
# resource of the jobs, as the device is: another place is no reason to train again.
CACHED_SCORES = (
    f"{CACHE}/{FAMILY}" if config["scores"] == "cached" else f"{HERE}/uncached"
)


def cached_scores(wildcards):
    """The cached scores of the cell, as an input of a rule."""
    return cached(wildcards.cell)


def served(kind):
    """Names of the cells whose results are cached; a file that is damaged stops the run.

    So do scores of other models, unless another scale has that cell. Results of other code are
    computed again.
    """
    try:
        folder = Path(f"{CACHE}/{FAMILY}")
        return forecast.served(JOBS[kind], SEED, Path(SCALE_FILE), FAMILY, folder)
    except InputError as error:
        raise WorkflowError(
            f"{error}\nRemove the file, or ignore the cache with --config scores=train"
        )


def kept(job):
    """Where the cached result of a job is, if there is one."""
    return cache.path(Path(f"{CACHE}/{FAMILY}"), job)


def cached_result(wildcards):
    """The cached result of a cell, as an input of a rule."""
    return str(kept(JOBS[wildcards.kind][wildcards.cell]))


RESTORED = {
    kind: served(kind) if config["scores"] == "cached" else [] for kind in cache.SERVED
}
CACHED = RESTORED["train"]
FROM_CACHE = [JOBS[kind][name] for kind in RESTORED for name in RESTORED[kind]]
# Simulations and bounds that are computed.
COMPUTED = {
    kind: {name: job for name, job in JOBS[kind].items() if name not in RESTORED[kind]}
    for kind in forecast.SHARED
}
# Scores that are neither here nor cached: they have to be trained, or left out, or are an error.
LACKING = [
    name
    for name, job in JOBS["train"].items()
    if name not in CACHED and not job.computed(result(job), SEED)
]
if LACKING and config["scores"] == "cached" and config["missing_scores"] == "error":
    raise WorkflowError(
        "missing_scores is 'error', and cached files are missing (missing_scores=train trains "
        "their cells instead):\n" + "\n".join(map(cached, LACKING))
    )
SKIPPED = LACKING if config["missing_scores"] == "skip" else []
# Cells that several jobs train, with how many. Of finished ones it is as many as there were, so that
# another number is no reason to train again.
PARTS = forecast.parts(
    {name: JOBS["train"][name] for name in LACKING}, float(config["part_hours"])
) | {
    name: number
    for name in JOBS["train"].keys() - set(CACHED) - set(LACKING)
    if (number := scores.parts(result(JOBS["train"][name])))
}


def identity_of(kind):
    """Parameter function of the jobs of a kind; Snakemake runs a job again when it changes."""

    def identity(wildcards):
        job = JOBS[kind][wildcards.cell]
        own = {"seed": SEED, **job.identity}
        if not job.data:
            return own
        # Data that are gone are no reason: they count as those that the result was computed from.
        # Nor is a result that tells none.
        made = scores.files_of(result(job))
        files = {name: job.files.get(name, found) for name, found in made.items()}
        files = files if Path(result(job)).exists() else job.files
        return {**own, **({"files": files} if files else {})}

    return identity


def several(jobs):
    """What jobs that are one do, in a few words."""
    first, *others = jobs
    more = f" and {len(others)} more" if others else ""
    return f"{first.work.kind} {first.cell.name}{more}"


def allowed(seconds, attempt, goes_on=False):
    """Minutes for what is estimated to take so long: more than that, and more for each attempt.

    goes_on: what was finished by an attempt is kept for the next, which needs no more time.
    """
    # Estimates of seconds may be far off; those of hours are from many models, which take as long.
    factor = float(config["walltime_factor"]) if seconds > 3600 else 4
    minutes = max(15, int(factor * seconds / 60)) * (1 if goes_on else attempt)
    longest = int(60 * float(config["max_walltime"]))
    return min(minutes, longest) if longest else minutes


def minutes_for(seconds):
    """Resource function: the minutes for what is estimated to take so long."""

    def minutes(wildcards, attempt):
        return allowed(seconds, attempt)

    return minutes


def computed_by(job):
    """The cached file of a result, and code and libraries that compute it again.

    Verdicts on cached results are of these and no others.
    """
    runs = [one.work.run for one in (job, job.start) if one]
    made = [code.digest_of(run) for run in runs] + [
        code.digest("hiddenstate.pipeline.verification")
    ]
    return {"cached": content(kept(job))(None), "code": made, **scores.packages()}


def trained_by(wildcards):
    """What trains a cell's models again, as a parameter of a rule."""
    return computed_by(JOBS["train"][wildcards.cell])


def identity_of_result(wildcards):
    """What decides a result, and what computes it again, as a parameter of a rule."""
    job = JOBS[wildcards.kind][wildcards.cell]
    return {"seed": SEED, "identity": job.identity, "by": computed_by(job)}


def start_of(wildcards):
    """The initial parameters of a cell, if it has any; only their parameters' change matters."""
    start = JOBS["train"][wildcards.cell].start
    if not start:
        return []
    # Of a job whose ancient input is made again Snakemake does not ask if it is to run again itself.
    return result(start) if wildcards.cell in LACKING else ancient(result(start))


def absent_data(job):
    """Where data sets that a job needs were looked for and are not."""
    places = [data.place(source) for source in job.data]
    return [str(place) for place in places if place and not place.exists()]


def absent_data_of(kind, again=False):
    """Input function: data sets that are not there, which no rule makes, so that no job starts.

    A job whose result is there needs none, but to do it again.
    """

    def absent(wildcards):
        job = JOBS[kind][wildcards.cell]
        done = job.computed(result(job), SEED)
        return [] if done and not again else absent_data(job)

    return absent


def cost_of(wildcards):
    """The most expensive cells first, or the last of them runs alone at the end."""
    return int(JOBS["train"][wildcards.cell].cost)


def number_of_parts(wildcards):
    """How many jobs train a cell's models before that which gathers them; 0 if it trains them itself.

    A resource, as the device is: Snakemake would take another parameter for a reason to train again.
    """
    return PARTS.get(wildcards.cell, 0)


def parts_of(wildcards):
    """What the parts of a cell write, if it is trained in parts."""
    number = number_of_parts(wildcards)
    return [
        f"{HERE}/parts/{wildcards.cell}.part-{k}-of-{number}.parquet"
        for k in range(1, number + 1)
    ]


def minutes_of(kind, part=False, gathers=False):
    """Resource function: the minutes for what a cell's job is estimated to take.

    part: of a job that trains a part of a cell. gathers: of one that finds all parts trained, if the
    cell has any.
    """

    def minutes(wildcards, attempt):
        seconds = JOBS[kind][wildcards.cell].cost
        if part:
            seconds /= int(wildcards.parts)
        elif gathers and wildcards.cell in PARTS:
            seconds = 0
        return allowed(seconds, attempt, goes_on=kind == "train")

    return minutes


def beside(wildcards, output):
    """The folder of a job's first file, as a parameter of its rule."""
    return os.path.dirname(output[0])


def cell_files(wildcards):
    """Every score and bound of the family."""
    return [
        result(job)
        for kind in ("train", "simulate", "bound")
        for name, job in JOBS[kind].items()
        if name not in SKIPPED
    ]


# Titles, by name, of the figures and tables that the scale has the cells for.
FIGURE_TITLES, TABLE_TITLES = (
    {name: thing.title for name, thing in PAPER.shown(kind, GRID).items()}
    for kind in (Figure, Table)
)

for source in sorted({s for name in LACKING for s in JOBS["train"][name].data}):
    try:
        if not SKIPPED:
            data.require(source)
    except InputError as error:
        logger.warning(f"{FAMILY}: some of its models cannot be trained: {error}")
