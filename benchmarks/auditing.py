"""Processor time to bound privacy from 100,000 scores a world at every threshold, on one core.

Prints seconds and the ratio to a loop over scipy.stats.binomtest, which is timed on a subsample of
the thresholds and extrapolated. Run with OMP_NUM_THREADS=1.
"""

import time

import numpy as np
from scipy import stats

from hiddenstate.auditing import (
    ApproxDP,
    AsPublished,
    Averaged,
    Bonferroni,
    GaussianDP,
    UniformBand,
    empirical_curve,
    lower_bound,
)
from hiddenstate.streams import stream

SCORES = 100_000
LOOPED = 300
"""Thresholds at which scipy is timed."""


def seconds(run) -> float:
    """Least processor time of three runs."""
    times = []
    for _ in range(3):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def loop(curve, positions) -> float:
    """The best epsilon at delta 1e-5 over these thresholds, one binomtest a rate."""
    best = 0.0
    for i in positions:
        rates = [
            stats.binomtest(int(count), n, alternative="less").proportion_ci(0.95, "exact").high
            for count, n in (
                (curve.false_positives[i], curve.n_out),
                (curve.false_negatives[i], curve.n_in),
            )
        ]
        best = max(best, float(ApproxDP(1e-5).violated(*rates)))
    return best


def main() -> None:
    rng = stream(0, "benchmark", "auditing")
    in_scores, out_scores = rng.normal(size=SCORES) + 1, rng.normal(size=SCORES)
    curve = empirical_curve(in_scores, out_scores)
    thresholds = len(curve.threshold)
    positions = np.linspace(0, thresholds - 1, LOOPED).astype(int)
    looped = seconds(lambda: loop(curve, positions)) * thresholds / LOOPED
    print(f"{SCORES:,} scores a world, {thresholds:,} thresholds")
    print(
        f"loop over scipy.stats.binomtest: {looped:.0f} s, extrapolated from {LOOPED} thresholds\n"
    )
    print(f"{'what':42s} {'first s':>8s} {'later s':>8s} {'ratio to loop':>14s}")
    sort = seconds(lambda: empirical_curve(in_scores, out_scores))
    print(f"{'empirical curve':42s} {sort:8.3f} {sort:8.3f} {looped / sort:14,.0f}")
    for family in (ApproxDP(1e-5), GaussianDP()):
        for rule in (AsPublished(), Bonferroni(), UniformBand("dkw"), UniformBand(), Averaged()):

            def run(family=family, rule=rule):
                return lower_bound(in_scores, out_scores, family, rule)

            start = time.process_time()
            run()
            # Critical values depend on the numbers of scores alone and are kept.
            first, later = time.process_time() - start, seconds(run)
            name = f"{family.parameter}, {rule.name}"
            print(f"{name:42s} {first:8.3f} {later:8.3f} {looped / first:14,.0f}")


if __name__ == "__main__":
    main()
