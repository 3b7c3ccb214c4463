"""The list of upper bounds: what each says of an order of the batches, and whom it covers."""

import itertools
import math
from dataclasses import replace

import chain
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import norm

from hiddenstate.accounting import cyclic, cyclic_operator, domain
from hiddenstate.accounting.bounds import CYCLIC, SAMPLED, FixedOrder
from hiddenstate.accounting.cyclic import CyclicDPSGD

DELTA = 1e-4
BY_KEY = {one.key: one for one in CYCLIC}


def cyclic_run(steps, per_pass, **changes):
    numbers = {"batch_size": 2, "step_size": 0.2, "clipping_norm": 1.0, "noise_std": 0.1}
    numbers |= {"smoothness": 1.0}
    return CyclicDPSGD(**numbers | {"steps": steps, "steps_per_pass": per_pass} | changes)


def test_every_bound_has_a_name_of_its_own_and_says_what_it_assumes():
    for listed in (SAMPLED, CYCLIC):
        for field in ("name", "key"):
            assert len({getattr(one, field) for one in listed}) == len(listed)
        for one in listed:
            assert one.group in ("released", "hidden", "assumed")
            assert one.source and not one.assumption.endswith(".")


# --- orders that are shuffled once ----------------------------------------------------------------


@pytest.mark.parametrize("delta", [1e-3, 1e-9])
def test_the_mean_over_a_draw_is_that_of_the_mixture(delta):
    mus, shares = np.array([0.0, 0.3, 1.0, 4.0]), np.array([0.4, 0.3, 0.2, 0.1])

    def integral(epsilon):
        # Of the draw and the output together, by integration.
        return sum(
            share
            * quad(
                lambda x, mu=mu: max(0.0, norm.pdf(x - mu) - math.exp(epsilon) * norm.pdf(x)),
                *(epsilon / mu + mu / 2, mu + 12),
                epsabs=0,
                epsrel=1e-10,
            )[0]
            for mu, share in zip(mus, shares, strict=True)
            if mu > 0 and epsilon / mu + mu / 2 < mu + 12
        )

    exact = brentq(lambda epsilon: integral(epsilon) - delta, 1e-6, 60)
    found = cyclic.averaged_epsilon(mus**2 / 2, shares, delta)
    assert exact <= found <= exact * (1 + 1e-6)
    assert found < 0.99 * cyclic.gaussian_epsilon(8.0, delta)


@pytest.mark.parametrize("key", ["composition", "gaussian", "gaussian, clipped", "strongly convex"])
@pytest.mark.parametrize("steps", [7, 12, 31, 36])
@pytest.mark.parametrize("diameter", [None, 0.4])
def test_a_shuffled_order_costs_the_mean_over_all_positions(key, steps, diameter):
    fixed = FixedOrder(cyclic_run(steps, 12), diameter, strong_convexity=0.5, shuffled=True)
    found = BY_KEY[key].compute(fixed, DELTA)
    rho = {
        "composition": lambda run: cyclic.composition(run),
        "gaussian": lambda run: of(run, cyclic_operator.unclipped(*run.curvature), diameter),
        "gaussian, clipped": lambda run: of(run, cyclic_operator.clipped(*run.curvature), diameter),
        "strongly convex": lambda run: cyclic.strongly_convex(run, 0.5, diameter),
    }[key]
    runs = [replace(fixed.run, position=at) for at in range(1, 13)]
    rhos = [min(rho(run), cyclic.composition(run)) for run in runs]
    mean = cyclic.averaged_epsilon(rhos, [1 / 12] * 12, DELTA)
    assert found == pytest.approx(mean, rel=1e-9)
    worst = BY_KEY[key].compute(replace(fixed, shuffled=False), DELTA)
    assert worst == pytest.approx(cyclic.gaussian_epsilon(max(rhos), DELTA), rel=1e-9)
    assert found <= worst


def of(run, lipschitz, diameter):
    if diameter is None:
        return cyclic.sharp(run, lipschitz)
    return cyclic.bounded_domain(run, lipschitz, diameter)


def test_blocks_of_positions_are_above_the_mean_and_near_it():
    fixed = FixedOrder(cyclic_run(1000, 400), shuffled=True)
    found = BY_KEY["gaussian"].compute(fixed, DELTA)
    rhos = [cyclic.sharp(replace(fixed.run, position=at), 1.0) for at in range(1, 401)]
    mean = cyclic.averaged_epsilon(rhos, [1 / 400] * 400, DELTA)
    assert mean <= found < 1.02 * mean


@pytest.mark.parametrize("shuffled", [False, True])
def test_one_convex_pass_of_single_records_is_the_bound_by_visits(shuffled):
    """Feldman et al. 2018 as the special case that it is."""
    for steps in (5, 20):
        fixed = FixedOrder(cyclic_run(steps, 20, batch_size=1), shuffled=shuffled)
        feldman = BY_KEY["one pass"]
        assert feldman.applies(fixed)
        by_visits = BY_KEY["gaussian"].compute(fixed, DELTA)
        assert feldman.compute(fixed, DELTA) == pytest.approx(by_visits, rel=1e-12)
    for change in ({"steps": 21}, {"batch_size": 2}, {"weak_convexity": 0.1}, {"smoothness": 11.0}):
        assert not feldman.applies(replace(fixed, run=replace(fixed.run, **change)))


