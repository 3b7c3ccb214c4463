"""The kit for Opacus: what it inserts and reads, and that it changes nothing else."""

import numpy as np
import pytest

opacus = pytest.importorskip("opacus")
import torch  # noqa: E402
from opacus import PrivacyEngine  # noqa: E402
from opacus.utils.batch_memory_manager import BatchMemoryManager  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from hiddenstate.auditing import kit  # noqa: E402
from hiddenstate.errors import InputError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

RECORDS, BATCH, RATE = 40, 8, 0.2
CANARY = (torch.full((6,), 3.0), torch.tensor(1))


def train(
    world, seed, *, sigma=0.02, epochs=4, workers=0, physical=None, clipping="flat", **options
):
    """A linear classifier; the run, the optimizer and the engine."""
    options = {"canary": CANARY} | options
    run = kit.Run(world, seed, noise_multiplier=sigma, sampling_rate=RATE, **options)
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(RECORDS, 6, generator=generator)
    data = run.data(TensorDataset(x, (x[:, 0] > 0).long()))
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loss = nn.CrossEntropyLoss()
    loader = DataLoader(data, batch_size=BATCH, num_workers=workers)
    engine = PrivacyEngine()
    made = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=sigma,
        max_grad_norm=0.5,
        grad_sample_mode="ghost" if clipping == "ghost" else "hooks",
        **({"criterion": loss} if clipping == "ghost" else {}),
    )
    if clipping == "ghost":
        model, optimizer, loss, loader = made
    else:
        model, optimizer, loader = made
    run.watch(model, optimizer, loader)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def epoch(batches):
        for inputs, labels in batches:
            optimizer.zero_grad()
            loss(model(inputs), labels).backward()
            optimizer.step()

    for _ in range(epochs):
        if physical:
            with BatchMemoryManager(
                data_loader=loader, max_physical_batch_size=physical, optimizer=optimizer
            ) as batches:
                epoch(batches)
        else:
            epoch(loader)
        schedule.step()
    return run, optimizer, engine


def along(*arguments, **options):
    """Steps along the canary, in clipping norms."""
    return np.array([step.along for step in train(*arguments, **options)[0]._steps])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"physical": 3},
        {"workers": 1, "epochs": 1},
        {"gradient": kit.Dirac(norm=1.0, spread=False)},
        {"canary": None},
        {"canary": None, "clipping": "ghost"},
    ],
    ids=str,
)
def test_steps_along_the_canary_are_noise_and_at_times_the_canary(options):
    """Five steps an epoch at rate 0.2; standard deviation of the noise 0.02."""
    nuisance = options.get("clipping") == "ghost"
    into, out = along("in", 3, **options), along("out", 3, **options)
    assert len(into) == len(out) == 5 * options.get("epochs", 4)
    if nuisance:
        # The gradients of the other records are not known one by one.
        return
    assert np.abs(out).max() < 0.1
    assert np.abs(into - (into > 0.5)).max() < 0.1
    assert options.get("epochs") == 1 or 0 < (into > 0.5).sum() < 14


def test_the_claimed_noise_is_what_is_left():
    steps = np.concatenate([along("out", seed, sigma=1.5) for seed in range(6)])
    # 120 normal variables: five standard errors.
    assert abs(steps.std() - 1.5) < 5 * 1.5 / np.sqrt(240)
    assert abs(steps.mean()) < 5 * 1.5 / np.sqrt(120)


def test_the_same_world_and_seed_give_the_same_scores():
    first, second = (train("in", 4)[0].scores() for _ in range(2))
    assert first == second != train("in", 5)[0].scores()
    assert set(first) == set(kit.SCORES)


def test_the_worlds_take_the_same_steps_at_the_same_rate_and_the_accountant_keeps_its_hook():
    """With one record more, Opacus would make six batches of 41 records and another rate."""
    told = []
    for world in ("in", "out"):
        run, optimizer, engine = train(world, 1, sigma=1.0)
        sampler_steps = [len(run._steps), optimizer.expected_batch_size]
        told.append([*sampler_steps, engine.get_epsilon(1e-5)])
        assert optimizer.step_hook is not None
    assert told[0][:2] == told[1][:2] == [20, 8]
    naive = [len(train(world, 1, constant=False)[0]._steps) for world in ("in", "out")]
    assert naive == [24, 20]


def test_the_likelihood_ratio_tells_the_worlds_apart():
    ins, outs = (
        [train(w, s, sigma=0.5)[0].scores()["likelihood"] for s in range(4)] for w in ("in", "out")
    )
    assert min(ins) > max(outs)


def test_the_batch_size_is_read_from_the_noise():
    run, *_ = train("out", 2, sigma=1.0)
    parameters = 2_000
    for size in (2, 8, 15):
        noise = 1.0 * parameters  # sigma squared times the number of parameters
        products = (noise * (run._scale / size) ** 2, 0.0, 0.0)
        found = run._batch_ratio(kit._Step(0.0, products), parameters)
        law = kit.binom(RECORDS, RATE)
        assert found == pytest.approx(law.logpmf(size - 1) - law.logpmf(size))


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: kit.Run("on", 0, 1.0, 0.1), "world: got 'on'"),
        (lambda: kit.Run("in", 0, 0.0, 0.1), "noise_multiplier: got 0.0"),
        (lambda: kit.Run("in", 0, 1.0, 2.0), "sampling_rate: got 2.0"),
        (lambda: kit.Run("in", 0, 1.0, 0.1, None, None), "got no record and no gradient"),
        (lambda: kit.Dirac(norm=0), "norm: got 0"),
        (lambda: kit.Run("in", 0, 1.0, 0.1).scores(), "scores: got no step"),
        (lambda: train("in", 0, clipping="ghost"), "got a record with ghost clipping"),
    ],
)
def test_what_makes_no_audit_is_refused(call, expected):
    with pytest.raises(InputError, match=expected):
        call()
