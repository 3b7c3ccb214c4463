"""One training, one verdict: faults are named, and right trainings are not accused."""

import json
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

opacus = pytest.importorskip("opacus")
import torch  # noqa: E402
import training_faults as faults  # noqa: E402
from opacus import PrivacyEngine  # noqa: E402
from opacus.utils import adaptive_clipping  # noqa: E402
from opacus.utils.uniform_sampler import UniformWithReplacementSampler  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from hiddenstate import cli  # noqa: E402
from hiddenstate.campaign import clipping, recording, whitebox  # noqa: E402
from hiddenstate.errors import InputError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

SEEN = [name for name, fault in faults.FAULTS.items() if fault.expected]


@pytest.mark.whole
@pytest.mark.parametrize("name", SEEN)
def test_a_planted_fault_is_named(name):
    fault = faults.FAULTS[name]
    kind = (fault.only or ("MLP",))[0]
    found = faults.check(kind, fault).findings
    assert {f.fault for f in found} & set(fault.expected), [f.words for f in found]
    assert all(f.usual and f.words for f in found)


@pytest.mark.parametrize("name", faults.RIGHT)
def test_a_right_training_is_not_accused(name):
    """At a joint level of 1e-3 for each."""
    report = faults.check("MLP", faults.RIGHT[name], seed=3)
    assert not report.findings
    assert report.steps == faults.STEPS and report.tests > 100 and not report.notes


ADAPTIVE = {
    "clipping": "adaptive", "max_clipbound": 10, "min_clipbound": 0.1, "unclipped_num_std": 2.0,
    "clipbound_learning_rate": 0.2, "target_unclipped_quantile": 0.5,
}  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {"clipping": "per_layer", "max_grad_norm": [0.5] * 4},
        ADAPTIVE,
        {"grad_sample_mode": "functorch"},
        {"noise_multiplier": 20.0},
        {"noise_multiplier": 0.01},
        {"max_grad_norm": 1e-4},
    ],
    ids=str,
)
def test_opacus_s_other_ways_are_not_accused(options):
    """The accountant's numbers are the claim."""
    fault = faults.Fault("", (), before=lambda training: training.options.update(options))
    assert not whitebox.check(partial(faults.train, "MLP", fault), seed=2).findings


def _by_layer(training):
    training.options.update(clipping="per_layer", max_grad_norm=[0.5] * 4)


def _norm_of_noise(norm):
    def after(training):
        training.optimizer.max_grad_norm = norm

    return after


def test_layers_are_clipped_to_the_norm_that_noise_is_for():
    """Opacus's schedules of the norm change that of the noise, and none of the layers'."""
    fault = faults.Fault("", (), before=_by_layer, after=_norm_of_noise(0.95))
    (found,) = whitebox.check(partial(faults.train, "MLP", fault)).findings
    assert found.fault == "clipping"
    assert found.words.startswith("tensors are clipped to norms of 1 together, noise is for 0.95")
    more = faults.Fault("", (), before=_by_layer, after=_norm_of_noise(1.05))
    assert not whitebox.check(partial(faults.train, "MLP", more)).findings


def _added_up(batches):
    def before(training):
        training.options["poisson_sampling"] = False
        training.accumulate, training.epochs = batches, 24
        training.loader = DataLoader(training.loader.dataset, batch_size=faults.BATCH, shuffle=True)

    return before


def test_batches_that_are_added_up_to_all_records_are_no_fault():
    fault = faults.Fault("", (), before=_added_up(8))
    report = whitebox.check(partial(faults.train, "MLP", fault))
    assert report.seen["accountant"] == [(0.8, 1.0, 24)] and not report.findings
    most = faults.Fault("", (), before=_added_up(7))
    found = whitebox.check(partial(faults.train, "MLP", most)).findings
    assert {f.fault for f in found} == {"accumulation", "sampler"}


