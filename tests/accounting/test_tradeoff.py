import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr

from hiddenstate.accounting import composition, iteration, linear, pld, tradeoff, weighted
from hiddenstate.auditing import composed
from hiddenstate.errors import InputError

RATES = np.array([1e-6, 1e-4, 1e-2, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1 - 1e-4])


def gaussian_delta(epsilon, mu):
    """Balle and Wang 2018, theorem 8: the closed form for the Gaussian mechanism."""
    return ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
def test_the_lines_of_the_gaussian_mechanism_give_its_curve_from_below(mu):
    epsilons = np.linspace(-6 * mu - mu**2, 6 * mu + mu**2, 2001)
    curve = tradeoff.from_deltas(epsilons, gaussian_delta(epsilons, mu))
    gap = tradeoff.gaussian(mu, RATES) - curve(RATES)
    # Rounding of the deltas, 1e-13, is all that may lift the bound.
    assert np.all(gap > -1e-12)
    assert np.all(gap < 1e-5)


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
def test_a_symmetric_mechanism_is_its_own_mirror_image(mu):
    positive = np.linspace(0, 6 * mu + mu**2, 2001)
    curve = tradeoff.symmetric(positive, gaussian_delta(positive, mu))
    gap = tradeoff.gaussian(mu, RATES) - curve(RATES)
    assert np.all(gap > -1e-12)
    assert np.all(gap < 1e-5)
    np.testing.assert_allclose(curve.inverse()(RATES), curve(RATES), atol=1e-6)


def test_pure_differential_privacy_is_two_lines():
    # (log 3, 0)-DP: FNR = max(1 - 3 FPR, (1 - FPR) / 3), which cross at FPR = FNR = 1/4.
    curve = tradeoff.symmetric([0, np.log(3)], [0.5, 0.0])
    np.testing.assert_allclose(curve(RATES), np.maximum(1 - 3 * RATES, (1 - RATES) / 3), atol=1e-12)


@given(
    st.lists(
        st.tuples(st.floats(-8, 8), st.floats(0, 1)),
        min_size=2,
        max_size=30,
        unique_by=lambda pair: round(pair[0], 3),
    )
)
def test_any_guarantees_give_a_valid_curve_that_leaks_no_less_than_fewer(pairs):
    epsilons, deltas = map(np.array, zip(*sorted(pairs), strict=True))
    deltas = np.maximum(np.minimum.accumulate(deltas), 1 - np.exp(epsilons))
    curve = tradeoff.from_deltas(epsilons, deltas)
    envelope = np.max(
        [np.zeros_like(RATES)]
        + [1 - d - np.exp(e) * RATES for e, d in zip(epsilons, deltas, strict=True)],
        axis=0,
    )
    # Never above the envelope of its lines, whatever their order in delta.
    assert np.all(curve(RATES) <= envelope + 1e-9)
    assert np.all(curve(RATES) <= 1 - RATES + 1e-9)
    assert np.all(np.diff(curve.fnr) <= 0)


def test_the_inverse_swaps_the_axes():
    curve = tradeoff.TradeoffCurve(np.array([0, 0.2, 0.6, 1.0]), np.array([0.9, 0.3, 0.0, 0.0]))
    np.testing.assert_allclose(curve.inverse()([0.3, 0.9]), [0.2, 0.0])
    np.testing.assert_allclose(curve.inverse().inverse()(RATES), curve(RATES), atol=1e-12)


@pytest.mark.parametrize(
    ("fpr", "fnr"), [([0, 0.5], [1, 0]), ([0, 1], [1, 0.5]), ([0, 0.5, 1], [0.5, 0.7, 0])]
)
def test_what_is_no_trade_off_curve_is_refused(fpr, fnr):
    with pytest.raises(ValueError, match="trade-off curve"):
        tradeoff.TradeoffCurve(np.array(fpr, dtype=float), np.array(fnr, dtype=float))


def test_totals_measure_the_levy_distance():
    # Shifting both error rates by 0.05 moves the total by 0.1 at the same difference.
    rates = np.linspace(0, 1, 1001)
    curve = tradeoff.TradeoffCurve(rates, tradeoff.gaussian(1.0, rates))
    middle = np.linspace(-0.5, 0.5, 101)
    moved = tradeoff.TradeoffCurve(
        np.concatenate(([0.0], rates[:-51] + 0.05, [1.0])),
        np.concatenate(([1.0], np.minimum(1, curve.fnr[:-51] + 0.05), [0.0])),
    )
    np.testing.assert_allclose(moved.total(middle) - curve.total(middle), 0.1, atol=1e-6)
    steep = tradeoff.TradeoffCurve(np.array([0.0, 1.0]), np.array([0.2, 0.0]))
    np.testing.assert_allclose(steep.total([-1.0, -0.6, -0.2]), [1.0, 0.6, 0.2])


