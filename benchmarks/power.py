"""Median lower bounds on epsilon: the default rule beside a threshold preset as well as can be.

    python benchmarks/power.py

The preset threshold is the best of all for the law, found on scores of its own.
"""

import argparse
from collections.abc import Callable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hiddenstate.auditing import ApproxDP, Averaged, Fixed, UniformBand, empirical_curve
from hiddenstate.auditing.hypotheses import Hypotheses
from hiddenstate.auditing.intervals import clopper_pearson_upper
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


LAWS: dict[str, tuple[Draw, Hypotheses]] = {
    "Gaussian, mu 1": (gaussian(1.0), ApproxDP(1e-5)),
    "Gaussian, mu 3": (gaussian(3.0), ApproxDP(1e-5)),
    "DP-SGD, noise multiplier 0.6": (dpsgd, ApproxDP(1e-5)),
}


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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--audits", type=int, default=40)
    parser.add_argument("--scores", type=int, nargs="+", default=[50, 500, 5000])
    options = parser.parse_args()
    rows = []
    for name, (draw, claims) in LAWS.items():
        for n in options.scores:
            into, out = draw(stream(0, "power", name, n), (options.audits, n))
            calibration = Averaged().calibration(into, out, claims, LEVEL)
            # The bound grows with the statistic, so its median is that of the median statistic.
            middle = np.quantile(calibration.observed(into, out), 0.5, method="inverted_cdf")
            preset = Fixed(best_threshold(draw, claims, n)).bounds(into, out, claims, LEVEL)[0]
            band = UniformBand().bounds(into, out, claims, LEVEL)[0]
            row = {"law": name, "scores a world": n}
            row |= {"default": float(calibration.bounds(np.array([middle]))[0][0])}
            ends = Averaged(area=0.1).calibration(into, out, claims, LEVEL)
            middle = np.quantile(ends.observed(into, out), 0.5, method="inverted_cdf")
            row |= {"default, area 0.1": float(ends.bounds(np.array([middle]))[0][0])}
            row |= {"best preset threshold": float(np.median(preset))}
            row |= {"uniform band": float(np.median(band))}
            rows.append(row)
            print(rows[-1], flush=True)
    print(pd.DataFrame(rows).to_markdown(index=False, floatfmt=".2f"))


if __name__ == "__main__":
    main()