@pytest.mark.parametrize("curvature", [0.0, 0.1, 0.5])
def test_no_shuffled_quadratic_losses_leak_more(curvature):
    """The last iterate's exact law over a drawn position, the order released with it."""
    run = cyclic_run(40, 20, smoothness=curvature)
    slope = 1 - 0.2 * curvature
    deltas = []
    variance = sum(slope ** (2 * t) for t in range(40))
    for position in range(1, 21):
        shift = sum(slope ** (40 - at) for at in (position, position + 20))
        deltas.append(run.signal * shift / math.sqrt(variance))
    exact = cyclic.averaged_epsilon(np.array(deltas) ** 2 / 2, [1 / 20] * 20, DELTA)
    fixed = FixedOrder(run, strong_convexity=curvature, shuffled=True)
    keys = ["gaussian", "gaussian, clipped"] + ["strongly convex"] * (curvature > 0)
    for key in keys:
        found = BY_KEY[key].compute(fixed, DELTA)
        assert 0.3 * found < exact <= found


# --- domains --------------------------------------------------------------------------------------


def test_spendings_end_with_nothing_left_and_cost_the_least_where_it_is_known():
    for lipschitz in (1.0, 1.01, 1.2):
        least = {}
        for steps, spent in domain.spendings(lambda r, L=lipschitz: L * r, 3.0, 50):
            left = 3.0
            for one in spent:
                left = lipschitz * left - one
            assert abs(left) < 1e-4 and np.all(spent >= 0)
            least[steps] = min(least.get(steps, math.inf), spent @ spent)
        for steps, price in least.items():
            exact = (lipschitz * 3.0) ** 2 * float(cyclic.visible_fraction(lipschitz, steps))
            assert exact <= price < exact * (1.0001 if lipschitz == 1 else 2.0)


@pytest.mark.parametrize(("power", "steps"), [(0.3, 5), (0.3, 40), (0.7, 40), (1.0, 40)])
@pytest.mark.parametrize(("diameter", "per_pass"), [(0.5, 1), (1.5, 1), (0.5, 4)])
def test_no_loss_with_hoelder_gradients_in_a_fixed_order_leaks_more(
    power, steps, diameter, per_pass
):
    constant = 0.2
    run = cyclic_run(
        steps, per_pass, batch_size=1, noise_std=0.5, smoothness=constant * 2 ** (1 - power)
    )
    fixed = FixedOrder(run, diameter, holder=power)
    found = BY_KEY["Hölder"].compute(fixed, 1e-3)

    def move(x):
        return x + 0.2 * constant * np.sign(x) * np.abs(x) ** power

    worst = 0.0
    for position in {1, per_pass}:
        laws = []
        for sign in (-1, 1):
            push = sign * run.displacement / 2
            steps_of = {
                visit: chain.step(move, diameter, run.noise_std, push if visit else 0.0)
                for visit in (False, True)
            }
            visits = [(t - position) % per_pass == 0 for t in range(1, steps + 1)]
            laws.append(chain.last_iterate([steps_of[visit] for visit in visits]))
        worst = max(worst, chain.epsilon(*laws, 1e-3))
    assert 0.1 * found < worst <= found


def test_gradients_of_exponent_1_cost_no_less_than_the_best_of_smooth_ones():
    for per_pass, diameter, smoothness in itertools.product((1, 5), (0.3, 3.0), (0.0, 0.2, 2.0)):
        run = cyclic_run(60, per_pass, smoothness=smoothness, position=per_pass)
        trivial = cyclic_operator.trivial(*run.curvature)
        found = cyclic.holder_domain(run, 1.0, diameter)
        assert found >= cyclic.bounded_domain(run, trivial, diameter) * (1 - 1e-6)
        if per_pass == 1:
            # The last step alone is among what is tried.
            assert found <= cyclic.theorem_4_4(run, trivial, diameter) * (1 + 1e-8)


def test_a_sampled_step_diverges_by_more_than_its_share_of_a_full_one():
    """Why a formula in which a batch's b / n of a divergence counts is no bound of the list.

    Two of eight records, the others' gradients -C and the swapped one's C or -C: means 0 and, with
    probability 1/4, 1, at noise deviation 2.
    """
    order, sigma, share = 30, 2.0, 1 / 4

    def ratio(y):
        return 1 - share + share * math.exp((y - 0.5) / sigma**2)

    moment, _ = quad(
        lambda y: math.exp(order * math.log(ratio(y)) - y * y / 2 / sigma**2), -40, 100, limit=500
    )
    divergence = math.log(moment / sigma / math.sqrt(2 * math.pi)) / (order - 1)
    assert divergence == pytest.approx(2.318, abs=1e-3)
    assert divergence > 2.4 * share * order / (2 * sigma**2)
