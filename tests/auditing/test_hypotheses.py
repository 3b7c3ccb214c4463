import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from hiddenstate.accounting import pld, tradeoff
from hiddenstate.accounting.tradeoff import TradeoffCurve
from hiddenstate.auditing import ApproxDP, GaussianDP, Tabulated, composed
from hiddenstate.auditing.hypotheses import claimed
from hiddenstate.errors import InputError

rate = st.floats(1e-6, 1 - 1e-6)

RATES = np.concatenate(([0.0], np.logspace(-9, -2, 200), np.linspace(0.01, 1, 400)))


@given(rate, rate)
@settings(max_examples=100, deadline=None)
def test_gaussian_bound_is_where_the_curve_meets_the_point(fpr, fnr):
    bound = float(GaussianDP().violated(fpr, fnr))
    if fpr + fnr >= 1:
        assert bound == 0
    else:
        exact = brentq(lambda mu: tradeoff.gaussian(mu, fpr) - fnr, 0, 20, xtol=1e-13)
        assert exact - 2e-6 <= bound <= exact


@pytest.mark.whole
@given(rate, rate, st.sampled_from([1e-9, 1e-5, 0.1]))
@settings(max_examples=100, deadline=None)
def test_approximate_bound_is_the_largest_epsilon_contradicted(fpr, fnr, delta):
    hypotheses = ApproxDP(delta, step=0.02)
    bound = float(hypotheses.violated(fpr, fnr))
    contradicted = [i for i, _ in enumerate(hypotheses.grid) if hypotheses.fnr(i, fpr) > fnr]
    largest = hypotheses.grid[contradicted[-1]] if contradicted else 0.0
    assert contradicted == list(range(len(contradicted)))
    assert largest - 1e-6 <= bound <= largest + hypotheses.step


def test_approximate_fnr_is_the_trade_off_of_randomized_response():
    # Kairouz, Oh and Viswanath 2015: with probability delta the world is revealed, else e^eps : 1.
    delta, epsilon = 0.01, 1.5
    hypotheses = ApproxDP(delta, step=0.5)
    truth = (1 - delta) * np.exp(epsilon) / (1 + np.exp(epsilon))
    lie = (1 - delta) / (1 + np.exp(epsilon))
    # Calling "in" on nothing, the revealed, the revealed and the likely, all but revealed "out".
    corners = [(0, 1 - delta), (lie, lie), (truth + lie, 0)]
    for fpr, fnr in corners:
        assert hypotheses.fnr(3, fpr) == pytest.approx(fnr, abs=1e-12)


def test_a_table_gives_the_value_below_the_closed_form(gaussian_curve):
    mus = np.linspace(0.1, 4, 40)
    hypotheses = Tabulated("mu", mus, [gaussian_curve(mu) for mu in mus])
    rng = np.random.default_rng(2)
    fpr, fnr = rng.uniform(0.01, 0.6, (2, 500))
    exact = GaussianDP().violated(fpr, fnr)
    table = hypotheses.violated(fpr, fnr)
    assert np.all(table <= exact + 1e-9)
    inside = (exact >= 0.1) & (exact < 4)
    # Chords lie above the curve they cut, by little; one step of the table covers it.
    assert np.all(table[inside] > exact[inside] - 0.1 - 0.01)
    assert np.all(table[exact < 0.1] == 0)


def test_a_descending_parameter_is_bounded_from_above(gaussian_curve):
    sigmas = np.linspace(4, 0.5, 36)
    hypotheses = Tabulated("noise multiplier", sigmas, [gaussian_curve(1 / s) for s in sigmas])
    fpr = 0.1
    assert hypotheses.violated(fpr, tradeoff.gaussian(1.0, fpr) - 1e-3) == pytest.approx(1.0)
    assert hypotheses.violated(fpr, 0.95) == np.inf


def test_curves_of_the_other_null_are_inverted():
    # The asymmetric trade-off of revealing the canary with probability 0.3 and nothing else.
    out = TradeoffCurve(np.array([0.0, 1.0]), np.array([0.7, 0.0]))
    hypotheses = Tabulated("leak", [0.3], [out.inverse()], null="in")
    fpr = np.linspace(0, 1, 11)
    assert np.allclose(hypotheses.fnr(0, fpr), out(fpr))


@pytest.mark.parametrize("delta", [1.0, -1e-5, 2.0])
def test_a_delta_outside_the_unit_interval_is_refused(delta):
    with pytest.raises(InputError, match=r"delta: got .*; expected a probability in"):
        ApproxDP(delta)


