# The papers that the scale has, and what is shown of them.

GRID = read_scale()
FAMILIES = {name: papers.load(name) for name in scale_files.families(GRID)}


def shown_files(family):
    """Figures and tables of a paper that the scale has the cells for, by target name."""
    figures, tables = (
        FAMILIES[family].shown(kind, getattr(GRID, family)) for kind in (Figure, Table)
    )
    return {name: f"{FIGURES}/{family}/{name}.pdf" for name in figures}, [
        f"{RESULTS}/{family}/tables/{name}.md" for name in tables
    ]


def shown_parts():
    """What the page of claims is made of: the pictures and tables of every paper."""
    figures = [
        f"{path[:-4]}.png" for shown, _ in SHOWN.values() for path in shown.values()
    ]
    return figures + [
        f"{path[:-3]}.csv" for _, tables in SHOWN.values() for path in tables
    ]


def expected_verdicts():
    """The file of the verdicts that are expected at the scale, if there is one."""
    path = Path(f"{PREFIX}{verdicts.expectation(SCALE)}")
    return [str(path)] if path.exists() else []


def verified_files():
    """Verdicts on cached results that verify_cache computes again, drawn at random."""
    able = {kind: verifiable(kind) for kind in cache.SERVED}
    chance = random.Random(int(config["verify_seed"]))
    if config["verify_cells"] == "tenth":
        parts = [chance.sample(found, -(-len(found) // 10)) for found in able.values()]
        return [path for part in parts for path in part]
    every = [path for found in able.values() for path in found]
    return chance.sample(every, min(int(config["verify_cells"]), len(every)))


def verifiable(kind):
    """Verdicts that there may be on cached results of a kind, of today's code."""
    models, able = int(config["verify_models"]), []
    for name, family in FAMILIES.items():
        for cell, job in family.jobs(getattr(GRID, name))[kind].items():
            if not cache.fits(cache.path(Path(f"{CACHE}/{name}"), job), job, GRID.seed):
                continue
            if kind != "train":
                able.append(f"{RESULTS}/{name}/recomputed/{kind}/{cell}.csv")
                continue
            trained, repeats = job.work.size(job.cell)
            sizes = trained * repeats, models * repeats
            # Those of each adversary with the canary and without it.
            if verification.can_disagree(*sizes, 2 * job.work.adversaries(job.cell)):
                able.append(f"{RESULTS}/{name}/verified/{cell}.csv")
    return sorted(able)


SHOWN = {family: shown_files(family) for family in FAMILIES}
# The cells of each paper and its estimates, its figures, and its tables and claims, once its rules are
# read.
STANDS_ON, DRAWN, TOLD = {}, {}, {}
