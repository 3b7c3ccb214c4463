import math
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from hiddenstate.accounting import cyclic, cyclic_operator, divergence, gaussian, ordered
from hiddenstate.accounting.bounds import ORDERED, found
from hiddenstate.accounting.setting import Setting
from hiddenstate.errors import InputError
from hiddenstate.sampling import Cyclic

ARGUMENTS = {
    "records": 1000,
    "batch_size": 10,
    "steps": 1000,
    "noise_multiplier": 2.0,
    "learning_rate": 0.1,
    "weak_convexity": 0.1,
    "smoothness": 1.0,
}
NAMES = [
    "standard epsilon",
    "Theorem 4.5 of Kong and Ribero",
    "cyclic, clipping without effect",
    "cyclic, clipped",
]


def setting(batch_size, **numbers):
    return Setting(sampling=Cyclic(batch_size), **numbers)


def guarantees(of, delta):
    return found(of, delta, ORDERED)


def test_a_laptop_setting_reads_as_the_modules_bounds():
    known = setting(**ARGUMENTS)
    run = known.at()
    assert run.signal == pytest.approx(2 / 2.0)
    assert run.noise_std == pytest.approx(0.02)
    by_name = {g.bound.name: g for g in guarantees(known, 1e-5)}
    assert list(by_name) == NAMES
    # Ten visits of a Gaussian mechanism with mu = 1.
    assert by_name["standard epsilon"].mu == pytest.approx(np.sqrt(10))
    epsilon, mu = by_name["standard epsilon"].epsilon, np.sqrt(10)
    delta = norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert delta == pytest.approx(1e-5, rel=1e-6)
    reconstructed = cyclic_operator.reconstructed(0.1, 0.1, 1)
    paper = divergence.epsilon(cyclic.theorem_4_5(run, reconstructed), 1e-5)
    assert by_name["Theorem 4.5 of Kong and Ribero"].epsilon == paper
    unclipped = cyclic.worst_position(run, 1.01)
    assert by_name["cyclic, clipping without effect"].epsilon == pytest.approx(
        divergence.gaussian_epsilon(unclipped, 1e-5)
    )
    assert (
        by_name["cyclic, clipping without effect"].epsilon
        < by_name["Theorem 4.5 of Kong and Ribero"].epsilon
    )
    assert by_name["cyclic, clipping without effect"].epsilon < by_name["cyclic, clipped"].epsilon
    assert "binary logistic regression" in by_name["Theorem 4.5 of Kong and Ribero"].assumption
    assert "all iterates" in by_name["standard epsilon"].assumption


@given(
    st.integers(1, 12),
    st.integers(1, 50),
    st.floats(0.3, 10),
    st.floats(0, 1),
    st.floats(0, 2),
    st.none() | st.floats(0.001, 3),
)
def test_every_record_is_covered_whatever_its_position(per_pass, steps, sigma, m, smooth, diameter):
    known = setting(
        records=3 * per_pass, batch_size=3, steps=steps, noise_multiplier=sigma, learning_rate=0.3,
        weak_convexity=m, smoothness=smooth, diameter=diameter,
    )  # fmt: skip
    run = known.at()
    by_name = {g.bound.name: g for g in guarantees(known, 1e-3)}
    constants = {
        "cyclic, clipping without effect": cyclic_operator.unclipped(*run.curvature),
        "cyclic, clipped": cyclic_operator.clipped(*run.curvature)
        if 0.3 * (m + smooth) <= 1
        else cyclic_operator.trivial(*run.curvature),
    }
    for position in range(1, per_pass + 1):
        record = replace(run, position=position)
        assert by_name["standard epsilon"].mu >= divergence.gaussian_mu(cyclic.composition(record))
        for name, lipschitz in constants.items():
            rho = cyclic.composition(record)
            if diameter is None:
                rho = min(rho, cyclic.sharp(record, lipschitz))
            else:
                rho = min(rho, cyclic.bounded_domain(record, lipschitz, diameter))
            assert by_name[name].mu >= divergence.gaussian_mu(rho) * (1 - 1e-11)
            assert by_name[name].epsilon <= by_name["standard epsilon"].epsilon


def test_steps_too_large_for_the_paper_have_no_bound_of_its():
    by_name = {
        g.bound.name: g for g in guarantees(setting(**ARGUMENTS | {"learning_rate": 5.0}), 1e-5)
    }
    assert by_name["Theorem 4.5 of Kong and Ribero"].epsilon is None
    assert "--learning-rate: got 5.0" in by_name["Theorem 4.5 of Kong and Ribero"].assumption
    for name in ("cyclic, clipping without effect", "cyclic, clipped"):
        assert by_name[name].epsilon <= by_name["standard epsilon"].epsilon


@pytest.mark.parametrize(
    ("steps", "batches", "every"), [(20, 5, 1), (20, 5, 3), (23, 4, 10), (7, 9, 2), (30, 3, 30)]
)
def test_released_iterates_are_counted_release_by_release(steps, batches, every):
    setting = Setting(
        sampling=Cyclic(2), records=2 * batches, steps=steps, noise_multiplier=3.0,
        release_every=every,
    )  # fmt: skip
    squares = []
    for position in range(batches):
        runs = [range(start, min(start + every, steps)) for start in range(0, steps, every)]
        visits = [sum(step % batches == position for step in run) for run in runs]
        shown = zip(visits, runs, strict=True)
        squares.append(sum((2 * n / 3.0) ** 2 / len(run) for n, run in shown))
    found = ordered.epsilon(setting, 1e-5)
    exact = gaussian.epsilon(math.sqrt(max(squares)), 1e-5)
    assert (found.lower, found.upper) == pytest.approx((exact, exact), rel=3e-9)


def test_a_million_released_steps_take_seconds_and_more_are_refused():
    """They took hours: the work was the square of the steps."""
    options = {"sampling": Cyclic(1), "noise_multiplier": 3.0, "release_every": 3}
    start = time.perf_counter()
    ordered.epsilon(Setting(records=10**6, steps=10**6, **options), 1e-5)
    assert time.perf_counter() - start < 60
    with pytest.raises(InputError, match=r"^steps: got 2000000; expected at most 1,000,000"):
        ordered.epsilon(Setting(records=10, steps=2 * 10**6, **options), 1e-5)
    with pytest.raises(InputError, match=r"^batch_size: got 1; expected a size of at most 1,000"):
        ordered.epsilon(Setting(records=2 * 10**6, steps=10, **options), 1e-5)
