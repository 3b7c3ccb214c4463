"""The RDP accountant."""

import math

import numpy as np
import pytest
from scipy import integrate

from hiddenstate.accounting import composition, rdp
from hiddenstate.errors import InputError


def test_without_subsampling_it_is_the_conversion_of_gaussian_rdp():
    sigma, steps, delta = 4.0, 16, 1e-5
    a = np.linspace(1.01, 200, 200_000)
    rho = steps * a / (2 * sigma**2)
    bound = rho + np.log1p(-1 / a) - np.log(delta * a) / (a - 1)
    orders = list(a[::50])
    assert rdp.epsilon(sigma, 1.0, steps, delta, orders=orders) == pytest.approx(
        np.min(bound), rel=1e-4
    )


def test_what_the_papers_table_was_made_with():
    # A batch of 4,096 of 45,000 records, 2,468 steps: perhaps the printed 8.
    assert rdp.epsilon(3.0, 4096 / 45_000, 2468, 1e-5) == pytest.approx(7.978, abs=2e-3)


@pytest.mark.parametrize("setting", [(0.3, 0.05), (1.0, 1e-4), (3.0, 0.09), (50.0, 0.5)])
def test_divergences_are_dp_accountings_at_whole_orders(setting):
    from dp_accounting import dp_event
    from dp_accounting.rdp import rdp_privacy_accountant

    orders = [2, 3, 8, 40, 512]
    accountant = rdp_privacy_accountant.RdpAccountant(orders)
    step = dp_event.GaussianDpEvent(setting[0])
    accountant.compose(dp_event.PoissonSampledDpEvent(setting[1], step))
    ours = [rdp.divergence(*setting, order) for order in orders]
    np.testing.assert_allclose(ours, accountant._rdp, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("order", [1.1, 2.5, 10.9])
@pytest.mark.parametrize("setting", [(0.4, 0.3), (0.7, 0.05), (3.0, 0.09), (20.0, 0.5)])
def test_divergences_at_other_orders_are_integrals(setting, order):
    """Against adaptive quadrature; dp-accounting's series stops early there, and is looser."""
    sigma, q = setting

    def integrand(z):
        loss = np.logaddexp(math.log1p(-q), math.log(q) + (sigma * z - 0.5) / sigma**2)
        # Less one, which is the integral of the density alone, so that no digits are lost.
        if order * loss > 1:
            return math.exp(order * loss - z**2 / 2) - math.exp(-(z**2) / 2)
        return math.expm1(order * loss) * math.exp(-(z**2) / 2)

    ends = (-12, order / sigma + 12)
    peaks = [0, 1 / sigma, order / sigma]
    total, _ = integrate.quad(integrand, *ends, points=peaks, limit=500, epsabs=0, epsrel=1e-11)
    expected = math.log1p(total / math.sqrt(2 * math.pi)) / (order - 1)
    assert rdp.divergence(sigma, q, order) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("setting", [(1.0, 0.01, 1000, 1e-5), (50.0, 0.01, 50_000, 1e-6)])
def test_epsilon_is_dp_accountings(setting):
    """At fractional orders theirs is a little larger, where their series has not converged."""
    from dp_accounting import dp_event
    from dp_accounting.rdp import rdp_privacy_accountant

    sigma, q, steps, delta = setting
    accountant = rdp_privacy_accountant.RdpAccountant()
    assert tuple(accountant._orders) == rdp.ORDERS
    step = dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(sigma))
    accountant.compose(dp_event.SelfComposedDpEvent(step, steps))
    theirs = accountant.get_epsilon(delta)
    assert theirs * (1 - 1e-5) <= rdp.epsilon(*setting) <= theirs * (1 + 1e-8) + 1e-13 * steps


@pytest.mark.parametrize("setting", [(1.0, 0.01, 1000, 1e-5), (1.3, 0.05, 777, 1e-5)])
def test_looser_than_the_bracket(setting):
    assert composition.bracket(*setting).upper < rdp.epsilon(*setting)


def test_refusals():
    with pytest.raises(InputError, match=r"^orders: got \[1\]"):
        rdp.epsilon(1.0, 0.1, 10, 1e-5, orders=[1])
    with pytest.raises(InputError, match=r"^delta: got 2"):
        rdp.epsilon(1.0, 0.1, 10, 2)
    assert math.isfinite(rdp.epsilon(1.0, 0.1, 10, 1e-5))


def test_the_bound_is_rounded_up_by_the_stated_error_of_a_step():
    """At 1e12 steps the error of a divergence, 1e-13, counts; the closed form is exact."""
    steps, sigma = 10**12, 1e7
    orders = np.array(rdp.ORDERS)
    exact = np.min(
        steps * orders / (2 * sigma**2)
        + np.log1p(-1 / orders)
        - np.log(1e-5 * orders) / (orders - 1)
    )
    found = rdp.epsilon(sigma, 1.0, steps, 1e-5)
    assert exact + 0.09 < found < exact + 0.11
