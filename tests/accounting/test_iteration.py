import math

import deltas
import numpy as np
import pytest
from mpmath import mp, mpf
from scipy.stats import norm

from hiddenstate.accounting import gaussian, iteration, linear
from hiddenstate.accounting.iteration import (
    Law,
    SingleInsertion,
    berry_esseen,
    nearest_gaussian,
    optimal_threshold,
    subsampled,
)
from hiddenstate.errors import InputError
from hiddenstate.streams import stream

DELTA = 1e-5
SIZES = (1, 2, 4, 8, 16, 32)


def insertion(epsilon, batch, steps=25, **more) -> SingleInsertion:
    mu = gaussian.mu(epsilon, DELTA)
    return SingleInsertion(mu, batch * mu, steps, **more)


def reading(law: Law) -> float:
    return gaussian.epsilon(law.gdp_mu(), DELTA)


# Computed once by an independent program on a grid, to the digits given here.
@pytest.mark.whole
@pytest.mark.parametrize(
    ("epsilon", "sigma", "ratios"),
    [
        (0.5, 7.032, (0.330, 0.499, 0.749, 0.942, 0.998, 1)),
        (1, 3.731, (0.479, 0.726, 0.931, 0.997, 1, 1)),
        (2, 1.994, (0.697, 0.915, 0.995, 1, 1, 1)),
        (4, 1.081, (0.892, 0.991, 1, 1, 1, 1)),
        (8, 0.600, (0.984, 1, 1, 1, 1, 1)),
        (10, 0.500, (0.994, 1, 1, 1, 1, 1)),
        (12, 0.432, (0.998, 1, 1, 1, 1, 1)),
    ],
)
def test_the_gaussian_reading_for_each_batch_size(epsilon, sigma, ratios):
    assert 1 / gaussian.mu(epsilon, DELTA) == pytest.approx(sigma, abs=6e-4)
    found = [reading(insertion(epsilon, size).law) / epsilon for size in SIZES]
    np.testing.assert_allclose(found, ratios, atol=6e-4)
    assert np.all(np.diff(found) > -1e-9) and max(found) <= 1 + 1e-9


@pytest.mark.parametrize(
    ("batch", "values"),
    [
        (1, (4, 3.712, 3.629, 3.583, 3.569, 3.569, 3.569)),
        (2, (4, 3.968, 3.965, 3.965, 3.965, 3.965, 3.965)),
        (4, (4, 4, 4, 4, 4, 4, 4)),
        (0, (4, 2.694, 2.145, 1.614, 1.101, 0.881, 0.666)),
    ],
)
def test_the_evolution_over_the_hidden_steps(batch, values):
    laws = insertion(4, batch).laws()
    assert len(laws) == 25
    found = [reading(laws[t - 1]) for t in (1, 2, 3, 5, 10, 15, 25)]
    np.testing.assert_allclose(found, values, atol=1.1e-3)


@pytest.mark.parametrize(
    ("beta", "ratios"),
    [
        (0.05, (0.254, 0.165, 0.128)), (0.1, (0.311, 0.242, 0.224)),
        (0.25, (0.490, 0.471)), (0.5, (0.722, 0.722)),
    ],
)  # fmt: skip
def test_small_insertions_keep_a_constant_share(beta, ratios):
    times = (25, 100, 400)[: len(ratios)]
    laws = SingleInsertion(0.05, beta, times[-1]).laws()
    found = [laws[t - 1].gdp_mu() / 0.05 for t in times]
    np.testing.assert_allclose(found, ratios, atol=6e-4)


