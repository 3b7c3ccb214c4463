"""Median lower bounds on epsilon: the default rule beside a threshold preset as well as can be.

    python benchmarks/power.py

The preset threshold is the best of all for the law, found on scores of its own. With --jax-privacy
(``pip install jax-privacy``, 2.0.0 was tried) the bounds of ``jax_privacy.auditing`` from the same
scores, both worlds' errors considered, stand in columns of their own.
"""

import argparse
from collections.abc import Callable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hiddenstate.accounting.composition import fine_bracket
from hiddenstate.accounting.gaussian import epsilon
from hiddenstate.auditing import (
    ApproxDP,
    Averaged,
    Fixed,
    GaussianDP,
    UniformBand,
    empirical_curve,
)
from hiddenstate.auditing.hypotheses import Hypotheses
from hiddenstate.auditing.intervals import clopper_pearson_upper
from hiddenstate.auditing.report import epsilon_of
from hiddenstate.streams import stream

LEVEL = 0.05
FAR = 200_000
"""Scores in each world by which the best threshold is found."""

Draw = Callable[[np.random.Generator, tuple[int, ...]], tuple[NDArray, NDArray]]


def gaussian(mu: float) -> Draw:
    """Normal scores, mu apart."""
    return lambda rng, shape: (rng.normal(size=shape) + mu, rng.normal(size=shape))


def dpsgd(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[NDArray, NDArray]:
    """Log-likelihood ratio of 20 steps at noise multiplier 0.6 and sampling rate 0.1."""
    sigma, q, worlds = 0.6, 0.1, []
    for rate in (q, 0.0):
        ratio = np.zeros(shape)
        for _ in range(20):
            shown = rng.normal(size=shape) + (rng.random(shape) < rate) / sigma
            ratio += np.log1p(q * np.expm1(shown / sigma - 0.5 / sigma**2))
        worlds.append(ratio)
    return worlds[0], worlds[1]


DELTA = 1e-5
LAWS: dict[str, tuple[Draw, float]] = {
    "Gaussian, mu 1": (gaussian(1.0), float(epsilon(1.0, DELTA))),
    "Gaussian, mu 3": (gaussian(3.0), float(epsilon(3.0, DELTA))),
    "DP-SGD, noise multiplier 0.6": (dpsgd, fine_bracket(0.6, 0.1, 20, DELTA).upper),
}
"""How scores are drawn, and the true epsilon."""


def best_threshold(draw: Draw, claims: Hypotheses, n: int) -> float:
    """The threshold whose bound is highest where n scores err as often as the law does."""
    into, out = draw(stream(0, "power", "threshold"), (FAR,))
    curve = empirical_curve(into, out)
    # As many errors as are expected of n scores.
    step = max(1, len(curve.threshold) // 4_000)
    chosen = slice(step, -step, step)
    errors = [np.round(rate[chosen] * n).astype(int) for rate in (curve.fpr, curve.fnr)]
    upper = [clopper_pearson_upper(count, n, LEVEL / 2) for count in errors]
    return float(curve.threshold[chosen][np.argmax(claims.violated(*upper))])


def median_bound(rule: Averaged, into: NDArray, out: NDArray, claims: Hypotheses) -> float:
    """Median of a rule's bounds; into, out: shape (audits, scores)."""
    calibration = rule.calibration(into, out, claims, LEVEL)
    # The bound grows with the statistic, so its median is that of the median statistic.
    middle = np.quantile(calibration.observed(into, out), 0.5, method="inverted_cdf")
    return float(calibration.bounds(np.array([middle]))[0][0])


def of_jax_privacy(into: NDArray, out: NDArray, threshold: float, truth: float) -> dict[str, float]:
    """Median bounds of jax_privacy's rules, and the share of each that is above the truth.

    threshold: for the rule that asks for one.
    """
    from jax_privacy import auditing

    strategies = {
        "Bonferroni": auditing.Bonferroni(),
        "Split": auditing.Split(seed=0),
        "MultiSplit": auditing.MultiSplit(num_samples=20, seed=0),
        "Explicit": auditing.Explicit(threshold),
    }
    judges = [auditing.CanaryScoreAuditor(*worlds) for worlds in zip(into, out, strict=True)]
    found = {
        name: [
            judge.epsilon_clopper_pearson(LEVEL, DELTA, False, threshold_strategy=strategy)
            for judge in judges
        ]
        for name, strategy in strategies.items()
    }
    found["GDP"] = [judge.epsilon_from_gdp(LEVEL, DELTA) for judge in judges]
    medians = {f"jax_privacy, {name}": float(np.median(found[name])) for name in found}
    above = {f"{name}, above": float((np.array(found[name]) > truth).mean()) for name in found}
    return medians | above


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--audits", type=int, default=40)
    parser.add_argument("--scores", type=int, nargs="+", default=[50, 500, 5000])
    parser.add_argument("--jax-privacy", action="store_true", help="its bounds beside ours")
    options = parser.parse_args()
    rows = []
    for name, (draw, truth) in LAWS.items():
        claims = ApproxDP(DELTA)
        for n in options.scores:
            into, out = draw(stream(0, "power", name, n), (options.audits, n))
            threshold = best_threshold(draw, claims, n)
            preset = Fixed(threshold).bounds(into, out, claims, LEVEL)[0]
            band = UniformBand().bounds(into, out, claims, LEVEL)[0]
            row: dict[str, str | float] = {"law": name, "scores a world": n, "truth": truth}
            row |= {"default": median_bound(Averaged(), into, out, claims)}
            row |= {"default, area 0.1": median_bound(Averaged(area=0.1), into, out, claims)}
            row |= {"best preset threshold": float(np.median(preset))}
            row |= {"uniform band": float(np.median(band))}
            mu = median_bound(Averaged(), into, out, GaussianDP())
            row |= {"epsilon of mu-GDP": epsilon_of(mu, DELTA)}
            if options.jax_privacy:
                row |= of_jax_privacy(into, out, threshold, truth)
            rows.append(row)
            print(rows[-1], flush=True)
    print(pd.DataFrame(rows).to_markdown(index=False, floatfmt=".2f"))


if __name__ == "__main__":
    main()
