"""Parts that the figures of several topics share."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from hiddenstate import plotting
from hiddenstate.auditing.methods import PUBLISHED
from hiddenstate.papers.gradient_crafting.adversaries import ADVERSARIES, kind
from hiddenstate.pipeline.estimates import select


def has(*parts: str) -> Any:
    """True if a grid has these parts."""
    return lambda grid: all(getattr(grid, part) is not None for part in parts)


def counted(part: pd.DataFrame) -> str:
    """How many repeats, and models with and without the canary, a panel shows."""
    repeats = part.groupby(["epsilon", "adversary"])["repeat"].nunique()
    models = part["models"]

    def span(values: Iterable[float]) -> str:
        least, most = min(values), max(values)
        return f"{least:,.0f}" if least == most else f"{least:,.0f} to {most:,.0f}"

    word = "repeat" if repeats.max() == 1 else "repeats"
    return f"{span(repeats)} {word}, 2 x {span(models)} models"


_OTHER_RULE = "lower bound (95 %), another rule: may exceed both"

Series = list[tuple[str, str, str, pd.DataFrame]]
"""Label, colour, marker and epsilons of what stands side by side in a panel."""


def compare_epsilons(ax: Any, part: pd.DataFrame, ideal: pd.DataFrame, series: Series) -> None:
    """Empirical against theoretical epsilon of one setting, the series side by side.

    Every repeat is a point, and its valid bound a triangle to the right of it.
    """
    epsilons = [float(e) for e in np.sort(part["epsilon"].unique())]
    idle = part.groupby("epsilon")["idle_epsilon"].first()
    style = {"color": "black", "lw": 1.2, "zorder": 1}
    places = np.arange(len(epsilons))
    span = places - 0.45, places + 0.45
    ax.hlines(epsilons, *span, ls="--", label="accountant", **style)
    if (idle < idle.index * 0.999).any():
        ax.hlines(idle.loc[epsilons], *span, ls=":", label="unused coordinate, exact", **style)
    band = ideal[ideal["epsilon"].isin(epsilons)].set_index("epsilon").reindex(epsilons)
    if band["low"].notna().any():
        ax.bar(
            places, band["high"] - band["low"], 0.9, band["low"], color=plotting.UPPER, alpha=0.35,
            lw=0, label="unused coordinate, published estimate", zorder=0,
        )  # fmt: skip
    step = 0.8 / len(series)
    for i, (label, color, marker, rows) in enumerate(series):
        first = step * (i + 0.25) - 0.4
        for method, shift, own in (
            (PUBLISHED, 0.0, {"marker": marker, "label": label}),
            ("valid", 0.45 * step, {"marker": "^", "mfc": "w"}),
        ):
            points = select(rows, method=method)
            at = [epsilons.index(e) + first + shift for e in points["epsilon"]]
            ax.plot(at, points["value"], color=color, ls="none", ms=4, mew=0.8, alpha=0.8, **own)
    ax.plot([], [], color="0.3", ls="none", marker="^", ms=4, mfc="w", label=_OTHER_RULE)
    ax.set(xlabel="theoretical $\\varepsilon$", xlim=(-0.6, len(epsilons) - 0.4))
    ax.set_xticks(places, [f"{e:g}" for e in epsilons])
    ax.set_yscale("symlog", linthresh=0.5, linscale=0.4)
    most = max(epsilons[-1], *(rows["value"].max() for *_, rows in series)) * 1.4
    ticks = [t for t in (0, 0.25, 0.5, 1, 2, 4, 8, 16, 32) if t <= most]
    ax.set_yticks(ticks, [f"{t:g}" for t in ticks])
    ax.set_ylim(-0.06, most)
    ax.minorticks_off()


def compare_dots(ax: Any, part: pd.DataFrame, ideal: pd.DataFrame, series: Series) -> None:
    """The same for a single epsilon, which needs no axis: a row for each of the series."""
    epsilon, idle = part["epsilon"].iloc[0], part["idle_epsilon"].iloc[0]
    ax.axvline(epsilon, color="black", ls="--", lw=1.2, label="accountant")
    ax.axvline(idle, color="black", ls=":", lw=1.2, label="unused coordinate, exact")
    for band in select(ideal, epsilon=epsilon).itertuples():
        label = "unused coordinate, published estimate"
        ax.axvspan(band.low, band.high, color=plotting.UPPER, alpha=0.35, lw=0, label=label)
    for place, (_, color, marker, rows) in enumerate(series):
        for method, shift, own in (
            (PUBLISHED, -0.1, {"marker": marker}),
            ("valid", 0.1, {"marker": "^", "mfc": "w"}),
        ):
            values = select(rows, method=method)["value"]
            ax.plot(values, [place + shift] * len(values), color=color, ls="none", ms=6, **own)
    for marker, filled, label in (("s", "0.3", "estimate as published"), ("^", "w", _OTHER_RULE)):
        ax.plot([], [], color="0.3", ls="none", ms=6, marker=marker, mfc=filled, label=label)
    ax.set_yticks(range(len(series)), [label for label, *_ in series])
    ax.set(xlabel="empirical $\\varepsilon$", xlim=(0, None), ylim=(len(series) - 0.5, -0.5))


def look(word: str) -> dict[str, str]:
    """Color and marker of an adversary, by its place; InputError for an unknown one."""
    place = _place(word)
    colors = plotting.OBSERVED, plotting.PUBLISHED, plotting.OTHER, *plotting.SERIES[3::2]
    # Not "^", which is the valid bound's.
    return {"color": colors[place % len(colors)], "marker": "osDvPX"[place % 6]}


def by_adversary(part: pd.DataFrame) -> Series:
    """The epsilons of each adversary of a panel."""
    read = select(part, method=[PUBLISHED, "valid"])
    return [
        (kind(word).label, *look(word).values(), select(read, adversary=word))
        for word in ordered(part)
    ]


def ordered(part: pd.DataFrame) -> list[str]:
    """The adversaries of a panel, in the order of their registry; InputError for an unknown one."""
    return sorted(part["adversary"].unique(), key=_place)


def _place(word: str) -> int:
    kind(word)  # refuses a word that is not known
    return list(ADVERSARIES).index(word)


def ideal_audits(estimates: pd.DataFrame, every: int, models: float) -> pd.DataFrame:
    """Published estimates of simulated audits that leak all they may; maybe none."""
    found = select(estimates, part="ideal", quantity="epsilon", method=PUBLISHED)
    return select(found, every=every, models=models) if len(found) else found
