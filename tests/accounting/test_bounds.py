"""The list of upper bounds: what each says of an order of the batches, and whom it covers."""

import itertools
import math
from dataclasses import replace

import chain
import mpmath
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import norm

from hiddenstate.accounting import (
    bounds,
    cyclic,
    cyclic_operator,
    divergence,
    domain,
    gaussian,
    shifts,
)
from hiddenstate.accounting.bounds import BOUNDS, GROUPS
from hiddenstate.accounting.setting import Setting
from hiddenstate.dpsgd import exact
from hiddenstate.errors import InputError
from hiddenstate.sampling import Cyclic, FullBatch, Poisson, Reshuffled

DELTA = 1e-4
BY_NAME = {
    one.name: one for one in bounds.SAMPLED + bounds.ORDERED + bounds.LINEAR + bounds.SHUFFLED
}


def ordered(steps, per_pass, **changes):
    """Two records a batch, noise on the displacement 0.1, step size 0.2, clipping norm 1."""
    size = changes.pop("batch_size", 2)
    noise = changes.pop("noise_std", 0.1)
    return Setting(
        sampling=Cyclic(size, shuffled_once=changes.pop("shuffled", False)),
        records=size * per_pass,
        steps=steps,
        noise_multiplier=noise * size / 0.2,
        learning_rate=0.2,
        **{"smoothness": 1.0, "weak_convexity": 0.0} | changes,
    )


def test_every_bound_has_a_name_of_its_own_and_says_what_it_assumes():
    for kind in (bounds.SAMPLED, bounds.ORDERED):
        listed = kind + bounds.LINEAR + bounds.SHUFFLED
        assert len({one.name for one in listed}) == len(listed)
    for one in BOUNDS:
        assert one.group in GROUPS
        assert one.kind in ("upper", "lower", "exact", "estimate")
        assert one.source and not one.assumption.endswith(".")


def test_the_list_answers_with_what_applies():
    sampled = Setting(sampling=Poisson(0.1), noise_multiplier=1.0, steps=10)
    found = {one.bound.name: one for one in bounds.found(sampled, DELTA)}
    assert set(found) == {
        "standard epsilon",
        "standard epsilon, by Rényi DP",
        "without amplification by sampling",
        "linear heuristic",
        "full-batch heuristic",
    }
    assert (
        found["standard epsilon"].value.lower
        <= found["standard epsilon"].epsilon
        < found["standard epsilon, by Rényi DP"].epsilon
    )
    # All records in every step are a rate of 1.
    full = bounds.found(replace(sampled, sampling=FullBatch()), DELTA)
    same = bounds.found(replace(sampled, sampling=Poisson(1.0)), DELTA)
    assert [one.epsilon for one in full] == [one.epsilon for one in same]
    assert full[0].epsilon == pytest.approx(full[2].epsilon, rel=1e-8)
    # Of losses of which nothing is known, a domain tells of any clipped ones.
    unknown = {one.bound.name for one in bounds.found(ordered(8, 4, smoothness=None), DELTA)}
    assert unknown == {"standard epsilon", "linear heuristic"}
    known = {one.bound.name for one in bounds.found(ordered(8, 4), DELTA)}
    assert known == unknown | {
        "Theorem 4.5 of Kong and Ribero",
        "cyclic, clipping without effect",
        "cyclic, clipped",
    }
    projected = bounds.found(ordered(8, 4, smoothness=None, diameter=1.0), DELTA)
    assert [one.bound.name for one in projected] == [
        "standard epsilon",
        "any clipped losses on a domain",
        "linear heuristic",
    ]
    assert projected[-1].epsilon is None
    assert projected[-1].assumption.startswith("none: the last iterate of linear")
    strongly = replace(sampled, batch_size=1.0, smoothness=0.5, strong_convexity=0.1)
    assert "strongly convex losses" in {one.bound.name for one in bounds.found(strongly, DELTA)}


@pytest.mark.parametrize("steps", [8, 11])
def test_linear_losses_in_an_order_are_a_sum(steps):
    """The recursion of exact affine steps, at the worst of all positions."""
    setting = ordered(steps, 4)
    rhos = [exact.scalar_affine(np.ones(steps), setting.at(at)) for at in range(1, 5)]
    found = BY_NAME["linear heuristic"].compute(setting, DELTA)
    assert found == pytest.approx(divergence.gaussian_epsilon(max(rhos), DELTA), rel=1e-7)
    value = BY_NAME["linear heuristic"].compute(ordered(steps, 4, shuffled=True), DELTA)
    if steps == 8:  # all positions are alike
        assert value.lower <= found <= value.epsilon <= value.lower * (1 + 3e-9)
    else:
        mean = divergence.averaged_epsilon(rhos, [1 / 4] * 4, DELTA)
        assert value.epsilon == pytest.approx(mean, rel=1e-6)
        assert 0.8 * mean < value.lower < value.epsilon < found


