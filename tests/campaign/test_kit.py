"""The kit for Opacus: what it inserts and reads, and that it changes nothing else."""

from contextlib import nullcontext

import numpy as np
import pytest
from scipy.stats import norm

opacus = pytest.importorskip("opacus")
import torch  # noqa: E402
from opacus import PrivacyEngine  # noqa: E402
from opacus.utils.batch_memory_manager import BatchMemoryManager  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from hiddenstate import auditing, cli  # noqa: E402
from hiddenstate.auditing.claim import dpsgd  # noqa: E402
from hiddenstate.campaign import kit  # noqa: E402
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
    into, out = along("in", 3, **options), along("out", 3, **options)
    assert len(into) == len(out) == 5 * options.get("epochs", 4)
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


@pytest.mark.whole
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


def small(
    world, seed=0, *, records=40, batch=8, sigma=0.5, model=None, data=None, canary=CANARY,
    shape=lambda x: x, sampler=None, poisson=True, epochs=2, told=None, **options,
):  # fmt: skip
    """A training that claims noise multiplier 0.5 and rate 0.2, whatever it does."""
    claim = {"noise_multiplier": 0.5, "sampling_rate": 0.2} | (told or {})
    run = kit.Run(world, seed, canary=canary, **claim, **options)
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(records, 6, generator=generator)
    data = run.data(data(x) if data else TensorDataset(x, (x[:, 0] > 0).long()))
    model = model() if model else nn.Linear(6, 2)
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
        data_loader=DataLoader(
            data, batch_size=batch, sampler=sampler(len(data)) if sampler else None
        ),
        noise_multiplier=sigma,
        max_grad_norm=0.5,
        poisson_sampling=poisson,
    )
    run.watch(model, optimizer, loader)
    for _ in range(epochs):
        for found in loader:
            optimizer.zero_grad()
            output, labels = shape(model, found)
            nn.functional.cross_entropy(output, labels).backward()
            optimizer.step()
    return run


def plain(model, batch):
    return model(batch[0]), batch[1]


def weighted(records):
    return torch.utils.data.WeightedRandomSampler(torch.ones(records), 16)


@pytest.mark.parametrize("world", ["in", "out"])
@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"batch": 16}, "sampling rate: the training has 0.333333, claimed 0.2"),
        ({"sigma": 0.35}, "noise multiplier: the training has 0.35, claimed 0.5"),
        ({"poisson": False}, "sampler: the loader makes batches of 8 in the order of Sequential"),
        # meta-pytorch/opacus#813: two batches an epoch, of half of all records each.
        ({"sampler": weighted}, "sampling rate: the training has 0.5, claimed 0.2"),
        ({"steps": 5}, "steps: the training takes more than the claimed 5"),
        ({"steps": 20}, "steps: the training took 10, claimed 20"),
        ({"clipping_norm": 1.0}, "clipping norm: the training has 0.5, claimed 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_what_is_not_as_claimed_is_an_error_that_names_both_numbers(world, wrong, expected):
    assert small(world, shape=plain, steps=10, clipping_norm=0.5).scores()
    with pytest.raises(InputError, match=expected):
        small(world, shape=plain, **wrong).scores()


def test_another_expected_batch_size_or_a_schedule_of_noise_is_an_error():
    run, optimizer, _ = train("out", 0, epochs=1)
    optimizer.expected_batch_size = 16
    with pytest.raises(InputError, match="expected batch size: the optimizer has 16; claimed 8"):
        run._compare(None)
    optimizer.expected_batch_size, optimizer.noise_multiplier = 8, 0.01
    with pytest.raises(InputError, match=r"noise multiplier of step 5: the training has 0.01"):
        run._stepped(lambda: True)


def test_batches_that_are_added_up_are_an_error():
    """A record that is in two of them moves the step by twice the clipping norm."""
    run = kit.Run("in", 0, noise_multiplier=1.0, sampling_rate=RATE, canary=CANARY)
    data = run.data(TensorDataset(torch.randn(RECORDS, 6), torch.arange(RECORDS) % 2))
    model = nn.Linear(6, 2)
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=BATCH), noise_multiplier=1.0, max_grad_norm=0.5,
    )  # fmt: skip
    model.allow_grad_accumulation()
    run.watch(model, optimizer, loader)
    with pytest.raises(InputError, match="sums 2 batches that were drawn apart"):
        for i, (inputs, labels) in enumerate(loader):
            nn.functional.cross_entropy(model(inputs), labels).backward()
            if i % 2:
                optimizer.step()


