# Names and helpers that the rules share.

import random
import re
from functools import cache
from hashlib import sha256
from pathlib import Path

from hiddenstate import config as scale_files
from hiddenstate import data, papers, scores, verification
from hiddenstate.errors import InputError

SCALE = config["scale"]
SCALE_FILE = f"workflow/config/scales/{SCALE}.yaml"
RESULTS = f"results/{SCALE}"
CACHE = "results/cached"
FIGURES = f"figures/{SCALE}"
LOGS = f"logs/{SCALE}"
SCALES = sorted(path.stem for path in Path("workflow/config/scales").glob("*.yaml"))

# Estimates, figures, tables and verdicts cost seconds: any change of the package makes them anew.
# Cells may cost hours: only a change of their parameters does (or --forcerun).
CODE = sha256(
    b"".join(
        path.read_bytes() for path in sorted(Path("src/hiddenstate").rglob("*.py"))
    )
).hexdigest()[:16]

# Config keys: a pattern of the values, and what the error message expects.
KEYS = {
    "scale": ("|".join(SCALES), f"one of {', '.join(SCALES)}"),
    "scores": ("cached|train", "cached or train"),
    "missing_scores": ("train|error", "train or error"),
    "device": (r"cpu|mps|cuda(:\d+)?", "cpu, cuda, cuda:1, …"),
    "verify_cells": (r"[1-9]\d*", "a number from 1"),
    "verify_models": (r"[1-9]\d*", "a number from 1"),
    "verify_seed": (r"\d+", "a number from 0"),
}
NOTHING = "(?!)"  # matches no wildcard


def read_scale():
    """The checked scale file; what is wrong with it or the config stops the run before any job."""
    for key, value in config.items():
        if key not in KEYS:
            raise WorkflowError(
                f"config key {key!r} is not known; expected one of {', '.join(KEYS)}"
            )
        pattern, expected = KEYS[key]
        if not re.fullmatch(pattern, str(value)):
            raise WorkflowError(
                f"config key {key!r}: got {value!r}; expected {expected}"
            )
    try:
        return scale_files.read(SCALE_FILE)
    except InputError as error:
        raise WorkflowError(str(error))


GRID = read_scale()
FAMILIES = {name: papers.load(name) for name in scale_files.families(GRID)}
CELLS = {
    name: {
        kind: {cell.name: cell for cell in cells}
        for kind, cells in family.cells(getattr(GRID, name)).items()
    }
    for name, family in FAMILIES.items()
}
TRAINED = [name for name in FAMILIES if CELLS[name]["train"]]


def cached_file(family, cell):
    """Where the cached scores of a cell are, if there are any."""
    return f"{CACHE}/{family}/{cell}.parquet"


CACHED = {
    (family, cell)
    for family in TRAINED
    for cell in CELLS[family]["train"]
    if Path(cached_file(family, cell)).exists()
}
RESTORED = CACHED if config["scores"] == "cached" else set()


def any_of(names):
    """Wildcard constraint: one of these names and no other."""
    return "|".join(map(re.escape, sorted(names))) or NOTHING


def cell_names(family, kind):
    """Wildcard constraint: the cells of a family, none if the scale lacks it."""
    return any_of(CELLS[family][kind] if family in CELLS else [])


def start_names():
    """Wildcard constraint: initial parameters of any family."""
    return any_of(cell for family in TRAINED for cell in CELLS[family]["start"])


def train_names(*, restored):
    """Wildcard constraint: the cells of any family that are restored, or that are trained."""
    return any_of(
        cell
        for family in TRAINED
        for cell in CELLS[family]["train"]
        if ((family, cell) in RESTORED) is restored
    )


def parameters_of(kind):
    """Parameter function for the jobs that make one cell; it returns what decides its numbers.

    Snakemake runs a cell again when the value changes, and only then.
    """

    def parameters(wildcards):
        cell = CELLS[wildcards.family][kind][wildcards.cell]
        return {"seed": GRID.seed, **cell.parameters}

    return parameters


def stop(message):
    """End the run before any job.

    Snakemake takes an exception of an input function for a reason to look for another rule, or to
    use the file that is there from an earlier run; it must be neither.
    """
    raise SystemExit(f"snakemake: error: {message}")


def require_data(family, cell, path):
    """Stop the run if a cell has to be made, to be written to path, without its data sets."""
    if not scores.computed(path, cell.parameters, GRID.seed):
        for source in FAMILIES[family].data(cell):
            try:
                data.require(source)
            except InputError as error:
                stop(f"{error}\nIt is needed for {path}")


def start_data(wildcards):
    """No file, but the data sets of initial parameters, if they have to be made."""
    family, name = wildcards.family, wildcards.cell
    cell = CELLS[family]["start"][name]
    require_data(family, cell, f"{RESULTS}/{family}/starts/{name}.parquet")
    return []


