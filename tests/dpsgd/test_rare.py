"""What a few records, indices or parameters alone would show is right or refused, never silent."""

import numpy as np
import pytest
import torch
from oracle import clipped, problem
from oracle import explicit as explicit_gradients
from torch import nn

from hiddenstate.dpsgd.clipping import ClippedSum, flat_parameters
from hiddenstate.dpsgd.kernels.linear import Linear
from hiddenstate.errors import InputError

KINDS = [np.int8, np.uint8, np.int32, np.uint64, torch.uint8, torch.int16, torch.int64]


def logistic(kernel):
    model, x, y = problem(
        "rare", lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), (6,), 3, records=9
    )
    return ClippedSum(model, x, y, kernel=kernel), flat_parameters(model)


def entries(total, theta):
    """Every way for indices into a sum."""
    yield lambda indices: total(theta, indices, 0.1)
    yield lambda indices: total.norms(theta, indices)
    if total.kind != "native":
        yield lambda indices: total.side_by_side(theta[None], indices, None, 0.1)[0]
    if isinstance(total.kernel, Linear):
        yield lambda indices: total.linear_sums(theta[None], indices, 0.1)[0]


@pytest.mark.parametrize("kernel", ["auto", "torch", "explicit", "linear"])
def test_indices_of_all_integer_types_are_one_and_others_are_refused_everywhere(kernel):
    """Torch reads uint8 as a mask, and negative indices from behind."""
    total, theta = logistic(kernel)
    for entry in entries(total, theta):
        expected = entry(np.array([1, 0, 1]))
        for kind in KINDS:
            given = [1, 0, 1]
            same = np.array(given, kind) if isinstance(kind, type) else torch.tensor(given).to(kind)
            torch.testing.assert_close(entry(same), expected)
        for wrong in ([0, -1], [9, 0], [True, False], [0.0, 1.0], 3, [[[0]]]):
            for values in (np.array(wrong), torch.tensor(wrong)):
                with pytest.raises(InputError, match="indices: got"):
                    entry(values)


class Do(nn.Module):
    """A function of its layers, by name, and of the records."""

    def __init__(self, function, **layers):
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.function(self, x)


def agree(model, x, y, kernel, *, tolerance=1e-5, **options):
    """Sums and norms are those of float64, at parameters far from the first, alone and together."""
    total = ClippedSum(model, x, y, kernel=kernel, **options)
    start, everything = flat_parameters(model), np.arange(len(x))
    draw = torch.from_numpy(np.random.default_rng(0).standard_normal((2, len(start))))
    thetas = torch.stack([-2 * start, 3 * start]) + 0.3 * draw.to(start)
    expected, norm = [], None
    for theta in thetas:
        nn.utils.vector_to_parameters(theta.clone(), model.parameters())
        gradients = explicit_gradients(model, x, y)
        norm = norm or float(gradients.norm(dim=1).median())
        expected.append(clipped(gradients, norm))
    for _ in range(2):
        found = [total(theta, everything, norm) for theta in thetas]
        if total.kind != "native":
            found += [*total.side_by_side(thetas, torch.arange(len(x)), None, norm)]
        for sums, right in zip(found, 2 * expected, strict=False):
            assert (sums - right).norm() <= tolerance * right.norm(), (sums - right).norm()
    return total.kind


def records(n=12, features=6, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, features)).astype(np.float32), np.arange(n) % 3


WRITES = {
    "in place": lambda x: x.mul_(0.5),
    "by data": lambda x: x.data.mul_(0.5),
}


@pytest.mark.filterwarnings("ignore:gradients are computed record by record")
@pytest.mark.filterwarnings("ignore:no book-keeping rule")
@pytest.mark.parametrize("branches", [False, True])
@pytest.mark.parametrize("kernel", ["auto", "explicit"])
@pytest.mark.parametrize("way", WRITES)
def test_records_that_a_model_writes_into_are_its_own(way, kernel, branches):
    """Models side by side share records, and later sums use them again."""

    def write(model, x):
        if branches and float(x[0, 0]) > 1e9:  # records of which are none: it is read all the same
            return model.first(x)
        WRITES[way](x)
        return model.last(torch.tanh(model.first(x)))

    x, y = records()
    x[5, 0] = 30
    agree(Do(write, first=nn.Linear(6, 3), last=nn.Linear(3, 3)), x, y, kernel)
