"""What the claims of cyclic_bounds measure, from its estimates."""

import numpy as np
import pandas as pd

from hiddenstate.papers import Measurement
from hiddenstate.papers.cyclic_bounds.cells import pick, swept


def convex_limit_check(lipschitz: str):
    """The weakly convex bound at the least m is the convex one, up to its own first-order term."""

    def check(estimates: pd.DataFrame) -> Measurement:
        rows = swept(estimates, "weak_convexity", "rho")
        line = pick(rows, "Theorem 4.5", lipschitz).sort_values("x")
        limit = pick(rows, "equation 22")["value"].iloc[0]
        positive = line[line["x"] > 0]
        gaps = positive["value"].to_numpy() / limit - 1
        # Halving m should halve the gap; a gap that stays is a gap of the limit.
        holds = bool(0 < gaps[0] < 1e-3 and np.all(np.diff(gaps) > 0))
        return Measurement(
            f"{gaps[0]:.2e} above the convex bound at m = {positive['x'].iloc[0]:g}, "
            f"{gaps[-1]:.2g} at m = {positive['x'].iloc[-1]:g}",
            "less than 1e-3 at the least m, and falling with m",
            holds,
        )

    return check


def check_pabi(estimates: pd.DataFrame) -> Measurement:
    """In one pass of single records the derived bound at m = 0 is PABI's."""
    rows = swept(estimates, "single pass", "rho")
    rows = rows[rows["x"] == 0]
    ours = pick(rows, "sharp", "unclipped")["value"].iloc[0]
    pabi = pick(rows, "PABI")["value"].iloc[0]
    return Measurement(
        f"rho {ours:.6g} against {pabi:.6g}", "1e-12 relative", bool(abs(ours / pabi - 1) < 1e-12)
    )


def check_linear_in_passes(estimates: pd.DataFrame) -> Measurement:
    """The increments of Theorem 4.5 per pass are one constant, at most composition's."""
    rows = swept(estimates, "passes", "rho")
    steepest, holds = 0.0, True
    for _, part in rows[rows["lipschitz"] == "unclipped"].groupby("weak_convexity"):
        line = part[part["method"] == "Theorem 4.5"].sort_values("x")
        slopes = np.diff(line["value"]) / np.diff(line["x"])
        steepest = max(steepest, slopes.max())
        holds &= bool(np.allclose(slopes, slopes[0], rtol=1e-9))
    composition = pick(rows, "composition")
    each = (composition["value"] / composition["x"]).iloc[0]
    return Measurement(
        f"{steepest / each:.4f} of composition's increment per pass at the largest m",
        "equal increments to 1e-9, none above composition's",
        holds and steepest <= each,
    )


def check_parameters(estimates: pd.DataFrame) -> Measurement:
    """Theorem 4.5 falls with smaller steps, larger noise and larger batches, everywhere."""
    worst = {}
    for sweep, sign in (("step_size", 1), ("noise_std", -1), ("batch_size", -1)):
        rows = swept(estimates, sweep, "rho")
        parts = pick(rows, "Theorem 4.5", "unclipped").groupby("weak_convexity")
        changes = [np.diff(np.log(part.sort_values("x")["value"])) for _, part in parts]
        worst[sweep] = float(np.min(sign * np.concatenate(changes)))
    shown = ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in worst.items())
    return Measurement(
        f"least change of log rho between neighbouring values, in the stated direction: {shown}",
        "all positive",
        all(value > 0 for value in worst.values()),
    )


def check_theorem_4_3(estimates: pd.DataFrame) -> Measurement:
    """The curvature-free bound beats the naive one by a factor of the order of the steps."""
    rows = _theorem_rows(estimates, "base")
    naive, ours = (rows[m].iloc[0] for m in ("triangle inequality", "Theorem 4.3"))
    steps = rows.index.get_level_values("x")[0]
    return Measurement(
        f"factor {naive / ours:.1f} for {steps:g} steps",
        "between a quarter of the steps and all of them: (1 + 1/b)^2 is at most 4",
        bool(steps / 4 <= naive / ours <= steps),
    )


