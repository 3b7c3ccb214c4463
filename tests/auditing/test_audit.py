import doctest

import numpy as np
import pytest

from hiddenstate import auditing
from hiddenstate.auditing import (
    ApproxDP,
    AsPublished,
    Averaged,
    Fixed,
    GaussianDP,
    SequentialAudit,
    Split,
    Tabulated,
    UniformBand,
    lower_bound,
)
from hiddenstate.errors import InputError
from hiddenstate.streams import stream

IN, OUT = np.linspace(1, 5, 200), np.linspace(0, 4, 200)


def test_a_bound_says_what_it_is():
    bound = lower_bound(IN, OUT, GaussianDP(), Fixed(2.5), confidence=0.9)
    assert (bound.parameter, bound.direction, bound.confidence) == ("mu", "lower", 0.9)
    assert bound.method == "fixed threshold, clopper-pearson"
    assert bound.valid
    assert bound.threshold == 2.5
    assert not lower_bound(IN, OUT, GaussianDP(), AsPublished()).valid


def test_the_example_of_the_package_prints_what_it_says():
    assert doctest.testmod(auditing) == doctest.TestResults(failed=0, attempted=2)


def test_the_default_is_valid_and_beats_the_band():
    default = lower_bound(IN, OUT, GaussianDP())
    assert default.valid
    assert default.method == "averaged"
    assert default.value > lower_bound(IN, OUT, GaussianDP(), UniformBand()).value > 0


def test_noise_multipliers_are_bounded_from_above(gaussian_curve):
    sigmas = [2.0, 1.0, 0.5]
    family = Tabulated("noise multiplier", sigmas, [gaussian_curve(1 / s) for s in sigmas])
    bound = lower_bound(IN, OUT, family)
    assert bound.direction == "upper"
    assert bound.value in (2.0, 1.0)
    assert lower_bound(OUT, OUT, family).value == np.inf


def test_more_confidence_claims_less():
    values = [lower_bound(IN, OUT, GaussianDP(), confidence=c).value for c in (0.8, 0.95, 0.99)]
    assert values[0] > values[1] > values[2] > 0


@pytest.mark.parametrize("confidence", [0.0, 0.5, 1.0, 95, np.nan])
def test_a_confidence_that_is_none_is_refused(confidence):
    with pytest.raises(InputError, match="confidence: got"):
        lower_bound(IN, OUT, GaussianDP(), confidence=confidence)


def test_unusable_scores_are_refused():
    with pytest.raises(InputError, match="in_scores: 1 of 2 scores not finite"):
        lower_bound([np.nan, 1.0], OUT, GaussianDP())
    with pytest.raises(InputError, match=r"out_scores: got shape \(1, 200\)"):
        lower_bound(IN, OUT[None], GaussianDP())


@pytest.mark.whole
def test_the_default_tosses_coins_for_ties_and_tells_their_seed():
    """Decisions gave a median of 0.15 here and 0.89 in the shell."""
    rng = stream(0, "randomised response")
    truthful = 1 / (1 + np.exp(-1))
    found = []
    for _ in range(9):
        ins, outs = (rng.random(1000) < truthful) * 1.0, (rng.random(1000) > truthful) * 1.0
        found.append(lower_bound(ins, outs, ApproxDP(0.0)))
    assert 0.7 < np.median([bound.value for bound in found]) < 1
    assert len({bound.coins for bound in found}) == 9
    again = lower_bound(ins, outs, ApproxDP(0.0), Averaged(coins=found[-1].coins))
    assert (again.value, again.coins) == (found[-1].value, found[-1].coins)
    against = lower_bound(ins, outs, ApproxDP(0.0), Averaged(coins="against"))
    assert against.value < 0.4 and against.coins is None


def test_coins_are_told_only_where_chance_decides():
    assert lower_bound(IN, OUT + 0.001, GaussianDP()).coins is None
    split = lower_bound(IN, OUT, GaussianDP(), Split())
    assert split.coins is not None
    assert lower_bound(IN, OUT, GaussianDP(), Split(coins=split.coins)).value == split.value
    halves = {lower_bound(IN, OUT, GaussianDP(), Split()).value for _ in range(6)}
    assert len(halves) > 1


def test_a_sequential_audit_tells_the_coins_that_it_keeps():
    audit = SequentialAudit(GaussianDP(), 1.0, looks=[10, 20])
    ins, outs = np.repeat([1.0, 0.0], 10), np.tile([1.0, 0.0], 10)
    first, second = audit.judge(ins[:10], outs[:10]), audit.judge(ins, outs)
    assert first.coins == second.coins is not None
    other = SequentialAudit(GaussianDP(), 1.0, looks=[10, 20])
    assert other.judge(ins, outs, coins=second.coins) == second
    assert other.judge(ins + np.arange(20) / 64, outs - 9).coins is None
