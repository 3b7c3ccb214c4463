"""What the claims of cyclic_bounds measure, from its estimates."""

import numpy as np
import pandas as pd

from hiddenstate.estimates import select
from hiddenstate.family import Check, Measurement, check, needed


def _convex_limit(lipschitz: str) -> Check:
    """The weakly convex bound at the least m is the convex one, up to its own first-order term."""

    @check
    def measure(estimates: pd.DataFrame) -> Measurement:
        rows = select(estimates, part="sweeps", sweep="weak_convexity", quantity="rho")
        line = select(rows, method="Theorem 4.5", lipschitz=lipschitz).sort_values("x")
        limit = needed(select(rows, method="equation 22"))["value"].iloc[0]
        positive = line[line["x"] > 0]
        needed(positive.iloc[1:])
        gaps = positive["value"].to_numpy() / limit - 1
        # Halving m should halve the gap; a gap that stays is a gap of the limit.
        holds = bool(0 < gaps[0] < 1e-3 and np.all(np.diff(gaps) > 0))
        return Measurement(
            f"{gaps[0]:.2e} above the convex bound at m = {positive['x'].iloc[0]:g}, "
            f"{gaps[-1]:.2g} at m = {positive['x'].iloc[-1]:g}",
            "less than 1e-3 at the least m, and falling with m",
            holds,
        )

    return measure


convex_limit = _convex_limit("reconstructed")
convex_limit_clipped = _convex_limit("clipped")


@check
def pabi(estimates: pd.DataFrame) -> Measurement:
    """In one pass of single records the derived bound at m = 0 is PABI's, and attained."""
    rows = needed(select(estimates, part="sweeps", sweep="single pass", quantity="rho", x=0))
    ours = select(rows, method="sharp", lipschitz="unclipped")["value"].iloc[0]
    pabi = select(rows, method="PABI")["value"].iloc[0]
    exact = select(estimates, quantity="pabi")["value"].iloc[0]
    return Measurement(
        f"rho {ours:.6g} against {pabi:.6g}; exact for affine losses {exact:.6g}",
        "1e-9 relative",
        bool(abs(ours / exact - 1) < 1e-9 and abs(pabi / exact - 1) < 1e-9),
    )


@check
def gaussian(estimates: pd.DataFrame) -> Measurement:
    """As Gaussian differential privacy every epsilon is lower, and none below an exact value."""
    gdp, rdp = (select(estimates, conversion=name)["value"].to_numpy() for name in ("gdp", "rdp"))
    rows = select(estimates, quantity="audit").fillna({"conversion": ""})
    needed(select(rows, method="exact"))
    table = rows.pivot(index=["instance", "x"], columns=["method", "conversion"], values="value")
    exact = table["exact", ""].dropna()
    upper = table.xs("gdp", axis=1, level="conversion").min(axis=1).loc[exact.index]
    saved = 1 - gdp[rdp > 0] / rdp[rdp > 0]
    return Measurement(
        f"{saved.min():.1%} to {saved.max():.1%} lower, {np.median(saved):.1%} in the median of "
        f"{len(gdp)} bounds; exact / bound at most {(exact / upper).max():.4f}",
        "never higher, and never below an exact value",
        bool(np.all(gdp <= rdp) and (exact <= upper).all()),
    )


@check
def linear_in_passes(estimates: pd.DataFrame) -> Measurement:
    """The increments of Theorem 4.5 per pass are one constant, at most composition's."""
    rows = select(estimates, part="sweeps", sweep="passes", quantity="rho")
    steepest, holds = 0.0, True
    for _, part in select(rows, lipschitz="unclipped").groupby("weak_convexity"):
        line = select(part, method="Theorem 4.5").sort_values("x")
        slopes = np.diff(line["value"]) / np.diff(line["x"])
        steepest = max(steepest, slopes.max())
        holds &= bool(np.allclose(slopes, slopes[0], rtol=1e-9))
    composition = select(rows, method="composition")
    each = (composition["value"] / composition["x"]).iloc[0]
    return Measurement(
        f"{steepest / each:.4f} of composition's increment per pass at the largest m",
        "equal increments to 1e-9, none above composition's",
        holds and steepest <= each,
    )


@check
def parameters(estimates: pd.DataFrame) -> Measurement:
    """Theorem 4.5 falls with smaller steps, larger noise and larger batches, everywhere."""
    worst = {}
    for sweep, sign in (("step_size", 1), ("noise_std", -1), ("batch_size", -1)):
        rows = select(estimates, part="sweeps", sweep=sweep, quantity="rho")
        parts = select(rows, method="Theorem 4.5", lipschitz="unclipped").groupby("weak_convexity")
        changes = [np.diff(np.log(part.sort_values("x")["value"])) for _, part in parts]
        worst[sweep] = float(np.min(sign * np.concatenate(changes)))
    shown = ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in worst.items())
    return Measurement(
        f"least change of log rho between neighbouring values, in the stated direction: {shown}",
        "all positive",
        all(value > 0 for value in worst.values()),
    )


