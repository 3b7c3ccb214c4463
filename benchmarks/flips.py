"""How often reruns with other seeds would turn each decided verdict, by drawing estimates again.

Each estimate is drawn again within its error, normally and by Student's law, and the intervals are
judged again; computed numbers stay. Run it after `./reproduce claims`:

    python benchmarks/flips.py results/laptop
"""

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from hiddenstate import papers
from hiddenstate.pipeline.evidence import Estimate, Evidence, Outcome, Share, combine

DRAWS = 400


class Again(Share):
    """A share of another run; how often that would turn is not asked, and takes long to compute."""

    def turns(self, outcome, low, high, confidence):
        return 0.0


def redrawn(item, rng, normal):
    """An item of another run, as far as its error is known."""
    found = getattr(item, "found", None)
    if isinstance(found, Estimate) and found.known:
        finite = np.isfinite(found.freedom) and not normal
        off = rng.standard_t(found.freedom) if finite else rng.normal()
        again = dataclasses.replace(found, value=found.value + off * found.error)
        return dataclasses.replace(item, found=again)
    if isinstance(found, Share):
        rate = (found.successes + 0.5) / (found.trials + 1)
        again = Again(int(rng.binomial(found.trials, rate)), found.trials)
        return dataclasses.replace(item, found=again)
    return item


def flips(evidence, normal):
    """Share of reruns whose intervals give another outcome."""
    rng = np.random.default_rng(1)
    first, other = evidence.outcome, 0
    for _ in range(DRAWS):
        again = Evidence([redrawn(one, rng, normal) for one in evidence.items])
        outcomes = [Outcome(row.outcome) for row in again.rows]
        other += combine(outcomes, any_of=evidence.any_of) != first
    return other / DRAWS


def main(folder):
    worst, decided, estimated = 0.0, 0, 0
    for name in papers.names():
        path = Path(folder) / name / "estimates.csv"
        estimates = pd.read_csv(path, low_memory=False)
        for check, one in papers.load(name).checks.items():
            evidence = one.measure(estimates)
            if evidence is None or evidence.outcome in (Outcome.UNDECIDED, Outcome.COMPATIBLE):
                continue
            decided += 1
            if all(item.exact for item in evidence.items):
                continue
            estimated += 1
            share = max(flips(evidence, normal) for normal in (True, False))
            worst = max(worst, share)
            if share > 0.01:
                print(f"{name}.{check}: {evidence.outcome}, turned in {share:.1%} of reruns")
    print(f"{decided} decided claims, {estimated} of them with a statistical error")
    print(f"largest share of reruns that turn a decided claim: {worst:.1%}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "results/laptop")
