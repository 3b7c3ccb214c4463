"""Processor time of the accountants beside dp-accounting, Opacus and prv-accountant.

Every library in one run on one core, each task repeated for a second or so after a first call that
is not counted. prv-accountant is not in the locked environment; the column is empty without it:
``pip install --target DIR --no-deps prv-accountant`` and ``PYTHONPATH=DIR``.

Setting: noise multiplier 1, sampling rate 0.01, 1,000 steps, delta 1e-5 (add or remove a record);
epsilon of all iterates at two others too.
"""

import math
import platform
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from hiddenstate.accounting import binomial, composition, linear, pld, rdp

SIGMA, RATE, STEPS, DELTA = 1.0, 0.01, 1000, 1e-5
OTHERS = ((0.7, 0.002, 10_000, 1e-6), (3.0, 0.1, 2_000, 1e-5))
"""Rare sampling with many steps, and much noise: epsilon of all iterates alone."""
Task = Callable[[], float]


def seconds(task: Task) -> tuple[float, float]:
    """Median processor time of a call, and what it answers."""
    answer = float(task())
    times: list[float] = []
    while sum(times) < 1 and len(times) < 50:
        start = time.process_time()
        task()
        times.append(time.process_time() - start)
    return float(np.median(times)), answer


def of_dp_accounting(sigma: float, rate: float, steps: int, delta: float) -> dict[str, Task]:
    """Privacy loss distributions at the library's own interval, and Rényi divergences."""
    import dp_accounting
    from dp_accounting.pld import privacy_loss_distribution as distribution

    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma))

    def composed() -> float:
        one = distribution.from_gaussian_mechanism(sigma, sampling_prob=rate)
        return float(one.self_compose(steps).get_epsilon_for_delta(delta))

    def renyi() -> float:
        accountant = dp_accounting.rdp.RdpAccountant()
        return float(accountant.compose(event, steps).get_epsilon(delta))

    def mixture() -> float:
        k = np.arange(steps + 1.0)
        weights = np.exp(binomial.log_binomial(steps, rate))
        likely = weights > 1e-300
        one = distribution.from_mixture_gaussian_mechanism(
            sigma * math.sqrt(steps), k[likely], weights[likely], value_discretization_interval=1e-3
        )
        return float(one.get_epsilon_for_delta(delta))

    def noise() -> float:
        def made(noise: float) -> dp_accounting.DpEvent:
            step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
            return dp_accounting.SelfComposedDpEvent(step, steps)

        interval = dp_accounting.ExplicitBracketInterval(0.5, 4.0)
        found = dp_accounting.calibrate_dp_mechanism(
            dp_accounting.pld.PLDAccountant, made, 2.0, delta, interval, tol=1e-3
        )
        return float(found)

    return {"composed": composed, "renyi": renyi, "noise": noise, "heuristic": mixture}


def of_opacus(sigma: float, rate: float, steps: int, delta: float) -> dict[str, Task]:
    """Its PRV and RDP accountants, as a training has them."""
    from opacus.accountants import PRVAccountant, RDPAccountant
    from opacus.accountants.utils import get_noise_multiplier

    def asked(kind: type, **options: float) -> float:
        accountant = kind()
        accountant.history = [(sigma, rate, steps)]
        return float(accountant.get_epsilon(delta, **options))

    calibrated = partial(
        get_noise_multiplier,
        target_epsilon=2.0, target_delta=delta, sample_rate=rate, steps=steps, accountant="prv",
        epsilon_tolerance=1e-3,
    )  # fmt: skip
    return {
        "composed": lambda: asked(PRVAccountant, eps_error=1e-2),
        "renyi": lambda: asked(RDPAccountant),
        "noise": calibrated,
    }


def of_prv_accountant(sigma: float, rate: float, steps: int, delta: float) -> dict[str, Task]:
    """The upper end of its bracket, at an error of 0.01."""
    from prv_accountant import Accountant

    def composed() -> float:
        accountant = Accountant(
            noise_multiplier=sigma, sampling_probability=rate, delta=delta, eps_error=0.01,
            max_compositions=steps,
        )  # fmt: skip
        return float(accountant.compute_epsilon(num_compositions=steps)[2])

    return {"composed": composed}


