"""Made-up estimates of shuffling, by check and outcome."""

from functools import partial

import pandas as pd
from made_up import count, once, repeats

SHARED = {"part": "simulated", "claim": 1.0, "epochs": 1, "order": "each epoch"}


def row(method, value, *, batches=100, record="swapped", **more):
    return SHARED | {"method": method, "value": value, "batches": batches, "record": record} | more


def epoch(method, few, many, record="swapped"):
    """One epoch of 100 batches and of 1,000."""
    return pd.DataFrame(
        row(method, value, batches=batches, record=record, confidence=0.95)
        for batches, value in ((100, few), (1000, many))
    )


def factors(many, last):
    """All iterates of 100 batches show as much as claimed; of 1,000 so much, and so the last."""
    return pd.concat([epoch("largest sum", 1.0, many), epoch("linear losses", 0.9, last)])


def audited(found, proven=17.0):
    """What an audit of 1,000 batches found, and what is proven."""
    return pd.concat([epoch("all iterates", 9.0, found), epoch("composition", 9.0, proven)])


def bounds(share, n=400):
    """Lower bounds of either adversary, a share of them above what they must not exceed."""
    above = count(share, n)
    rows = [row("composition", 5.0), row("linear losses", 2.0)]
    for i in range(n):
        method, most = (("all iterates", 5.0), ("last iterate", 2.0))[i % 2]
        rows.append(row(method, most * (1.01 if i < above else 0.9), confidence=0.95))
    return pd.DataFrame(rows)


def networks(ratio, spread=0.02):
    """An audit of networks, beside 20 simulated ones."""
    trained = row("all iterates", 5.0 * once(ratio, spread), part="trained")
    ideal = [row("all iterates", v, part="ideal") for v in repeats(5.0, 5.0 * spread, 20)]
    return pd.DataFrame([trained, *ideal])


CASES = {
    "overestimated": {
        "agrees": partial(audited, 1.01),
        "contradicts": partial(audited, 0.5, proven=0.99),
        "undecided": partial(audited, 0.99),
    },
    "not_uniform": {
        "agrees": partial(factors, 1.501, 1.0),
        "contradicts, settings": partial(factors, 1.499, 0.9),
        "contradicts, adversaries": partial(factors, 1.501, 1.002),
    },
    "grows": {
        "agrees": partial(epoch, "largest sum", 3.0, 3.003),
        "contradicts": partial(epoch, "largest sum", 3.0, 2.997),
    },
    "exceeded": {
        "agrees": partial(epoch, "largest sum", 1.001, 3.0),
        "contradicts": partial(epoch, "largest sum", 0.999, 3.0),
    },
    "last_iterate": {
        "agrees": partial(epoch, "linear losses", 0.999, 0.5),
        "contradicts": partial(epoch, "linear losses", 1.001, 0.5),
    },
    "valid": {
        "agrees": partial(bounds, 0.03),
        "contradicts": partial(bounds, 0.12),
        "undecided": partial(bounds, 0.05, n=20),
    },
    "networks": {
        "agrees": partial(networks, 1.0),
        "contradicts": partial(networks, 0.5),
        "undecided": partial(networks, 1.0, spread=0.2),
    },
}
