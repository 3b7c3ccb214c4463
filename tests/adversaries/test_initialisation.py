import math

import numpy as np
import pytest
import torch

from hiddenstate.adversaries.initialisation import average_case, pretrained
from hiddenstate.errors import InputError
from hiddenstate.models import fcnn
from hiddenstate.streams import stream


def train(x=None, start=None, learning_rate=0.1):
    rng = stream(0, "initialisation")
    records = rng.normal(size=(12, 8)).astype(np.float32) if x is None else x
    model = fcnn()
    return pretrained(
        model, records, rng.integers(2, size=12), epochs=2, batch_size=4, rng=rng,
        start=average_case(model, rng) if start is None else start, learning_rate=learning_rate,
    )  # fmt: skip


def test_pre_training_never_ends_in_what_is_no_number():
    assert train().isfinite().all()
    x = np.zeros((12, 8), np.float32)
    x[5, 3] = math.nan
    with pytest.raises(InputError, match="x: record 5"):
        train(x=x)
    start = torch.zeros(68)
    start[7] = math.inf
    with pytest.raises(InputError, match="start: parameter 7 is inf"):
        train(start=start)
    with pytest.raises(InputError, match=r"start: got shape \(67,\); expected \(68,\)"):
        train(start=torch.zeros(67))
    with pytest.raises(InputError, match=r"learning_rate: 1e\+38 made the pre-training diverge"):
        train(learning_rate=1e38)
