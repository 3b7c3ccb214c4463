"""``hiddenstate verdicts``, ``job claims``, ``collect`` and ``report``: claims judged and shown."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hiddenstate.commands import jobs
from hiddenstate.commands.options import (
    Commands,
    add_config,
    add_family,
    add_json,
    add_out,
    add_path,
    command,
)
from hiddenstate.commands.printing import print_json
from hiddenstate.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

WRITTEN = "directory to write claims.csv and claims.md to"


def add(commands: Commands) -> None:
    parser = command(commands, "verdicts", _verdicts)
    parser.add_argument("verdicts", type=Path, metavar="FILE", help="claims.csv of a scale")
    add_config(parser)
    parser.add_argument(
        "--only", metavar="FAMILY", help="family whose verdicts are replaced (default all)"
    )
    parser.add_argument(
        "--tree", type=Path, default=Path(), metavar="DIR", help="source tree (default .)"
    )


def add_jobs(commands: Commands) -> None:
    parser = command(commands, "claims", _claims)
    add_family(parser)
    add_path(parser, "claims", "claims of the family")
    add_path(parser, "estimates", "estimates of the family")
    add_out(parser, WRITTEN, metavar="DIR")
    add_json(parser, "words")

    parser = command(commands, "collect", _collect)
    parser.add_argument(
        "verdicts", nargs="+", type=Path, metavar="FILE", help="families' claims.csv"
    )
    add_config(parser)
    parser.add_argument("--expected", type=Path, metavar="FILE", help="verdicts to compare with")
    add_out(parser, WRITTEN, metavar="DIR")
    add_json(parser, "words")

    parser = command(commands, "report", _report)
    add_config(parser)
    add_path(parser, "verdicts", "CSV file of `hiddenstate job collect`")
    for name, what in (
        ("figures", "figures of the scale, by family"),
        ("results", "results of the scale, by family"),
        ("cached", "cached scores, by family"),
    ):
        add_path(parser, name, what, metavar="DIR")
    add_out(parser, "HTML file to write")


def _claims(options: argparse.Namespace) -> None:
    """Judge the claims of a family from its estimates."""
    from hiddenstate.study import claims, levels, verdicts

    _, grid, seed = jobs.section(options)
    frame = jobs.estimates(options, grid, seed)
    if options.claims.stem != options.family:
        raise InputError(f"--claims: got {options.claims}; expected {options.family}.yaml")
    level = levels.of(options.family, grid)
    found = claims.judge(claims.read(options.claims), frame, level)
    verdicts.write(options.out, found, options.config.stem)
    _print_verdicts(found, options)


def _collect(options: argparse.Namespace) -> None:
    """Join the verdicts of families; say if they are as expected."""
    from hiddenstate.study import config, verdicts

    found = verdicts.read(*options.verdicts, grids=config.grid_names(options.config))
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


def _verdicts(options: argparse.Namespace) -> None:
    """Write the verdicts of a run into the pages of a source tree."""
    from hiddenstate.study import config, publication, verdicts

    grids = config.grid_names(options.config)
    found = verdicts.read(options.verdicts)
    publication.publish(options.tree, found, options.config.stem, grids, options.only)


def _report(options: argparse.Namespace) -> None:
    """Write the page of claims, figures and tables: one HTML file that needs no network."""
    from hiddenstate.study import page

    places = page.Places(options.figures, options.results, options.cached)
    page.write(options.out, options.config, options.verdicts, places)
