"""``hiddenstate atlas``: every bound of the package on your own setting."""

import argparse
import textwrap
from typing import TYPE_CHECKING

from hiddenstate.commands import setting_options
from hiddenstate.commands.options import check_pictures
from hiddenstate.commands.printing import print_json, records

if TYPE_CHECKING:
    import pandas as pd

    from hiddenstate.accounting.setting import Setting

WIDTH = 110
"""Characters of a line."""


def run(options: argparse.Namespace) -> None:
    """Compare every upper and lower bound of the package on your own setting.

    SAMPLER
    NOISE
    SETTING
    --runs NUMBER: int = 2000 | models with and without the canary in a simulated audit, fewer where
        steps are many (default 2000)
    --seed: int = 0 | seed of the simulated audits (default 0)
    --json: flag | print JSON instead of words, with every digit
    --figure FILE: path+ | pictures to write: .png, .pdf, .svg
    """
    check_pictures(options.figure)
    setting = setting_options.read(options)
    # Imported here because other commands need none of it.
    from hiddenstate import atlas
    from hiddenstate.atlas.trained import with_trained
    from hiddenstate.atlas.words import Answer

    rows = atlas.rows(setting, options.delta, options.runs, options.seed)
    rows = with_trained(rows, setting, atlas.proven(rows), options.delta)
    answer = Answer.of(rows).lines(setting)
    if options.figure:
        _draw(options, setting, rows)
    if options.json:
        found = {
            **{"setting": setting.numbers, "delta": options.delta, "seed": options.seed},
            "bounds": records(rows),
            "answer": answer,
        }
        print_json(found)
        return
    for first, *more in (textwrap.wrap(line, WIDTH - 2) for line in answer):
        print("\n  ".join((first, *more)))
    print()
    _print(options, setting, rows)


def _draw(options: argparse.Namespace, setting: "Setting", rows: "pd.DataFrame") -> None:
    from hiddenstate import plotting
    from hiddenstate.atlas import drawn as figure

    title = "\n".join(textwrap.wrap(setting.words, 56))
    with plotting.style():
        drawn = figure.draw([(title, rows.rename(columns={"name": "method"}))])
        drawn.set_figwidth(7)
        plotting.save(drawn, options.figure, f"hiddenstate atlas, delta {options.delta:g}")


def _print(options: argparse.Namespace, setting: "Setting", rows: "pd.DataFrame") -> None:
    from hiddenstate.accounting.bounds import GROUPS
    from hiddenstate.rounding import shown

    print("\n".join(textwrap.wrap(f"epsilon at delta {options.delta:g}, {setting.words}", WIDTH)))
    name = max(map(len, rows["name"])) + 2
    for group, title in GROUPS.items():
        part = rows[rows["group"] == group]
        if group == "simulated":
            title += f", seed {options.seed}"
        if len(part):
            print("\n" + "\n".join(textwrap.wrap(title, WIDTH)))
        for row in part.itertuples():
            words = str(row.assumption)
            if row.group == "simulated" and row.runs > 0:
                words += f"; {int(row.runs):,} models with and without the canary"
                if row.truth == row.truth:
                    words += f"; unlimited models would find {shown(row.truth, 'upper', 4)}"
            first, *more = textwrap.wrap(words, WIDTH - name - 12)
            value = shown(row.value, row.kind, 4)
            if row.group == "trained" and row.allowed > 0:
                value = f"{int(100 * row.value / row.allowed)} %"
            print(f"  {row.name:<{name}}{value:>8}  {first}")
            for line in more:
                print(" " * (name + 12) + line)
