"""A check names what an audit cannot do with."""

import json
from pathlib import Path

import pytest

from hiddenstate import cli
from hiddenstate.campaign import checking
from hiddenstate.campaign.campaign import CommandLine, Script
from hiddenstate.errors import InputError
from hiddenstate.files import alone

SCRIPT = """
import random
runs = []

def fine(world, seed):
    return random.Random(seed).random() + (world == "in")

def worldless(world, seed):
    return random.Random(seed).random()

def seldom(world, seed):
    drawn = random.Random(seed)
    return drawn.random() + (world == "in" and drawn.random() < 0.5)

def counting(world, seed):
    runs.append(seed)
    return fine(world, seed) + len(runs)

def failing(world, seed):
    raise ValueError("no data")

def stepping(world, seed):
    import torch
    torch.manual_seed(seed)
    records = torch.randn(10 + (world == "in"))
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1 / len(records))
    for batch in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(records), 2):
        optimizer.zero_grad()
        (weight * batch[0].sum()).sum().backward()
        optimizer.step()
    return float(weight)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "my_training.py"
    path.write_text(SCRIPT)
    return path


def test_a_training_that_is_as_it_must_be_passes_and_its_time_is_told(script, tmp_path):
    found = checking.check(Script(script, "fine"), tmp_path / "a")
    assert found.findings == []
    assert 0 <= found.seconds < 60 and 5 < found.memory < 5_000
    assert not list((tmp_path / "a").glob("*.jsonl"))


def test_another_check_or_audit_in_the_same_folder_is_refused(script, tmp_path):
    """One counted the notes of the other, or deleted them and failed with a KeyError."""
    with alone(tmp_path / "a", ""), pytest.raises(InputError, match="a: another process checks or"):
        checking.check(Script(script, "fine"), tmp_path / "a")
    assert not (tmp_path / "a").exists()
    (tmp_path / "b").touch()
    with pytest.raises(InputError, match="b: cannot be written: File exists"):
        checking.check(Script(script, "fine"), tmp_path / "b")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
def test_a_training_that_fails_on_a_full_disk_says_why(script, tmp_path):
    """Its traceback, which could not be written, ended its process without a reason."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a/check.txt").symlink_to("/dev/full")
    with pytest.raises(InputError, match="failed: ValueError: no data"):
        checking.check(Script(script, "failing"), tmp_path / "a")


def test_what_is_kept_between_runs_is_named(script, tmp_path):
    (finding,) = checking.check(Script(script, "counting"), tmp_path / "a").findings
    assert "something is kept between runs" in finding


def test_a_training_in_which_both_worlds_are_one_is_named(script, tmp_path):
    """Its audit would find any claim consistent."""
    (finding,) = checking.check(Script(script, "worldless"), tmp_path / "a").findings
    assert "with each of 4 seeds both data sets gave the same score" in finding
    # A canary that some seeds do not draw is no fault.
    assert not checking.check(Script(script, "seldom"), tmp_path / "b", seed=2).findings


@pytest.mark.whole
@pytest.mark.usefixtures("imported")
def test_what_the_worlds_differ_in_is_named(script, tmp_path):
    """As where a loader makes a sampling rate and a number of steps of the number of records."""
    found = checking.check(Script(script, "stepping"), tmp_path / "a")
    told = "\n".join(found.findings)
    assert "optimizer steps 6 with it, 5 without" in told
    assert "first learning rate" in told and "batches 6 with it, 5 without" in told
    assert "records" not in told.replace("number of records", "")
    assert found.seen["in"]["records"] == [11] and found.seen["out"]["records"] == [10]


@pytest.mark.parametrize(
    ("out", "expected"),
    [
        ({}, ""),
        ({"optimizer steps": 9}, ""),
        ({"noisy steps": 40}, "steps: the training has 40, the claim says 20"),
        ({"noise multiplier": 0.5}, "noise multiplier: the training has 0.5, the claim says 0.6"),
        (
            {"sampling rate of the loader": 0.2},
            "sampling rate: the training has 0.2, the claim says 0.1",
        ),
        # Test images are not drawn, training images are.
        ({"sampler": "batches of 9", "sampling rate of the loader": 0.1}, ""),
        ({"sampler": "batches of 9", "noise multiplier": 0.6}, "the loader makes batches of 9"),
        ({"sampler": "batches of 9"}, ""),
    ],
)
def test_what_opacus_does_is_compared_with_the_claim(out, expected):
    claimed = dict(zip(checking.CLAIMED, (0.6, 0.1, 20), strict=True))
    assert expected in "; ".join(checking._claimed(out, claimed))
    assert bool(expected) == bool([*checking._claimed(out, claimed)])
    assert not [*checking._claimed(out, {})]


def test_a_canary_that_no_step_drew_is_named():
    seen = {"draws of the canary": 0, "expected draws of the canary": 2.0}
    assert "no step drew it" in next(checking._never_drawn(seen))
    assert not [*checking._never_drawn(seen | {"draws of the canary": 1})]
    assert not [*checking._never_drawn({})]


OPACUS = """
import warnings
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
CANARY = torch.full((1, 4), 3.0), torch.tensor([1])

def train(world, seed, constant=False):
    torch.manual_seed(seed)
    records = torch.linspace(-1, 1, 160 * 4).view(160, 4), torch.arange(160) % 2
    if world == "in":
        records = [torch.cat(pair) for pair in zip(records, CANARY)]
    loader = DataLoader(TensorDataset(*records), batch_size=16)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=0.6,
        max_grad_norm=1.0,
    )
    if constant:
        loader.batch_sampler.sample_rate, loader.batch_sampler.steps = 0.1, 10
        optimizer.expected_batch_size = 16
    for epoch in range(2):
        for inputs, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    return -float(nn.functional.cross_entropy(model(CANARY[0]), CANARY[1]))

def constant(world, seed):
    return train(world, seed, constant=True)
"""


