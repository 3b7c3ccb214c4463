import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from hiddenstate.adversaries.initialisation import (
    average_case,
    average_case_deviations,
    pretrained,
)
from hiddenstate.dpsgd.augmentation import Augmentation
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


def test_normal_weights_have_xavier_s_deviation_and_biases_of_a_hundredth():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 20, 5), torch.nn.Linear(300, 100))
    theta = average_case(model, stream(0, "normal"), normal=True)
    torch.nn.utils.vector_to_parameters(theta, model.parameters())
    for layer in model:
        expected = torch.empty_like(layer.weight)
        torch.manual_seed(0)
        torch.nn.init.xavier_normal_(expected)
        # Of 1,500 draws a deviation has a relative standard error of 1.8 %.
        assert layer.weight.std().item() == pytest.approx(expected.std().item(), rel=0.1)
        # A uniform draw goes no further than 1.73 deviations.
        assert layer.weight.abs().max() > 2.5 * layer.weight.std()
        assert (layer.bias == 0.01).all()


@pytest.mark.parametrize("normal", [False, True])
def test_deviations_of_a_start_are_those_of_its_draws(normal):
    model = torch.nn.Sequential(
        torch.nn.Conv2d(2, 3, 2), torch.nn.GroupNorm(1, 3), torch.nn.Linear(3, 4)
    )
    model[2].bias.requires_grad_(False)
    rng = stream(0, "deviations")
    drawn = torch.stack([average_case(model, rng, normal=normal) for _ in range(4000)]).std(0)
    found = average_case_deviations(model)
    # Of 4,000 normal draws the deviation is known to 1.1 %; 48 are looked at.
    torch.testing.assert_close(found, drawn, rtol=0.045, atol=1e-6)
    assert found.unique().numpy() == pytest.approx([0, (2 / 20) ** 0.5, (2 / 7) ** 0.5])


def test_pre_training_is_torch_s_with_momentum_decay_and_drops():
    """Against torch's own schedule, in the records' order; the momentum starts again at a drop."""
    rng = stream(0, "schedule")
    x, y = rng.normal(size=(12, 8)).astype(np.float32), rng.integers(2, size=12)
    start = average_case(fcnn(), rng)
    shared = {"momentum": 0.9, "weight_decay": 0.01, "start": start, "rng": rng, "shuffled": False}
    found = pretrained(
        fcnn(), x, y, epochs=5, batch_size=5, learning_rate=0.1, drops=(2, 3), **shared
    )
    model = fcnn()
    torch.nn.utils.vector_to_parameters(start.clone(), model.parameters())
    for rate, epochs in ((0.1, 2), (0.01, 1), (0.001, 2)):
        optimiser = torch.optim.SGD(
            model.parameters(), lr=rate, momentum=0.9, nesterov=True, weight_decay=0.01
        )
        for _ in range(epochs):
            for i in (0, 5, 10):
                optimiser.zero_grad()
                logits = model(torch.from_numpy(x[i : i + 5]))
                loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(y[i : i + 5]))
                loss.backward()
                optimiser.step()
    expected = torch.nn.utils.parameters_to_vector(model.parameters())
    torch.testing.assert_close(found, expected.detach(), rtol=1e-5, atol=1e-6)
    plain = pretrained(fcnn(), x, y, epochs=5, batch_size=5, learning_rate=0.1, **shared)
    assert not torch.allclose(plain, found, atol=1e-3)


