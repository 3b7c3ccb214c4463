"""Measurements behind the claims of cyclic_bounds, from its estimates."""

import numpy as np
import pandas as pd

from hiddenstate.papers.cyclic_bounds.estimates import AUDIT_CONFIDENCE, FAILURE_PROBABILITY
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.evidence import Exact, Interval, Within, rarely
from hiddenstate.pipeline.family import Found, check, needed

EQUAL = 1e-9
"""Rounding of sums over some ten thousand steps."""
LIMIT = 1e-3
"""Relative distance from a limit at the smallest weak convexity, a millionth; ours."""


# --- sentences of the paper -----------------------------------------------------------------------


@check
def nonexpansive(estimates: pd.DataFrame) -> Found:
    """A clipped step of one convex loss moves no two points apart."""
    rows = needed(select(estimates, quantity="expanded pair"))
    proved = [
        Exact((low + high) / 2, accuracy=(high - low) / 2)
        for low, high in zip(rows["low"], rows["high"], strict=True)
    ]
    for one in proved:
        yield Within(
            "factor by which a step moves two points apart", one, high=1, reason="1-Lipschitz"
        )
    return (
        f"One convex loss in the plane: a clipped step moves two points apart by a factor of "
        f"{proved[0].value:.10f}, in interval arithmetic."
    )


@check
def convex_limit(estimates: pd.DataFrame) -> Found:
    """Theorem 4.5 tends to the bound for convex losses, equation 22, with the weak convexity."""
    rows = select(estimates, part="sweeps", sweep="weak_convexity", quantity="rho")
    line = needed(select(rows, method="Theorem 4.5", lipschitz="reconstructed"))
    convex = needed(select(rows, method="equation 22"))["value"].iloc[0]
    away = (line.set_index("x")["value"].sort_index() / convex - 1).abs()
    away = needed(away[away.index > 0])
    yield Within(
        f"relative distance from equation 22 at a weak convexity of {away.index[0]:g}",
        away.iloc[0],
        high=LIMIT,
        reason="converges",
    )
    yield Within(
        "least fall of the distance from one weak convexity to the next smaller",
        away.diff().iloc[1:].min(),
        low=0,
        reason="converges",
    )
    return (
        f"Distances of {away.iloc[0]:.1g} to {away.iloc[-1]:.1g} at {len(away)} weak convexities."
    )


@check
def convex_bound(estimates: pd.DataFrame) -> Found:
    """In several passes clipped convex losses leak no more than equation 22."""
    rows = needed(select(estimates, quantity=["kl", "d2"]))
    rows = needed(rows[rows["passes"] > 1])
    table = rows.pivot(index=["quantity", "x", "passes"], columns="method", values="value")
    ratios = table.div(table["convex bound"], axis=0)
    at = ratios["certified"].idxmax()
    # What these losses leak lies between what is certified of an example and proved of all.
    low, high = ratios.loc[at, ["certified", "corrected bound"]]
    _, steps, passes = at
    yield Within(
        "largest divergence of clipped convex losses over equation 22",
        Interval(low, low, high, 1 - FAILURE_PROBABILITY),
        high=1,
        reason="an upper bound",
    )
    return (
        f"In {passes:g} passes of {steps:g} steps clipped convex losses have a divergence "
        f"of at least {low:.2f} times equation 22 (failure probability "
        f"{FAILURE_PROBABILITY:g} of all certificates together)."
    )


@check
def parameters(estimates: pd.DataFrame) -> Found:
    """Theorem 4.5 falls with smaller steps, larger noise and larger batches, everywhere."""
    rows = select(estimates, part="sweeps", quantity="rho", method="Theorem 4.5")
    signs = {"step_size": 1, "noise_std": -1, "batch_size": -1}
    rows = select(rows, lipschitz="unclipped", sweep=[*signs])
    for sweep, sign in signs.items():
        lines = needed(select(rows, sweep=sweep))
        changes = [
            np.diff(np.log(line.sort_values("x")["value"]))
            for _, line in lines.groupby("weak_convexity")
        ]
        least = float(np.min(sign * np.concatenate(changes)))
        words = sweep.replace("_", " ").replace("std", "standard deviation")
        what = f"least fall of log rho between neighbouring values of the {words}"
        yield Within(what, least, low=0, reason="smaller")
    shown = ", ".join(f"{value:g}" for value in sorted(rows["weak_convexity"].unique()))
    return f"Theorem 4.5 at weak convexities {shown}, one parameter varied at a time."


def _least_price(rows: pd.DataFrame, what: str, note: str) -> Found:
    """The largest distance of ratios to the least possible price from 1."""
    gap = (needed(rows)["value"] - 1).abs().max()
    yield Within(what, gap, high=EQUAL, reason="equal except for rounding")
    return note


@check
def residuals(estimates: pd.DataFrame) -> Found:
    """In one pass no residuals cost less than the paper's, by a dual bound."""
    rows = select(estimates, quantity="residuals", method="dual bound", x=1)
    return _least_price(
        rows,
        "largest gap between the price of the residuals and the least possible price",
        f"One pass, {len(rows)} weak convexities and Lipschitz constants; the least price is a "
        "dual bound that shares no formula with the residuals.",
    )


