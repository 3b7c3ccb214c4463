"""Made-up estimates of the atlas, by check and outcome."""

from functools import partial

import pandas as pd
from made_up import count


def atlas(history=7.0, encoding=6.0, audits=20, above=0.05):
    """One setting of which 7 is proven, and as many audits, a share of them above that."""
    exceeding = count(above, audits - 1)
    rows = [
        {"method": "standard epsilon", "group": "proven", "kind": "upper", "value": 7.0},
        {"method": "history regulariser", "group": "counterexample", "kind": "lower"}
        | {"value": history},
        {"method": "encoding-loss audit", "group": "simulated", "kind": "lower"}
        | {"value": encoding, "confidence": 0.95},
    ]
    rows += [
        {"method": f"audit {i}", "group": "simulated", "kind": "lower", "confidence": 0.95}
        | {"value": 7.1 if i < exceeding else 5.0}
        for i in range(audits - 1)
    ]
    return pd.DataFrame(rows).assign(cell="a tenth in every step", allowed=float("nan"))


def checkpoints(tenth=1.05):
    """One setting whose last iterate has 2; every tenth so many times as much."""
    ends = {"upper": {1: 5.0, 10: 2 * tenth, 100: 2.0}, "lower": {1: 4.9, 10: 2.0, 100: 2.0}}
    rows = [
        {"method": "linear losses", "kind": kind, "x": k, "value": value}
        for kind, by_period in ends.items()
        for k, value in by_period.items()
    ]
    return pd.DataFrame(rows).assign(cell="released", group="released")


def with_checkpoints(audits):
    """40 audits of a setting, and 10 of released checkpoints of which so many are above."""
    mine = pd.DataFrame(
        {"method": "audit", "kind": "lower", "x": 100, "value": 2.1 if i < audits else 1.5}
        for i in range(10)
    )
    parts = [
        atlas(audits=40, above=0.1),
        checkpoints(),
        mine.assign(cell="released", group="released"),
    ]
    return pd.concat(parts, ignore_index=True)


CASES = {
    "released": {
        "agrees": checkpoints,
        "contradicts": partial(checkpoints, tenth=1.1001),
    },
    "ordered": {
        "agrees": partial(atlas, audits=40, above=0.02),
        "contradicts": partial(atlas, audits=40, above=0.25),
        "contradicts, checkpoints": partial(with_checkpoints, 10),
        "contradicts, computed": partial(atlas, history=7.0001, audits=40),
        "undecided": partial(atlas, audits=3),
    },
    "attained": {
        "agrees": partial(atlas, history=6.9301),
        "contradicts": partial(atlas, history=6.9299),
    },
    "audited": {
        "agrees": partial(atlas, encoding=3.501),
        "contradicts": partial(atlas, encoding=3.499),
    },
}