@check
def theorem_4_3(estimates: pd.DataFrame) -> Measurement:
    """The curvature-free bound beats the naive one by a factor of the order of the steps."""
    rows = select(estimates, part="theorems", setting="base", quantity="rho")
    naive, ours = (
        select(rows, method=method).sort_values("weak_convexity")["value"].iloc[0]
        for method in ("triangle inequality", "Theorem 4.3")
    )
    steps = rows["x"].iloc[0]
    return Measurement(
        f"factor {naive / ours:.1f} for {steps:g} steps",
        "between a quarter of the steps and all of them: (1 + 1/b)^2 is at most 4",
        bool(steps / 4 <= naive / ours <= steps),
    )


@check
def composition_dominates(estimates: pd.DataFrame) -> Measurement:
    """Composition is never above the curvature-free bounds, in every setting of the sweeps."""
    rows = select(estimates, part="sweeps", quantity="rho")
    index = ["sweep", "x", "weak_convexity"]
    table = select(rows, method=["composition", "Theorem 4.3", "Corollary C.3"])
    table = table.pivot_table(index=index, columns="method", values="value")
    ratios = table[["Theorem 4.3", "Corollary C.3"]].min(axis=1) / table["composition"]
    return Measurement(
        f"smallest ratio of Theorem 4.3 or Corollary C.3 to composition: {ratios.min():.3f} "
        f"in {len(ratios)} settings",
        "above 1 in every setting",
        bool(ratios.min() > 1),
    )


@check
def residuals(estimates: pd.DataFrame) -> Measurement:
    """No residuals cost less than the paper's, by a dual bound, and ``sharp`` is their price."""
    rows = select(estimates, quantity="residuals")
    gap = (rows["value"] - 1).abs().max()
    return Measurement(
        f"price, dual bound and formula within {gap:.1e} in {len(rows) // 2} settings",
        "1e-9",
        bool(gap < 1e-9),
    )


@check
def nonexpansive(estimates: pd.DataFrame) -> Measurement:
    """A clipped step of one convex loss moves no two points apart."""
    (row,) = select(estimates, quantity="expanded pair").to_dict("records")
    return Measurement(
        f"a step moves two points apart by a factor between {row['low']:.12f} and "
        f"{row['high']:.12f} (interval arithmetic)",
        "at most 1",
        row["low"] <= 1,
    )


def _certified(estimates: pd.DataFrame, bound: str) -> pd.Series:
    """The largest certified divergence over a bound, by number of passes."""
    rows = needed(select(estimates, quantity=["kl", "d2"]))
    table = rows.pivot(index=["quantity", "x", "passes"], columns="method", values="value")
    return (table["certified"] / table[bound]).groupby("passes").max()


@check
def violation(estimates: pd.DataFrame) -> Measurement:
    """Clipped convex losses exceed the convex bound, in one pass and in several."""
    ratios = _certified(estimates, "convex bound")
    one = needed(ratios[ratios.index == 1]).iloc[0]
    several = needed(ratios[ratios.index > 1])
    return Measurement(
        f"certified divergence up to {one:.2f} times the bound in one pass, "
        f"{several.max():.2f} times in {several.idxmax():g} passes (failure probability 1e-6 in "
        "all)",
        "above 1 in both",
        bool(one > 1 and several.max() > 1),
    )


@check
def corrected(estimates: pd.DataFrame) -> Measurement:
    """The same divergences obey the bound with the corrected constant."""
    ratio = _certified(estimates, "corrected bound").max()
    return Measurement(
        f"certified divergence up to {ratio:.2f} times the bound", "at most 1", bool(ratio <= 1)
    )


@check
def tightness(estimates: pd.DataFrame) -> Measurement:
    """Exact divergences never exceed the sharp bound, and attain it with the tightest slopes."""
    rows = select(estimates, quantity="tightness", method="sharp")
    attained = select(rows, slopes="tightest")["value"]
    return Measurement(
        f"exact / bound between {attained.min():.12f} and {attained.max():.12f} for "
        f"{len(attained)} pairs of L and passes; with constant slopes down to "
        f"{rows['value'].min():.3f}",
        "1e-9 (the rounding of the exact values) from 1 where attained, never above 1",
        bool(attained.min() > 1 - 1e-9 and rows["value"].max() < 1 + 1e-9),
    )


@check
def audit(estimates: pd.DataFrame) -> Measurement:
    """Audited lower bounds lie below the exact epsilon, and that below every upper bound."""
    rows = select(estimates, quantity="audit")
    rows = rows[rows["conversion"] != "rdp"]
    table = rows.pivot(index=["instance", "x"], columns="method", values="value")
    upper = table[["composition", "Theorem 4.5", "sharp"]].min(axis=1)
    ceiling = table.get("exact", upper).fillna(upper)
    holds = (table["lower bound"] <= ceiling) & (ceiling <= upper)
    share = (table["lower bound"] / ceiling).max()
    return Measurement(
        f"{int(holds.sum())} of {len(table)} audits; the best shows {share:.2f} of the exact "
        "epsilon (of the upper bound, where none is known)",
        "every audit",
        bool(holds.all()),
    )