def start_file(family, cell):
    """The initial parameters of a cell, if it has any; only their parameters' change matters."""
    start = CELLS[family]["train"][cell].start
    return ancient(f"{RESULTS}/{family}/starts/{start.name}.parquet") if start else []


def train_cost(wildcards):
    """Dear cells first, or the last of them runs alone at the end."""
    family = FAMILIES[wildcards.family]
    return family.cost(CELLS[wildcards.family]["train"][wildcards.cell])


def train_input(wildcards):
    """Initial parameters of a cell that is trained; stop the run if it cannot or must not be."""
    family, name = wildcards.family, wildcards.cell
    cell = CELLS[family]["train"][name]
    path = f"{RESULTS}/{family}/scores/{name}.parquet"
    require_scores(family, [name])
    require_data(family, cell, path)
    return start_file(family, name)


def require_scores(family, names):
    """Stop the run if scores of these cells are missing that must not be trained."""
    if (config["scores"], config["missing_scores"]) != ("cached", "error"):
        return
    missing = [
        cached_file(family, name)
        for name in names
        if (family, name) not in CACHED
        and not scores.computed(
            f"{RESULTS}/{family}/scores/{name}.parquet",
            CELLS[family]["train"][name].parameters,
            GRID.seed,
        )
    ]
    if missing:
        stop(
            "missing_scores is 'error', and cached files are missing (missing_scores=train "
            "trains their cells instead):\n" + "\n".join(missing)
        )


@cache
def checked(family, cell):
    """The cached scores of a cell; stop the run if they are damaged or of another cell."""
    path = cached_file(family, cell)
    try:
        scores.check(path, CELLS[family]["train"][cell].parameters, GRID.seed)
    except InputError as error:
        stop(
            f"{error}\nRemove the file, or ignore the cache with --config scores=train"
        )
    return path


def restore_input(wildcards):
    """The checked cached scores of a cell."""
    return checked(wildcards.family, wildcards.cell)


def verify_input(wildcards):
    """The initial parameters of a cached cell, if it has any, to train from."""
    family, name = wildcards.family, wildcards.cell
    require_data(family, CELLS[family]["train"][name], "verify_cache")
    return start_file(family, name)


def verified_files(wildcards):
    """The cells that verify_cache trains anew: a few cached ones, drawn at random."""
    models = int(config["verify_models"])
    able = []
    for family, cell in sorted(CACHED):
        parameters = CELLS[family]["train"][cell].parameters
        repeats = parameters.get("repeats", 1)
        if verification.can_disagree(parameters["models"] * repeats, models * repeats):
            able.append(f"{RESULTS}/{family}/verified/{cell}.csv")
    if not CACHED:
        stop(f"nothing to verify: no cell of scale {SCALE} is cached in {CACHE}")
    if not able:
        stop(
            f"nothing to verify: {models} new models a world (verify_models) are too few to "
            "disagree with any cached scores"
        )
    few = min(int(config["verify_cells"]), len(able))
    return random.Random(int(config["verify_seed"])).sample(able, few)


def cell_files(wildcards):
    """Every score and bound of a family."""
    require_scores(wildcards.family, CELLS[wildcards.family]["train"])
    folders = {"train": "scores", "scores": "scores", "bounds": "bounds"}
    return [
        f"{RESULTS}/{wildcards.family}/{folder}/{cell}.parquet"
        for kind, folder in folders.items()
        for cell in CELLS[wildcards.family][kind]
    ]


def shown(family, figures):
    """Names of a family's figures or tables that the scale has the cells for."""
    grid = getattr(GRID, family)
    return [name for name in figures if FAMILIES[family].shows(grid, name)]


def figure_files(family, kind=".pdf"):
    """Figures of a family in one format."""
    return [
        f"{FIGURES}/{family}/{name}{kind}"
        for name in shown(family, FAMILIES[family].figures)
    ]


def table_files(family):
    """Tables of a family."""
    return [
        f"{RESULTS}/{family}/tables/{name}.md"
        for name in shown(family, FAMILIES[family].tables)
    ]


def estimates_by_family(wildcards, input):
    """FAMILY=FILE for every family whose claims are judged."""
    return [f"{family}={path}" for family, path in zip(FAMILIES, input.estimates)]


def caption(wildcards):
    """Caption of a figure or table, with the scale and data it shows."""
    family = FAMILIES[wildcards.family]
    shown = {**family.tables, **family.figures}[wildcards.name]
    return f"{shown.caption} Scale {SCALE}: {getattr(GRID, wildcards.family).shows}."


def title(wildcards):
    """Title of a figure or table."""
    family = FAMILIES[wildcards.family]
    return {**family.tables, **family.figures}[wildcards.name].title


wildcard_constraints:
    family="|".join(FAMILIES),
