"""Made-up estimates of estimators, by check and outcome."""

from functools import partial

import pandas as pd
from made_up import count, once

from hiddenstate.auditing import AsPublished, Averaged


def exceeding(share, audits=1500, cell="gaussian_mu0", method=Averaged.name, valid=True):
    """Two points at which this share of the audits claims too much."""
    rows = [
        {"quantity": "exceedance", "cell": cell, "method": method, "valid": valid}
        | {"x": n, "value": count(share, audits) / audits, "audits": audits}
        for n in (100, 1000)
    ]
    return pd.DataFrame(rows)


def published(at_100, at_1000, audits=1500):
    rows = [
        {"cell": cell, "x": n, "value": count(share, audits) / audits}
        for cell, n, share in (
            ("gaussian_mu0", 100, at_100),
            ("gaussian_mu1", 100, at_100),
            ("gaussian_mu1", 1000, at_1000),
        )
    ]
    shared = {"quantity": "exceedance", "method": AsPublished.name, "audits": audits}
    return pd.DataFrame(rows).assign(**shared)


def medians(at_1, at_3, audits=1500):
    """Medians of bounds whose middle 80 %, 2.56 deviations, are 0.6 wide."""
    error = 1.25 * 0.6 / 2.56 / audits**0.5
    rows = [
        {
            "cell": cell,
            "x": 100,
            "value": once(value, error),
            "low": value - 0.3,
            "high": value + 0.3,
        }
        for cell, value in (("gaussian_mu1", at_1), ("gaussian_mu3", at_3))
    ]
    shared = {"quantity": "median", "method": Averaged.name, "audits": audits}
    return pd.DataFrame(rows).assign(**shared)


def zoo(found, of=17, audits=100, control=0.05):
    """The first bugs are found in all audits at the most models, the others hardly ever."""
    powers = {f"bug{i}": 1.0 if i < found else 0.05 for i in range(of)} | {"none": control}
    rows = [
        {"quantity": "power", "cell": cell, "x": n}
        | {"value": count(value if n == 1000 else 0.05, audits) / audits}
        for cell, value in powers.items()
        for n in (10, 1000)
    ]
    return pd.DataFrame(rows).assign(audits=audits)


def validity(**which):
    return {
        "agrees": partial(exceeding, 0.04, **which),
        "contradicts": partial(exceeding, 0.1, **which),
        "undecided": partial(exceeding, 0.05, audits=60, **which),
    }


CASES = {
    "default_holds": validity(),
    "valid_hold": validity(method="split"),
    "null": validity(method="split"),
    "as_published": {
        "agrees": partial(published, 0.1, 0.2),
        "contradicts": partial(published, 0.02, 0.2),
        "undecided": partial(published, 0.1, 0.2, audits=100),
    },
    "default_is_tight": {
        "agrees": partial(medians, 0.75, 2.3),
        "contradicts": partial(medians, 0.65, 2.3),
        "undecided": partial(medians, 0.75, 2.3, audits=10),
    },
    "bugs": {
        "agrees": partial(zoo, 12),
        "contradicts": partial(zoo, 8),
        "undecided": partial(zoo, 12, audits=3),
    },
}
