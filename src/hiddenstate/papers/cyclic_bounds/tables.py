"""Tables of cyclic_bounds."""

import numpy as np
import pandas as pd

from hiddenstate.estimates import select
from hiddenstate.family import table

RECONSTRUCTED = {
    "Theorem 4.3",
    "Theorem 4.4",
    "Theorem 4.5",
    "equation 22",
    "Corollary C.2",
    "Corollary C.3",
    "triangle inequality",
}
"""Bounds whose form or constant we inferred."""


def _source(method: str) -> str:
    if method in RECONSTRUCTED:
        return "our reconstruction"
    return "Feldman et al. 2018" if method == "PABI" else "derived"


@table(
    "Table 1.2 as numbers",
    "Rho of the methods that the paper's Table 1.2 compares (its formulas: our "
    "reconstruction), with the corrected bound and composition.",
)
def table1_2(estimates: pd.DataFrame) -> pd.DataFrame:
    """Table 1.2 as numbers: rho by method, for convex and for weakly convex losses."""
    rows = select(estimates, part="theorems", quantity="rho")
    records = []
    for (setting, steps), part in rows.groupby(["setting", "x"]):
        entries = (
            ("PABI", "PABI", None, "no clipping, batch size 1, one pass; first record"),
            ("sharp", "sharp", "reconstructed", "as stated; first record"),
            ("sharp, corrected", "sharp", "clipped", "any clipped loss; first record"),
            ("Theorem 4.5", "Theorem 4.5", "reconstructed", "as stated; any record"),
            ("Theorem 4.5, corrected", "Theorem 4.5", "clipped", "any clipped loss"),
            ("composition", "composition", None, "no assumption; all iterates"),
        )
        for name, method, lipschitz, assumptions in entries:
            record = {"setting": f"{setting}, {steps:g} steps", "method": name}
            line = select(part, method=method, lipschitz=lipschitz).set_index("weak_convexity")
            for m in sorted(part["weak_convexity"].unique()):
                head = "convex" if m == 0 else f"weak convexity {m:g}"
                record[head] = f"{line['value'][m]:.4g}" if m in line.index else "-"
            records.append(record | {"assumptions": assumptions})
    return pd.DataFrame(records)


@table(
    "Every bound",
    "Rho and epsilon of every theorem and corollary with each Lipschitz constant. Those "
    "with the constants 'unclipped' and 'reconstructed', equation 22, PABI and Corollary "
    "C.2 hold where clipping turns no gradient.",
)
def theorems(estimates: pd.DataFrame) -> pd.DataFrame:
    """Every bound at the base mechanism and in its single pass: rho and epsilon."""
    rows = select(estimates, part="theorems").fillna({"lipschitz": ""})
    index = ["setting", "x", "method", "lipschitz", "weak_convexity"]
    shown = rows.pivot(index=index, columns="quantity", values="value").reset_index()
    shown["provenance"] = shown["method"].map(_source)
    for name in ("rho", "epsilon"):
        shown[name] = shown[name].map("{:.4g}".format)
    shown["x"] = shown["x"].astype(int)
    shown = shown[[*index, "rho", "epsilon", "provenance"]]
    return shown.rename(
        columns={"x": "steps", "lipschitz": "constant", "weak_convexity": "weak convexity"}
    )


@table(
    "Certified divergences",
    "Nats; confidence 1 - 1e-6 each.",
)
def counterexample(estimates: pd.DataFrame) -> pd.DataFrame:
    """Certified divergences and bounds of the counterexample."""
    rows = select(estimates, quantity=["kl", "d2"])
    shown = rows.pivot(index=["quantity", "x"], columns="method", values="value").reset_index()
    shown["certified / convex bound"] = shown["certified"] / shown["convex bound"]
    shown["quantity"] = shown["quantity"].map({"kl": "KL divergence", "d2": "D_2"})
    numbers = ["certified", "convex bound", "corrected bound", "affine limit", "composition"]
    numbers.append("certified / convex bound")
    for name in numbers:
        shown[name] = shown[name].map("{:.4f}".format)
    shown["x"] = shown["x"].astype(int)
    return shown[["quantity", "x", *numbers]].rename(columns={"x": "steps"})


@table(
    "Audits",
    "Epsilon: audited lower bound (95 % confidence), exact value, and upper bounds.",
)
def audit(estimates: pd.DataFrame) -> pd.DataFrame:
    """Audited lower bounds, exact values and upper bounds on epsilon."""
    rows = select(estimates, quantity="audit")
    shown = rows.pivot(index=["instance", "x"], columns="method", values="value").reset_index()
    columns = ["lower bound", "exact", "sharp", "Theorem 4.5", "composition"]
    for name in columns:
        shown[name] = shown[name].map(lambda v: "-" if np.isnan(v) else f"{v:.3f}")
    shown["x"] = shown["x"].astype(int)
    return shown[["instance", "x", *columns]].rename(columns={"x": "passes"})
