"""What a few records, indices or parameters alone would show is right or refused, never silent."""

import numpy as np
import pytest
import torch
from oracle import problem
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