class _Mean(nn.Module):
    """A loss of one's own that is a mean, whatever Opacus sets."""

    reduction = "mean"

    def forward(self, outputs, labels):
        return nn.functional.cross_entropy(outputs, labels)


class _Column(nn.CrossEntropyLoss):
    """Losses of shape (n, 1), as ``BCEWithLogitsLoss`` gives of outputs (n, 1)."""

    def forward(self, outputs, labels):
        return super().forward(outputs, labels)[:, None]


def _ghost_with(loss):
    def before(training):
        faults._ghost(training)
        training.loss = loss()

    return faults.Fault("", (), before=before)


@pytest.mark.parametrize(
    ("loss", "words"),
    [(_Mean, recording.ONE_LOSS), (_Column, "a record contributes more than the clipping norm")],
)
def test_ghost_clipping_takes_a_loss_of_each_record(loss, words):
    """Opacus clips no record's gradient by these losses, and says nothing."""
    (found,) = whitebox.check(partial(faults.train, "MLP", _ghost_with(loss))).findings
    assert found.fault == "clipping" and found.words.startswith(words)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_adaptive_ghost_clipping_is_judged(reduction):
    """Opacus 1.6 gives its adaptive clipping the mean of the losses."""

    def train():
        torch.manual_seed(1)
        model = faults._mlp()
        data = TensorDataset(torch.randn(192, 20), torch.randint(3, (192,)))
        engine = adaptive_clipping.PrivacyEngineAdaptiveClipping()
        model, optimizer, loss, loader = engine.make_private(
            module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(data, batch_size=24), criterion=nn.CrossEntropyLoss(),
            noise_multiplier=0.8, max_grad_norm=1.0, grad_sample_mode="ghost", min_clipbound=0.1,
            max_clipbound=10.0,
        )  # fmt: skip
        loss.criterion.reduction = reduction
        for inputs, labels in (batch for _ in range(3) for batch in loader):
            loss(model(inputs), labels).backward()
            optimizer.step()
            optimizer.zero_grad()

    report, one = whitebox.check(train), reduction == "mean"
    assert [f.words for f in report.findings] == [recording.ONE_LOSS] * one
    assert len(report.notes) == one


def test_gradients_that_cannot_be_made_are_noted(monkeypatch):
    monkeypatch.setattr(recording, "_batched", lambda loss: None)
    report = faults.check("MLP", faults.RIGHT["ghost clipping"])
    assert not report.findings
    assert report.notes == [
        "No gradients of records were seen, so clipping in the steps is not tested."
    ]


def _ghost_twice(training):
    faults._ghost(training)
    training.repeat = 2


def _long_but_last(training):
    training.model.max_grad_norm = 1.0 if training.step == faults.STEPS - 2 else 10.0


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"before": faults._ghost, "each": faults._evaluation}, []),
        ({"before": faults._ghost, "after": faults._bmm}, []),
        ({"before": _ghost_twice}, ["reused batch"]),
        ({"before": faults._ghost, "stepped": _long_but_last}, ["ghost norm"]),
    ],
    ids=[
        "evaluation before the step",
        "BatchMemoryManager",
        "a batch twice",
        "a norm that changes",
    ],
)
def test_ghost_clipping_is_judged_where_gradients_are_seldom_made(changes, expected, monkeypatch):
    """As in large models: gradients are made for the first step alone."""
    monkeypatch.setattr(recording, "SHARE", 0.0)
    report = whitebox.check(partial(faults.train, "MLP", faults.Fault("", (), **changes)))
    assert [found.fault for found in report.findings] == expected


def _other_model(training):
    other = nn.Linear(3, 3)
    other(torch.ones(3)).sum().backward()
    training.memory.other = torch.optim.SGD(other.parameters(), lr=0.1)


