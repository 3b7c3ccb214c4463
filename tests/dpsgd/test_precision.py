"""Products on an accelerator are of float32, whatever torch's defaults."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

from hiddenstate.adversaries.canaries import blank
from hiddenstate.dpsgd.clipping import ClippedSum
from hiddenstate.dpsgd.ensemble import Ensemble, scores
from hiddenstate.dpsgd.mechanism import Mechanism
from hiddenstate.errors import InputError
from hiddenstate.sampling import FullBatch

KINDS = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)


def precisions():
    return [kind.fp32_precision for kind in KINDS]


X, Y = np.ones((3, 2), np.float32), np.array([0, 1, 0])


class Spy:
    """A loss that takes note of the precision of products on device meta, and may fail there."""

    def __init__(self, fails=False):
        self.fails, self.seen = fails, []

    def __call__(self, outputs, labels):
        if labels.is_meta:
            self.seen.append(precisions())
            if self.fails:
                raise ArithmeticError
        return outputs.square().sum(-1)


@pytest.fixture(params=["ieee", "tf32"])
def before(request):
    """What the caller has asked torch for."""
    found = precisions()
    for kind in KINDS:
        kind.fp32_precision = request.param
    yield [request.param] * 3
    for kind, precision in zip(KINDS, found, strict=True):
        kind.fp32_precision = precision


@pytest.mark.parametrize("kernel", ["torch", "explicit", "auto"])
def test_products_of_a_processor_are_of_float32_or_refused(kernel):
    x, theta = np.ones((64, 40), np.float32), torch.linspace(-1, 1, 82)
    x[:, ::3] += np.linspace(0, 1, 64, dtype=np.float32)[:, None]
    given = nn.Linear(40, 2), x, np.arange(64) % 2
    total = ClippedSum(*given, kernel=kernel)
    expected = total(theta, np.arange(64), 0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for one in (total, ClippedSum(*given, kernel=kernel)):
            torch.testing.assert_close(one(theta, np.arange(64), 0.1), expected, rtol=0, atol=0)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with pytest.raises(InputError, match=r"^torch.set_float32_matmul_precision: got 'medium'"):
            total(theta, np.arange(64), 0.1)
    finally:
        torch.set_float32_matmul_precision(before)
    torch.testing.assert_close(total(theta, np.arange(64), 0.1), expected, rtol=0, atol=0)


@pytest.mark.parametrize("kernel", ["native", "torch", "explicit"])
def test_inference_mode_changes_no_sum(kernel):
    x, theta = np.linspace(-1, 2, 64, dtype=np.float32).reshape(16, 4), torch.linspace(-1, 1, 23)
    model, y = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), np.arange(16) % 2
    total = ClippedSum(model, x, y, kernel=kernel)
    expected = total(theta, np.arange(16), 0.1)
    with torch.inference_mode():
        records, labels, point = torch.tensor(x), torch.tensor(y), theta.clone()
        found = [
            total(theta, np.arange(16), 0.1),
            ClippedSum(model, records, labels, kernel=kernel)(point, np.arange(16), 0.1),
        ]
        made = nn.Linear(4, 2)
    found.append(ClippedSum(model, records, labels, kernel=kernel)(point, np.arange(16), 0.1))
    for one in found:
        torch.testing.assert_close(one, expected, rtol=0, atol=0)
    with pytest.raises(InputError, match=r"^model: 'weight' was made in torch.inference_mode"):
        ClippedSum(made, x, y, kernel=kernel)


CALLS = {
    "one model": lambda g, theta: g(theta, np.arange(3), 1.0),
    "side by side": lambda g, theta: g.side_by_side(theta[None], torch.arange(3), None, 1.0),
    "norms": lambda g, theta: g.norms(theta, np.arange(3)),
    "losses": lambda g, theta: g.losses(theta, X, Y),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kernel", ["torch", "explicit"])
def test_products_on_a_device_are_of_float32_and_as_before_afterwards(call, kernel, before):
    loss = Spy()
    gradients = ClippedSum(nn.Linear(2, 2), X, Y, loss=loss, device="meta", kernel=kernel)
    assert precisions() == before
    made = len(loss.seen)
    CALLS[call](gradients, torch.zeros(6, device="meta"))
    assert precisions() == before
    assert 0 < made < len(loss.seen)
    assert loss.seen == [["ieee"] * 3] * len(loss.seen)


def test_the_precision_is_restored_when_a_sum_fails(before):
    loss = Spy()
    gradients = ClippedSum(nn.Linear(2, 2), X, Y, loss=loss, device="meta", kernel="torch")
    loss.fails = True
    with pytest.raises(ArithmeticError):
        gradients(torch.zeros(6, device="meta"), np.arange(3), 1.0)
    assert precisions() == before


def test_products_are_of_float32_while_models_train(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "hiddenstate.dpsgd.ensemble.single_precision",
        lambda d: seen.append(d.type) or nullcontext(),
    )
    mechanism = Mechanism(
        sampling=FullBatch(), steps=1, learning_rate=0.1, clipping_norm=1.0,
        noise_multiplier=1.0, adjacency="add_or_remove",
    )  # fmt: skip
    ensemble = Ensemble(nn.Linear(2, 2), mechanism, X, Y, blank((2,), 1), torch.zeros(6))
    scores(ensemble, models=1, seed=1)
    assert seen == ["cpu"]
