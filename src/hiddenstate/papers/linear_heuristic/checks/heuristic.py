"""The heuristic against accountants (Figure 1), and the accounting columns of Table 1."""

import pandas as pd

from hiddenstate.papers.linear_heuristic.checks.shared import CLOSE, HALF, SAME
from hiddenstate.papers.linear_heuristic.estimates import curve, named
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.evidence import Within
from hiddenstate.pipeline.family import Found, check, needed


@check
def below_standard(estimates: pd.DataFrame) -> Found:
    """The heuristic never exceeds the standard epsilon."""
    over = pd.concat(
        curve(estimates, cell, "heuristic") / curve(estimates, cell, "standard") - 1
        for cell in named(estimates, "figure1") + named(estimates, "audits")
    )
    yield Within(
        "largest excess of the heuristic over the standard epsilon",
        needed(over).max(),
        high=SAME,
        reason="accuracy of the calibrated noise",
    )
    return f"{len(over)} settings of Figures 1, 3 and 6."


@check
def not_monotone(estimates: pd.DataFrame) -> Found:
    """The heuristic falls below that of a single step as steps grow, and rises again."""
    rows = select(estimates, cell="figure1c", method="heuristic").set_index("quantity")
    value, last = rows["value"], curve(estimates, "figure1c", "heuristic")
    below = (
        "never below one step"
        if pd.isna(value["first_below"])
        else f"below one step from {value['first_below']:.0f} to {value['last_below']:.0f} steps"
    )
    falls, rises = value["single_step"] - value["least"], last.iloc[-1] - value["least"]
    yield Within("epsilon at one step less the least", falls, low=1e-6)
    yield Within("epsilon at the most steps less the least", rises, low=1e-6)
    return (
        f"{value['single_step']:.4f} at 1 step, {value['least']:.4f} at {rows['x']['least']:.0f}, "
        f"{last.iloc[-1]:.3f} at {last.index[-1]:.0f}; {below}."
    )


@check
def constant_signal(estimates: pd.DataFrame) -> Found:
    """Figure 1a: the heuristic levels off where the standard epsilon diverges."""
    heuristic, standard = (
        curve(estimates, "figure1a", method).to_numpy() for method in ("heuristic", "standard")
    )
    needed(pd.Series(heuristic[2:]))
    half = len(heuristic) // 2
    yield Within(
        "heuristic at the most steps over that at the middle of the axis",
        heuristic[-1] / heuristic[half],
        1.0,
        1 + CLOSE,
        "level",
    )
    yield Within(
        "standard epsilon, the same",
        standard[-1] / standard[half],
        low=10.0,
        reason="another power of ten on the axis",
    )
    return (
        f"Heuristic {heuristic[0]:.4f} to {heuristic[-1]:.4f}; standard {standard[0]:.3f} to "
        f"{standard[-1]:.1f}."
    )


@check
def full_batch(estimates: pd.DataFrame) -> Found:
    """Full batch is usually, but not always, below the heuristic."""
    below = pd.concat(
        curve(estimates, cell, "full batch") <= curve(estimates, cell, "heuristic") + 1e-9
        for cell in named(estimates, "figure1")
    )
    exception = needed(select(estimates, quantity="excess", method="full batch")).iloc[0]
    yield Within(
        "share of Figure 1's settings where it is below",
        needed(below).mean(),
        low=HALF,
        reason="usually",
    )
    excess = exception["value"]
    yield Within("excess over the heuristic at one setting", excess, 1e-6, reason="not always")
    return (
        f"Below in {below.sum()} of {len(below)} settings of Figure 1; above by {excess:.4f} at "
        f"noise multiplier {exception['noise_multiplier']:g}, sampling rate "
        f"{exception['sampling_rate']:g}, steps {exception['steps']:g}, delta "
        f"{exception['delta']:g}, outside of Figure 1."
    )


@check
def full_batch_same(estimates: pd.DataFrame) -> Found:
    """Appendix B: for full batches the last iterate leaks as much as all iterates."""
    last, every = (
        curve(estimates, "figure1a", method)
        for method in ("full batch", "full batch, all iterates")
    )
    ratio = needed(every) / last
    for what, value in (("least", ratio.min()), ("largest", ratio.max())):
        yield Within(
            f"all iterates over last iterate, {what}",
            value,
            1 - SAME,
            1 + 10 * SAME,
            "composition is rounded up, by at most 1 %",
        )
    return (
        f"Epsilons of composed Gaussian mechanisms, up to {ratio.index[-1]:g} of them, over that "
        "of the last iterate under linear losses."
    )


def _first_row(
    estimates: pd.DataFrame, name: str, below: float, above: float, reason: str, note: str
) -> Found:
    """An epsilon of Table 1's first row, at the recalled parameters, by its printed digits."""
    row = needed(select(estimates, origin="recalled", method=name)).iloc[0]
    printed = float(row[f"printed_{name}"])
    region = (printed - below, printed + above)
    yield Within(f"{name} epsilon", row["value"], *region, reason=reason, stated=f"{printed:g}")
    return f"{row['value']:.4f} at the recalled noise multiplier and steps{note}."


@check
def table1_heuristic(estimates: pd.DataFrame) -> Found:
    """The heuristic epsilon of Table 1's first row, at the recalled parameters."""
    reason = "its digits, rounded or cut off"
    return _first_row(estimates, "heuristic", 0.005, 0.01, reason, "")


@check
def table1_standard(estimates: pd.DataFrame) -> Found:
    """The standard epsilon of Table 1's first row, at the recalled parameters."""
    renyi = needed(select(estimates, origin="recalled, fewer records", method="RDP")).iloc[0]
    records = f"{renyi['records']:,.0f} records"
    note = f"; by Rényi differential privacy and with {records} {renyi['value']:.3f}"
    return _first_row(estimates, "standard", 0.5, 0.5, "its digit", note)
