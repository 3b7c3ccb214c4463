"""Every kernel against each record's own gradient by plain autograd in float64."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

from hiddenstate.dpsgd.clipping import ClippedSum, flat_parameters, named
from hiddenstate.dpsgd.kernels.tiny import Dense, Trainer
from hiddenstate.dpsgd.native import compiling
from hiddenstate.errors import InputError
from hiddenstate.streams import stream

WIDTHS = (8, 6, 3)
RNG = stream(0, "kernels")
X = (2 * RNG.normal(size=(40, 8))).astype(np.float32)
Y = RNG.integers(3, size=40)
INDICES = np.array([3, 0, 17, 39, 3])  # one of them twice


class Branching(nn.Sequential):
    """A model whose forward reads the values of its records, which torch.func cannot take."""

    def forward(self, x):
        return super().forward(2 * x if float(x.detach().abs().max()) > 1e6 else x)


def seeded(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p.copy_(torch.from_numpy(stream(i, "kernels", "network").normal(size=p.shape)))
    return model


def network(kind=nn.Sequential) -> nn.Module:
    return seeded(kind(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)))


def linear() -> nn.Module:
    return seeded(nn.Sequential(nn.Linear(8, 3)))


MODELS = {
    "native": network, "torch": network, "explicit": network, "linear": linear,
    "loop": lambda: network(Branching), "tiny": network, "tiny, numpy": network,
}  # fmt: skip
NUMPY = ("tiny", "tiny, numpy")


@pytest.fixture(params=MODELS)
def case(request):
    """Name, kernel, parameters and each record's gradient (records, p)."""
    name, model = request.param, MODELS[request.param]()
    if name in ("native", "tiny") and compiling.compiler() is None:
        pytest.skip("no C compiler")
    theta = flat_parameters(model)
    if name in NUMPY:
        code = "native" if name == "tiny" else "numpy"
        kernel = Trainer(Dense(WIDTHS), X, Y, learning_rate=1.0, clipping_norm=1.5, kernel=code)
    else:
        with pytest.warns(UserWarning) if name == "loop" else pytest.MonkeyPatch.context():
            total = ClippedSum(model, X, Y, kernel="auto" if name == "loop" else name)
        kernel = total.kernel
        assert kernel.kind == total.kind == name
    double, rows = model.double(), []
    at = theta.double().requires_grad_()
    for x, y in zip(X[INDICES], Y[INDICES], strict=True):
        outputs = functional_call(double, named(at, double), (torch.from_numpy(x[None]).double(),))
        loss = nn.functional.cross_entropy(outputs, torch.tensor([y]))
        rows.append(torch.autograd.grad(loss, at)[0].numpy())
    return name, kernel, theta.numpy() if name in NUMPY else theta, np.stack(rows)


def clipped(gradients, norm) -> np.ndarray:
    """Sum of gradients (records, p), each scaled to at most this norm."""
    norms = np.linalg.norm(gradients, axis=1)
    return (np.minimum(1, norm / norms)[:, None] * gradients).sum(axis=0)


def test_sums_and_norms_are_those_of_autograd_record_by_record(case):
    _, kernel, theta, gradients = case
    norms = np.linalg.norm(gradients, axis=1)
    most = (norms.min() + norms.max()) / 2  # some are clipped, some are not
    assert norms.min() < 0.9 * most
    np.testing.assert_allclose(
        np.asarray(kernel.norms(theta, INDICES)), norms, rtol=1e-5, atol=1e-6
    )
    for norm in (most, math.inf):
        found = np.asarray(kernel.sum(theta, INDICES, norm))
        np.testing.assert_allclose(found, clipped(gradients, norm), rtol=1e-4, atol=1e-5)
    wrong = np.abs(clipped(gradients, most) - clipped(gradients, 1.01 * most)).max()
    assert wrong > 20 * 1e-4  # what the tolerance does not hide


def test_a_copy_gives_the_same_bit_for_bit_while_the_other_is_used(case):
    _, kernel, theta, _ = case
    first = np.asarray(kernel.sum(theta, INDICES, 1.5)).copy()
    other = kernel.copy()
    kernel.sum(0.5 * theta, INDICES[:2], 0.1)
    np.testing.assert_array_equal(np.asarray(other.sum(theta, INDICES, 1.5)), first)


def test_a_whole_training_is_its_own_steps(case):
    name, kernel, theta, _ = case
    if name not in NUMPY:
        return
    added = stream(1, "kernels").normal(size=(3, len(theta))).astype(np.float32)
    last = theta.copy()
    for noise in added:
        last = last - (kernel.sum(last, INDICES, 1.5) + noise)
    found = kernel.last_iterate(theta, [INDICES] * 3, added)
    np.testing.assert_allclose(found, last, rtol=1e-3, atol=1e-3)


def test_native_code_refuses_models_side_by_side():
    if compiling.compiler() is None:
        pytest.skip("no C compiler")
    total = ClippedSum(network(), X, Y, kernel="native")
    thetas = flat_parameters(network()).expand(2, -1)
    with pytest.raises(InputError, match="'native' with models side by side"):
        total.side_by_side(thetas, torch.arange(3), None, 1.0)
