"""The RDP accountant."""

import math
import tracemalloc

import numpy as np
import pytest
from mpmath import mp, mpf
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


@pytest.mark.parametrize("order", [2, 3, 40])
@pytest.mark.parametrize(
    "setting",
    [(1e-3, 1e-50), (0.0199, 0.9), (0.02, 1e-50), (0.02, 0.9), (1.0, 1 - 1e-16), (1e3, 1e-6),
     (1e50, 1e-50), (1e50, 0.5)],
)  # fmt: skip
def test_divergences_at_whole_orders_are_the_binomial_sum_at_any_noise_and_rate(setting, order):
    with mp.workdps(450):
        sigma, q = map(mpf, setting)
        moment = sum(
            mp.binomial(order, k)
            * q**k
            * (1 - q) ** (order - k)
            * mp.exp(k * (k - 1) / (2 * sigma**2))
            for k in range(order + 1)
        )
        exact = float(mp.log(moment) / (order - 1))
    assert rdp.divergence(*setting, order) == pytest.approx(exact, rel=1e-12, abs=0)


@pytest.mark.parametrize(
    "setting",
    [(764.6, 8e-4, 1.01), (1.0, 0.01, 1 + 1e-9), (0.3, 1e-10, 1.7), (0.05, 1e-10, 1.2),
     (0.0199, 1e-5, 1.01), (1e10, 0.3, 1.5)],
)  # fmt: skip
def test_divergences_near_order_1_keep_their_digits(setting):
    """At the first of these 5.5e-13 was found to be 0."""
    with mp.workdps(40):
        sigma, q, a = map(mpf, setting)
        bend = sigma * mp.log((1 - q) / q) + 1 / (2 * sigma)
        points = {-20, 0, 5, 10, 1 / sigma, a / sigma - 10, a / sigma, a / sigma + 20}
        points |= {bend + k * sigma for k in (-4, 0, 4)}
        points = sorted(point for point in points if -20 <= point <= a / sigma + 20)
        total = mp.quad(
            lambda z: ((1 - q + q * mp.exp((z - 1 / (2 * sigma)) / sigma)) ** a - 1) * mp.npdf(z),
            points,
        )
        exact = float(mp.log1p(total) / (a - 1))
    assert rdp.divergence(*setting) == pytest.approx(exact, rel=1e-9, abs=0)


@pytest.mark.parametrize("sigma", [1e-4, 0.02, 1.0, 1e3])
def test_large_orders_and_little_noise_take_little_memory(sigma):
    """Arrays were as long as the order, or as the range of outputs over the noise."""
    q = 0.1
    tracemalloc.start()
    found = [rdp.divergence(sigma, q, order) for order in (9.5, 1e6, 1e9)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2e8
    # The largest term of the binomial sum, where it is by far the largest.
    for order, value in zip((9.5, 1e6, 1e9), found, strict=True):
        likely = order / (2 * sigma**2) + order / (order - 1) * math.log(q)
        if likely > 50:
            assert value == pytest.approx(likely, rel=1e-9)


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
    for order in (1, 1.1e9, math.nan):
        with pytest.raises(InputError, match=f"^order: got {order}"):
            rdp.divergence(1.0, 0.1, order)


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


def test_batches_of_a_fixed_size_at_any_noise():
    """dp-accounting took the logarithm of 0 at 1e9 and beyond; more noise never costs more."""
    found = [rdp.fixed_size_epsilon(noise, 1000, 10, 100, 1e-300) for noise in (1e4, 1e7, 1e50)]
    # No less than what the conversion leaves at the largest order.
    order = max(rdp.ORDERS)
    left = math.log1p(-1 / order) - math.log(1e-300 * order) / (order - 1)
    assert found[0] >= found[1] >= found[2] >= left


def test_batches_of_a_fixed_size_are_rounded_up_by_the_error_of_a_step():
    """A step's divergence is a rounding error at so much noise, and the steps add them up."""
    each = [rdp.fixed_size_epsilon(1e6, 10**9, 10, steps, 1e-5) for steps in (1, 10**12)]
    assert each[0] < 1e-9
    assert each[1] >= 0.1
