import doctest

import numpy as np
import pytest

from hiddenstate import auditing
from hiddenstate.auditing import (
    AsPublished,
    Fixed,
    GaussianDP,
    Tabulated,
    UniformBand,
    lower_bound,
)
from hiddenstate.errors import InputError

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
    with pytest.raises(InputError, match="in_scores: 1 of 2 scores are not finite"):
        lower_bound([np.nan, 1.0], OUT, GaussianDP())
    with pytest.raises(InputError, match=r"out_scores: got shape \(1, 200\)"):
        lower_bound(IN, OUT[None], GaussianDP())