def test_lines_too_steep_for_floating_point_say_nothing():
    # Differences of e^-800 and e^-900, or of e^800 and e^900, are no numbers.
    epsilons = np.array([-900.0, -800.0, 0.0, 800.0, 900.0])
    curve = tradeoff.from_deltas(epsilons, [1.0, 1.0, 0.5, 0.1, 0.1])
    np.testing.assert_allclose(curve([0.0, 0.25, 0.5]), [0.5, 0.25, 0.0])
    nothing = tradeoff.from_deltas([-900.0, 900.0], [1.0, 1.0])
    np.testing.assert_array_equal(nothing(RATES), 0)


@pytest.mark.parametrize("sigma", [0.003, 0.03])
def test_with_hardly_any_noise_only_the_sampling_is_unseen(sigma):
    """Losses that are alike in floating point were a division by zero."""
    rates = np.array([0.0, 0.01, 0.2, 0.4, 0.5, 0.8, 1.0])
    out = linear.tradeoff_curve(sigma, 0.25, 1, null="out")
    np.testing.assert_allclose(out(rates), 0.75 * (1 - rates), atol=1e-12)
    inside = linear.tradeoff_curve(sigma, 0.25, 1, null="in")
    np.testing.assert_allclose(inside(rates), np.maximum(1 - rates / 0.75, 0), atol=1e-12)


def test_of_lines_of_one_slope_the_higher_counts():
    curve = tradeoff.from_deltas([0.0, 0.0, 1.0, 1.0, 1.0], [0.5, 0.6, 0.2, 0.1, 0.3])
    alone = tradeoff.from_deltas([0.0, 1.0], [0.5, 0.1])
    np.testing.assert_array_equal(curve(RATES), alone(RATES))


def test_lines_whose_slopes_are_far_apart_meet_next_to_the_axis():
    """e^1000 is no float64; both lines bound the curve near 0 all the same."""
    curve = tradeoff.from_deltas([-500.0, 500.0], [0.3, 0.1])
    np.testing.assert_allclose(curve([0.0, 1e-200]), [0.9, 0.7])
    # (0.3 - 0.1) e^-500, where the two meet.
    np.testing.assert_allclose(curve.fpr[1], 0.2 * np.exp(-500), rtol=1e-9)


@pytest.mark.parametrize(
    "ask",
    [
        lambda null: composition.bracket(1, 0.01, 1000, 1e-5, null=null),
        lambda null: pld.privacy_loss(1, 0.1, 10, null=null),
        lambda null: pld.tradeoff_curve(1, 0.1, 10, null=null),
        lambda null: iteration.subsampled(1, 0.1, 10).epsilon(1e-5, null=null),
        lambda null: iteration.subsampled(1, 0.1, 10).delta(0.5, null=null),
        lambda null: linear.last_iterate_epsilon(1, 0.1, 10, 1e-5, null=null),
        lambda null: linear.last_iterate_delta(1, 0.1, 10, 0.5, null=null),
        lambda null: linear.tradeoff_curve(1, 0.1, 10, null=null),
        lambda null: linear.last_iterate(1, 0.1, 10).epsilon(1e-5, null=null),
        lambda null: linear.last_iterate(1, 0.1, 10).log_delta_at(0.5, null=null),
        lambda null: weighted.epsilon(1, 0.1, [1.0, 1.0], 1e-5, null=null),
        lambda null: composed([1.0], 0.1, 2, null=null),
    ],
)
def test_a_null_hypothesis_of_another_name_is_refused(ask):
    """Most took it for "in", the direction that leaks less; some raised a KeyError."""
    with pytest.raises(InputError, match=r"^null: got 'remove'; expected one of 'out', 'in'"):
        ask("remove")


@pytest.mark.parametrize(("sigma", "rate"), [(0.0603, 0.70801), (0.0665, 0.0112943), (0.02, 0.3)])
@pytest.mark.parametrize("null", ["in", "either"])
def test_curves_of_little_noise_are_below_every_test(sigma, rate, null):
    curve = pld.tradeoff_curve(sigma, rate, 1, null=null)
    t = np.linspace(-8 * sigma, 1 + 8 * sigma, 100_001)
    # "Out" where the released step is at most t, with the null hypothesis "in".
    fpr = (1 - rate) * ndtr(t / sigma) + rate * ndtr((t - 1) / sigma)
    assert np.all(curve(fpr) <= ndtr(-t / sigma) + 1e-9)