@pytest.mark.whole
def test_large_batches_lose_nothing_and_flat_landscapes_the_root_of_the_steps():
    for beta, share in ((1, 0.9235), (2, 0.9951), (3, 0.9998)):
        assert SingleInsertion(0.05, beta, 25).law.gdp_mu() / 0.05 == pytest.approx(share, abs=6e-5)
    for beta in (20, 1e6):
        assert SingleInsertion(1.3, beta, 25).law.gdp_mu() == pytest.approx(1.3, rel=1e-12)
    for law, t in zip(SingleInsertion(1.3, 0, 30).laws(), range(1, 31), strict=False):
        assert law.gdp_mu() == pytest.approx(1.3 / math.sqrt(t), rel=1e-12)
        assert law.epsilon(DELTA) == pytest.approx(
            gaussian.epsilon(1.3 / math.sqrt(t), DELTA), abs=1e-8
        )


@pytest.mark.whole
@pytest.mark.parametrize(
    ("epsilon", "exact"),
    [(0.5, 0.145), (1, 0.280), (2, 0.536), (4, 1.016), (8, 1.911), (12, 2.761)],
)
def test_the_exact_epsilon_is_a_quarter_at_the_middle_and_all_of_it_at_the_optimal_threshold(
    epsilon, exact
):
    mu = gaussian.mu(epsilon, DELTA)
    middle = SingleInsertion(mu, 20, 25).law
    # The middle is symmetric: both directions leak alike.
    for null in ("out", "in"):
        assert middle.epsilon(DELTA, null=null) == pytest.approx(exact, abs=6e-4)
    law = SingleInsertion(mu, 20, 25, optimal_threshold(epsilon, mu)).law
    assert law.epsilon(DELTA) == pytest.approx(epsilon, abs=1e-8)


@pytest.mark.parametrize(
    ("epsilon", "sizes", "ratios"),
    [(4, (1, 2, 4), (0.493, 0.847, 1.0)), (1, (1, 2, 4, 8, 16), (0.281, 0.391, 0.617, 0.967, 1))],
)
def test_small_batches_at_the_optimal_threshold(epsilon, sizes, ratios):
    threshold = optimal_threshold(epsilon, gaussian.mu(epsilon, DELTA))
    found = [
        insertion(epsilon, size, threshold=threshold).law.epsilon(DELTA) / epsilon for size in sizes
    ]
    np.testing.assert_allclose(found, ratios, atol=1.1e-3)


def test_a_ramp_keeps_the_size_of_the_first_step():
    mu = gaussian.mu(1.0, DELTA)
    step = SingleInsertion(mu, 16, 10).law.epsilon(DELTA)
    ramps = [
        SingleInsertion(mu, beta, 10, slope=beta / 5).law.epsilon(DELTA) for beta in (4, 16, 40)
    ]
    assert step < 0.35 < ramps[0] < ramps[1] < ramps[2] < 1
    assert ramps[2] > 0.9


@pytest.mark.whole
def test_the_law_of_two_steps_is_that_of_an_integral_in_high_precision():
    mu, beta, threshold = 1.7, 0.6, 0.4
    law = SingleInsertion(mu, beta, 2, threshold).law
    with mp.workdps(25):
        for index, mean in enumerate((-threshold, mu - threshold)):
            for c in (-6.0, -0.3, 0.0, 1.1, 7.0):
                exact = sum(
                    mp.quad(
                        lambda x, s=s, mean=mean, c=c: (
                            mp.npdf(x - mean) * mp.ncdf(x + s * beta - c)
                        ),
                        points,
                    )
                    for s, points in ((-1, [-14, -7, -3, 0]), (1, [0, 3, 7, 14]))
                )
                assert law.above(c)[index] == pytest.approx(float(exact), rel=1e-10)


@pytest.mark.parametrize("slope", [math.inf, 0.7])
def test_the_law_is_that_of_the_simulated_process(slope):
    process = SingleInsertion(0.9, 0.8, 8, 0.2, slope)
    n = 40_000
    for index, world in enumerate(("out", "in")):
        x = process.sampled(world, n, stream(0, "iteration", world, str(slope)))
        for c in (-2.0, 0.0, 1.5):
            p = float(process.law.above(c)[index])
            assert (x > c).mean() == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / n))