def test_augmented_pre_training_sees_views():
    """Of records whose views are all alike training is the same, and of others it is not."""
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2))
    rng = stream(0, "views")
    y, start = rng.integers(2, size=6), average_case(model, rng)
    even = np.ones((6, 1, 8, 8), np.float32) * rng.normal(size=(6, 1, 1, 1)).astype(np.float32)
    for x, same in ((even, True), (rng.normal(size=(6, 1, 8, 8)).astype(np.float32), False)):
        one, other = (
            pretrained(
                model, x, y, start=start, epochs=3, batch_size=3, learning_rate=0.1,
                rng=stream(0, "order"), shuffled=False, augmentation=views,
            )
            for views in (None, Augmentation(views=1))
        )  # fmt: skip
        assert torch.allclose(one, other, atol=1e-6) is same
    with pytest.raises(InputError, match="augmentation: got records of shape"):
        pretrained(
            fcnn(), np.zeros((4, 8), np.float32), np.zeros(4, np.int64),
            start=torch.zeros(68), epochs=1, batch_size=2, learning_rate=0.1,
            rng=rng, augmentation=Augmentation(views=1),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epochs": -1}, "epochs: got -1; expected an integer"),
        ({"epochs": 1.5}, "epochs: got 1.5; expected an integer"),
        ({"batch_size": 0}, "batch_size: got 0; expected an integer"),
        ({"learning_rate": -0.1}, "learning_rate: got -0.1; expected a rate"),
        ({"momentum": 1.0}, "momentum: got 1.0; expected a rate"),
        ({"weight_decay": -0.1}, "weight_decay: got -0.1; expected a rate"),
        ({"x": np.zeros((0, 8), np.float32), "y": np.zeros(0, np.int64)}, "x: got no record"),
    ],
)
def test_pre_training_that_would_climb_or_do_nothing_is_refused(wrong, message):
    given = {"x": np.ones((4, 8), np.float32), "y": np.zeros(4, np.int64), "start": torch.zeros(68)}
    given |= {"epochs": 1, "batch_size": 2, "learning_rate": 0.1, "rng": stream(0, "refused")}
    with pytest.raises(InputError, match=message):
        pretrained(fcnn(), **(given | wrong))


def test_pre_training_takes_what_an_ensemble_takes_and_refuses_what_it_refuses():
    rng = stream(0, "taken")
    x, y = rng.normal(size=(6, 4)).astype(np.float32), rng.integers(3, size=6)
    model = torch.nn.Linear(4, 3)

    def found(x, y):
        given = {"epochs": 1, "batch_size": 2, "learning_rate": 0.1, "rng": stream(0, "order")}
        return pretrained(model, x, y, start=torch.zeros(15), **given)

    expected = found(x, y)
    for other in ((x.astype(float), y), (x, y.astype(np.int32)), (x[:, ::-1][:, ::-1], y)):
        assert torch.equal(found(*other), expected)
    with pytest.raises(InputError, match="y: record 0 has the label 3; expected 0 to 2"):
        found(x, np.full(6, 3))


def test_pre_training_that_learns_more_than_parameters_is_refused():
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 2)
    )
    x, y = stream(0, "norm").normal(size=(8, 4)).astype(np.float32), np.arange(8) % 2
    given = {"start": average_case(model, stream(0)), "epochs": 1, "batch_size": 4}
    given |= {"learning_rate": 0.1, "rng": stream(0)}
    with pytest.raises(InputError, match="buffers, such as batch norm's running statistics"):
        pretrained(model, x, y, **given)
    pretrained(model.eval(), x, y, **given)


def test_dropout_in_pre_training_is_the_same_in_any_number_of_threads():
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Dropout(), torch.nn.Linear(64, 2))
    x, y = stream(0, "threads").normal(size=(12, 8)).astype(np.float32), np.arange(12) % 2
    start = average_case(model, stream(0))

    def found(i):
        given = {"epochs": 20, "batch_size": 2, "learning_rate": 0.1, "rng": stream(0, "order", i)}
        return pretrained(model, x, y, start=start, **given)

    own = torch.random.get_rng_state()
    alone = [found(i) for i in range(6)]
    with ThreadPoolExecutor(3) as pool:
        assert all(map(torch.equal, pool.map(found, range(6)), alone))
    assert torch.equal(torch.random.get_rng_state(), own)


def test_dropout_in_pre_training_is_drawn_from_the_given_stream():
    model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.Dropout(), torch.nn.Linear(6, 2))
    rng = stream(0, "dropout")
    x, y = rng.normal(size=(12, 8)).astype(np.float32), rng.integers(2, size=12)
    start = average_case(model, rng)

    def found(name):
        given = {"epochs": 2, "batch_size": 4, "learning_rate": 0.1, "shuffled": False}
        return pretrained(model, x, y, start=start, rng=stream(0, "order", name), **given)

    one, own = found("a"), torch.random.get_rng_state()
    torch.rand(7)  # torch's own generator decides nothing
    assert torch.equal(found("a"), one)
    assert not torch.equal(found("b"), one)
    torch.random.set_rng_state(own)
    found("a")
    assert torch.equal(torch.random.get_rng_state(), own)