@pytest.mark.parametrize(
    ("noise", "delta"), [(1.0, 1e-5), (1e6, 1e-9), (6e7, 3e-10), (8e7, 1.6e-9), (9e8, 5e-12)]
)
def test_what_linear_losses_leak_at_least_is_below_the_best_threshold_at_any_noise(noise, delta):
    """Thresholds on the sum of two draws, or of one, by integration to 30 digits."""
    setting = ordered(3, 2, noise_std=0.1 * noise, shuffled=True)
    with mpmath.workdps(30):
        apart = [mpmath.mpf(n) / (mpmath.sqrt(3) * setting.noise_multiplier) for n in (1, 2)]

        def epsilon(threshold):
            there, gone = (
                sum(mpmath.ncdf(sign * mu - threshold) for mu in apart) / 2 for sign in (1, -1)
            )
            return mpmath.log((there - delta) / gone) if there > delta else mpmath.mpf(0)

        width, best = mpmath.mpf(10), mpmath.mpf(0)
        for _ in range(9):
            best = max((best + width * i / 20 for i in range(-20, 21)), key=epsilon)
            width /= 10
        truth = epsilon(best)
    lower = BY_NAME["linear heuristic"].compute(setting, delta).lower
    assert float(truth) * (1 - 1e-8) - 2e-14 <= lower <= truth


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        (
            Setting(
                sampling=Poisson(0.1),
                batch_size=1.0,
                noise_multiplier=5.0,
                steps=1,
                smoothness=0.0,
                diameter=100.0,
            ),
            "convex losses on a domain",
        ),
        (
            ordered(1, 1, smoothness=0.0, diameter=40.0, noise_std=1.0),
            "cyclic, clipping without effect",
        ),
    ],
)
def test_a_domain_breaks_even_with_composition_where_it_says(setting, key):
    def share(steps):
        run = replace(setting, steps=steps)
        everything = bounds.found(run, DELTA)[0].epsilon
        return BY_NAME[key].compute(run, DELTA) / everything

    steps = setting.break_even
    assert share(int(steps / 2)) > 0.99
    assert share(int(2 * steps)) < 0.8
    assert 0.9 < share(int(steps)) < 1.1
    # Of more batches an order hides something without a domain.
    assert ordered(1, 20, diameter=40.0).break_even is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sampling": Cyclic(2000)}, "batch_size: got 2000; expected at most 1000"),
        ({"momentum": 1.0}, "momentum: got 1.0"),
        ({"schedule": "exponential"}, "schedule: got 'exponential'"),
        ({"weight_decay": 1.0}, "weight_decay: got 1 at learning rate 1"),
        ({"average_last": 11}, "average_last: got 11; expected a whole number from 1"),
        ({"records": 0}, "records: got 0; expected a whole number"),
        ({"records": None}, "records: got None; expected a whole number"),
        ({"noise_multiplier": 0.0}, "noise_multiplier: got 0.0; expected a number from 0.001"),
        ({"steps": 0}, "steps: got 0; expected a number that is an integer"),
        ({"weak_convexity": -1.0}, "weak_convexity: got -1.0; expected a number >= 0"),
        ({"learning_rate": 0.0}, "learning_rate: got 0.0; expected a number > 0"),
        ({"holder": 2.0}, "holder: got 2.0; expected a number from 0 to 1"),
        ({"group": True}, "group: got True; expected a whole number"),
    ],
)
def test_bad_numbers_are_named(change, message):
    numbers = {"sampling": Cyclic(10), "records": 1000, "steps": 10, "noise_multiplier": 1.0}
    with pytest.raises(InputError, match="^" + message):
        Setting(**numbers | change)


@pytest.mark.whole
def test_an_order_that_is_drawn_in_each_epoch_has_no_bound_of_the_last_iterate_but_composition():
    known = {"strong_convexity": 0.5, "diameter": 1.0}
    for changes in ({}, known, {"holder": 0.5, "diameter": 1.0}, {"batch_size": 1}):
        fixed = ordered(4, 4, **changes)
        redrawn = replace(fixed, sampling=Reshuffled(changes.get("batch_size", 2)))
        found = {one.bound.name: one for one in bounds.found(redrawn, DELTA)}
        assert found.keys() == {
            "standard epsilon",
            "linear heuristic",
            "lower bound, all iterates",
            "if it were Poisson",
        }
        # A record is in one batch of each epoch, wherever that is.
        proven = {one.bound.name: one for one in bounds.found(fixed, DELTA)}["standard epsilon"]
        assert found["standard epsilon"].epsilon == proven.epsilon
        assert found["lower bound, all iterates"].epsilon < proven.epsilon
    whole = replace(ordered(8, 4), sampling=Reshuffled(2))
    exact_mu = 2 * 2 / (whole.noise_multiplier * 8**0.5)
    exact_epsilon = float(gaussian.epsilon(exact_mu, DELTA))
    value = BY_NAME["linear heuristic"].compute(whole, DELTA)
    assert value.epsilon == pytest.approx(exact_epsilon, rel=1e-8)
    assert "whose order is shuffled in each epoch" in whole.words


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
    found = divergence.averaged_epsilon(mus**2 / 2, shares, delta)
    assert exact <= found <= exact * (1 + 1e-6)
    assert found < 0.99 * divergence.gaussian_epsilon(8.0, delta)


