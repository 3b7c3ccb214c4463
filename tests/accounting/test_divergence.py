from functools import partial

import deltas
import mpmath
import pytest

from hiddenstate.accounting import divergence
from hiddenstate.errors import InputError


def test_epsilon_is_the_optimum_over_orders_and_never_below_it():
    for rho in (1e-8, 1e-4, 0.05, 3.0, 200.0, 1e6):
        for delta in (1e-10, 1e-5, 1e-2):
            with mpmath.workdps(30):

                def at(order, rho=rho, delta=delta):
                    return (
                        rho * order
                        + mpmath.log1p(-1 / order)
                        - mpmath.log(delta * order) / (order - 1)
                    )

                start = 1 + mpmath.sqrt(-mpmath.log(delta) / rho)
                orders = [1 + (start - 1) * mpmath.mpf(10) ** (k / 200) for k in range(-200, 60)]
                # dp-accounting converts no order below 1.01.
                best = min(at(max(order, mpmath.mpf("1.0101"))) for order in orders)
            found = divergence.epsilon(rho, delta)
            assert found <= max(best, 0) * (1 + 1e-9) + 1e-12
            # A grid of orders half a percent apart misses the optimum by less than this.
            assert found >= best * (1 - 1e-3) - 1e-4
    assert divergence.epsilon(0.0, 1e-5) == 0


@pytest.mark.parametrize("mu", [2e-6, 4e-6, 1e-5, 1e-4])
def test_gaussian_epsilon_keeps_its_stated_error_at_small_mu(mu):
    delta = 0.15 * mu
    found = divergence.gaussian_epsilon(mu**2 / 2, delta)
    with mpmath.workdps(60):
        m = divergence.gaussian_mu(mu**2 / 2)

        def excess(e):
            return deltas.gaussian(m, e) - delta

        exact = float(mpmath.findroot(excess, (found * 0.99, found * 1.01), solver="anderson"))
    stated = 1e-8 if mu >= 1e-5 else 1e-7
    assert 0 <= found - exact < stated * max(exact, mu)


@pytest.mark.parametrize("rho", [1e-12, 1e-8, 1e-4, 0.05, 0.55, 3.0, 200.0, 1e6])
@pytest.mark.parametrize("delta", [1e-100, 1e-10, 1e-5, 1e-2, 0.5])
def test_gaussian_epsilon_is_the_root_of_the_exact_delta_and_below_the_renyi_one(rho, delta):
    found = divergence.gaussian_epsilon(rho, delta)
    with mpmath.workdps(60):
        mu = mpmath.sqrt(2 * mpmath.mpf(rho))
        exact = partial(deltas.gaussian, mu)
        assert exact(found) <= delta
        lower = found - 1e-8 * max(found, mu)
        assert lower < 0 or exact(lower) > delta
    assert 0 <= divergence.gaussian_epsilon(1e-40, delta) <= found
    if delta > 1e-20:
        assert found <= divergence.epsilon(rho, delta)


@pytest.mark.parametrize("share", [1e-12, 0.5, 1 - 1e-6, 1 - 1e-12])
@pytest.mark.parametrize("mus", [(1e-10,), (4e-9, 1.2e-8), (2e-8, 2e-9), (1e-3, 1e-9), (0.3, 1.0)])
def test_averaged_epsilon_is_never_below_the_root_of_the_mean(mus, share):
    """Where mu is tiny its delta was up to 3e-6 of it above the one asked for."""
    rhos = [mu**2 / 2 for mu in mus]
    with mpmath.workdps(60):
        means = [mpmath.sqrt(2 * mpmath.mpf(rho)) for rho in rhos]

        def exact(e):
            return sum(deltas.gaussian(m, e) for m in means) / len(mus)

        delta = float(exact(0) * share)
        found = divergence.averaged_epsilon(rhos, [1 / len(mus)] * len(mus), delta)
        assert exact(found) <= delta
        if min(mus) > 1e-7:
            assert exact(found * (1 - 1e-8) - 1e-8) >= delta


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: divergence.gaussian_epsilon(-1.0, 0.1), "rho: got -1.0; expected a number >= 0"),
        (lambda: divergence.epsilon(-1.0, 1e-5), "rho: got -1.0; expected a number >= 0"),
        (lambda: divergence.epsilon(1.0, 0.0), "delta: got 0.0; expected a number between"),
    ],
)
def test_outside_its_domain_a_function_names_the_parameter(call, message):
    with pytest.raises(InputError, match="^" + message):
        call()