def ours(sigma: float, rate: float, steps: int, delta: float) -> dict[str, Task]:
    """This package."""
    mechanism = (sigma, rate, steps, delta)
    return {
        "composed": lambda: composition.fine_bracket(*mechanism).upper,
        "renyi": lambda: rdp.epsilon(*mechanism),
        "noise": lambda: pld.noise_multiplier(2.0, delta, rate, steps),
        "heuristic": lambda: float(linear.last_iterate_epsilon(*mechanism)),
    }


TASKS = {
    "composed": "epsilon of all iterates",
    "renyi": "the same, Rényi",
    "noise": "noise multiplier for epsilon 2",
    "heuristic": "epsilon if every loss is linear",
}


def sweeps() -> dict[str, tuple[float, int]]:
    """Seconds for 100,000 points of the linear heuristic, and for how many they were measured."""
    random = np.random.default_rng(0)
    count = 20_000
    steps = np.exp(random.uniform(0, math.log(1e5), count)).astype(int)
    rate, sigma, delta = (
        np.exp(random.uniform(math.log(low), math.log(high), count))
        for low, high in ((1e-4, 0.5), (0.3, 30), (1e-10, 1e-2))
    )
    found = {}
    for name, arguments in (
        ("one mechanism, other noise", (np.geomspace(0.5, 5, 100_000), RATE, STEPS, DELTA)),
        ("scattered", (sigma, rate, steps, delta)),
    ):
        start = time.process_time()
        points = np.size(linear.last_iterate_epsilon(*arguments))
        found[name] = ((time.process_time() - start) * 100_000 / points, points)
    return found


def processor() -> str:
    """Name and widest vector instructions."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    named = [line.split(":")[1].strip() for line in text.splitlines() if "model name" in line]
    flags = next((line.split(":")[1].split() for line in text.splitlines() if "flags" in line), [])
    widest = next((name for name in ("avx512f", "avx2", "sse4_2", "asimd") if name in flags), "?")
    return f"{named[0] if named else platform.processor()}, {widest}, NumPy {np.__version__}"


LIBRARIES = {
    "hiddenstate": ours,
    "dp-accounting": of_dp_accounting,
    "Opacus": of_opacus,
    "prv-accountant": of_prv_accountant,
}


def libraries(*mechanism: float) -> list[dict[str, Task]]:
    """Tasks of each library; none of one that is not installed."""
    found = []
    for made in LIBRARIES.values():
        try:
            found.append(made(*mechanism))
        except ImportError:
            found.append({})
    return found


def row(what: str, tasks: list[Task | None]) -> None:
    """Measure and print a row."""
    cells = ["--" if task is None else "{:.3g} ({:.4f})".format(*timed(task)) for task in tasks]
    print(f"| {what} | " + " | ".join(cells) + " |", flush=True)


def timed(task: Task) -> tuple[float, float]:
    """Milliseconds, and the answer."""
    taken, answer = seconds(task)
    return 1000 * taken, answer


def main() -> None:
    """Print the tables in Markdown."""
    warnings.simplefilter("ignore")
    print(f"{processor()}. Milliseconds of one core, and the answer.\n")
    print("| task | " + " | ".join(LIBRARIES) + " |\n" + "|---" * (1 + len(LIBRARIES)) + "|")
    columns = libraries(SIGMA, RATE, STEPS, DELTA)
    for key, what in TASKS.items():
        row(what, [tasks.get(key) for tasks in columns])
    for mechanism in OTHERS:
        what = "the first at sigma {}, q {}, {:,} steps, delta {:g}".format(*mechanism)
        row(what, [tasks.get("composed") for tasks in libraries(*mechanism)])
    print()
    for name, (taken, points) in sweeps().items():
        print(f"100,000 points of the heuristic, {name}: {taken:.2g} s (measured: {points:,})")


if __name__ == "__main__":
    main()
