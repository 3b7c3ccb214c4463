"""The numbers of the explorer, by the package's own bounds: ``python docs/explorer/points.py``.

Writes ``points.js`` beside this file. A test computes some of them again.
"""

import json
from dataclasses import replace
from itertools import product
from multiprocessing import Pool
from pathlib import Path

from hiddenstate.accounting import bounds
from hiddenstate.accounting.setting import Setting
from hiddenstate.atlas import lower
from hiddenstate.sampling import Poisson

OUT = Path(__file__).with_name("points.js")
AXES = {
    "noise": [0.5, 0.6, 0.7, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0, 4.0],
    "rate": [0.0005, 0.001, 0.004, 0.01, 0.04, 0.1],
    "steps": [100, 300, 1_000, 3_000, 10_000],
    "delta": [1e-5],
    "every": [0, 1, 10, 100],
}
"""Where the sliders stop. ``every``: 0 if the last iterate alone is released, 1 if all are."""
START = {"noise": 4, "rate": 3, "steps": 2, "delta": 0, "every": 0}
COLUMNS = ("standard", "last", "every 10", "every 100", "worst")
"""Epsilons of a setting: of any loss with all iterates, of linear losses by what is released, and
a lower bound on the last iterate in the worst case."""


def epsilon(setting, delta, name, listed=bounds.BOUNDS):
    """What the bound of that name says."""
    (one,) = bounds.found(setting, delta, [bound for bound in listed if bound.name == name])
    if one.epsilon is None:
        raise ValueError(f"{name}: {one.assumption}")
    return one.epsilon


def point(noise, rate, steps, delta):
    """The columns of one setting, to ten digits."""
    setting = Setting(sampling=Poisson(rate), noise_multiplier=noise, steps=steps)
    released = [replace(setting, release_every=every) for every in AXES["every"][2:]]
    found = [
        epsilon(setting, delta, bounds.STANDARD),
        epsilon(setting, delta, bounds.HEURISTIC),
        *(epsilon(one, delta, bounds.HEURISTIC) for one in released),
        epsilon(setting, delta, "malicious data set", lower.COUNTEREXAMPLES),
    ]
    return [float(f"{value:.10g}") for value in found]


def main():
    """Write all points."""
    names = ("noise", "rate", "steps", "delta")
    with Pool() as pool:
        numbers = pool.starmap(point, product(*(AXES[name] for name in names)), chunksize=8)
    made = {"axes": AXES, "start": START, "columns": COLUMNS, "numbers": numbers}
    OUT.write_text(f"const POINTS = {json.dumps(made, separators=(',', ':'))};\n")


if __name__ == "__main__":
    main()