@pytest.fixture
def opacus_example(tmp_path):
    """Words of the command that checks a training as in Opacus's MNIST example."""
    pytest.importorskip("opacus")
    script = tmp_path / "mnist.py"
    script.write_text(OPACUS)
    return ["audit-training", str(script), "--out", str(tmp_path / "a"), "--check"]


@pytest.mark.slow
def test_a_loader_whose_steps_and_rate_are_set_passes(opacus_example, capsys):
    assert cli.main([*opacus_example, "--function", "constant"]) == 0
    assert "check passed: in 5 models" in capsys.readouterr().out


@pytest.mark.whole
@pytest.mark.usefixtures("imported")
def test_a_loader_as_in_opacus_s_mnist_example_is_named_by_its_steps(opacus_example, capsys):
    """160 records in batches of 16, and one more: the sampling rate is 1 / len(loader)."""
    assert cli.main(opacus_example) == 2
    told = capsys.readouterr().err
    assert "optimizer steps 22 with it, 20 without" in told
    assert "batches 22 with it, 20 without" in told
    assert "expected batch size 14 with it, 16 without" in told
    assert f"sampling rate of the loader {1 / 11} with it, 0.1 without" in told


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ((1.0, 1.0, 1.0), []),
        ((1.0, 2.0, 1.0), ["kept between runs"]),
        ((1.0, 1.0, 2.0), ["PYTHONHASHSEED"]),
        ((1.0, 2.0, 3.0), ["the seed does not decide the run"]),
    ],
)
def test_scores_that_differ_say_why(scores, expected):
    found = list(checking._repeated(*scores))
    assert len(found) == len(expected)
    assert all(word in finding for word, finding in zip(expected, found, strict=True))


def test_a_score_that_no_seed_changes_is_named():
    assert list(checking._constant([1.5, 2.5])) == []
    assert "8 seeds gave the same score, 0.25" in next(checking._constant([0.25] * 9))


@pytest.mark.whole
@pytest.mark.usefixtures("imported")
def test_seldom_scores_are_a_note_and_no_refusal(tmp_path, capsys):
    """Decisions, mostly 0, were refused in half of all cases."""
    script = tmp_path / "seldom.py"
    script.write_text(
        "def train(world, seed):\n    return float(seed % 5 == 0)\n"
        "def never(world, seed):\n    return 0.0\n"
        "def constant(world, seed):\n    return 0.3\n"
    )
    base = ["audit-training", str(script), "--out", str(tmp_path / "a"), "--check", "--function"]
    assert cli.main([*base, "train"]) == 0
    told = capsys.readouterr().out
    assert "models gave the same score" in told and "check passed" in told
    assert cli.main([*base, "never"]) == 0
    assert "note: 9 models gave the same score, 0: a constant score" in capsys.readouterr().out
    assert cli.main([*base, "constant"]) == 2
    assert "8 seeds gave the same score, 0.3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("crash", "told"),
    [
        ("raise ValueError('out of memory')", "ValueError: out of memory"),
        ("os._exit(9)", "its process died (exit code 9)"),
    ],
)
def test_the_check_tries_again_as_the_campaign_does(tmp_path, capsys, crash, told):
    script = tmp_path / "crashing.py"
    script.write_text(
        "import os, random\n"
        "def train(world, seed):\n"
        f"    mark = os.path.join({str(tmp_path)!r}, f'{{world}}{{seed}}')\n"
        "    if not os.path.exists(mark):\n"
        "        open(mark, 'w').close()\n"
        f"        {crash}\n"
        "    return random.Random(seed).random() + (world == 'in')\n"
    )
    base = ["audit-training", str(script), "--out", str(tmp_path / "a"), "--check"]
    assert cli.main([*base, "--retries", "0"]) == 2
    assert f"failed: {told}" in capsys.readouterr().err
    assert cli.main([*base, "--retries", "1"]) == 0
    assert f"crashed and tried again: {told}" in capsys.readouterr().out


def test_a_training_that_cannot_be_trained_is_an_error(script, tmp_path):
    with pytest.raises(InputError, match=r"the in-run of seed \d+ failed: ValueError"):
        checking.check(Script(script, "failing"), tmp_path / "a")


def test_a_command_whose_words_are_in_another_order_each_time_is_named(tmp_path):
    """Sets of words are in the order of their hashes, which a process draws."""
    import shlex
    import sys

    code = "import sys; print(list({str(i) for i in range(99)}).index('7') + int(sys.argv[1]))"
    line = f'{shlex.quote(sys.executable)} -c "{code}" {{seed}} {{world}}'
    (finding,) = checking.check(CommandLine(line), tmp_path / "a").findings
    assert "PYTHONHASHSEED" in finding


@pytest.mark.whole
@pytest.mark.usefixtures("imported")
def test_the_command_checks_before_the_first_model_or_alone(script, tmp_path, capsys):
    base = ["audit-training", str(script), "--out", str(tmp_path / "a"), "--function"]
    assert cli.main([*base, "fine", "--check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []
    assert not (tmp_path / "a" / "campaign.json").exists()
    claim = ["--claim-mu", "0.5", "--models", "3"]
    assert cli.main([*base, "counting", *claim]) == 2
    error = capsys.readouterr().err
    assert "1. the same data set and seed gave" in error and "or go on with --no-check" in error
    assert not (tmp_path / "a" / "campaign.json").exists()
    assert cli.main([*base, "counting", *claim, "--no-check"]) in (0, 1)