@pytest.mark.parametrize("records", [40, 39, 41])
def test_only_what_the_canary_changes_is_changed(records):
    """Opacus makes six batches of 41 records, and five of 40: the canary's world has five."""
    rate = 1 / -(-records // 8)
    for world in ("in", "out"):
        run = small(world, shape=plain, records=records, told={"sampling_rate": rate})
        assert run.optimizer.expected_batch_size == int(records * rate)
        assert len(run._steps) == 2 * round(1 / rate)


def normalised(model, batch):
    return model((batch[0] - batch[0].mean()) / 3), batch[1]


def augmented(model, batch):
    return model(batch[0] + 0.1 * torch.randn_like(batch[0])), batch[1]


def one_hot(model, batch):
    return model(nn.functional.one_hot(batch[0][:, 0].round().long() % 6, 6).float()), batch[1]


class Keywords(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 2)

    def forward(self, *, features):
        return self.inner(features)


class Dicts(torch.utils.data.Dataset):
    def __init__(self, x):
        self.x = x

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"features": self.x[index], "label": int(self.x[index][0] > 0)}


AS_DICT = {"features": CANARY[0], "label": 1}


@pytest.mark.parametrize(
    "options",
    [
        {"shape": plain},
        {"shape": normalised},
        {"shape": augmented},
        {"shape": one_hot},
        {"shape": lambda m, b: (m(features=b[0]), b[1]), "model": Keywords},
        {"shape": lambda m, b: (m(b["features"]), b["label"]), "data": Dicts, "canary": AS_DICT},
        # An equal record among the others is not the canary.
        {"shape": plain, "data": lambda x: TensorDataset(
            torch.cat([x[:-1], CANARY[0][None]]), torch.ones(len(x)).long())},
    ],
)  # fmt: skip
def test_the_canary_is_followed_by_its_index(options):
    """The batches of either world are drawn with the same numbers, so the draws are known."""
    for seed in range(3):
        run = small("in", seed, epochs=4, told={"noise_multiplier": 0.02}, sigma=0.02, **options)
        steps = np.array([step.along for step in run._steps])
        assert 0 < run.draws == (steps > 0.5).sum() < 14
        assert np.abs(steps - (steps > 0.5)).max() < 0.15
        assert small("out", seed, **options).draws == 0


def test_the_canary_is_followed_through_subsets_and_wrappers():
    def loaded(run, wrap):
        x = torch.randn(40, 6)
        data = wrap(run.data(TensorDataset(x, (x[:, 0] > 0).long())))
        model = nn.Linear(6, 2)
        made = PrivacyEngine().make_private(
            module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(data, batch_size=8), noise_multiplier=0.5, max_grad_norm=1.0,
        )  # fmt: skip
        run.watch(*made)
        return next(iter(run._where[0][1]))

    class Wrapped(torch.utils.data.Dataset):
        def __init__(self, dataset, shift=0):
            self.dataset, self.shift = dataset, shift

        def __len__(self):
            return len(self.dataset)

        def __getitem__(self, index):
            x, y = self.dataset[(index + self.shift) % len(self)]
            return x + torch.randn(6), y

    def backwards(data):
        return torch.utils.data.Subset(data, range(len(data) - 1, -1, -1))

    def run():
        return kit.Run("in", 0, noise_multiplier=0.5, sampling_rate=0.2, canary=CANARY)

    assert loaded(run(), Wrapped) == 40
    assert loaded(run(), backwards) == 0
    assert loaded(run(), lambda data: Wrapped(backwards(data))) == 0
    for wrap in (
        lambda data: Wrapped(data, 1),
        lambda data: torch.utils.data.Subset(data, range(40)),
        lambda data: TensorDataset(torch.zeros(41, 6), torch.zeros(41).long()),
    ):
        with pytest.raises(InputError, match=r"canary: the loader's data set .* does not give it"):
            loaded(run(), wrap)


