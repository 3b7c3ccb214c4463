from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from hiddenstate.accounting import cyclic, cyclic_operator
from hiddenstate.accounting.cyclic_guarantees import guarantees, schedule
from hiddenstate.errors import InputError

ARGUMENTS = {
    "records": 1000,
    "batch_size": 10,
    "steps": 1000,
    "noise_multiplier": 2.0,
    "step_size": 0.1,
    "weak_convexity": 0.1,
    "smoothness": 1.0,
}
NAMES = ["composition", "paper", "gaussian", "gaussian, clipped"]


def test_a_laptop_setting_reads_as_the_modules_bounds():
    run = schedule(**ARGUMENTS)
    assert run.signal == pytest.approx(2 / 2.0)
    assert run.noise_std == pytest.approx(0.02)
    found = guarantees(run, 1e-5)
    assert [g.bound.key for g in found] == NAMES
    by_name = {g.bound.key: g for g in found}
    # Ten visits of a Gaussian mechanism with mu = 1.
    assert by_name["composition"].mu == pytest.approx(np.sqrt(10))
    epsilon, mu = by_name["composition"].epsilon, np.sqrt(10)
    delta = norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert delta == pytest.approx(1e-5, rel=1e-6)
    reconstructed = cyclic_operator.reconstructed(0.1, 0.1, 1)
    paper = cyclic.epsilon(cyclic.theorem_4_5(run, reconstructed), 1e-5)
    assert by_name["paper"].epsilon == paper
    unclipped = cyclic.worst_position(run, 1.01)
    assert by_name["gaussian"].epsilon == pytest.approx(cyclic.gaussian_epsilon(unclipped, 1e-5))
    assert by_name["gaussian"].epsilon < by_name["paper"].epsilon
    assert by_name["gaussian"].epsilon < by_name["gaussian, clipped"].epsilon
    assert "turns no gradient" in by_name["paper"].assumption
    assert "all iterates" in by_name["composition"].assumption


@given(
    st.integers(1, 12),
    st.integers(1, 50),
    st.floats(0.3, 10),
    st.floats(0, 1),
    st.floats(0, 2),
    st.none() | st.floats(0.001, 3),
)
def test_every_record_is_covered_whatever_its_position(per_pass, steps, sigma, m, smooth, diameter):
    run = schedule(
        records=3 * per_pass, batch_size=3, steps=steps, noise_multiplier=sigma, step_size=0.3,
        weak_convexity=m, smoothness=smooth,
    )  # fmt: skip
    by_name = {g.bound.key: g for g in guarantees(run, 1e-3, diameter=diameter)}
    constants = {
        "gaussian": cyclic_operator.unclipped(*run.curvature),
        "gaussian, clipped": cyclic_operator.clipped(*run.curvature)
        if 0.3 * (m + smooth) <= 1
        else cyclic_operator.trivial(*run.curvature),
    }
    for position in range(1, per_pass + 1):
        record = replace(run, position=position)
        assert by_name["composition"].mu >= cyclic.gaussian_mu(cyclic.composition(record))
        for name, lipschitz in constants.items():
            rho = cyclic.composition(record)
            if diameter is None:
                rho = min(rho, cyclic.sharp(record, lipschitz))
            else:
                rho = min(rho, cyclic.bounded_domain(record, lipschitz, diameter))
            assert by_name[name].mu >= cyclic.gaussian_mu(rho) * (1 - 1e-11)
            assert by_name[name].epsilon <= by_name["composition"].epsilon


def test_steps_too_large_for_the_paper_have_no_bound_of_its():
    by_name = {g.bound.key: g for g in guarantees(schedule(**ARGUMENTS | {"step_size": 5.0}), 1e-5)}
    assert by_name["paper"].epsilon is None
    assert "step_size: got 5.0" in by_name["paper"].assumption
    for name in ("gaussian", "gaussian, clipped"):
        assert by_name[name].epsilon <= by_name["composition"].epsilon


@pytest.mark.parametrize(
    "change, message",
    [
        ({"batch_size": 3}, "batch_size: got 3; expected a divisor of 1000 records"),
        ({"records": 0}, "records: got 0; expected a whole number"),
        ({"noise_multiplier": 0.0}, "noise_multiplier: got 0.0; expected a number > 0"),
        ({"steps": 0}, "steps: got 0; expected a whole number"),
        ({"weak_convexity": -1.0}, "weak_convexity: got -1.0; expected a number >= 0"),
    ],
)
def test_bad_numbers_are_named(change, message):
    with pytest.raises(InputError, match="^" + message):
        schedule(**ARGUMENTS | change)
