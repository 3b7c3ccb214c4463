"""The published tables of Bok, Su and Altschuler 2024 (arXiv 2403.00278), tables 7 to 12.

Their parameters and closed forms, as the paper and its public code have them: GDP parameters of
noisy gradient descent and of noisy cyclic gradient descent, strongly convex or on a domain of
diameter 1.
"""

import itertools
import math

import pytest

from hiddenstate.accounting import cyclic
from hiddenstate.accounting.cyclic import CyclicDPSGD


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
    assert cyclic.gaussian_mu(rho) == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize("eta", [0.2, 0.1, 0.05])
@pytest.mark.parametrize("sensitivity", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("steps", [80, 160, 320])
def test_gradient_descent_on_a_domain(eta, sensitivity, steps):
    last = math.ceil(1 / (sensitivity * eta))
    flat = math.sqrt(3 * sensitivity / eta + sensitivity**2 * last) / 8
    theirs = min(flat, sensitivity / 8 * math.sqrt(steps))
    rho = cyclic.bounded_domain(run(steps, 1, sensitivity, 8.0, eta), 1.0, 1.0)
    assert cyclic.gaussian_mu(rho) == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize("c", [0.98, 0.99, 0.995])
@pytest.mark.parametrize("per_pass", [10, 20, 40])
@pytest.mark.parametrize("passes", [5, 50, 500])
def test_cyclic_strongly_convex(c, per_pass, passes):
    rest = c ** (per_pass * (passes - 1))
    hidden = c ** (2 * per_pass - 2) * (1 - c**2) / (1 - c**per_pass) ** 2 * (1 - rest) / (1 + rest)
    rho = cyclic.strongly_convex(run(passes * per_pass, per_pass, 0.2, 1.0, 1.0, 1 - c), 1 - c)
    assert cyclic.gaussian_mu(rho) == pytest.approx(0.2 * math.sqrt(1 + hidden), rel=1e-9)


def test_cyclic_on_a_domain_is_never_worse_and_mostly_better():
    shares = []
    for eta, sensitivity, per_pass, passes in itertools.product(
        [0.04, 0.02, 0.01], [0.25, 0.5, 1.0], [10, 20, 40], [25, 50, 100]
    ):
        last = math.ceil(1 / (sensitivity * eta))
        flat = 3 * sensitivity / (eta * per_pass) + sensitivity**2 * (1 + last / per_pass)
        theirs = min(math.sqrt(flat), sensitivity * math.sqrt(passes)) / 3
        made = run(passes * per_pass, per_pass, sensitivity, 3.0, eta)
        shares.append(cyclic.gaussian_mu(cyclic.bounded_domain(made, 1.0, 1.0)) / theirs)
    assert max(shares) < 0.99 and 0.2329 < min(shares) < 0.2331
    assert len(shares) == 81
