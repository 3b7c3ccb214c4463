"""Made-up estimates of the atlas, by check and outcome."""

from functools import partial

import pandas as pd


def atlas(history=7.0, encoding=6.0, audits=20, above=0):
    """One setting of which 7 is proven, and as many audits, some of them above that."""
    rows = [
        {"method": "composition (PLD)", "group": "proven", "kind": "upper", "value": 7.0},
        {"method": "history regulariser", "group": "counterexample", "kind": "lower"}
        | {"value": history},
        {"method": "encoding-loss audit", "group": "simulated", "kind": "lower"}
        | {"value": encoding, "confidence": 0.95},
    ]
    rows += [
        {"method": f"audit {i}", "group": "simulated", "kind": "lower", "confidence": 0.95}
        | {"value": 7.1 if i < above else 5.0}
        for i in range(audits - 1)
    ]
    return pd.DataFrame(rows).assign(cell="a tenth in every step", allowed=float("nan"))


CASES = {
    "ordered": {
        "agrees": partial(atlas, audits=40, above=1),
        "contradicts": partial(atlas, history=7.01),
        "undecided": partial(atlas, audits=3),
    },
    "attained": {"agrees": atlas, "contradicts": partial(atlas, history=6.9)},
    "audited": {"agrees": atlas, "contradicts": partial(atlas, encoding=3.0)},
}