def test_both_error_rates_and_the_likelihood_ratio_belong_together():
    law = SingleInsertion(1.2, 0.7, 6).law
    for c in (-4.0, 0.0, 3.0):
        for above, below in zip(law.above(c), law.below(c), strict=True):
            assert above + below == pytest.approx(1, abs=1e-12)
    at = np.linspace(-9, 9, 41)
    assert np.all(np.diff([law.log_ratio(x) for x in at]) > 0)
    # A threshold's exact divergence is the largest over all thresholds.
    grid = np.linspace(-12, 12, 4001)
    out, inside = law.above(grid)
    for epsilon in (0.0, 0.5, 1.5):
        assert law.delta(epsilon) == pytest.approx(
            float((inside - math.exp(epsilon) * out).max()), abs=1e-6
        )
    assert law.epsilon(1 - 1e-9) == 0.0


def test_the_last_iterate_never_leaks_more_than_the_insertion():
    for mu, beta, slope in ((0.5, 0.3, math.inf), (2.0, 1.5, math.inf), (1.0, 2.0, 1.3)):
        for threshold in (None, 1.5):
            law = SingleInsertion(mu, beta, 6, threshold, slope).law
            for null in ("out", "in"):
                assert law.epsilon(DELTA, null=null) <= gaussian.epsilon(mu, DELTA) + 1e-8


def test_the_points_of_a_curve_leave_no_wide_gap():
    for law in (SingleInsertion(2.0, 20, 25).law, subsampled(0.3, 0.1, 50)):
        fpr, fnr = law.errors(500)
        assert np.all(np.diff(fpr) >= 0) and np.all(np.diff(fnr) <= 0)
        assert fpr[0] - fnr[0] == pytest.approx(-1) and fpr[-1] - fnr[-1] == pytest.approx(1)
        assert np.diff(fpr - fnr).max() <= 2 / 500
        assert 500 <= len(fpr) < 1500


def test_nonsense_is_refused():
    for name, values in {
        "mu": (0.0, -1.0, math.inf, math.nan), "beta": (-1.0, math.inf, math.nan),
        "slope": (0.0, math.nan), "threshold": (math.nan,), "steps": (0,),
    }.items():  # fmt: skip
        for value in values:
            with pytest.raises(InputError, match=name):
                SingleInsertion(**{"mu": 1.0, "beta": 1.0, "steps": 2} | {name: value})
    with pytest.raises(InputError, match="nodes"):
        _ = SingleInsertion(1.0, 1e6, 25, slope=1.0).law
    law = SingleInsertion(1.0, 1.0, 2).law
    for delta in (0.0, 1.0, math.nan):
        with pytest.raises(InputError, match="delta"):
            law.epsilon(delta)
    with pytest.raises(InputError, match="epsilon"):
        law.delta(-1.0)
    with pytest.raises(InputError, match="mu"):
        optimal_threshold(1.0, 0.0)
    with pytest.raises(InputError, match="sampling_rate"):
        subsampled(1.0, 0.0, 3)
    with pytest.raises(InputError, match="descend"):
        nearest_gaussian([0.0, 1.0], [0.0, 1.0])
    with pytest.raises(InputError, match="shapes"):
        nearest_gaussian([0.0], [1.0])


# --- Extreme numbers


def mixed_epsilon(process, sigma, rate, steps, delta, null="out"):
    """Epsilon of ``process`` in high precision: the losses ascend, so the tests are thresholds."""
    with mp.workdps(30):
        sigma, rate, deviation = mpf(sigma), mpf(rate), mpf(sigma) * mp.sqrt(steps)
        shares = [
            mp.binomial(steps, k) * rate**k * (1 - rate) ** (steps - k) for k in range(steps + 1)
        ]
        inside = list(enumerate(shares))
        out = [(-k, share) for k, share in inside] if process is iteration.swapped else [(0, 1)]
        if null == "in":
            inside, out = ([(-k, share) for k, share in side] for side in (out, inside))

        def density(side, x):
            return mp.fsum(share * mp.npdf(x, k, deviation) for k, share in side)

        def tail(side, x):
            return mp.fsum(share * mp.ncdf((k - x) / deviation) for k, share in side)

        low, high = -steps - 40 * deviation, steps + 40 * deviation
        for _ in range(50):  # to less than 1e-15 of the range
            x = (low + high) / 2
            ratio = density(inside, x) / density(out, x)
            more = tail(inside, x) - ratio * tail(out, x) > mpf(delta)
            low, high = (x, high) if more else (low, x)
        return float(mp.log(ratio))


