from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from hiddenstate import models
from hiddenstate.dpsgd.clipping import ClippedSum, flat_parameters
from hiddenstate.dpsgd.kernels import tiny
from hiddenstate.dpsgd.kernels.tiny import Dense, Trainer
from hiddenstate.dpsgd.native import compiling
from hiddenstate.errors import InputError
from hiddenstate.sampling import Cyclic, Poisson
from hiddenstate.streams import stream

needs_compiler = pytest.mark.skipif(compiling.compiler() is None, reason="no C compiler")
KERNELS = [pytest.param("native", marks=needs_compiler), "numpy"]
WIDTHS = [(8, 6, 2), (5, 3), (3, 7, 4, 5), (20, 17, 4)]


def module(widths) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def problem(widths, records=70, steps=9, seed=0):
    """Network, records, labels, initial parameters, batches, and what is added."""
    rng = stream(seed, "tiny", *widths)
    network = Dense(widths)
    x = rng.normal(size=(records, widths[0])).astype(np.float32)
    y = rng.integers(widths[-1], size=records)
    initial = 2 * network.initial(rng)
    batches = Cyclic(23, shuffled_once=True).batches(records, steps, rng)
    added = rng.standard_normal((steps, network.parameters), dtype=np.float32)
    return network, x, y, initial, batches, added


def by_autograd(widths, x, y, initial, batches, added, rate, clip):
    """The same training by torch's float64 gradients, one record at a time."""
    model = module(widths).double()
    theta = torch.from_numpy(initial).double()
    for t, batch in enumerate(batches):
        update = torch.from_numpy(added[t]).double()
        for i in batch:
            nn.utils.vector_to_parameters(theta, model.parameters())
            model.zero_grad()
            loss = nn.functional.cross_entropy(
                model(torch.from_numpy(x[i : i + 1]).double()), torch.tensor(y[i : i + 1])
            )
            loss.backward()
            g = torch.cat([p.grad.flatten() for p in model.parameters()])
            update = update + g * min(1.0, clip / float(g.norm()))
        theta = (theta - rate * update).detach()
    return theta.numpy()


@pytest.mark.whole
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_a_training_is_that_of_float64_gradients(widths, kernel):
    network, *problem_ = problem(widths)
    x, y, initial, batches, added = problem_
    # The batches of 70 records by 23 end with one record, and no multiple of any vector's lanes.
    assert sorted({len(batch) for batch in batches}) == [1, 23]
    for clip in (0.3, 2.0, 50.0):
        trainer = Trainer(network, x, y, learning_rate=0.02, clipping_norm=clip, kernel=kernel)
        assert trainer.kind == kernel
        last = trainer.last_iterate(initial, batches, added)
        assert last.dtype == np.float32 and last.shape == (network.parameters,)
        expected = by_autograd(widths, *problem_, 0.02, clip)
        np.testing.assert_allclose(last, expected, rtol=0, atol=2e-6 * np.abs(expected).max())


def test_the_parameters_are_torch_s_own():
    network = Dense((8, 6, 2))
    model = models.fcnn()
    assert network.parameters == models.parameter_count(model) == 68
    x, y = stream(0, "order").normal(size=(5, 8)).astype(np.float32), np.array([0, 1, 1, 0, 1])
    theta = flat_parameters(model).numpy()
    np.testing.assert_allclose(
        network.logits(theta, x), model(torch.from_numpy(x)).detach().numpy(), atol=1e-6
    )
    expected = nn.functional.cross_entropy(model(torch.from_numpy(x)), torch.tensor(y))
    assert network.losses(theta, x, y).mean() == pytest.approx(expected.item(), rel=1e-6)
    total = ClippedSum(model, x, y, kernel="explicit")
    np.testing.assert_allclose(
        network.clipped_sum(theta, x, y, 0.5),
        total(torch.from_numpy(theta), np.arange(5), 0.5).numpy(),
        atol=1e-6,
    )


def test_initial_parameters_have_torch_s_law():
    network = Dense((100, 80, 4))
    drawn = network.initial(stream(0, "initial"))
    torch.manual_seed(0)
    for (w, b), layer in zip(network.split(drawn), module(network.widths)[::2], strict=True):
        bound = layer.in_features**-0.5
        assert np.abs(w).max() <= bound and np.abs(b).max() <= bound
        assert w.shape == tuple(layer.weight.shape)
    # Variance of 8,000 uniform draws: relative standard error sqrt(0.8 / 8000) = 0.01.
    w = network.split(drawn)[0][0]
    assert 3 * w.var() * 100 == pytest.approx(1, abs=0.05)
    assert float(module(network.widths)[0].weight.detach().abs().max()) <= 0.1