@pytest.mark.parametrize("value", [np.nan, "1e-5", None, np.array([1e-5, 1e-6]), 1j])
def test_what_is_not_one_number_is_refused(value):
    with pytest.raises(InputError, match=r"delta: got .*; expected one finite number"):
        ApproxDP(value)
    with pytest.raises(InputError, match=r"limit: got .*; expected one finite number"):
        GaussianDP(limit=value)


def test_a_number_in_an_array_is_a_number():
    assert hash(ApproxDP(np.array(1e-5))) == hash(ApproxDP(1e-5))


def test_pure_differential_privacy_is_bounded():
    # Randomised response at epsilon 1.5 attains it at its corner.
    lie = 1 / (1 + np.exp(1.5))
    assert ApproxDP(0.0).violated(lie, lie) == pytest.approx(1.5, abs=2e-6)


def test_a_claim_between_two_values_is_the_less_private_of_them():
    assert GaussianDP().grid[claimed(GaussianDP(), 1.0)] == 1.0
    assert GaussianDP().grid[claimed(GaussianDP(), 1.0004)] == 1.001
    with pytest.raises(InputError, match="mu: got 20"):
        claimed(GaussianDP(), 20.5)


@pytest.mark.parametrize(
    ("sigma", "q", "steps"),
    [(0.5, 0.1, 1), (0.5, 0.1, 10), (0.2, 0.1, 10), (1.0, 0.01, 100), (1.0, 1.0, 3)],
)
def test_both_nulls_of_a_composed_mechanism_are_one_trade_off(sigma, q, steps):
    """Over the whole range, to 1e-8, of which 2e-9 is where the supporting lines end."""
    out, into = (composed([sigma], q, steps, null=null) for null in ("out", "in"))
    assert into.fnr(0, RATES) == pytest.approx(out.fnr(0, RATES), abs=1e-8)
    if q < 1:
        # They are no symmetric function, so inverting either would show.
        assert np.abs(out.curves[0].inverse()(RATES) - out.fnr(0, RATES)).max() > 4e-3


@pytest.mark.parametrize("null", ["out", "in"])
def test_a_composed_curve_is_below_the_exact_one_and_near_it(null):
    """One step is a mixture of two Gaussians, whose likelihood-ratio tests are thresholds."""
    sigma, q = 0.5, 0.1
    exact = (1 - q) * (1 - RATES) + q * tradeoff.gaussian(1 / sigma, RATES)
    gap = exact - composed([sigma], q, 1, null=null).fnr(0, RATES)
    # Chords of 401 supporting lines, and their privacy losses 5e-3 apart.
    assert gap.min() > -1e-9
    assert gap.max() < 2e-3


def test_a_single_noise_multiplier_is_bounded_from_above():
    one = composed([1.0], 0.1, 10)
    assert one.trivial == np.inf
    assert one.violated(0.01, 0.5) == 1.0
    with pytest.raises(InputError, match="values: ascend"):
        composed([0.5, 1.0], 0.1, 10)


def test_little_noise_has_enough_supporting_lines():
    found = composed([0.2135, 0.2066, 0.2], 0.1, 10)
    assert np.array_equal(found.grid, [0.2135, 0.2066, 0.2])


def test_a_table_must_be_ordered(gaussian_curve):
    curves = [gaussian_curve(1.0), gaussian_curve(2.0)]
    with pytest.raises(InputError, match="strictly monotone"):
        Tabulated("mu", [1.0, 1.0], curves)
    with pytest.raises(InputError, match="most private to the least"):
        Tabulated("mu", [1.0, 2.0], curves[::-1])
    with pytest.raises(InputError, match="1 values for 2 curves"):
        Tabulated("mu", [1.0], curves)


@pytest.mark.parametrize("mechanism", [(5, 0.01, 10_000), (2, 0.001, 20_000), (1, 0.001, 50_000)])
def test_composed_curves_are_the_accountants_where_a_step_loses_little(mechanism):
    """With losses 5e-3 apart they claimed mu 0.29, 0.20 and 0.46 for 0.20, 0.08 and 0.30."""
    (curve,) = composed([mechanism[0]], *mechanism[1:]).curves
    rates = np.array([1e-3, 0.01, 0.1, 0.5])
    accountant = pld.tradeoff_curve(*mechanism, null="out")
    np.testing.assert_allclose(curve(rates), accountant(rates), atol=1e-3)


def test_grids_that_no_memory_holds_and_epsilons_beyond_numbers_are_refused():
    with pytest.raises(InputError, match="step: got 1e-12; expected at most 1e8"):
        GaussianDP(step=1e-12)
    with pytest.raises(InputError, match="limit: got 800; expected at most 700"):
        ApproxDP(1e-5, limit=800)
    assert (ApproxDP(1e-5, limit=700).fnr(700_000, [0.0, 1.0]) == [1 - 1e-5, 0]).all()
