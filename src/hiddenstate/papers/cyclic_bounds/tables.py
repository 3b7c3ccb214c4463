"""Tables of cyclic_bounds."""

import numpy as np
import pandas as pd

from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.family import Rows, table
from hiddenstate.rounding import shown

RECONSTRUCTED = {
    "Theorem 4.3",
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
def table1_2(estimates: pd.DataFrame) -> Rows:
    rows = select(estimates, part="theorems", quantity="rho")
    for (setting, steps), part in rows.groupby(["setting", "x"]):
        entries = (
            ("PABI", "PABI", None, "no clipping, batch size 1, one pass; first record"),
            ("sharp", "sharp", "reconstructed", "our reconstruction; first record"),
            ("sharp, corrected", "sharp", "clipped", "any clipped loss; first record"),
            ("Theorem 4.5", "Theorem 4.5", "reconstructed", "our reconstruction; any record"),
            ("Theorem 4.5, corrected", "Theorem 4.5", "clipped", "any clipped loss"),
            ("composition", "composition", None, "no assumption; all iterates"),
        )
        for name, method, lipschitz, assumptions in entries:
            record = {"setting": f"{setting}, {steps:g} steps", "method": name}
            line = select(part, method=method, lipschitz=lipschitz).set_index("weak_convexity")
            for m in sorted(part["weak_convexity"].unique()):
                head = "convex" if m == 0 else f"weak convexity {m:g}"
                record[head] = shown(line["value"][m], "upper", 4) if m in line.index else "-"
            yield record | {"assumptions": assumptions}


_HEADS = {
    "": "no constant",
    "unclipped": "L where clipping keeps directions",
    "reconstructed": "L of equation 12",
    "clipped": "L for any clipped loss",
}


@table(
    "Every bound",
    "Rho, and in brackets the epsilon that it means as Gaussian differential privacy, of every "
    "theorem and corollary, by Lipschitz constant. The first two constants, equation 22, PABI and "
    "Corollary C.2 hold where clipping keeps directions. Composition and the bounds without a "
    "constant or a weak convexity are the same for all losses.",
)
def theorems(estimates: pd.DataFrame) -> pd.DataFrame:
    rows = select(estimates, part="theorems").fillna({"lipschitz": ""})
    rows = rows[rows["conversion"] != "rdp"]
    index = ["setting", "x", "method", "weak_convexity", "lipschitz"]
    found = rows.pivot(index=index, columns="quantity", values="value").reset_index()
    # A bound that does not depend on the weak convexity is told once.
    by = found.groupby(["setting", "method"])["weak_convexity"]
    shared = (
        (found["lipschitz"] == "")
        & (by.transform("nunique") > 1)
        & (found["method"] != "Corollary C.2")
    )
    found = found[~shared | (found["weak_convexity"] == by.transform("min"))]
    found = found.assign(
        weak_convexity=found["weak_convexity"].map("{:g}".format).where(~shared, "any"),
        text=[
            f"{shown(rho, 'upper', 4)} ({shown(epsilon, 'upper', 4)})"
            for rho, epsilon in zip(found["rho"], found["epsilon"], strict=True)
        ],
    )
    wide = found.pivot(index=index[:-1], columns="lipschitz", values="text").fillna("-")
    wide = wide[[name for name in _HEADS if name in wide]].rename(columns=_HEADS)
    wide = wide.rename_axis(columns=None).reset_index()
    wide["x"] = wide["x"].astype(int)
    wide["provenance"] = wide["method"].map(_source)
    return wide.rename(columns={"x": "steps", "weak_convexity": "weak convexity"})


@table(
    "Certified divergences",
    "Nats; failure probability 1e-6 for all certificates together. The convex bound is privacy "
    "amplification by iteration in a single pass, equation 22 (our reconstruction) in several.",
)
def counterexample(estimates: pd.DataFrame) -> pd.DataFrame:
    rows = select(estimates, quantity=["kl", "d2"])
    index = ["quantity", "x", "passes"]
    found = rows.pivot(index=index, columns="method", values="value").reset_index()
    found["certified / convex bound"] = found["certified"] / found["convex bound"]
    found["quantity"] = found["quantity"].map({"kl": "KL divergence", "d2": "D_2"})
    kinds = {
        "certified": "lower",
        "convex bound": "upper",
        "corrected bound": "upper",
        "affine limit": "exact",
        "composition": "upper",
        "certified / convex bound": "lower",
    }
    for name, kind in kinds.items():
        found[name] = [shown(value, kind, decimals=4) for value in found[name]]
    found = found.astype({"x": int, "passes": int})
    return found[[*index, *kinds]].rename(columns={"x": "steps of a pass"})


@table(
    "Audits",
    "Epsilon: audited lower bound (95 % confidence), exact value, and upper bounds as Gaussian "
    "differential privacy (in brackets: as Rényi divergences).",
)
def audit(estimates: pd.DataFrame) -> pd.DataFrame:
    rows = select(estimates, quantity="audit").fillna({"conversion": "", "value": np.nan})
    found = rows.pivot(index=["instance", "x"], columns=["method", "conversion"], values="value")
    kinds = {"lower bound": "lower", "exact": "exact"}
    printed = pd.DataFrame(
        {
            (method, conversion): [
                "-" if np.isnan(value) else shown(value, kinds.get(method, "upper"), decimals=3)
                for value in found[method, conversion]
            ]
            for method, conversion in found.columns
        },
        index=found.index,
    )
    # A scale's data sets may have no exact value, or no theorem.
    columns = {name: printed.get((name, ""), "-") for name in kinds} | {
        name: printed[name, "gdp"] + " (" + printed[name, "rdp"] + ")"
        for name in ("sharp", "Theorem 4.5", "composition")
        if (name, "gdp") in printed
    }
    table = pd.DataFrame(columns, index=found.index).reset_index().astype({"x": int})
    return table.rename(columns={"x": "passes"})
