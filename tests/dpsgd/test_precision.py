"""Products on an accelerator are of float32 unless the caller says otherwise."""

import numpy as np
import pytest
import torch
from torch import nn

from hiddenstate.adversaries.canaries import blank
from hiddenstate.dpsgd.ensemble import Ensemble, scores
from hiddenstate.dpsgd.mechanism import Mechanism
from hiddenstate.sampling import FullBatch

KINDS = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)


def precisions():
    return [kind.fp32_precision for kind in KINDS]


@pytest.fixture
def ensemble():
    mechanism = Mechanism(
        sampling=FullBatch(), steps=1, learning_rate=0.1, clipping_norm=1.0,
        noise_multiplier=1.0, adjacency="add_or_remove",
    )  # fmt: skip
    x, y = np.ones((3, 2), np.float32), np.array([0, 1, 0])
    return Ensemble(nn.Linear(2, 2), mechanism, x, y, blank((2,), 1), torch.zeros(6))


@pytest.mark.parametrize(("tf32", "expected"), [(False, "ieee"), (True, "tf32")])
def test_the_precision_is_as_asked_while_models_train_and_as_before_afterwards(
    ensemble, tf32, expected
):
    before, seen = precisions(), []

    def spy(run, last):
        seen.append(precisions())
        return 0.0

    scores(ensemble, models=1, seed=1, tf32=tf32, measures={"spy": spy})
    assert seen == [[expected] * 3] * 2
    assert precisions() == before


def test_the_precision_is_restored_when_a_training_fails(ensemble):
    before = precisions()

    def fail(run, last):
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        scores(ensemble, models=1, seed=1, tf32=True, measures={"fail": fail})
    assert precisions() == before