def test_gradients_of_records_that_no_batch_has_are_an_error():
    def twice(model, batch):
        return model(torch.cat([batch[0], batch[0]])), torch.cat([batch[1], batch[1]])

    for world in ("in", "out"):
        with pytest.raises(InputError, match="canary: the optimizer has gradients of"):
            small(world, shape=twice)
    with pytest.raises(InputError, match="loader: missing"):
        run = kit.Run("in", 0, noise_multiplier=0.5, sampling_rate=0.2, canary=CANARY)
        run.data(TensorDataset(torch.zeros(4, 6)))
        run.watch(None, train("out", 0, epochs=1)[1])


def test_a_canary_that_is_never_drawn_is_an_error():
    run = small("in", shape=plain, epochs=20)
    run.draws = 0
    with pytest.raises(InputError, match=r"canary: drawn in none of 100 steps; expected about 20"):
        run.scores()


@pytest.mark.whole
def test_ghost_clipping_has_the_power_of_gradients_of_each_record():
    """The same noise, batches and coins; the sum of the others is known either way."""
    from scipy.stats import rankdata

    def area(clipping):
        ins, outs = (
            [
                train(w, 2 * s + (w == "in"), sigma=1.0, canary=None, clipping=clipping)[0].scores()
                for s in range(15)
            ]
            for w in ("in", "out")
        )
        scores = [s["likelihood"] for s in (*ins, *outs)]
        return (rankdata(scores)[:15].sum() - 15 * 16 / 2) / 15**2

    by_record, ghost = area("flat"), area("ghost")
    assert by_record > 0.7
    assert abs(by_record - ghost) <= 0.02


@pytest.mark.parametrize(("pairs", "sigma"), [(False, 0.5), (True, 0.3)])
def test_the_likelihood_ratio_tells_the_worlds_apart(pairs, sigma):
    options = {"sigma": sigma, "gradient": kit.Dirac(pairs=pairs)}
    ins, outs = (
        [train(w, s, **options)[0].scores()["likelihood"] for s in range(4)] for w in ("in", "out")
    )
    assert min(ins) > max(outs)


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


SHAPES = {
    "convolutions": [(8, 1, 3, 3), (8,), (16, 8, 3, 3), (16,), (16, 64), (16,), (10, 16), (10,)],
    "odd": [(5, 4), (4,), (30, 5), (3,), (20, 30)],
    "two layers": [(4, 6), (4,), (2, 4), (2,)],
}


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_signed_pairs_see_no_noise_that_is_shared(shapes):
    """By all coordinates, rows or columns of a tensor, and between tensors drawn with one key."""
    direction = kit.Dirac().direction([torch.zeros(shape) for shape in shapes])
    assert sum(float((d**2).sum()) for d in direction) == pytest.approx(1)
    norms = [float(d.norm()) for d in direction]
    assert norms == pytest.approx([norms[0]] * len(norms))
    generator = torch.Generator().manual_seed(1)
    key = torch.randn(10_000, generator=generator)
    for one in direction:
        assert float(one.sum()) == pytest.approx(0, abs=1e-6)
        if one.dim() > 1:
            row, column = torch.randn(one.shape[1:], generator=generator), torch.randn(len(one))
            assert float((one * row).sum()) == pytest.approx(0, abs=1e-6)
            columns = column.view(-1, *[1] * (one.dim() - 1))
            assert float((one * columns).sum()) == pytest.approx(0, abs=0.2 * float(one.norm()))
    seen = sum(float((d.view(-1) * key[: d.numel()]).sum()) for d in direction)
    # A tensor without a partner of its kind sees its own noise.
    assert abs(seen) < 1e-5 if shapes is SHAPES["convolutions"] else abs(seen) < 3


