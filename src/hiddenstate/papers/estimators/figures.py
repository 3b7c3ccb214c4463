"""Figures of estimators."""

from typing import Any

import pandas as pd

from hiddenstate import plotting
from hiddenstate.auditing import AsPublished, Averaged, Bonferroni, Fixed, Split, UniformBand
from hiddenstate.papers.estimators.cells import LEVEL
from hiddenstate.papers.estimators.estimates import required
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.family import figure

STYLES = {
    # method: label, colour role, line, marker
    Averaged.name: ("averaged (default)", plotting.VALID, "-", "o"),
    Fixed(0.0).name: ("fixed threshold", plotting.OBSERVED, "-", "s"),
    Split.name: ("split", plotting.OTHER, "-", "D"),
    UniformBand().name: ("uniform band", plotting.SERIES[5], "-", "^"),
    UniformBand("dkw").name: ("uniform band, DKW", plotting.SERIES[8], "-", "v"),
    Bonferroni.name: ("Bonferroni", plotting.SERIES[9], "-", "P"),
    AsPublished.name: (AsPublished.name, plotting.PUBLISHED, ":", "X"),
    Fixed(0.0, "jeffreys").name: ("fixed, Jeffreys (credible)", plotting.SERIES[6], "--", "s"),
    Fixed(0.0, "joint-beta").name: ("fixed, joint-beta (credible)", plotting.UPPER, "--", "d"),
}
_DRAWN = [rule.name for rule in (Averaged, Fixed(0.0), Split, UniformBand(), AsPublished)]
"""The rules of the figure; the table has the others too."""

_TITLES = {
    "gaussian": "Gaussian, $\\mu$ = {:g}",
    "response": "randomised response,\n$\\varepsilon$ = {:g}, all ties",
    "composed": "subsampled and composed,\nits own curve",
    "leak": "rare shift,\n$(\\varepsilon, \\delta)$",
}
"""By kind of mechanism, with what is true of it."""


