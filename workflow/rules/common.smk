# Names and helpers that the rules share.

from hashlib import sha256
from pathlib import Path

from hiddenstate import config as scale_files
from hiddenstate import papers
from hiddenstate.errors import InputError

SCALE = config["scale"]
SCALE_FILE = f"workflow/config/scales/{SCALE}.yaml"
RESULTS = f"results/{SCALE}"
FIGURES = f"figures/{SCALE}"
LOGS = f"logs/{SCALE}"

# Estimates, figures, tables and verdicts cost seconds: any change of the package makes them anew.
# Cells may cost hours: only a change of their parameters does (or --forcerun).
CODE = sha256(
    b"".join(
        path.read_bytes() for path in sorted(Path("src/hiddenstate").rglob("*.py"))
    )
).hexdigest()[:16]


def read_scale():
    """The checked scale file; what is wrong with it stops the run before any job."""
    for key in config:
        if key != "scale":
            raise WorkflowError(f"config key {key!r} is not known; expected scale")
    known = sorted(path.stem for path in Path("workflow/config/scales").glob("*.yaml"))
    if SCALE not in known:
        raise WorkflowError(
            f"config key 'scale': got {SCALE!r}; expected one of {', '.join(known)}"
        )
    try:
        return scale_files.read(SCALE_FILE)
    except InputError as error:
        raise WorkflowError(str(error))


GRID = read_scale()
FAMILIES = {name: papers.load(name) for name in papers.names()}


def score_cells(family):
    """Cells of a family that an adversary scores."""
    return FAMILIES[family].score_cells(getattr(GRID, family))


def bound_cells(family):
    """Cells of a family that the accountant answers."""
    return FAMILIES[family].bound_cells(getattr(GRID, family))


def parameters_of(kind):
    """Parameter function for the jobs that make one cell; it returns what decides its numbers.

    Snakemake runs a cell again when the value changes, and only then.
    """
    cells_of = {"scores": score_cells, "bounds": bound_cells}[kind]

    def parameters(wildcards):
        cells = cells_of(wildcards.family)
        return {
            "seed": GRID.seed,
            **papers.find(cells, wildcards.cell, SCALE_FILE).parameters,
        }

    return parameters


def cell_files(wildcards):
    """Every score and bound of a family."""
    cells = {
        "scores": score_cells(wildcards.family),
        "bounds": bound_cells(wildcards.family),
    }
    return [
        f"{RESULTS}/{wildcards.family}/{kind}/{cell.name}.parquet"
        for kind, members in cells.items()
        for cell in members
    ]


def figure_files(family, kind=".pdf"):
    """Figures of a family in one format."""
    return [f"{FIGURES}/{family}/{name}{kind}" for name in FAMILIES[family].figures]


def table_files(family):
    """Tables of a family."""
    return [f"{RESULTS}/{family}/tables/{name}.md" for name in FAMILIES[family].tables]


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
