"""The simulated audits of the explorer: ``python docs/explorer/audits.py``.

Writes ``audits.js`` beside this file. A test simulates some of them again.
"""

import json
from itertools import product
from multiprocessing import Pool
from pathlib import Path

from hiddenstate.accounting import bounds
from hiddenstate.accounting.setting import Setting
from hiddenstate.atlas import lower
from hiddenstate.sampling import Poisson

OUT = Path(__file__).with_name("audits.js")
NOISES = [0.5, 0.7, 1.0, 1.5, 2.0, 4.0]
RATES = [0.001, 0.004, 0.01, 0.04, 0.1]
STEPS = [100, 1_000, 10_000]
DELTA = 1e-5


def largest(noise, rate, steps):
    """The setting, the largest lower bound of the simulated audits, and that audit's name."""
    setting = Setting(sampling=Poisson(rate), noise_multiplier=noise, steps=steps)
    answers = bounds.found(setting, DELTA, lower.audits(runs=2_000, seed=0))
    best = max((one for one in answers if one.epsilon is not None), key=lambda one: one.epsilon)
    return [noise, rate, steps, float(f"{best.epsilon * (1 - 1e-9):.10g}"), best.bound.name]


def main():
    """Simulate all of them, for a quarter of an hour of one core."""
    with Pool() as pool:
        audits = pool.starmap(largest, product(NOISES, RATES, STEPS), chunksize=1)
    OUT.write_text(f"const AUDITS = {json.dumps(audits, separators=(',', ':'))};\n")


if __name__ == "__main__":
    main()
