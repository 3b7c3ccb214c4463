"""What a run leaves behind: each file as it was written, and made of the estimates beside it."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from hiddenstate.pipeline import estimates, sealed
from hiddenstate.study import verdicts

PAGES = ("claims.md", "report.html")


def check(paths: Iterable[Path], grids: Mapping[str, str], figures: Path, results: Path) -> None:
    """InputError for a file that was cut, edited or made of other estimates than the run's.

    paths: figures, tables, verdicts and pages; those that are there are looked at. grids: the
    families' grids by ``config.grid_names``. figures, results: folders of the scale.
    """
    there = sorted(path for path in paths if path.is_file())
    judged = {path: verdicts.read(path) for path in there if path.name == "claims.csv"}
    for name, grid in grids.items():
        folders = figures / name, results / name / "tables"
        drawn = [path for path in there if path.parent in folders]
        mine = {path: verdicts.of_family(rows, name) for path, rows in judged.items()}
        source = results / name / "estimates.csv"
        made_of = None
        if source.exists() and (drawn or source in there or any(map(len, mine.values()))):
            made_of = estimates.read(source, grid).attrs[sealed.DIGEST]
        for path in drawn:
            if path.name != sealed.MANIFEST:
                sealed.signed(path, made_of)
        if made_of is not None:
            for path, rows in mine.items():
                verdicts.check_estimates(path, rows, source, made_of)
    for path in there:
        beside = path.with_name("claims.csv")
        if path.name in PAGES and beside.exists():
            sealed.check_page(path, sealed.digest_of(beside))