def test_numbers_without_a_pair_are_taken_alone():
    direction = kit.Dirac().direction([torch.zeros(()), torch.zeros(1)])
    assert [float(d.sum()) for d in direction] == pytest.approx([0.5**0.5] * 2)
    direction = kit.Dirac().direction([torch.zeros(1), torch.zeros(3)])
    assert direction[0].sum() == 0 and direction[1].tolist() == pytest.approx(
        [0.5**0.5, -(0.5**0.5), 0]
    )


def test_the_joint_score_is_the_likelihood_of_a_right_training():
    """The noise of its steps tells that it divides by the expected size."""
    for world in ("in", "out"):
        found = train(world, 3, sigma=0.6)[0].scores()
        assert found["joint"] == pytest.approx(found["likelihood"], abs=1e-6)


def test_the_joint_score_knows_the_size_of_the_batch():
    """Divided by the actual size, the scale of a step tells whether the canary was in it."""

    def steps(world, seed):
        run = kit.Run(world, seed, noise_multiplier=0.6, sampling_rate=RATE, canary=CANARY)
        data = run.data(TensorDataset(torch.randn(RECORDS, 6), torch.zeros(RECORDS).long()))
        model = nn.Linear(6, 400)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        model, optimizer, loader = PrivacyEngine().make_private(
            module=model, optimizer=optimizer, noise_multiplier=0.6, max_grad_norm=0.5,
            data_loader=DataLoader(data, batch_size=BATCH),
        )  # fmt: skip

        def scale():
            for parameter in optimizer.params:
                parameter.grad /= max(1, optimizer.actual)

        optimizer.scale_grad = scale
        run.watch(model, optimizer, loader)
        for inputs, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.actual = len(labels)
            optimizer.step()
        return run.scores(), run.draws

    for seed in range(8):
        (into, draws), (out, none) = steps("in", seed), steps("out", seed)
        assert none == 0 and out["joint"] < 0
        assert into["joint"] > 3 * draws if draws else into["joint"] < 0