def test_steps_on_other_tensors_are_noted():
    """Before Opacus is there, as of public data, and beside it."""
    changes = {"before": _other_model, "stepped": lambda t: t.memory.other.step()}
    report = whitebox.check(partial(faults.train, "MLP", faults.Fault("", (), **changes)))
    assert not report.findings
    (note,) = report.notes
    assert note.startswith("24 steps changed tensors that Opacus does not have;")

    def before(training):
        _other_model(training)
        training.memory.other.step()

    assert not whitebox.check(
        partial(faults.train, "MLP", faults.Fault("", (), before=before))
    ).notes


def _wide(training):
    training.model = nn.Sequential(nn.Linear(20, 900), nn.Tanh(), nn.Linear(900, 3))
    training.optimizer = torch.optim.SGD(training.model.parameters(), lr=0.1)


def test_noise_is_looked_at_up_to_the_last_row(monkeypatch):
    """As where an embedding has noise in the rows of frequent words alone."""

    def draw(training, j, like):
        noise = faults._normal(training, like)
        noise[len(noise) * 3 // 4 :] = 0
        return noise

    monkeypatch.setattr(recording, "KEPT_COORDINATES", 400)
    fault = faults.Fault("", (), before=_wide, after=faults._noise_by(draw))
    found = whitebox.check(partial(faults.train, "MLP", fault)).findings[0]
    assert found.fault == "missing noise" and "0.weight" in f"{found.tensor} {found.words}"
    assert "0.bias" in f"{found.tensor} {found.words}"
    right = faults.Fault("", (), before=_wide)
    assert not whitebox.check(partial(faults.train, "MLP", right)).findings


@pytest.mark.parametrize(("n", "most"), [(5, 7), (7, 7), (8, 7), (100, 7), (10**9, 6), (9, 1)])
def test_neighbours_and_the_last_are_kept(n, most):
    kept = torch.arange(n)[recording._kept(n, most)] if n < 10**9 else recording._kept(n, most)
    first = min(n, most // 2)
    assert len(kept) == len(set(kept.tolist())) == min(n, most)
    assert kept[:first].tolist() == list(range(first)) and int(kept.max()) == n - 1


def _unwrapped(training):
    """The model is called itself, with Opacus's hooks in it."""
    training.options["wrap_model"] = False
    training.memory.model = training.model


def _unwrapped_batch_norm(training):
    faults._batch_norm(training)
    _unwrapped(training)


def _itself(training):
    training.model = training.memory.model


def test_models_without_a_wrapper_are_judged():
    plain = faults.Fault("", (), before=_unwrapped, after=_itself)
    train = partial(faults.train, "MLP")
    with recording.recording():
        seen = train(plain)
    for one, other in zip(seen.parameters, train(plain).parameters, strict=True):
        assert torch.equal(one, other)
    assert not whitebox.check(lambda: train(plain), **faults.CLAIM).findings
    mixed = faults.Fault("", (), before=_unwrapped_batch_norm, after=_itself)
    (found,) = whitebox.check(lambda: train(mixed), **faults.CLAIM).findings
    assert found.fault == "mixed records"


def _rates(*rates):
    """A sampling rate for each epoch, of which the accountant is told the first."""

    def change(training):
        epoch = min(training.step * faults.BATCH // faults.RECORDS, len(rates) - 1)
        training.loader.batch_sampler.sample_rate = rates[epoch]

    return {"after": change, "stepped": change}


def test_the_largest_of_several_rates_is_compared():
    own = faults.BATCH / faults.RECORDS
    more = faults.Fault("", (), **_rates(own, 1.01 * own, own))
    (found,) = whitebox.check(partial(faults.train, "MLP", more)).findings
    assert found.fault == "sampling rate" and "draws at 0.1263" in found.words
    fewer = faults.Fault("", (), **_rates(own, own / 3, own / 3))
    assert not whitebox.check(partial(faults.train, "MLP", fewer)).findings
    favoured = replace(fewer, each=faults._sampler(faults._Favoured))
    assert whitebox.check(partial(faults.train, "MLP", favoured)).findings[0].fault == "sampler"


def test_a_loader_without_poisson_sampling_is_named_whatever_follows():
    def train():
        engine, model = PrivacyEngine(), faults._mlp()
        data = TensorDataset(torch.randn(96, 20), torch.randint(3, (96,)))
        plain = DataLoader(data, batch_size=faults.BATCH, shuffle=True)
        model, optimizer, loader = engine.make_private(
            module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=plain, noise_multiplier=0.8, max_grad_norm=1.0,
        )  # fmt: skip
        batches = DataLoader(loader.dataset, batch_size=faults.BATCH, shuffle=True)
        for inputs, labels in (batch for part in (batches, loader, loader) for batch in part):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()

    (found,) = whitebox.check(train).findings
    assert found.fault == "sampler" and "in the order of RandomSampler" in found.words


class _Tensors(UniformWithReplacementSampler):
    """Batches as tensors, as Opacus's sampler of several processes gives them."""

    def __iter__(self):
        return map(torch.tensor, super().__iter__())


def test_batches_may_be_tensors_of_indices():
    with recording.recording() as seen:
        faults.train("MLP", faults.Fault("", (), after=faults._sampler(_Tensors)))
    assert not whitebox.judge(seen, {"sampling rate": 0.125}).findings
    assert all(type(index) is int for batch in seen.batches for index in batch)
    assert [len(batch) for batch in seen.batches] == [step.rows for step in seen.steps]


def test_a_fault_names_tensor_and_step():
    (found,) = faults.check("MLP", faults.FAULTS["no noise on a layer"]).findings
    assert found.tensor in ("2.weight", "2.bias") and found.step == 0
    (found,) = faults.check("MLP", faults.FAULTS["first step"]).findings
    assert found.step == 0 and "this step has no noise" in found.words
    (found,) = faults.check("MLP", faults.FAULTS["noise on one layer less"]).findings
    assert found.tensor == "0.weight" and "0.8" in found.words
    (found,) = faults.check("MLP", faults.FAULTS["share of noise"]).findings
    assert "one of 2 workers" in found.words


def test_what_is_recorded_changes_nothing():
    def parameters(run):
        made = []
        run(lambda: made.append(faults.train("MLP", faults.RIGHT["SGD"], 5)))
        return torch.cat([p.detach().flatten() for p in made[0].model.parameters()])

    plain = parameters(lambda train: train())
    checked = parameters(lambda train: whitebox.check(train))
    assert torch.equal(plain, checked)


def test_methods_are_put_back():
    before = opacus.optimizers.DPOptimizer.pre_step
    with pytest.raises(ZeroDivisionError), recording.recording():
        assert opacus.optimizers.DPOptimizer.pre_step is not before
        1 / 0  # noqa: B018
    assert opacus.optimizers.DPOptimizer.pre_step is before


def test_the_residuals_are_the_noise():
    """What the optimizer adds, drawn here once more from the same generator."""
    noise = []
    original = opacus.optimizers.optimizer._generate_noise

    def drawn(**named):
        noise.append(original(**named))
        return noise[-1]

    with pytest.MonkeyPatch.context() as patch, recording.recording() as found:
        patch.setattr(opacus.optimizers.optimizer, "_generate_noise", drawn)
        faults.train("MLP", faults.RIGHT["SGD"])
    tensors = len(found.names)
    for t, step in enumerate(found.steps):
        own = noise[t * tensors : (t + 1) * tensors]
        for residual, added in zip(step.residuals, own, strict=True):
            expected = added.numpy() / (faults.SIGMA * faults.CLIP)
            np.testing.assert_allclose(residual, expected, atol=1e-5)


def test_without_a_claim_the_accountant_is_believed():
    train = partial(faults.train, "MLP")
    assert not whitebox.check(lambda: train(faults.RIGHT["SGD"])).findings
    (found,) = whitebox.check(lambda: train(faults.FAULTS["raw steps"])).findings[:1]
    assert found.fault in ("steps", "no noise")
    assert not whitebox.check(lambda: train(faults.FAULTS["twice the steps"])).findings
    (found,) = whitebox.check(
        lambda: train(faults.FAULTS["batches twice as large"]), sampling_rate=0.125
    ).findings
    assert found.fault == "sampling rate" and "claimed 0.125" in found.words
    assert whitebox.check(lambda: train(faults.FAULTS["share of noise"])).findings


def test_an_accountant_that_is_told_more_noise_is_contradicted():
    train = partial(faults.train, "MLP", faults.Fault("", (), after=faults._told_more))
    (found,) = whitebox.check(train).findings
    assert found.fault == "noise multiplier" and found.words == "0.8, told to the accountant 2"
    # What is claimed of something else does not switch that off.
    (found,) = whitebox.check(train, clipping_norm=1.0).findings
    assert found.fault == "noise multiplier"


def _unhooked(training):
    training.optimizer.attach_step_hook(lambda optimizer: None)


def test_an_accountant_that_is_told_of_no_step_is_contradicted():
    """``attach_step_hook`` replaces the accountant's hook, and epsilon stays 0."""
    train = partial(faults.train, "MLP", faults.Fault("", (), after=_unhooked))
    (found,) = whitebox.check(train).findings
    assert (found.fault, found.words) == ("steps", "the training took 24, told to the accountant 0")
    assert not whitebox.check(train, **faults.CLAIM).findings

    def beside(training):
        model, data = nn.Linear(20, 3), DataLoader(training.loader.dataset, batch_size=8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        PrivacyEngine().make_private(
            module=model, optimizer=optimizer, data_loader=data, **training.options
        )

    other = partial(faults.train, "MLP", faults.Fault("", (), after=beside))
    assert not whitebox.check(other).findings


def _went_on(training):
    """As ``PrivacyEngine.load_checkpoint`` does."""
    training.engine.accountant.history = [(2.0, 0.5, 100), (0.8, 0.125, 7)]


def _went_on_unhooked(training):
    _went_on(training)
    _unhooked(training)


def test_an_accountant_may_have_been_told_of_an_earlier_training():
    train = partial(faults.train, "MLP", faults.Fault("", (), after=_went_on))
    report = whitebox.check(train)
    assert not report.findings and report.seen["accountant"] == [(0.8, 0.125, 24)]
    untold = partial(faults.train, "MLP", faults.Fault("", (), after=_went_on_unhooked))
    (found,) = whitebox.check(untold).findings
    assert (found.fault, found.words) == ("steps", "the training took 24, told to the accountant 0")


def test_noise_that_two_trainings_share_is_named():
    def train(seed, fixed=True):
        made = torch.Generator().manual_seed(1 if fixed else seed)
        change = faults._option("noise_generator", made)
        faults.train("MLP", faults.Fault("", (), before=change), seed)

    found = whitebox.check(train, runs=2).findings
    assert [f.fault for f in found] == ["returning noise"]
    assert not whitebox.check(partial(train, fixed=False), runs=2).findings
    assert not whitebox.check(train).findings


def test_a_sum_is_told_from_others():
    generator = torch.Generator().manual_seed(0)
    samples = [torch.randn(6, 4, 3, generator=generator), torch.randn(6, 4, generator=generator)]
    right = clipping.flat(samples, 1.0)
    norms = torch.cat([s.flatten(1) for s in samples], dim=1).norm(dim=1)
    by_hand = sum(s / max(1.0, float(n)) for s, n in zip(samples[0], norms, strict=True))
    assert torch.allclose(right[0], by_hand, atol=1e-4)
    assert clipping.compare(right, right, samples, 1.0) is None
    # A little wrong is wrong.
    off = [right[0] + 0.01, right[1]]
    assert clipping.compare(off, right, samples, 1.0).kind == "another sum"
    shorter = clipping.flat(samples, 0.9)
    assert clipping.compare(shorter, right, samples, 1.0).words == ""
    longer = clipping.compare(clipping.flat(samples, 1.1), right, samples, 1.0)
    assert longer.kind == "too long" and longer.contribution == pytest.approx(1.1, abs=1e-3)


@pytest.mark.parametrize("norm", [0.1, 100.0])
@pytest.mark.parametrize("again", [1, 6])
def test_a_clipped_mean_is_no_sum_of_clipped_gradients(norm, again):
    """Shorter or longer than the norm, and divided by the records once more or not."""
    generator = torch.Generator().manual_seed(0)
    samples = [5 * torch.randn(6, 4, 3, generator=generator)]
    mean = samples[0].mean(dim=0)
    own = [mean * min(1.0, norm / (float(mean.norm()) + 1e-6)) / again]
    found = clipping.compare(own, clipping.flat(samples, norm), samples, norm)
    assert found.kind == "late clipping" and "is clipped, not each record's" in found.words


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_deviation_that_is_a_tenth_off_is_found(factor):
    fault = faults.Fault("", (), after=faults._scaled_noise(factor))
    (found,) = faults.check("CNN", fault).findings
    assert found.fault == "wrong deviation"
    told = float(found.words.removeprefix("the deviation is ").split()[0])
    assert told == pytest.approx(factor, abs=0.02) and found.tensor is None


SCRIPT = """
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def train(seed, rate=0.1):
    print("training")
    torch.manual_seed(seed)
    records = TensorDataset(torch.randn(60, 4), torch.arange(60) % 2)
    model = nn.Linear(4, 2)
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(records, batch_size=6), noise_multiplier=0.6, max_grad_norm=1.0)
    for _ in range(2):
        for inputs, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()

def nothing():
    pass

def needs(data):
    pass

if __name__ == "__main__":
    train(1)
"""


def test_the_command(tmp_path, capsys):
    path = tmp_path / "my_train.py"
    path.write_text(SCRIPT)
    assert cli.main(["check-training", f"{path}:train"]) == 0
    told = capsys.readouterr()
    assert "No fault found in 20 steps" in told.out and "training" in told.err
    assert cli.main(["check-training", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 20
    claim = ["--noise-multiplier", "0.6", "--sampling-rate", "0.05"]
    assert cli.main(["check-training", f"{path}:train", *claim]) == 1
    assert "the loader draws at 0.1, claimed 0.05" in capsys.readouterr().out
    for text, expected in (
        (f"{path}:nothing", "no step of Opacus's DPOptimizer was seen"),
        (f"{path}:needs", "needs the arguments data"),
        (f"{path}:other", "has no function other"),
        (f"{tmp_path}/none.py", "none.py"),
    ):
        assert cli.main(["check-training", text]) == 2
        assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        (["--noise-multiplier", "-1"], "noise_multiplier: got -1.0"),
        (["--sampling-rate", "2"], "sampling_rate: got 2.0"),
        (["--steps", "0"], "steps: got 0"),
        (["--clipping-norm", "nan"], "clipping_norm: got nan"),
    ],
)
def test_claims_are_refused_before_the_file_is_imported(tmp_path, capsys, claim, expected):
    path = tmp_path / "my_train.py"
    path.write_text("raise AssertionError('imported')\n")
    assert cli.main(["check-training", f"{path}:train", *claim]) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("ending", ["sys.exit(0)", "sys.exit()", "raise SystemExit(None)"])
def test_a_script_that_ends_by_itself_is_judged(tmp_path, capsys, ending):
    """Exit status 0 says that no fault was found, so none may leave before."""
    path = tmp_path / "my_train.py"
    path.write_text(f"import sys\n{SCRIPT}\n{ending}\n")
    assert cli.main(["check-training", str(path), "--noise-multiplier", "5"]) == 1
    assert "0.6, claimed 5" in capsys.readouterr().out
    path.write_text(f"{SCRIPT}\nraise SystemExit(3)\n")
    assert cli.main(["check-training", str(path)]) == 2
    assert "ended by sys.exit(3)" in capsys.readouterr().err


def test_a_script_reads_its_own_arguments(tmp_path, capsys):
    """Not those of the command, and not whichever it happens to know of them."""
    path = tmp_path / "my_train.py"
    parsed = (
        "import argparse\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--noise-multiplier', type=float, default=0.6)\n"
        "asked = parser.parse_args().noise_multiplier\n"
    )
    path.write_text(parsed + SCRIPT.replace("noise_multiplier=0.6", "noise_multiplier=asked"))
    assert cli.main(["check-training", str(path)]) == 0
    assert cli.main(["check-training", str(path), "--noise-multiplier", "2"]) == 1
    assert "0.6, claimed 2" in capsys.readouterr().out
    own = "--arguments=--noise-multiplier 0.7"
    assert cli.main(["check-training", str(path), "--json", own]) == 0
    assert json.loads(capsys.readouterr().out)["seen"]["noise multiplier"] == 0.7
    assert cli.main(["check-training", str(path), "--arguments=--other"]) == 2
    assert "ended by sys.exit(2)" in capsys.readouterr().err


@pytest.mark.whole
def test_a_file_of_a_package_is_a_part_of_it(tmp_path, capsys):
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "numbers.py").write_text("SIGMA = 0.6\n")
    text = SCRIPT.replace("noise_multiplier=0.6", "noise_multiplier=SIGMA")
    (package / "run.py").write_text(f"from .numbers import SIGMA\n{text}")
    for training in (package / "run.py", f"{package / 'run.py'}:train"):
        assert cli.main(["check-training", str(training)]) == 0
    assert "No fault found" in capsys.readouterr().out


def test_what_cannot_be_claimed_is_refused():
    for wrong in (
        {"noise_multiplier": -1.0}, {"noise_multiplier": math.nan}, {"clipping_norm": 0.0},
        {"sampling_rate": 3.0}, {"sampling_rate": 0.0}, {"steps": 0},
    ):  # fmt: skip
        with pytest.raises(InputError, match=next(iter(wrong))):
            whitebox.check(lambda: None, **wrong)
    with pytest.raises(InputError, match="takes no seed"):
        whitebox.check(lambda: None, runs=2)


def test_the_check_moves_no_counter_and_no_generator_of_the_model():
    class Counting(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model, self.calls, self.own = model, 0, torch.Generator().manual_seed(1)

        def forward(self, x):
            self.calls += 1
            return self.model(x + 0.1 * torch.randn(x.shape, generator=self.own))

    made = []

    def counting(training):
        training.model = Counting(training.model)
        training.optimizer = torch.optim.SGD(training.model.parameters(), lr=0.1)

    def train():
        made.append(faults.train("MLP", faults.Fault("", (), before=counting), 5))

    train()
    assert not whitebox.check(train).findings
    plain, checked = (one.model._module for one in made)
    assert plain.calls == checked.calls == faults.STEPS
    for a, b in zip(plain.parameters(), checked.parameters(), strict=True):
        assert torch.equal(a, b)


def test_two_private_optimizers_are_refused():
    def train():
        for seed in (0, 1):
            faults.train("MLP", faults.RIGHT["SGD"], seed)

    with pytest.raises(InputError, match="2 private optimizers stepped"):
        whitebox.check(train)


def test_a_training_that_seeds_itself_cannot_be_confirmed(monkeypatch):
    """A second training that is the first once more would confirm every chance."""
    weak = whitebox.Finding("other noise", "chance", p_value=1e-5)
    judged = whitebox.judge
    monkeypatch.setattr(
        whitebox, "judge", lambda *given, **named: replace(judged(*given, **named), findings=[weak])
    )
    report = whitebox.check(lambda: faults.train("MLP", faults.RIGHT["SGD"]))
    assert not report.findings and any("seeds itself" in note for note in report.notes)
    assert whitebox.check(partial(_seeded, faults.RIGHT["SGD"])).findings == [weak]


def _seeded(fault, seed):
    faults.train("MLP", fault, seed)


def test_records_that_the_loss_mixes_are_named():
    """Batch norm behind the model, where no layer shows it."""

    def mixing(training):
        inner = training.loss
        training.loss = lambda outputs, labels: inner(faults._OverBatch()(outputs), labels)

    (found,) = faults.check("MLP", faults.Fault("", (), before=mixing)).findings
    assert found.fault == "mixed records"


def test_plain_steps_alone_are_no_private_training():
    def train():
        model = nn.Linear(4, 2)
        model(torch.randn(3, 4)).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()

    with pytest.raises(InputError, match="no step of Opacus's DPOptimizer"):
        whitebox.check(train)


def test_batches_of_another_loader_are_not_the_training_s():
    """Test images in fixed order, between steps."""

    def train():
        torch.manual_seed(0)
        records = TensorDataset(torch.randn(60, 4), torch.arange(60) % 2)
        model = nn.Linear(4, 2)
        model, optimizer, loader = PrivacyEngine().make_private(
            module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(records, batch_size=6), noise_multiplier=0.6, max_grad_norm=1.0,
        )  # fmt: skip
        test = DataLoader(TensorDataset(torch.randn(20, 4)), batch_size=5)
        for _ in range(2):
            for inputs, labels in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs), labels).backward()
                for (images,) in test:
                    with torch.no_grad():
                        model(images)
                optimizer.step()

    assert not whitebox.check(train).findings


def test_the_table_says_what_is_found_and_what_finds_the_rest():
    rows = list(faults.table(["no noise", "a record twice", "noise where gradient"], ["MLP"]))
    assert [row.everywhere for row in rows] == [True, False, False]
    text = faults.markdown(rows)
    assert "not found by anything here" in text and "no mistake here" in text
    assert len(faults.FAULTS) >= 30 and len(SEEN) >= 25


def test_the_check_of_an_audit_looks_into_one_training(tmp_path):
    from hiddenstate.campaign.checking import Observed
    from hiddenstate.campaign.inspecting import inspecting
    from hiddenstate.campaign.trainings import Script

    path = tmp_path / "audited.py"
    scored = SCRIPT.replace("train(seed, rate=0.1)", "train(world, seed)")
    path.write_text(scored.replace("\n\ndef nothing", "\n    return 0.0\n\ndef nothing"))
    notes = tmp_path / "notes"
    inspect = partial(inspecting, noise_multiplier=0.6, sampling_rate=0.05)
    observed = Observed(Script(path), notes, inspect).load()
    for world in ("in", "in", "out"):
        observed(world, 1)
    told = [json.loads(line)["inside"] for line in notes.read_text().splitlines()]
    assert told[:2] == [None, None] and told[2]["steps"] == 20
    assert [f["fault"] for f in told[2]["findings"]] == ["sampling rate"]


def test_a_finding_of_chance_needs_a_second_training(monkeypatch):
    right = faults.check("MLP", faults.RIGHT["SGD"])

    def suspect(p):
        return replace(right, findings=[whitebox.Finding("other noise", "odd", p_value=p)])

    def judged(*reports):
        left = iter(reports)
        monkeypatch.setattr(whitebox, "judge", lambda *_, **__: next(left))
        found = whitebox.check(partial(faults.train, "MLP", faults.RIGHT["SGD"]))
        assert next(left, None) is None
        return found

    cleared = judged(suspect(1e-7), right)
    assert not cleared.findings and "a second one did not" in cleared.notes[-1]
    assert judged(suspect(1e-7), suspect(1e-5)).findings
    assert judged(suspect(1e-10)).findings
    (note,) = set(suspect(1e-7).confirmed(None).notes) - set(right.notes)
    assert "check-training" in note