@pytest.mark.parametrize(
    ("process", "mechanism", "delta", "null"),
    [
        (iteration.swapped, (1.0, 0.01, 40), "1e-5", "out"),
        (iteration.swapped, (1.0, 0.01, 40), "1e-300", "out"),
        (iteration.swapped, (0.06, 1e-10, 20), "1e-290", "in"),
        (iteration.swapped, (1e-3, 0.3, 10), "1e-5", "out"),
        (subsampled, (1.0, 0.01, 40), "1e-300", "out"),
        (subsampled, (0.05, 0.9, 60), "1e-100", "in"),
    ],
)
def test_epsilons_are_exact_at_any_delta_and_noise(process, mechanism, delta, null):
    """Probabilities below the least double were taken for 0, and others overflowed."""
    exact = mixed_epsilon(process, *mechanism, delta, null)
    assert process(*mechanism).epsilon(float(delta), null=null) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("mu", [1e-3, 30.0, 1e4, 1e12])
def test_a_flat_landscape_is_gaussian_at_any_mu_and_delta(mu):
    """At mu 30 the exponential of epsilon overflowed."""
    law = SingleInsertion(mu, 0.0, 1).law
    assert law.gdp_mu() == pytest.approx(mu, rel=1e-9)
    assert len(law.errors(100)[0]) < 1000
    for delta in (1e-300, 1e-5):
        exact = gaussian.epsilon(mu, delta)
        for null in ("out", "in"):
            assert law.epsilon(delta, null=null) == pytest.approx(exact, rel=1e-9, abs=1e-9)
    if mu == 30:
        exact = float(deltas.gaussian(mu, 600))
        assert law.delta(600.0) == pytest.approx(exact, rel=1e-9)
        assert law.delta(1e200) == 0.0


def test_what_hangs_on_outputs_that_were_left_out_is_refused():
    law = SingleInsertion(1.2, 0.7, 6).law
    assert law.epsilon(1e-11) > 3
    for refusing in (law, iteration.swapped(0.2, 0.5, 3000)):
        with pytest.raises(InputError, match=r"^delta: got 1e-13; .* rarer than"):
            refusing.epsilon(1e-13)


def test_sizes_beyond_memory_are_refused_and_a_flat_landscape_has_none():
    assert SingleInsertion(1.0, 0.0, 10**12).law.gdp_mu() == pytest.approx(1e-6, rel=1e-9)
    for process in (iteration.swapped, subsampled):
        with pytest.raises(InputError, match=r"^steps: got 1000000000000"):
            process(1.0, 0.1, 10**12)
        for noise in (1e-200, 1e305):
            with pytest.raises(InputError, match=r"^noise_multiplier: got"):
                process(noise, 0.1, 10)


@pytest.mark.parametrize(
    ("mechanism", "third"),
    [((1e50, 0.5), 2 * math.sqrt(2 / math.pi)), ((1e-50, 0.5), 1.0), ((1e-50, 0.1), 0.82 / 0.3)],
)
def test_berry_esseen_at_any_noise(mechanism, third):
    """Third moments over cubed deviations: of normal terms, and of coins of rate q."""
    assert berry_esseen(*mechanism, 100) == pytest.approx(0.4748 * third / 10, rel=1e-12)


# --- How far from Gaussian


def test_a_gaussian_curve_is_its_own_nearest():
    for mu in (0.1, 1.0, 3.5):
        fit = nearest_gaussian(*Law(np.array([[0.0], [2 * mu]]), np.zeros((2, 1)), 2.0).errors())
        assert fit.mu == pytest.approx(mu, abs=1e-5)
        assert fit.distance < 1e-6 < fit.bound < 1.1e-3