def check_composition_dominates(estimates: pd.DataFrame) -> Measurement:
    """Composition is never above the curvature-free bounds, in every setting of the sweeps."""
    rows = estimates[(estimates["part"] == "sweeps") & (estimates["quantity"] == "rho")]
    index = ["sweep", "x", "weak_convexity"]
    table = rows[rows["method"].isin(["composition", "Theorem 4.3", "Corollary C.3"])]
    table = table.pivot_table(index=index, columns="method", values="value")
    ratios = table[["Theorem 4.3", "Corollary C.3"]].min(axis=1) / table["composition"]
    return Measurement(
        f"smallest ratio of Theorem 4.3 or Corollary C.3 to composition: {ratios.min():.3f} "
        f"in {len(ratios)} settings",
        "above 1 in every setting",
        bool(ratios.min() > 1),
    )


def check_quadratic_programme(estimates: pd.DataFrame) -> Measurement:
    """Starting afresh at each visit is the optimum of the programme, in every setting."""
    rows = estimates[(estimates["quantity"] == "rho") & (estimates["part"] == "sweeps")]
    index = ["sweep", "x", "weak_convexity", "lipschitz"]
    table = rows[rows["method"].isin(["sharp", "quadratic programme"])]
    table = table.pivot_table(index=index, columns="method", values="value")
    gap = (table["sharp"] / table["quadratic programme"] - 1).abs().max()
    return Measurement(
        f"largest relative difference {gap:.1e} in {len(table)} settings", "1e-9", bool(gap < 1e-9)
    )


def check_nonexpansive(estimates: pd.DataFrame) -> Measurement:
    """No certified divergence exceeds what nonexpansive convex steps would allow."""
    ratio = _certified_ratio(estimates, "convex bound")
    return Measurement(
        f"certified divergence up to {ratio:.2f} times the bound (confidence 1 - 1e-6 each)",
        "at most 1",
        ratio <= 1,
    )


def check_corrected(estimates: pd.DataFrame) -> Measurement:
    """The same divergences obey the bound with the corrected constant."""
    ratio = _certified_ratio(estimates, "corrected bound")
    return Measurement(
        f"certified divergence up to {ratio:.2f} times the bound", "at most 1", ratio <= 1
    )


def _certified_ratio(estimates: pd.DataFrame, bound: str) -> float:
    rows = estimates[estimates["quantity"].isin(["kl", "d2"])]
    table = rows.pivot(index=["quantity", "x"], columns="method", values="value")
    return float((table["certified"] / table[bound]).max())


def check_tightness(estimates: pd.DataFrame) -> Measurement:
    """Exact divergences never exceed the sharp bound, and attain it where they should."""
    rows = estimates[(estimates["quantity"] == "tightness") & (estimates["method"] == "sharp")]
    attained = rows[(rows["x"] == 1) | (rows["growth"] == 0)]["value"]
    return Measurement(
        f"exact / bound between {attained.min():.12f} and 1 for one pass or L = 1, "
        f"at most {rows['value'].max():.12f} anywhere",
        "1e-9 (the rounding of the exact values) from 1 where attained, never above 1",
        bool(attained.min() > 1 - 1e-9 and rows["value"].max() < 1 + 1e-9),
    )


def check_audit(estimates: pd.DataFrame) -> Measurement:
    """Audited lower bounds lie below the exact epsilon, and that below every upper bound."""
    rows = estimates[estimates["quantity"] == "audit"]
    table = rows.pivot(index=["instance", "x"], columns="method", values="value")
    upper = table[["composition", "Theorem 4.5", "sharp"]].min(axis=1)
    ceiling = table["exact"].fillna(upper)
    holds = (table["lower bound"] <= ceiling) & (ceiling <= upper)
    share = (table["lower bound"] / ceiling).max()
    return Measurement(
        f"{int(holds.sum())} of {len(table)} audits; the best shows {share:.2f} of the exact "
        "epsilon (of the upper bound, where none is known)",
        "every audit",
        bool(holds.all()),
    )


def _theorem_rows(estimates: pd.DataFrame, setting: str) -> pd.DataFrame:
    rows = estimates[(estimates["part"] == "theorems") & (estimates["setting"] == setting)]
    rows = rows[rows["quantity"] == "rho"]
    return rows.pivot_table(index=["weak_convexity", "x"], columns="method", values="value")