@check
def pabi(estimates: pd.DataFrame) -> Found:
    """In one pass of single records equation 22 is within an order of magnitude of PABI."""
    rows = select(estimates, part="sweeps", sweep="single pass", quantity="rho", x=0)
    ours, first, last = (
        needed(select(rows, method=method))["value"].iloc[0]
        # After the last record's visit no step hides it: its PABI is that of one release.
        for method in ("equation 22", "PABI", "composition")
    )
    yield Within(
        "equation 22 over privacy amplification by iteration, for the last record",
        ours / last,
        0.1,
        10,
        reason="the same order of magnitude",
    )
    return (
        f"Equation 22 is {ours / last:.3f} times PABI for the last record, whose bound is the "
        f"largest, and {ours / first:,.0f} times PABI for the first."
    )


# --- our own statements ---------------------------------------------------------------------------


@check
def gaussian(estimates: pd.DataFrame) -> Found:
    """As Gaussian differential privacy every epsilon is lower, and none below an exact value."""
    gdp, rdp = (select(estimates, conversion=name)["value"].to_numpy() for name in ("gdp", "rdp"))
    rows = select(estimates, quantity="audit").fillna({"conversion": ""})
    needed(select(rows, method="exact"))
    table = rows.pivot(index=["instance", "x"], columns=["method", "conversion"], values="value")
    exact = table["exact", ""].dropna()
    upper = table.xs("gdp", axis=1, level="conversion").min(axis=1).loc[exact.index]
    ratios = gdp[rdp > 0] / rdp[rdp > 0]
    yield Within(
        "largest epsilon by Gaussian differential privacy over that by Rényi divergences",
        ratios.max(),
        high=1,
        reason="the second implies no less",
    )
    yield Within(
        "largest exact epsilon over the least bound",
        (exact / upper).max(),
        high=1,
        reason="upper bounds",
    )
    return (
        f"{1 - ratios.max():.1%} to {1 - ratios.min():.1%} lower, {1 - np.median(ratios):.1%} in "
        f"the median of {len(gdp)} bounds."
    )


@check
def composition(estimates: pd.DataFrame) -> Found:
    """Composition is never above the curvature-free bounds, in every setting of the sweeps."""
    rows = select(estimates, part="sweeps", quantity="rho")
    index = ["sweep", "x", "weak_convexity"]
    table = needed(select(rows, method=["composition", "Theorem 4.3", "Corollary C.3"]))
    table = table.pivot_table(index=index, columns="method", values="value")
    ratios = table[["Theorem 4.3", "Corollary C.3"]].min(axis=1) / table["composition"]
    yield Within(
        "least of Theorem 4.3 and Corollary C.3, over composition",
        ratios.min(),
        low=1,
        reason="never above them",
    )
    return f"{len(ratios)} settings of the sweeps."


@check
def residuals_all_passes(estimates: pd.DataFrame) -> Found:
    """Over all passes no residuals cost less than starting afresh at each visit."""
    rows = select(estimates, quantity="residuals")
    return _least_price(
        rows,
        "largest gap between formula, price of the residuals and dual bound",
        f"{len(rows) // 2} settings, of up to {rows['x'].max():g} passes.",
    )


@check
def corrected(estimates: pd.DataFrame) -> Found:
    """What the losses leak in the affine limit obeys the corrected bound; in one pass it is all."""
    rows = needed(select(estimates, quantity="kl"))
    table = rows.pivot(index=["x", "passes"], columns="method", values="value")
    ratios = table["affine limit"] / table["corrected bound"]
    one = needed(ratios[ratios.index.get_level_values("passes") == 1])
    certified = (table["certified"] / table["corrected bound"]).max()
    yield Within(
        "largest exact divergence over the corrected bound, in the limit of large batches",
        ratios.max(),
        high=1,
        reason="an upper bound",
    )
    return (
        f"Exact divergences reach {one.max():.4f} of the bound in one pass and {ratios.max():.4f} "
        f"in any number; at finite batches {certified:.2f} of it is certified."
    )


@check
def tightness(estimates: pd.DataFrame) -> Found:
    """Exact divergences never exceed the sharp bound, and attain it with the tightest slopes."""
    rows = needed(select(estimates, quantity="tightness", method="sharp"))
    attained = select(rows, slopes="tightest")["value"]
    yield Within(
        "least exact divergence over the bound, with the tightest slopes",
        attained.min(),
        low=1 - EQUAL,
        reason="attained except for rounding",
    )
    yield Within(
        "largest exact divergence over the bound, with any slopes",
        rows["value"].max(),
        high=1 + EQUAL,
        reason="an upper bound except for rounding",
    )
    return (
        f"{len(attained)} pairs of L and passes; with constant slopes down to "
        f"{rows['value'].min():.3f} of the bound."
    )


@check
def audit(estimates: pd.DataFrame) -> Found:
    """Audited lower bounds lie below the exact epsilon, and that below every upper bound."""
    rows = select(estimates, quantity="audit")
    rows = needed(rows[rows["conversion"] != "rdp"])
    table = rows.pivot(index=["instance", "x"], columns="method", values="value")
    upper = table[["composition", "Theorem 4.5", "sharp"]].min(axis=1)
    ceiling = table.get("exact", upper).fillna(upper)
    above = int((table["lower bound"] > ceiling).sum())
    yield Within(
        "largest exact epsilon over the least upper bound",
        (ceiling / upper).max(),
        high=1,
        reason="upper bounds",
    )
    yield rarely(
        "lower bounds above the exact epsilon, or the least bound where none is known",
        above,
        len(table),
        rate=1 - AUDIT_CONFIDENCE,
        alternative=0.5,
    )
    return (
        f"{len(table)} audits; the best shows {(table['lower bound'] / ceiling).max():.2f} of the "
        "exact epsilon."
    )