@figure(
    "Which estimator to trust",
    "Simulated audits of mechanisms whose privacy is known exactly. Above: how often each "
    "rule claims more than the truth, nominally 5 % (dashed), with 95 % intervals. Below: "
    "its median bound over the truth. A solid line is a rule with a proof, a broken line "
    "has none. Mechanisms: Gaussian shifts, judged by mu; randomised response, by epsilon; "
    "the composed subsampled Gaussian, by its noise multiplier; a rare shift, by epsilon. "
    "The fixed threshold is where the likelihood ratio is 1, which an auditor seldom knows. "
    "The table of the same name has four more rules, and all Gaussian shifts.",
    message="Rules with a proof keep their 5 %; picking the best threshold does not",
    of="simulated",
)
def calibration(estimates: pd.DataFrame) -> Any:
    rows = select(estimates, quantity=["exceedance", "median"])
    # Of a truth of 0 no bound is a part, and both null hypotheses look alike.
    truths = rows.groupby("cell", sort=False)["truth"].first().drop("composed_in", errors="ignore")
    truths = truths[truths > 0]
    # A row of more panels is unreadable: a small and a large shift stand for all.
    gaussian = truths[truths.index.str.startswith("gaussian")]
    kept = {(gaussian - mu).abs().idxmin() for mu in (1, 3) if len(gaussian)}
    shown = truths.drop(gaussian.index.difference([*kept]))
    drawn, axes = plotting.panels(len(shown), 2, sharex=True, sharey="row", height=2.7)
    # Narrower than other panels, so that letters are readable on a page.
    drawn.set_figwidth(2.3 * len(shown))
    for mechanism, above, below in zip(shown.index, axes, axes[len(shown) :], strict=False):
        part = select(rows, cell=mechanism)
        for i, method in enumerate(_DRAWN):
            label, color, line, marker = STYLES[method]
            style = {"color": color, "ls": line, "marker": marker, "ms": 4, "lw": 1.2}
            points = select(part, method=method, quantity="exceedance").sort_values("x")
            # Side by side, or the intervals hide each other.
            at = points["x"] * 1.03 ** (i - len(_DRAWN) / 2)
            plotting.intervals(above, at, points, 100, **style)
            points = select(part, method=method, quantity="median").sort_values("x")
            tightness = points["value"] / points["truth"]
            if points["parameter"].eq("noise multiplier").all():
                tightness = 1 / tightness
            below.plot(points["x"], tightness, label=label, **style)
        above.axhline(100 * LEVEL, color="black", lw=0.8, ls="--", zorder=0)
        title = _TITLES[mechanism.partition("_")[0]].format(shown[mechanism])
        above.set(title=title, xscale="log")
        below.axhline(1, color="black", lw=0.8, ls="--", zorder=0)
        ticks = sorted(part["x"].unique())
        below.set_xticks(ticks, [f"{int(t):,}" for t in ticks], rotation=45)
        below.minorticks_off()
    axes[0].set_ylabel("audits that claim more\nthan the truth (%)")
    axes[len(shown)].set_ylabel("median bound / truth")
    middle = axes[len(shown) + len(shown) // 2]
    middle.set_xlabel("models with the canary, and as many without")
    axes[0].set_yscale("symlog", linthresh=1, linscale=0.4)
    axes[0].set_yticks([0, 1, 2, 5, 10, 20, 50], ["0", "1", "2", "5", "10", "20", "50"])
    axes[0].set_ylim(-0.15, 60)
    return plotting.legend_below(drawn, axes[-1], columns=3)


@figure(
    "Bugs found by an audit",
    "Share of audits in which the default bound contradicts the accountant, by planted "
    "DP-SGD bug and number of models with and without the canary each. The control has no "
    "bug and is contradicted in at most 5 % of audits. Bugs at the bottom hardly show in "
    "this canary and the last iterate. The audits of a cell share no models, so those of many "
    "models are few, and the right columns are coarse.",
    message="With more models audits find most planted bugs; some are never found",
    of="bugs",
)
def detection(estimates: pd.DataFrame) -> Any:
    rows = select(estimates, quantity="power")
    table = rows.pivot(index="bug", columns="x", values="value")
    needed = rows.groupby("bug")[["x", "value"]].apply(required)
    order = sorted(
        table.index, key=lambda m: (m.startswith("none"), needed[m], -table.loc[m].sum())
    )
    table = table.loc[order]
    drawn, (ax,) = plotting.panels(1, height=0.26 * len(table) + 0.9)
    drawn.set_figwidth(7)
    label = "audits that contradict the claim (%)"
    shades = {"cmap": "Blues", "vmin": 0, "vmax": 100, "linewidths": 0.5}
    plotting.heat_map(
        ax, 100 * table, label, annot=True, fmt=".0f", annot_kws={"size": 7}, **shades
    )
    ax.set_xticklabels([f"{int(n):,}" for n in table.columns], rotation=45)
    ax.set(xlabel="models with the canary, and without, each", ylabel="")
    return drawn


@figure(
    "What a sequential audit saves",
    "Simulated Gaussian mechanisms with 95 % intervals. Left: models with the canary (and "
    "as many without) that an audit trains on average. Right: how often it refutes the "
    "claim. A fixed number is compared with looks at growing numbers that stop at a "
    "refutation. Left of the dotted line the claim is true, and both refute it in at most 5 "
    "% of audits (dashed).",
    message="Looking early saves most of the models when a claim is badly wrong",
    of="sequential",
)
def sequential(estimates: pd.DataFrame) -> Any:
    rows = select(estimates, cell="sequential")
    drawn, axes = plotting.panels(2, height=2.9)
    for ax, quantity, scale in zip(axes, ("models used", "refuted"), (1, 100), strict=True):
        for method, color, mark in (
            ("fixed number", plotting.OTHER, "s"),
            ("sequential", plotting.VALID, "o"),
        ):
            part = select(rows, quantity=quantity, method=method).sort_values("x")
            style = {"color": color, "marker": mark, "ms": 4, "lw": 1.2, "label": method}
            plotting.intervals(ax, part["x"], part, scale, **style)
        ax.axvline(rows["claim"].iloc[0], color="black", lw=0.8, ls=":", zorder=0)
        ax.set_xlabel("true $\\mu$")
        ax.set_ylim(bottom=0)
    axes[0].set_ylabel("models with the canary")
    axes[1].set_ylabel("audits that refute (%)")
    axes[1].axhline(100 * LEVEL, color="black", lw=0.8, ls="--", zorder=0)
    return plotting.legend_below(drawn, axes[-1], columns=2)
