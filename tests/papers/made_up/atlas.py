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


CASES = {
    "ordered": {
        "agrees": partial(atlas, audits=40, above=0.02),
        "contradicts": partial(atlas, audits=40, above=0.25),
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
