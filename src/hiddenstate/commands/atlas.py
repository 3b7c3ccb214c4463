"""``hiddenstate atlas``: every bound of the package on your own setting."""

import argparse
import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hiddenstate.commands import cyclic, epsilon
from hiddenstate.commands.audit import check_pictures
from hiddenstate.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from hiddenstate.family import Grid
    from hiddenstate.papers.atlas.cells import Setting

WIDTH = 110
"""Characters of a line."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The mechanism, what the simulated audits take, and outputs."""
    epsilon.add_mechanism(parser)
    parser.add_argument(
        "--learning-rate",
        type=float,
        metavar="NUMBER",
        help="step size: on a batch's mean if cyclic (0.1), else on the sum of gradients (1)",
    )
    parser.add_argument(
        "--runs",
        type=int,
        default=2000,
        metavar="NUMBER",
        help="per world of a simulated audit, fewer where steps are many (2000)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the simulated audits (0)")
    parser.add_argument(
        "--cached",
        type=Path,
        metavar="DIR",
        help="scores of trained audits (results/cached, here or where the package runs from)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, with every digit")
    parser.add_argument(
        "--figure", type=Path, nargs="+", metavar="FILE", help="pictures to write: .png, .pdf, .svg"
    )


def run(options: argparse.Namespace) -> None:
    """Compare every upper and lower bound of the package on your own setting."""
    check_pictures(options.figure)
    setting = _setting(options)
    # Imported here because other commands need none of it.
    from hiddenstate.papers.atlas import bounds, cells, estimates, trained
    from hiddenstate.papers.atlas.words import Answer

    delta, runs, seed = options.delta, options.runs, options.seed
    _checked(cells.Bounded, settings=(setting,), delta=delta, runs=runs)
    if seed < 0:
        raise InputError(f"--seed: got {seed}; expected a whole number from 0")
    folder = options.cached or cells.cache()
    if options.cached and not cells.cached_files(folder):
        raise InputError(
            f"--cached: no trained audits in {options.cached}; expected {' or '.join(cells.FILES)}"
        )
    audits = trained.find(folder)
    rows = bounds.rows(setting, delta, runs, seed)
    near = estimates.nearest(audits, estimates.proven(rows), delta)
    rows = estimates.with_trained(rows, trained.bounded(near), setting, delta)
    answer = Answer.of(rows)
    if options.figure:
        _draw(options, setting, rows)
    if options.json:
        found = {
            **{"setting": setting.model_dump(), "delta": options.delta, "seed": options.seed},
            "bounds": json.loads(rows.to_json(orient="records", double_precision=15)),
            "answer": answer.lines,
        }
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return
    _print(options, setting, rows)
    for first, *more in (textwrap.wrap(line, WIDTH - 2) for line in answer.lines):
        print("\n  ".join((first, *more)))


def _setting(options: argparse.Namespace) -> "Setting":
    """The mechanism that the options describe."""
    from hiddenstate.papers.atlas.cells import Cyclic, Poisson

    fixed = cyclic.chosen(options)
    kind = Cyclic if fixed else Poisson
    given = {name: getattr(options, name) for name in kind.model_fields}
    return _checked(kind, **{name: value for name, value in given.items() if value is not None})


def _checked(kind: "type[Grid]", **values: Any) -> Any:
    """A part of the grid from a user's numbers, or an input error that names the first one."""
    from pydantic import ValidationError

    try:
        return kind(**values)
    except ValidationError as error:
        first = error.errors()[0]
        expected = first["msg"].replace("Input should be", "a number")
        raise InputError(
            f"{'.'.join(map(str, first['loc']))}: got {first['input']}; expected {expected}"
        ) from error


def _draw(options: argparse.Namespace, setting: "Setting", rows: "pd.DataFrame") -> None:
    from hiddenstate import plotting
    from hiddenstate.papers.atlas import figures

    title = "\n".join(textwrap.wrap(setting.words, 56))
    with plotting.style():
        drawn = figures.draw([(title, rows.rename(columns={"name": "method"}))])
        drawn.set_figwidth(7)
        plotting.save(drawn, options.figure, f"hiddenstate atlas, delta {options.delta:g}")


def _print(options: argparse.Namespace, setting: "Setting", rows: "pd.DataFrame") -> None:
    from hiddenstate.papers.atlas.words import GROUPS
    from hiddenstate.rounding import shown

    print("\n".join(textwrap.wrap(f"epsilon at delta {options.delta:g}, {setting.words}", WIDTH)))
    name = max(map(len, rows["name"])) + 2
    for group, title in GROUPS.items():
        part = rows[rows["group"] == group]
        if group == "trained" and part.empty:
            title = "trained audits: none at hand; results/cached is part of the source tree"
        if group == "simulated":
            title += f" at 95 % confidence, seed {options.seed}"
        if len(part) or group == "trained":
            print(f"\n{title}")
        for row in part.itertuples():
            words = str(row.assumption)
            if row.group == "simulated" and row.runs > 0:
                words += f"; {int(row.runs):,} runs in each world"
                if row.truth == row.truth:
                    words += f", a perfect audit would find {shown(row.truth, 'upper')}"
            first, *more = textwrap.wrap(words, WIDTH - name - 12)
            value = shown(row.value, row.kind)
            if row.group == "trained" and row.allowed > 0 and "another" in words:
                # Of another setting: a share of what its own accountant proves.
                value = f"{int(100 * row.value / row.allowed)} %"
            print(f"  {row.name:<{name}}{value:>8}  {first}")
            for line in more:
                print(" " * (name + 12) + line)
    print()