def test_the_distance_is_the_shift_that_takes_one_curve_beyond_the_other():
    law = SingleInsertion(2.0, 20, 25).law
    fit = nearest_gaussian(*law.errors())
    fpr, fnr = law.errors()

    def beyond(shift: float) -> bool:
        # G(x + shift) - shift <= f(x) <= G(x - shift) + shift wherever the arguments make sense
        inner = norm.cdf(-norm.ppf(np.clip(fpr + shift, 0, 1)) - fit.mu) - shift
        outer = norm.cdf(-norm.ppf(np.clip(fpr - shift, 0, 1)) - fit.mu) + shift
        return bool(np.all(inner <= fnr + 1e-9) and np.all(fnr <= outer + 1e-9))

    assert beyond(fit.bound) and not beyond(0.98 * fit.distance)
    # The one bit of the step in the middle is far from any Gaussian curve.
    assert fit.distance > 0.02
    # A flat landscape is Gaussian exactly.
    assert nearest_gaussian(*SingleInsertion(2.0, 0.0, 25).law.errors()).distance < 1e-6


def test_the_subsampled_law_is_the_linear_one():
    sigma, rate, steps = 1.1, 0.2, 30
    law = subsampled(sigma, rate, steps)
    for null in ("out", "in"):
        pair = linear.last_iterate(sigma, rate, steps)
        for epsilon in (0.1, 1.0, 2.5):
            assert law.delta(epsilon, null=null) == pytest.approx(
                float(pair.delta(epsilon, null=null)), rel=1e-6, abs=1e-14
            )
    whole = subsampled(sigma, 1.0, steps)
    assert whole.epsilon(DELTA) == pytest.approx(
        gaussian.epsilon(math.sqrt(steps) / sigma, DELTA), abs=1e-7
    )


def normal_pair_fnr(sigma, rate, steps, fpr):
    """False-negative rate at each FPR of threshold tests of ``berry_esseen``'s normal pair."""
    deviation = math.sqrt(sigma**2 + rate * (1 - rate))
    return norm.cdf((norm.isf(fpr) * sigma - math.sqrt(steps) * rate) / deviation)


def test_subsampled_curves_approach_their_normal_pair_within_the_bound():
    sigma, rate = 0.6, 0.1
    gaps = []
    for steps in (1, 10, 100, 1000):
        fpr, fnr = subsampled(sigma, rate, steps).errors()
        gap = np.abs(fnr - normal_pair_fnr(sigma, rate, steps, fpr)).max()
        assert 0 < gap <= berry_esseen(sigma, rate, steps)
        gaps.append(gap)
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < gaps[1] / 5
    assert berry_esseen(sigma, 1.0, 3) == 0.0
    # sqrt(100) fewer: a tenth.
    assert berry_esseen(sigma, rate, 1000) == pytest.approx(berry_esseen(sigma, rate, 10) / 10)


def test_third_moments_are_those_of_an_integral():
    for shift, deviation in ((0.0, 1.0), (0.9, 0.4), (-2.0, 1.5)):
        z = np.linspace(-12, 12, 200_001)
        integral = np.trapezoid(np.abs(shift + deviation * z) ** 3 * norm.pdf(z), z)
        assert iteration._third_moment(shift, deviation) == pytest.approx(integral, rel=1e-7)


def test_either_null_hypothesis_is_the_one_that_leaks_more():
    """It was taken for "in", and epsilon for 0.7 in the place of 2.2."""
    law = iteration.subsampled(1, 0.1, 10)
    for of, value in ((law.epsilon, 1e-5), (law.delta, 0.5)):
        assert of(value, null="either") == max(of(value, null="out"), of(value, null="in"))
    assert law.epsilon(1e-5, null="either") == pytest.approx(
        float(linear.last_iterate_epsilon(1, 0.1, 10, 1e-5)), rel=1e-6
    )
