from decimal import Decimal, localcontext

import numpy as np
import pytest
from scipy.stats import binom, entropy

from hiddenstate.auditing.divergence import bernoulli, certified
from hiddenstate.errors import InputError


def test_divergences_of_bernoulli_variables_are_scipys():
    for p, q in ((0.7, 0.2), (0.2, 0.7), (1.0, 0.3), (0.0, 0.3)):
        assert bernoulli(p, q, 1) == pytest.approx(entropy([p, 1 - p], [q, 1 - q]))
        assert bernoulli(p, q, 2) == pytest.approx(np.log(p**2 / q + (1 - p) ** 2 / (1 - q)))


@pytest.mark.parametrize("order", [1, 2])
def test_divergences_are_rounded_down_however_close_their_variables_are(order):
    def exact(p, q):
        terms = (p, q), (1 - p, 1 - q)
        if order == 1:
            return sum(p * (p / q).ln() for p, q in terms if p)
        return sum(p * p / q for p, q in terms).ln()

    rng = np.random.default_rng(0)
    for _ in range(2000):
        q = abs(rng.integers(2) - 10 ** rng.uniform(-12, -0.01))
        p = float(np.clip(q + rng.choice([-1, 1]) * 10 ** rng.uniform(-15, 0), 0, 1))
        with localcontext(prec=60):
            truth = exact(Decimal(p), Decimal(q))
            assert 0 <= bernoulli(p, q, order) <= truth
            assert float(truth) - bernoulli(p, q, order) <= 1e-8 * float(truth) + 3e-15 * abs(p - q)


@pytest.mark.parametrize("certificates", [1, 8])
def test_certificates_share_the_failure_probability(certificates):
    # 700 of 1,000 runs called in, 200 of 1,000 called in wrongly: the rates at which such counts
    # have a tail probability of the share, on a grid.
    calls = np.arange(1000) < 700, np.arange(1000) < 200
    share = 1e-6 / certificates / 2
    grid = np.linspace(0, 1, 200_001)
    p = grid[np.argmax(binom.sf(699, 1000, grid) > share)]
    q = grid[np.argmax(binom.cdf(200, 1000, grid) <= share)]
    for order in (1, 2):
        found = certified(*calls, order, failure_probability=1e-6, certificates=certificates)
        assert found == pytest.approx(bernoulli(p, q, order), rel=1e-3)
    if certificates > 1:
        assert found < certified(*calls, 2, failure_probability=1e-6)


def test_no_evidence_certifies_nothing():
    calls = np.arange(1000) < 500
    assert certified(calls, calls, 1, failure_probability=1e-6) == 0
    assert certified(~calls, calls, 2, failure_probability=1e-6) == 0


def test_certificates_fail_no_more_often_than_they_say():
    # 500 times the larger of two certificates at failure probability 0.2. Both rates must be missed
    # at once for it to fail, so a right certificate fails more than 100 times with probability
    # below 1e-9.
    rng = np.random.default_rng(0)
    truth = bernoulli(0.6, 0.4, 1)
    wrong = 0
    for _ in range(500):
        found = [
            certified(
                rng.random(100) < 0.6,
                rng.random(100) < 0.4,
                1,
                failure_probability=0.2,
                certificates=2,
            )
            for _ in range(2)
        ]
        wrong += max(found) > truth
    assert wrong <= 0.2 * 500


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"failure_probability": 0.0}, "failure_probability: got 0.0"),
        ({"certificates": 0}, "certificates: got 0"),
        ({"in_calls": []}, "in_calls: got"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    calls = {"in_calls": [True], "out_calls": [False], "order": 1, "failure_probability": 0.1}
    with pytest.raises(InputError, match="^" + message):
        certified(**calls | arguments)


@pytest.mark.parametrize("wrong", [[np.nan, 1.0], ["in", "out"], [2, 0], [0.5, 1]])
def test_calls_that_are_neither_true_nor_false_are_refused(wrong):
    right = [True, False]
    for name, calls in (("in_calls", (wrong, right)), ("out_calls", (right, wrong))):
        with pytest.raises(InputError, match=f"^{name}: got"):
            certified(*calls, 2, failure_probability=0.05)


def test_masked_calls_are_refused():
    calls = np.ma.array([1, 0, 1], mask=[0, 1, 0])
    for given, name in (((calls, [0, 0]), "in_calls"), (([1, 1], calls), "out_calls")):
        with pytest.raises(InputError, match=f"{name}: got 1; expected no masked calls"):
            certified(*given, 1, failure_probability=0.1)
