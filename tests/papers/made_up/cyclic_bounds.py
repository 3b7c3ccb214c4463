"""Made-up estimates of cyclic_bounds, by check and outcome."""

from functools import partial

import pandas as pd
from made_up import count


def pair(low, high):
    return pd.DataFrame([{"quantity": "expanded pair", "low": low, "high": high}])


def losses(passes, certified, convex, corrected, affine=0.9):
    """Divergences of the counterexample beside the bounds."""
    values = {"certified": certified, "convex bound": convex, "corrected bound": corrected}
    values["affine limit"] = affine
    return pd.DataFrame(
        {"quantity": quantity, "x": 100, "passes": passes, "method": method, "value": value}
        for quantity in ("kl", "d2")
        for method, value in values.items()
    )


def sweeps(batch_size=-1.0):
    """Theorem 4.5 as powers of the three parameters; the batch size may work the wrong way."""
    signs = {"step_size": 1, "noise_std": -1, "batch_size": batch_size}
    return pd.DataFrame(
        {"part": "sweeps", "quantity": "rho", "method": "Theorem 4.5", "lipschitz": "unclipped",
         "sweep": sweep, "weak_convexity": m, "x": x, "value": x**sign}
        for sweep, sign in signs.items()
        for m in (0.0, 0.1)
        for x in (1.0, 2.0, 4.0)
    )  # fmt: skip


def single_pass(equation_22):
    values = {"equation 22": equation_22, "PABI": 0.05, "composition": 50.0}
    return pd.DataFrame(
        {"part": "sweeps", "sweep": "single pass", "quantity": "rho", "x": 0.0, "method": m,
         "value": value}
        for m, value in values.items()
    )  # fmt: skip


def towards(limit, last, before=0.1):
    """Theorem 4.5 at ever smaller weak convexities, at the last so far from equation 22."""
    shared = {"part": "sweeps", "sweep": "weak_convexity", "quantity": "rho"}
    line = [{"method": "equation 22", "x": 0.0, "value": limit}]
    line += [
        {"method": "Theorem 4.5", "lipschitz": "reconstructed", "x": x, "value": limit * (1 + off)}
        for x, off in ((1e-6, last), (1e-3, before), (0.1, 0.5))
    ]
    return pd.DataFrame(shared | row for row in line)


def residuals(dual, later=1.0):
    return pd.DataFrame(
        {"quantity": "residuals", "method": method, "x": x, "value": value}
        for x, value in ((1, dual), (10, later))
        for method in ("sharp", "dual bound")
    )


def audits(gdp=1.5, rdp=1.7, exact=1.4, above=0.05, n=6):
    """Audits of several data sets, at one number of passes, a share of them above the truth."""
    rows, exceeding = [], count(above, n)
    for i in range(n):
        bound = 1.45 if i < exceeding else 1.0
        shared = {"quantity": "audit", "instance": f"data {i}", "x": 1, "conversion": None}
        rows += [shared | {"method": "exact", "value": exact}]
        rows += [shared | {"method": "lower bound", "value": bound}]
        for method in ("composition", "Theorem 4.5", "sharp"):
            rows += [shared | {"method": method, "conversion": "gdp", "value": gdp}]
            rows += [shared | {"method": method, "conversion": "rdp", "value": rdp}]
    return pd.DataFrame(rows)


def curvature_free(theorem):
    values = {"composition": 1.0, "Theorem 4.3": theorem, "Corollary C.3": 3.0}
    shared = {"part": "sweeps", "quantity": "rho", "sweep": "passes", "x": 1, "weak_convexity": 0.0}
    return pd.DataFrame(shared | {"method": m, "value": value} for m, value in values.items())


def tightness(tightest=1.0, constant=0.5):
    return pd.DataFrame(
        {"quantity": "tightness", "method": "sharp", "slopes": slopes, "value": value}
        for slopes, value in (("tightest", tightest), ("constant", constant))
    )


CASES = {
    "nonexpansive": {
        "agrees": partial(pair, 1 - 2e-9, 1 - 1e-9),
        "contradicts": partial(pair, 1 + 1e-9, 1 + 2e-9),
    },
    "convex_limit": {
        "agrees": partial(towards, 1.0, 0.001),
        "contradicts": partial(towards, 1.0, 0.00101),
        "contradicts, as it moves away again": partial(towards, 1.0, 0.001, 0.0005),
    },
    "convex_bound": {
        "agrees": partial(losses, 10, 0.2, 0.5, 0.5),
        "contradicts": partial(losses, 10, 0.5001, 0.5, 1.0),
        "undecided": partial(losses, 10, 0.4, 0.5, 1.0),
    },
    "parameters": {"agrees": sweeps, "contradicts": partial(sweeps, batch_size=0.001)},
    "residuals": {
        "agrees": partial(residuals, 1.0),
        "contradicts": partial(residuals, 1 - 2e-9),
    },
    "pabi": {
        "agrees": partial(single_pass, 499.0),
        "contradicts": partial(single_pass, 501.0),
    },
    "gaussian": {"agrees": partial(audits, gdp=1.6999), "contradicts": partial(audits, gdp=1.7001)},
    "composition": {
        "agrees": partial(curvature_free, 1.001),
        "contradicts": partial(curvature_free, 0.999),
    },
    "residuals_all_passes": {
        "agrees": partial(residuals, 1.0),
        "contradicts": partial(residuals, 1.0, later=1 - 2e-9),
    },
    "corrected": {
        "agrees": partial(losses, 1, 0.2, 0.5, 1.0, affine=0.9999),
        "contradicts": partial(losses, 1, 0.2, 0.5, 1.0, affine=1.0001),
    },
    "tightness": {
        "agrees": tightness,
        "contradicts": partial(tightness, tightest=1 - 2e-9),
    },
    "audit": {
        "agrees": partial(audits, above=0.02, n=12),
        "contradicts": partial(audits, above=0.75, n=12),
        "contradicts, computed": partial(audits, exact=1.5001),
        "undecided": partial(audits, n=2),
    },
}
