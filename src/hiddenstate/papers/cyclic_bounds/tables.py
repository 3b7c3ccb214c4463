"""Tables of cyclic_bounds, made from its estimates."""

import numpy as np
import pandas as pd

from hiddenstate.papers.cyclic_bounds.cells import pick

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


def tabulate_theorems(estimates: pd.DataFrame) -> pd.DataFrame:
    """Every bound at the base mechanism and in its single pass: rho and epsilon."""
    rows = estimates[estimates["part"] == "theorems"].fillna({"lipschitz": ""})
    index = ["setting", "x", "method", "lipschitz", "weak_convexity"]
    table = rows.pivot(index=index, columns="quantity", values="value").reset_index()
    table["provenance"] = table["method"].map(_source)
    for name in ("rho", "epsilon"):
        table[name] = table[name].map("{:.4g}".format)
    table["x"] = table["x"].astype(int)
    table = table[[*index, "rho", "epsilon", "provenance"]]
    return table.rename(
        columns={"x": "steps", "lipschitz": "constant", "weak_convexity": "weak convexity"}
    )


def tabulate_table1_2(estimates: pd.DataFrame) -> pd.DataFrame:
    """Table 1.2 as numbers: rho by method, for convex and for weakly convex losses."""
    rows = estimates[(estimates["part"] == "theorems") & (estimates["quantity"] == "rho")]
    rows = rows.fillna({"lipschitz": ""})
    records = []
    for (setting, steps), part in rows.groupby(["setting", "x"]):
        entries = (
            ("PABI", [("PABI", "")], "no clipping, batch size 1, one pass; first record"),
            ("sharp", [("sharp", "reconstructed")], "as stated; first record"),
            ("sharp, corrected", [("sharp", "clipped")], "any clipped loss; first record"),
            ("Theorem 4.5", [("Theorem 4.5", "reconstructed")], "as stated; any record"),
            ("Theorem 4.5, corrected", [("Theorem 4.5", "clipped")], "any clipped loss"),
            ("composition", [("composition", "")], "no assumption; all iterates"),
        )
        for name, methods, assumptions in entries:
            record = {"setting": f"{setting}, {steps:g} steps", "method": name}
            for m in sorted(part["weak_convexity"].unique()):
                of_m = part[part["weak_convexity"] == m]
                values = [v for method in methods for v in pick(of_m, *method)["value"]]
                head = "convex" if m == 0 else f"weak convexity {m:g}"
                record[head] = f"{values[0]:.4g}" if values else "-"
            records.append(record | {"assumptions": assumptions})
    return pd.DataFrame(records)


def tabulate_counterexample(estimates: pd.DataFrame) -> pd.DataFrame:
    """Certified divergences and bounds of the counterexample."""
    rows = estimates[estimates["quantity"].isin(["kl", "d2"])]
    table = rows.pivot(index=["quantity", "x"], columns="method", values="value").reset_index()
    table["certified / convex bound"] = table["certified"] / table["convex bound"]
    table["quantity"] = table["quantity"].map({"kl": "KL divergence", "d2": "D_2"})
    numbers = ["certified", "convex bound", "corrected bound", "affine limit", "composition"]
    numbers.append("certified / convex bound")
    for name in numbers:
        table[name] = table[name].map("{:.4f}".format)
    table["x"] = table["x"].astype(int)
    return table[["quantity", "x", *numbers]].rename(columns={"x": "steps"})


def tabulate_audit(estimates: pd.DataFrame) -> pd.DataFrame:
    """Audited lower bounds, exact values and upper bounds on epsilon."""
    rows = estimates[estimates["quantity"] == "audit"]
    table = rows.pivot(index=["instance", "x"], columns="method", values="value").reset_index()
    columns = ["lower bound", "exact", "sharp", "Theorem 4.5", "composition"]
    for name in columns:
        table[name] = table[name].map(lambda v: "-" if np.isnan(v) else f"{v:.3f}")
    table["x"] = table["x"].astype(int)
    return table[["instance", "x", *columns]].rename(columns={"x": "passes"})
