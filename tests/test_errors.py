import numpy as np
import pytest

from hiddenstate.adversaries.encoding_loss import EncodingLoss
from hiddenstate.adversaries.expanding_clip import ExpandingClip
from hiddenstate.adversaries.gradient_canaries import Once, Periodic
from hiddenstate.auditing import Averaged, GaussianDP, Guesses, SequentialAudit, StepAudit, guess
from hiddenstate.auditing.curve import seed
from hiddenstate.auditing.hypotheses import number
from hiddenstate.campaign import kit, whitebox
from hiddenstate.campaign.workers import check_limits
from hiddenstate.errors import InputError, check_count


@pytest.mark.parametrize("value", [1, np.int64(2), np.uint8(3), 10**30])
def test_integers_of_every_type_are_counts(value):
    check_count("n", value)


@pytest.mark.parametrize("value", [True, np.True_, 1.0, "1", None, 0, -1, np.nan, 1j])
def test_other_values_are_no_counts(value):
    with pytest.raises(InputError, match=r"n: got .*; expected an integer of at least 1"):
        check_count("n", value)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("every", Periodic),
        ("at", Once),
        ("decimals", lambda yes: EncodingLoss(1.0, 0.1, 10.0, yes, 10**6)),
        ("records", lambda yes: EncodingLoss(1.0, 0.1, 10.0, 2, yes)),
        ("coins", seed),
        ("made", lambda yes: guess([1.0, 2.0], [0, 1], yes)),
        ("correct", lambda yes: Guesses(1, 1, yes)),
        ("x", lambda yes: number("x", yes)),
        ("simulations", lambda yes: Averaged(simulations=yes)),
        ("simulations", lambda yes: SequentialAudit(GaussianDP(), 1.0, [9], simulations=yes)),
        ("noise_multiplier", StepAudit([9], [9]).p_value),
        ("norm", kit.Dirac),
        ("seed", lambda yes: kit.Run("in", yes, 1.0, 0.1)),
        ("steps", lambda yes: ExpandingClip(yes, 0.5, 1.0, 0.1)),
        ("passes", lambda yes: ExpandingClip(9, 0.5, 1.0, 0.1, passes=yes)),
        ("noise_multiplier", lambda yes: kit.Run("in", 0, yes, 0.1)),
        ("sampling_rate", lambda yes: kit.Run("in", 0, 1.0, yes)),
        ("steps", lambda yes: kit.Run("in", 0, 1.0, 0.1, steps=yes)),
        ("clipping_norm", lambda yes: kit.Run("in", 0, 1.0, 0.1, clipping_norm=yes)),
        ("steps", lambda yes: whitebox.claims(None, None, yes, None)),
        ("sampling_rate", lambda yes: whitebox.claims(None, yes, None, None)),
        ("workers", lambda yes: check_limits(yes, 0, None)),
    ],
)
@pytest.mark.parametrize("yes", [True, np.True_])
def test_yes_is_no_number(name, call, yes):
    with pytest.raises(InputError, match=f"^{name}: got .*True"):
        call(yes)
