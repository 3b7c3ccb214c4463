"""The published tables of Bok, Su and Altschuler 2024 (arXiv 2403.00278), 3, 4 and 7 to 12.

Their parameters and closed forms, as the paper and its public code have them: GDP parameters of
noisy gradient descent and of noisy cyclic gradient descent, strongly convex or on a domain of
diameter 1; of regularised logistic regression the epsilons at delta 1e-5 too. Their column of
sampled batches, with one record replaced, is of another adjacency than ours.
"""

import itertools
import math

import deltas
import mpmath
import pytest
from scipy.optimize import brentq, minimize_scalar

from hiddenstate.accounting import bounds, cyclic, divergence
from hiddenstate.accounting.cyclic import CyclicDPSGD
from hiddenstate.accounting.setting import Setting
from hiddenstate.sampling import Cyclic


def run(steps, per_pass, sensitivity, sigma, eta, curvature=0.0):
    """The swapped record last in its pass, which is the worst position."""
    return CyclicDPSGD(
        steps=steps,
        steps_per_pass=per_pass,
        batch_size=1,
        step_size=eta,
        clipping_norm=sensitivity / 2,
        noise_std=eta * sigma,
        smoothness=curvature,
        position=per_pass,
    )


@pytest.mark.parametrize("c", [0.92, 0.96, 0.98, 0.99, 0.995])
@pytest.mark.parametrize("steps", [10, 100, 1000])
def test_gradient_descent_strongly_convex(c, steps):
    theirs = 0.1 * math.sqrt((1 - c**steps) / (1 + c**steps) * (1 + c) / (1 - c))
    rho = cyclic.strongly_convex(run(steps, 1, 0.1, 1.0, 1.0, 1 - c), 1 - c)
    assert divergence.gaussian_mu(rho) == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize("eta", [0.2, 0.1, 0.05])
@pytest.mark.parametrize("sensitivity", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("steps", [80, 160, 320])
def test_gradient_descent_on_a_domain(eta, sensitivity, steps):
    last = math.ceil(1 / (sensitivity * eta))
    flat = math.sqrt(3 * sensitivity / eta + sensitivity**2 * last) / 8
    theirs = min(flat, sensitivity / 8 * math.sqrt(steps))
    rho = cyclic.bounded_domain(run(steps, 1, sensitivity, 8.0, eta), 1.0, 1.0)
    assert divergence.gaussian_mu(rho) == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize("c", [0.98, 0.99, 0.995])
@pytest.mark.parametrize("per_pass", [10, 20, 40])
@pytest.mark.parametrize("passes", [5, 50, 500])
def test_cyclic_strongly_convex(c, per_pass, passes):
    rest = c ** (per_pass * (passes - 1))
    hidden = c ** (2 * per_pass - 2) * (1 - c**2) / (1 - c**per_pass) ** 2 * (1 - rest) / (1 + rest)
    rho = cyclic.strongly_convex(run(passes * per_pass, per_pass, 0.2, 1.0, 1.0, 1 - c), 1 - c)
    assert divergence.gaussian_mu(rho) == pytest.approx(0.2 * math.sqrt(1 + hidden), rel=1e-9)


def test_cyclic_on_a_domain_is_never_worse_and_mostly_better():
    shares = []
    for eta, sensitivity, per_pass, passes in itertools.product(
        [0.04, 0.02, 0.01], [0.25, 0.5, 1.0], [10, 20, 40], [25, 50, 100]
    ):
        last = math.ceil(1 / (sensitivity * eta))
        flat = 3 * sensitivity / (eta * per_pass) + sensitivity**2 * (1 + last / per_pass)
        theirs = min(math.sqrt(flat), sensitivity * math.sqrt(passes)) / 3
        made = run(passes * per_pass, per_pass, sensitivity, 3.0, eta)
        shares.append(divergence.gaussian_mu(cyclic.bounded_domain(made, 1.0, 1.0)) / theirs)
    assert max(shares) < 0.99 and 0.2329 < min(shares) < 0.2331
    assert len(shares) == 81


# Regularised logistic regression: 40 batches a pass, mu = 2/3 of a visit, c = 0.9999 and 0.9998.
LOGISTIC = [(passes, c) for passes in (50, 100, 200) for c in (0.9999, 0.9998)]


def logistic(passes, c):
    """Rho at the last position, and the mu and rho that they state."""
    made = run(40 * passes, 40, 2 / 3, 1.0, 1.0, 1 - c)
    once, rest = (1 - c**2) / (1 - c**40) ** 2, c ** (40 * (passes - 1))
    mu = 2 / 3 * math.sqrt(1 + c**78 * once * (1 - rest) / (1 + rest))
    renyi = (2 / 3) ** 2 / 2 * (1 + c**38 * once * (1 - rest))
    return made, cyclic.strongly_convex(made, 1 - c), mu, renyi


@pytest.mark.parametrize(("passes", "c"), LOGISTIC)
def test_logistic_regression_gaussian(passes, c):
    _, rho, mu, renyi = logistic(passes, c)
    assert divergence.gaussian_mu(rho) == pytest.approx(mu, rel=1e-9)
    # The list has it, at the worst position of all.
    (listed,) = (one for one in bounds.ORDERED if one.name == "strongly convex losses")
    fixed = Setting(
        sampling=Cyclic(1),
        records=40,
        steps=40 * passes,
        noise_multiplier=3.0,
        clipping_norm=1 / 3,
        smoothness=1 - c,
        strong_convexity=1 - c,
    )
    assert listed.mu(fixed) == pytest.approx(mu, rel=1e-9)
    assert listed.compute(fixed, 1e-5) == pytest.approx(gaussian_epsilon(mu), rel=1e-7)
    # Their former Rényi bound is looser, by what Gaussian accounting gains.
    assert 1 < renyi / rho < 2


@pytest.mark.parametrize(("passes", "c"), LOGISTIC)
def test_logistic_regression_renyi(passes, c):
    """Their rho converted as they do, by the best of four formulas: ours is no looser."""
    _, rho, _, renyi = logistic(passes, c)
    log = math.log(1e5)

    def best(formula):
        return minimize_scalar(formula, bounds=(1.01, 200), method="bounded").fun

    theirs = min(
        best(lambda x: renyi * x + math.log((x - 1) / x) + (log - math.log(x)) / (x - 1)),
        best(lambda x: renyi * x + log / (x - 1)),
        renyi + math.sqrt(4 * renyi * log),
    )
    ours = divergence.epsilon(renyi, 1e-5)
    assert 0.999 * theirs < ours <= theirs * (1 + 1e-6)
    assert divergence.gaussian_epsilon(rho, 1e-5) < 0.93 * theirs


@pytest.mark.parametrize("passes", [50, 100, 200])
def test_logistic_regression_composition(passes):
    made = run(40 * passes, 40, 2 / 3, 1.0, 1.0)
    mu = 2 / 3 * math.sqrt(passes)
    assert divergence.gaussian_mu(cyclic.composition(made)) == pytest.approx(mu, rel=1e-12)
    found = divergence.gaussian_epsilon(cyclic.composition(made), 1e-5)
    assert found == pytest.approx(gaussian_epsilon(mu), rel=1e-7)


def gaussian_epsilon(mu):
    """Balle and Wang's closed form at delta 1e-5, whose digits mpmath keeps."""

    def excess(e):
        return float(deltas.gaussian(mu, e) * 1e5 - 1)

    with mpmath.workdps(40):
        return brentq(excess, 1e-3, mu * (mu / 2 + 6), rtol=1e-14)