def test_the_last_iterate_is_read_from_its_distance_to_the_start():
    run, *_ = train("in", 3, sigma=0.02)
    shifts = [step.gradient for step in run._steps]
    rates = [0.05 * 0.9 ** (index // 5) for index in range(len(shifts))]
    # Plain SGD moves by the rate times the gradient, in clipping norms over the expected size.
    moved = sum(rate * shift for rate, shift in zip(rates, shifts, strict=True)) * 0.5 / BATCH
    assert run.scores()["last iterate"] == pytest.approx(moved, rel=1e-4)


def one_run(
    seed, *, sigma=0.6, claimed=0.6, epochs=4, canaries=120, coins=None, steps=None,
    kind=kit.OneRun, physical=None, **options,
):  # fmt: skip
    """A linear classifier with many canaries: the run after its training."""
    run = kind(
        seed, noise_multiplier=claimed, sampling_rate=0.1, canaries=[CANARY] * canaries,
        coins=coins, steps=steps,
    )  # fmt: skip
    x = torch.randn(RECORDS, 6, generator=torch.Generator().manual_seed(5))
    data = run.data(TensorDataset(x, (x[:, 0] > 0).long()))
    if options.get("subset"):
        data = torch.utils.data.Subset(data, list(range(len(data)))[::-1])
    model = nn.Sequential(nn.Linear(6, 30), nn.Tanh(), nn.Linear(30, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model, optimizer=optimizer, noise_multiplier=sigma, max_grad_norm=0.5,
        data_loader=DataLoader(data, batch_size=len(data) // 10),
    )  # fmt: skip
    run.watch(model, optimizer, loader)
    for _ in range(epochs):
        virtual = nullcontext(loader)
        if physical:
            virtual = BatchMemoryManager(
                data_loader=loader, max_physical_batch_size=physical, optimizer=optimizer
            )
        with virtual as batches:
            for inputs, labels in batches:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs), labels).backward()
                optimizer.step()
    return run


def guessed(run, share=0.5):
    scores = np.array(list(run.scores().values()))
    return auditing.guess(scores, run.included, round(share * len(scores)))


@pytest.mark.parametrize("options", [{}, {"subset": True}], ids=str)
def test_one_training_tells_many_canaries_apart_as_far_as_the_claim_allows(options):
    """Forty steps at rate 0.1 and noise 0.6; each canary in a coordinate of its own."""
    claim = dpsgd(0.6, 0.1, 40)
    right = [guessed(one_run(seed, **options)) for seed in range(3)]
    made = sum(one.made for one in right)
    share = sum(one.correct for one in right) / made
    # The likelihood ratio of one canary against its absence is right in so many of the guesses.
    assert 0.75 < share < 0.99
    for one in right:
        assert auditing.one_run_p_value(one, claim.hypotheses, 0.6) > 0.05
    assert len({one_run(0, epochs=1).coins for _ in range(2)}) == 2


def test_coins_are_all_that_decides_a_canary_of_one_training():
    """The same training with other coins takes the same steps with the same records."""
    one, two = (one_run(3, coins=coins) for coins in (1, 2))
    assert (one.included != two.included).any()
    assert len(one._steps) == len(two._steps) == 40
    along = np.array(one._along) - np.array(two._along)
    # Where both coins agree, nothing of the noise or the sampling differs.
    same = one.included == two.included
    assert np.abs(along[:, same]).max() < 1e-4
    assert np.abs(along[:, ~same]).max() == pytest.approx(1, abs=1e-4)
    again = one_run(3, coins=1)
    assert again.scores() == one.scores() and again.draws == one.draws > 0


def test_one_training_with_little_noise_is_refuted(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(kit.OneRun, "_compare", lambda self, loader: None)
    monkeypatch.setattr(kit.OneRun, "_same", lambda self, *given: None)
    path = tmp_path / "canaries.csv"
    claim = ["--sigma", "2", "--q", "0.1", "--steps", "40"]
    for sigma, status in ((2.0, 0), (0.3, 1)):
        one_run(5, sigma=sigma, claimed=2.0, canaries=200).write(path)
        command = ["audit-one-run", str(path), "--guesses", "100", *claim]
        assert cli.main(command) == status, capsys.readouterr()


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: kit.OneRun(0, 1.0, 0.1, []), "canaries: got 0"),
        (lambda: one_run(0, sigma=0.5), "noise multiplier: the training has 0.5, claimed 0.6"),
        (lambda: one_run(0, canaries=400), "canaries: got 400; expected at most 272"),
        (lambda: one_run(0, steps=30), "steps: the training takes more than the claimed 30"),
    ],
)
def test_unusable_audits_of_one_training_are_refused(call, expected):
    with pytest.raises(InputError, match=expected):
        call()


def by_steps(seed, **options):
    """The same, whose canaries toss a coin in every step."""
    return one_run(seed, kind=kit.Steps, epochs=6, canaries=150, coins=seed, **options)


@pytest.mark.whole
@pytest.mark.parametrize("physical", [None, 7], ids=["whole", "virtual"])
def test_coins_of_steps_are_guessed_as_often_as_the_noise_allows(physical):
    run = by_steps(1, physical=physical)
    may, made = norm.cdf(0.5 / 0.6), sum(run.made)
    assert len(run.made) == 60 and made == run.draws > 600
    assert sum(run.right) / made == pytest.approx(may, abs=4 * np.sqrt(may * (1 - may) / made))
    assert run.audit().p_value(0.6) > 0.05
    again = by_steps(1, physical=physical)
    assert (again.made, again.right) == (run.made, run.right)


@pytest.mark.whole
def test_steps_with_too_little_noise_are_refuted_in_one_training(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(kit.Steps, "_compare", lambda self, loader: None)
    monkeypatch.setattr(kit.Steps, "_same", lambda self, *given: None)
    path = tmp_path / "steps.csv"
    for sigma, status in ((0.6, 0), (0.6 / np.sqrt(2), 1)):
        by_steps(2, sigma=sigma).write(path)
        command = ["audit-steps", str(path), "--noise-multiplier", "0.6"]
        assert cli.main(command) == status, capsys.readouterr()
