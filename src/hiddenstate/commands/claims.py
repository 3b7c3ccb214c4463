"""``hiddenstate verdicts``, ``job claims``, ``collect`` and ``report``: claims judged and shown."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hiddenstate import files
from hiddenstate.commands import jobs
from hiddenstate.commands.printing import print_json
from hiddenstate.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


def claims(options: argparse.Namespace) -> None:
    """Judge the claims of a family from its estimates.

    FAMILY
    --claims FILE: path! | claims of the family
    --estimates FILE: path! | estimates of the family
    --out DIR: path! | directory to write claims.csv and claims.md to
    --tables DIR: path | directory to write the family's tables to
    --json: flag | print JSON instead of words
    """
    from hiddenstate.pipeline import sealed
    from hiddenstate.pipeline.family import Lacking, Table
    from hiddenstate.study import claims, levels, verdicts

    family, grid, seed = jobs.section(options)
    frame, whole = jobs.estimates(options, grid, seed)
    if options.claims.stem != options.family:
        raise InputError(f"--claims: got {options.claims}; expected {options.family}.yaml")
    level = levels.of(options.family, grid)
    if not whole:
        # With missing_scores=skip: a part of the paper's cells is not the paper's own parameters.
        level = level._replace(own=None)
    found = claims.judge(claims.read(options.claims), frame, level)
    verdicts.write(options.out, found, options.config.stem)
    if options.tables:
        for name, table in family.shown(Table, grid).items():
            try:
                drawn = table.draw(frame)
            except Lacking:
                drawn = frame[:0]
            _write_table(options.tables / name, drawn, frame.attrs[sealed.DIGEST])
    _print_verdicts(found, options)


def _write_table(path: Path, table: "pd.DataFrame", made_of: str) -> None:
    """Write a table as CSV, Markdown and LaTeX, signed with the digest of its estimates."""
    import pandas as pd

    from hiddenstate.pipeline import sealed

    if table.empty:  # a file of no column could not be read back
        table = pd.DataFrame({"result": ["none at this scale"]})
    for suffix, text in (
        (".csv", table.to_csv(index=False)),
        (".md", table.to_markdown(index=False) + "\n"),
        (".tex", table.to_latex(index=False, escape=True)),
    ):
        with files.atomic(path.with_name(f"{path.name}{suffix}")) as temporary:
            temporary.write_text(text, encoding="utf-8")
        sealed.sign(path.parent, {f"{path.name}{suffix}": made_of})


def collect(options: argparse.Namespace) -> None:
    """Join the verdicts of families; say if they are as expected.

    verdicts FILE: path+ | families' claims.csv
    --config FILE: path! | scale file
    --expected FILE: path | verdicts to compare with
    --out DIR: path! | directory to write claims.csv and claims.md to
    --json: flag | print JSON instead of words
    """
    from hiddenstate.pipeline import sealed
    from hiddenstate.study import config, verdicts

    found = verdicts.read(*options.verdicts, grids=config.grid_names(options.config))
    for path in options.verdicts:
        source = path.with_name("estimates.csv")
        if source.exists():
            rows, own = verdicts.read(path), sealed.digest_of(source)
            verdicts.check_estimates(path, rows, source, own)
    if len(twice := found.loc[found["id"].duplicated(), "id"]):
        names = ", ".join(map(str, options.verdicts))
        raise InputError(f"{names}: {twice.iloc[0]}: two of the files have its verdict")
    verdicts.write(options.out, found, options.config.stem, options.expected)
    _print_verdicts(found, options, options.expected)


def _print_verdicts(
    found: "pd.DataFrame", options: argparse.Namespace, expected: Path | None = None
) -> None:
    """Say how many claims have which verdict, and if they are as expected."""
    from hiddenstate.study import verdicts

    if options.json:
        print_json(verdicts.told(found, expected))
        return
    print("\n".join(verdicts.lines(found)))
    if expected:
        print(verdicts.compared(found, expected))


def verdicts(options: argparse.Namespace) -> None:
    """Write the verdicts of a run into the pages of a source tree.

    verdicts FILE: path | claims.csv of a scale
    --config FILE: path! | scale file
    --only FAMILY: str | family whose verdicts are replaced (default all)
    --tree DIR: path = . | source tree (default .)
    """
    from hiddenstate.study import config, publication, verdicts

    grids = config.grid_names(options.config)
    found = verdicts.read(options.verdicts)
    with files.alone(options.tree, files.WRITES):
        publication.publish(options.tree, found, options.config.stem, grids, options.only)


def report(options: argparse.Namespace) -> None:
    """Write the page of claims, figures and tables: one HTML file that needs no network.

    --config FILE: path! | scale file
    --verdicts FILE: path! | CSV file of `hiddenstate job collect`
    --figures DIR: path! | figures of the scale, by family
    --results DIR: path! | results of the scale, by family
    --cached DIR: path! | cached scores, by family
    --out FILE: path! | HTML file to write
    """
    from hiddenstate.study import page

    places = page.Places(options.figures, options.results, options.cached)
    page.write(options.out, options.config, options.verdicts, places)
