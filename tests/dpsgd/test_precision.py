"""Products on an accelerator are of float32, whatever torch's defaults."""

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


@pytest.fixture(params=["ieee", "tf32"])
def before(request):
    """What the caller has asked torch for."""
    found = precisions()
    for kind in KINDS:
        kind.fp32_precision = request.param
    yield [request.param] * 3
    for kind, precision in zip(KINDS, found, strict=True):
        kind.fp32_precision = precision


def test_products_are_of_float32_while_models_train_and_as_before_afterwards(ensemble, before):
    seen = []

    def spy(run, last):
        seen.append(precisions())
        return 0.0

    scores(ensemble, models=1, seed=1, measures={"spy": spy})
    assert seen == [["ieee"] * 3] * 2
    assert precisions() == before


def test_the_precision_is_restored_when_a_training_fails(ensemble, before):
    def fail(run, last):
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        scores(ensemble, models=1, seed=1, measures={"fail": fail})
    assert precisions() == before
