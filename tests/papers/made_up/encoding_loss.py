"""Made-up estimates of encoding_loss, by check and outcome."""

from functools import partial

import numpy as np
import pandas as pd
from made_up import count, repeats

MECHANISM = {"sampling_rate": 0.01, "steps": 1024, "noise_multiplier": 0.5}


def curves(excess, sd, null="out"):
    """Distances of five repeats at the mechanism that the text names, and of all iterates'."""
    shared = {"quantity": "levy_distance", "null": null, "encoding": "published", "cell": "a"}
    distances = {"all iterates, observed": np.full(5, 0.008)}
    distances["all iterates"] = 0.008 + repeats(excess, sd)
    return pd.concat(
        pd.DataFrame({"value": values, "method": method}) for method, values in distances.items()
    ).assign(**shared, **MECHANISM)


def gaps(method, mean, sd):
    """Gaps of false-negative rates of five repeats, at the same mechanism."""
    shared = {"quantity": "fnr_gap", "method": method, "encoding": "published", "cell": "a"}
    return pd.DataFrame({"value": repeats(mean, sd)}).assign(x=0.1, **shared, **MECHANISM)


def told(lost, sd, encoding="published", first=0.0):
    """Share of pairs that all iterates tell apart, and less by the last in two settings."""
    parts = [
        pd.DataFrame({"value": values, "repeat": range(5), "method": method, "cell": cell})
        for cell, less in (("a_eps1", first), ("a_eps2", lost))
        for method, values in (
            ("all iterates", np.full(5, 0.6)),
            ("last iterate", 0.6 - repeats(less, sd)),
        )
    ]
    return pd.concat(parts).assign(quantity="auc", encoding=encoding, **MECHANISM)


def wrong(most):
    shared = {"quantity": "collision_probability", "encoding": "published", "cell": "a_eps2"}
    return pd.DataFrame([{"value": most, **shared, **MECHANISM}])


def theorem(name, value):
    shared = {"quantity": "theorem", "method": name, "kind": "exact", "cell": "a_eps2"}
    return pd.DataFrame([{"value": value, **shared, **MECHANISM}])


def returned(share, of=40):
    values = np.where(np.arange(of) < count(share, of), 2.0, np.inf)
    shared = {"quantity": "epsilon", "method": "every threshold", "encoding": "published"}
    return pd.DataFrame({"value": values}).assign(**shared)


def epsilons(means, sd, method="algorithm 2", encoding="published"):
    """Repeats in settings of theoretical epsilon 1, 2, 4 and 10."""
    parts = [
        pd.DataFrame({"value": repeats(mean, sd), "epsilon": epsilon, "cell": f"a_eps{epsilon}"})
        for epsilon, mean in zip((1, 2, 4, 10), means, strict=True)
    ]
    shared = {"quantity": "epsilon", "method": method, "encoding": encoding}
    return pd.concat(parts).assign(**shared, **MECHANISM)


def cuts(excess, sd=0.05):
    """At two cut-offs, the estimate at epsilon 10 a share above."""
    parts = [epsilons((1.0, 2.0, 4.0, 10.0 * (1 + excess)), sd).assign(x=x) for x in (0.0, 0.01)]
    return pd.concat(parts).assign(quantity="epsilon by cut-off")


def three(agrees, contradicts, undecided):
    return {"agrees": agrees, "contradicts": contradicts, "undecided": undecided}


def matching(**which):
    return three(
        partial(epsilons, (1.0, 2.0, 4.0, 10.0), 0.1, **which),
        partial(epsilons, (1.0, 2.0, 4.0, 9.5), 0.1, **which),
        partial(epsilons, (1.0, 2.0, 4.0, 10.0), 2.0, **which),
    )


def printed(lost, sd):
    """Share of pairs that the last iterate tells apart, less than all do, of some repeats."""
    shared = {"quantity": "auc", "encoding": "as printed", "cell": "a", **MECHANISM}
    n = 2 if lost else 400
    parts = {"all iterates": np.full(n, 0.8), "last iterate": 0.8 - repeats(lost, sd, n)}
    return pd.concat(
        pd.DataFrame({"value": values, "repeat": range(n), "method": method})
        for method, values in parts.items()
    ).assign(**shared)


CASES = {
    # At sampling rate 0.1 and epsilon 2, which Figure 1 leaves out, it is 0.026 further off.
    "curve": three(
        partial(curves, 0.0, 0.004), partial(curves, 0.026, 0.006), partial(curves, 0.01, 0.002)
    ),
    "swapped": three(
        partial(curves, 0.0, 0.004, "in"),
        partial(curves, 0.026, 0.006, "in"),
        partial(curves, 0.01, 0.002, "in"),
    ),
    # The alternative is the linear loss itself.
    "no_amplification": three(
        partial(gaps, "below linear loss", 0.149, 0.01),
        partial(gaps, "below linear loss", 0.0, 0.003),
        partial(gaps, "below linear loss", 0.010, 0.002),
    ),
    "above_symmetric": three(
        partial(gaps, "above symmetric", 0.025, 0.004),
        partial(gaps, "above symmetric", -0.025, 0.004),
        partial(gaps, "above symmetric", 0.002, 0.004),
    ),
    "equivalent": three(
        partial(told, 0.0, 0.002), partial(told, 0.033, 0.006), partial(told, 0.005, 0.01)
    ),
    "leaks_as_much": three(
        partial(told, 0.033, 0.002),
        partial(told, 0.033, 0.006, first=0.033),
        partial(told, 0.033, 0.01, first=0.005),
    ),
    "equivalent_sound": three(
        partial(told, 0.0, 0.002, "sound"),
        partial(told, 0.033, 0.006, "sound"),
        partial(told, 0.005, 0.01, "sound"),
    ),
    "algorithm_1": three(
        partial(printed, 0.0, 0.001),
        partial(printed, 0.3, 0.02),
        partial(printed, 0.02, 0.02),
    ),
    "product_form": {
        "agrees": partial(theorem, "product form", 1e-12),
        "contradicts": partial(theorem, "product form", 1.1e-9),
    },
    "small_gradients": {
        "agrees": partial(theorem, "largest gradient", 0.999),
        "contradicts": partial(theorem, "largest gradient", 1.001),
    },
    "not_corrupted": {
        "agrees": partial(wrong, 0.0499),
        "contradicts": partial(wrong, 0.052),
        "undecided": partial(wrong, 0.0501),
    },
    "algorithm_2": three(partial(returned, 1.0), partial(returned, 0.1), partial(returned, 0.5)),
    "epsilon": matching(),
    "epsilon_sound": matching(encoding="sound"),
    "epsilon_closest": matching(encoding="sound", method="closest curve"),
    "cut_offs": three(
        partial(cuts, 0.2),
        partial(cuts, 0.0),
        partial(cuts, 0.2, sd=1.0),
    ),
    "slightly_above": three(
        partial(epsilons, (1.1, 2.1, 4.2, 10.3), 0.1),
        partial(epsilons, (0.9, 1.9, 3.8, 9.7), 0.1),
        partial(epsilons, (1.1, 2.0, 3.9, 10.0), 0.5),
    ),
}