@pytest.mark.parametrize(
    "key",
    [
        "standard epsilon",
        "cyclic, clipping without effect",
        "cyclic, clipped",
        "strongly convex losses",
    ],
)
@pytest.mark.parametrize("steps", [7, 12, 31, 36])
@pytest.mark.parametrize("diameter", [None, 0.4])
def test_a_shuffled_order_costs_the_mean_over_all_positions(key, steps, diameter):
    fixed = ordered(steps, 12, diameter=diameter, strong_convexity=0.5, shuffled=True)
    found = BY_NAME[key].compute(fixed, DELTA)
    rho = {
        "standard epsilon": lambda run: cyclic.composition(run),
        "cyclic, clipping without effect": lambda run: of(
            run, cyclic_operator.unclipped(*run.curvature), diameter
        ),
        "cyclic, clipped": lambda run: of(run, cyclic_operator.clipped(*run.curvature), diameter),
        "strongly convex losses": lambda run: cyclic.strongly_convex(run, 0.5, diameter),
    }[key]
    runs = [fixed.at(at) for at in range(1, 13)]
    rhos = [min(rho(run), cyclic.composition(run)) for run in runs]
    mean = divergence.averaged_epsilon(rhos, [1 / 12] * 12, DELTA)
    assert found == pytest.approx(mean, rel=1e-9)
    worst = BY_NAME[key].compute(replace(fixed, sampling=Cyclic(2)), DELTA)
    assert worst == pytest.approx(divergence.gaussian_epsilon(max(rhos), DELTA), rel=1e-9)
    assert found <= worst


def of(run, lipschitz, diameter):
    if diameter is None:
        return cyclic.sharp(run, lipschitz)
    return cyclic.bounded_domain(run, lipschitz, diameter)


def test_blocks_of_positions_are_above_the_mean_and_near_it():
    fixed = ordered(1000, 400, shuffled=True)
    found = BY_NAME["cyclic, clipping without effect"].compute(fixed, DELTA)
    rhos = [cyclic.sharp(fixed.at(at), 1.0) for at in range(1, 401)]
    mean = divergence.averaged_epsilon(rhos, [1 / 400] * 400, DELTA)
    assert mean <= found < 1.02 * mean


@pytest.mark.parametrize("shuffled", [False, True])
def test_one_convex_pass_of_single_records_is_the_bound_by_visits(shuffled):
    """Feldman et al. 2018 as the special case that it is."""
    for steps in (5, 20):
        fixed = ordered(steps, 20, batch_size=1, shuffled=shuffled)
        feldman = BY_NAME["one pass of single records"]
        assert feldman.applies(fixed)
        by_visits = BY_NAME["cyclic, clipping without effect"].compute(fixed, DELTA)
        assert feldman.compute(fixed, DELTA) == pytest.approx(by_visits, rel=1e-12)
    for change in (
        {"steps": 21},
        {"sampling": Cyclic(2), "records": 40},
        {"weak_convexity": 0.1},
        {"smoothness": 11.0},
    ):
        assert not feldman.applies(replace(fixed, **change))


@pytest.mark.parametrize("curvature", [0.0, 0.1, 0.5])
def test_no_shuffled_quadratic_losses_leak_more(curvature):
    """The last iterate's exact law over a drawn position, the order released with it."""
    fixed = ordered(40, 20, smoothness=curvature, strong_convexity=curvature, shuffled=True)
    run = fixed.at()
    slope = 1 - 0.2 * curvature
    deltas = []
    variance = sum(slope ** (2 * t) for t in range(40))
    for position in range(1, 21):
        shift = sum(slope ** (40 - at) for at in (position, position + 20))
        deltas.append(run.signal * shift / math.sqrt(variance))
    exact = divergence.averaged_epsilon(np.array(deltas) ** 2 / 2, [1 / 20] * 20, DELTA)
    keys = ["cyclic, clipping without effect", "cyclic, clipped"] + ["strongly convex losses"] * (
        curvature > 0
    )
    for key in keys:
        found = BY_NAME[key].compute(fixed, DELTA)
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
            exact = (lipschitz * 3.0) ** 2 * float(shifts.visible_fraction(lipschitz, steps))
            assert exact <= price < exact * (1.0001 if lipschitz == 1 else 2.0)


@pytest.mark.parametrize(("power", "steps"), [(0.3, 5), (0.3, 40), (0.7, 40), (1.0, 40)])
@pytest.mark.parametrize(("diameter", "per_pass"), [(0.5, 1), (1.5, 1), (0.5, 4)])
def test_no_loss_with_hoelder_gradients_in_a_fixed_order_leaks_more(
    power, steps, diameter, per_pass
):
    constant = 0.2
    fixed = ordered(
        steps,
        per_pass,
        batch_size=1,
        noise_std=0.5,
        smoothness=constant * 2 ** (1 - power),
        diameter=diameter,
        holder=power,
    )
    run = fixed.at()
    found = BY_NAME["Hölder gradients on a domain"].compute(fixed, 1e-3)

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
        run = ordered(60, per_pass, smoothness=smoothness).at(per_pass)
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