@needs_compiler
def test_the_last_iterate_is_the_same_however_models_are_grouped():
    network, x, y, initial, batches, added = problem((8, 6, 2))
    trainer = Trainer(network, x, y, learning_rate=0.1, clipping_norm=1.0)
    alone = trainer.last_iterate(initial, batches, added)
    # In two parts, and beside others in other threads.
    half = trainer.last_iterate(initial, batches[:4], added[:4])
    np.testing.assert_array_equal(trainer.last_iterate(half, batches[4:], added[4:]), alone)
    with ThreadPoolExecutor(4) as pool:
        lasts = list(
            pool.map(
                lambda i: trainer.last_iterate(initial, batches, added * (1 + i % 3)), range(60)
            )
        )
    for last in lasts[::3]:
        np.testing.assert_array_equal(last, alone)
    assert not np.array_equal(lasts[1], alone)


@pytest.mark.parametrize("kernel", KERNELS)
def test_movement_is_that_of_the_iterates(kernel):
    network, x, y, initial, batches, _ = problem((8, 6, 2))
    trainer = Trainer(network, x, y, learning_rate=0.1, clipping_norm=1.0, kernel=kernel)
    iterates = [initial]
    for batch in batches:
        iterates.append(trainer.last_iterate(iterates[-1], [batch], None))
    steps = np.diff(iterates, axis=0)
    moved = trainer.simulated(initial, batches)
    np.testing.assert_allclose(moved.absolute, np.abs(steps).sum(axis=0), atol=1e-5)
    np.testing.assert_allclose(moved.squared, (steps**2).sum(axis=0), atol=1e-5)
    np.testing.assert_allclose(moved.net, np.abs(iterates[-1] - initial), atol=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
def test_empty_batches_add_nothing(kernel):
    network, x, y, initial, _, added = problem((8, 6, 2))
    trainer = Trainer(network, x, y, learning_rate=0.5, clipping_norm=1.0, kernel=kernel)
    none = [np.zeros(0, np.int64)] * 3
    expected = initial - 0.5 * added[:3].sum(axis=0)
    np.testing.assert_allclose(trainer.last_iterate(initial, none, added[:3]), expected, atol=1e-5)
    np.testing.assert_array_equal(trainer.last_iterate(initial, [], None), initial)
    drawn = Poisson(0.01).batches(70, 30, stream(1, "empty"))
    assert min(map(len, drawn)) == 0 < max(map(len, drawn))
    found = trainer.last_iterate(initial, drawn, None)
    kept = trainer.last_iterate(initial, [batch for batch in drawn if len(batch)], None)
    np.testing.assert_array_equal(found, kept)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_gradient_whose_norm_overflows_is_no_number_rather_than_nothing(kernel):
    network = Dense((4, 4, 3))
    x, y = np.full((2, 4), 1e15, np.float32), np.arange(2)
    trainer = Trainer(network, x, y, learning_rate=1e-9, clipping_norm=1.0, kernel=kernel)
    for size, fits in ((1.0, True), (1e4, False)):
        start = np.full(network.parameters, size, np.float32)
        found = trainer.last_iterate(start, [np.arange(2)], None)
        assert bool(np.isfinite(found).all()) is fits


@needs_compiler
def test_confident_wrong_and_huge_logits_stay_finite():
    network, x, y, initial, batches, added = problem((8, 6, 2))
    lasts = [
        Trainer(network, x, y, learning_rate=0.1, clipping_norm=1.0, kernel=kernel).last_iterate(
            300 * initial, batches, added
        )
        for kernel in ("native", "numpy")
    ]
    assert np.isfinite(lasts[0]).all()
    np.testing.assert_allclose(*lasts, rtol=1e-5, atol=1e-3)


def test_what_does_not_fit_is_refused():
    network, x, y, initial, batches, added = problem((8, 6, 2))
    good = {"learning_rate": 0.1, "clipping_norm": 1.0, "kernel": "numpy"}
    for widths in ((8,), (0, 2), (8, 1), (8, 0, 2)):
        with pytest.raises(InputError, match="widths"):
            Dense(widths)
    for changed in (
        {"learning_rate": 0.0}, {"clipping_norm": np.inf}, {"clipping_norm": np.nan},
        {"clipping_norm": 1e-16}, {"kernel": "fast"},
    ):  # fmt: skip
        with pytest.raises(InputError, match=next(iter(changed))):
            Trainer(network, x, y, **good | changed)
    for name, wrong_x, wrong_y in (
        ("x: ", x[:, :7], y), ("x: ", x[:0], y[:0]), ("y: ", x, y[:-1]), ("y: ", x, y + 1),
        ("y: ", x, y - 1),
    ):  # fmt: skip
        with pytest.raises(InputError, match=name):
            Trainer(network, wrong_x, wrong_y, **good)
    trainer = Trainer(network, x, y, **good)
    with pytest.raises(InputError, match="initial"):
        trainer.last_iterate(initial[1:], batches, added)
    with pytest.raises(InputError, match="added"):
        trainer.last_iterate(initial, batches, added[1:])
    for wrong in (-1, 70):
        with pytest.raises(InputError, match=r"batches: .*70 records"):
            trainer.last_iterate(initial, [np.array([0, wrong])], None)


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_would_be_read_as_other_numbers_is_refused(kernel):
    network, x, y, initial, batches, added = problem((8, 6, 2))
    good = {"learning_rate": 0.1, "clipping_norm": 1.0, "kernel": kernel}
    broken = np.where(np.arange(70)[:, None] == 3, np.inf, x)
    for wrong_x, wrong_y, message in (
        (x + 1j, y, "x: got an array of complex"), (x.astype(str), y, "x: got an array of <U"),
        (broken, y, "x: record 3 has entries"),
        (x * np.float64(1e300), y, "x: record 0 has entries"),
        (x, y + 0.7, r"y: record 0 has the label \d\.7; expected an integer from 0 to 1"),
        (x, y + 0j, "y: got an array of complex"),
        (x, y + np.nan, "y: record 0 has the label nan"),
        (x, np.where(np.arange(70) == 5, 2, y), "y: record 5 has the label 2;"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            Trainer(network, wrong_x, wrong_y, **good)
    trainer = Trainer(network, x, y, **good)
    mask = np.arange(70) < 3
    for wrong in (mask, np.array([0.7]), np.array([[0, 1]]), np.int64(1)):
        message = "batches: got an array of .*expected the records' indices, integers"
        with pytest.raises(InputError, match=message):
            trainer.last_iterate(initial, [batches[0], wrong], None)
        with pytest.raises(InputError, match=message):
            trainer.sum(initial, wrong, 1.0)
        with pytest.raises(InputError, match=message):
            trainer.norms(initial, wrong)
    for arguments, name in (((initial + 1j, batches, None), "initial"),
                            ((initial, batches, added + 1j), "added")):  # fmt: skip
        with pytest.raises(InputError, match=f"{name}: got an array of complex"):
            trainer.last_iterate(*arguments)
    # What a mask stands for is taken, and so are integers of other types.
    chosen = [np.flatnonzero(mask), np.array([4], np.uint8), np.array([])]
    found = trainer.last_iterate(initial, chosen, added[:3])
    expected = trainer.last_iterate(initial, [np.arange(3), np.array([4]), chosen[2]], added[:3])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_is_given_may_be_written_to_afterwards(kernel):
    network, x, y, initial, batches, added = problem((8, 6, 2))
    trainer = Trainer(network, x, y, learning_rate=0.1, clipping_norm=1.0, kernel=kernel)
    before = trainer.last_iterate(initial, batches, added)
    x[:], y[:] = 7, 1 - y
    np.testing.assert_array_equal(trainer.last_iterate(initial, batches, added), before)


def test_without_a_compiler_numpy_does_the_work_and_says_so(monkeypatch):
    network, x, y, *_ = problem((4, 2))
    tiny._compiled.cache_clear()
    monkeypatch.setattr(compiling, "compiler", lambda: None)
    with pytest.warns(UserWarning, match="no C compiler"):
        assert Trainer(network, x, y, learning_rate=0.1, clipping_norm=1.0).kind == "numpy"
    with pytest.raises(InputError, match="no C compiler"):
        Trainer(network, x, y, learning_rate=0.1, clipping_norm=1.0, kernel="native")


def test_networks_too_large_for_the_stack_are_left_to_numpy():
    network = Dense((200, 100, 2))
    x, y = np.zeros((3, 200), np.float32), np.array([0, 1, 0])
    with pytest.warns(UserWarning, match="20302 parameters"):
        assert Trainer(network, x, y, learning_rate=0.1, clipping_norm=1.0).kind == "numpy"


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("flags", [("-mno-avx512f",), ("-O1", "-mno-avx", "-mno-fma")])
def test_native_code_for_narrower_vectors_agrees_too(flags, monkeypatch):
    """Compiles, for x86 alone, what machines without AVX-512 would run."""
    if compiling.platform.machine() != "x86_64":
        pytest.skip("flags of another architecture")
    monkeypatch.setattr(compiling, "_FLAGS", (*compiling._FLAGS, *flags))
    tiny._compiled.cache_clear()
    for widths in WIDTHS:
        test_a_training_is_that_of_float64_gradients(widths, "native")
    tiny._compiled.cache_clear()
