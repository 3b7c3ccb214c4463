"""How long the encoding-loss simulation takes, and how much the exact reduction saves.

One thread: `OMP_NUM_THREADS=1 python benchmarks/encoding_loss.py`. The literal algorithm visits
every record; its cost is measured on a small data set and is proportional to the number of records.
"""

import time

import numpy as np

from hiddenstate.adversaries import encoding_loss
from hiddenstate.dpsgd import scalar
from hiddenstate.streams import stream

SIGMA, RATE, STEPS, RUNS = 0.5, 0.01, 1024, 5000


def exact() -> float:
    """Seconds for 2 x 5,000 runs of 1,024 steps, draws included."""
    loss = encoding_loss.published(SIGMA, RATE, 10**10)
    start = time.perf_counter()
    for world in ("in", "out"):
        draws = scalar.draw(
            range(RUNS),
            seed=1,
            name=("benchmark", world),
            steps=STEPS,
            sampling_rate=RATE,
            records=loss.records,
            canary=world == "in",
        )
        scalar.last_iterate(loss.gradient, draws, noise_multiplier=SIGMA)
    return time.perf_counter() - start


def literal(records: int = 100_000, steps: int = 64) -> float:
    """Seconds a record, step and run of sampling each record and summing clipped gradients."""
    loss = encoding_loss.published(SIGMA, RATE, records)
    rng = stream(1, "benchmark", "literal")
    values = np.zeros(records)
    theta = np.zeros(1)
    start = time.perf_counter()
    for _ in range(steps):
        sampled = values[rng.random(records) < RATE]
        gradients = np.clip([loss.gradient(x, theta)[0] for x in sampled[:1]] * len(sampled), -1, 1)
        theta = theta - (gradients.sum() + SIGMA * rng.standard_normal(1))
    return (time.perf_counter() - start) / (records * steps)


def main() -> None:
    """Print one table."""
    seconds = min(exact() for _ in range(3))
    per_record = literal()
    whole = per_record * 1e10 * STEPS * 2 * RUNS
    print(f"exact reduction, 2 x {RUNS} runs x {STEPS} steps   {seconds:9.2f} s")
    print(f"literal, per record, step and run           {per_record * 1e9:9.2f} ns (measured)")
    print(f"literal, the same with 10^10 records        {whole / 3.15e7:9.1e} years (extrapolated)")
    print(f"ratio                                       {whole / seconds:9.1e}")


if __name__ == "__main__":
    main()
