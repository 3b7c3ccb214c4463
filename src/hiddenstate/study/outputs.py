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
    for name, grid in grids.items():
        folders = figures / name, results / name / "tables"
        drawn = [path for path in there if path.parent in folders]
        judged = [p for p in there if p in (results / "claims.csv", results / name / "claims.csv")]
        source = results / name / "estimates.csv"
        made_of = None
        if source.exists() and (drawn or judged or source in there):
            made_of = estimates.read(source, grid).attrs[sealed.DIGEST]
        for path in drawn:
            if path.name != sealed.MANIFEST:
                sealed.signed(path, made_of)
        for path in judged:
            mine = verdicts.of_family(verdicts.read(path), name)
            verdicts.check_estimates(path, mine, source)
    for path in there:
        beside = path.with_name("claims.csv")
        if path.name in PAGES and beside.exists():
            sealed.check_page(path, sealed.digest_of(beside))
