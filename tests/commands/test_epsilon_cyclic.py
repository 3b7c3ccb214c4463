"""The epsilon of cyclic DP-SGD on the command line."""

import json
import re

import pytest

from hiddenstate.accounting import bounds
from hiddenstate.accounting.setting import Setting
from hiddenstate.cli import main
from hiddenstate.sampling import Cyclic

MECHANISM = {
    "--sampler": "cyclic",
    "--records": "1000",
    "--batch-size": "10",
    "--steps": "1000",
    "--noise-multiplier": "2",
    "--delta": "1e-5",
    "--weak-convexity": "0.01",
    "--smoothness": "1",
}


def arguments(**changes):
    named = {f"--{name.replace('_', '-')}": value for name, value in changes.items()}
    options = {k: v for k, v in (MECHANISM | named).items() if v is not None}
    return ["epsilon", *(word for pair in options.items() for word in pair)]


def test_every_bound_with_its_domain(capsys):
    assert main(arguments()) == 0
    shown = capsys.readouterr().out
    numbers = dict(re.findall(r"^(\w[\w., ]+?) {2,}([0-9.]+)  ", shown, re.M))
    # The learning rate is that of `epsilon`, 0.1.
    setting = Setting(
        sampling=Cyclic(10), records=1000, steps=1000, noise_multiplier=2.0,
        learning_rate=0.1, weak_convexity=0.01, smoothness=1.0,
    )  # fmt: skip
    expected = {g.bound.name: g.epsilon for g in bounds.found(setting, 1e-5)}
    assert {name: float(value) for name, value in numbers.items()} == pytest.approx(
        expected, rel=1e-3
    )
    upper = [name for name in numbers if name != "linear heuristic"]
    assert all(float(numbers[name]) >= expected[name] for name in upper)
    assert (
        expected["cyclic, clipping without effect"]
        < expected["Theorem 4.5 of Kong and Ribero"]
        < expected["standard epsilon"]
    )
    for domain in ("all iterates released", "binary logistic regression", "any losses of this"):
        assert domain in shown


def test_a_domain_only_helps_and_json_says_all(capsys):
    assert main([*arguments(diameter="0.001"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["sampler"], shown["records"], shown["diameter"]) == ("cyclic", 1000, 0.001)
    assert main([*arguments(), "--json"]) == 0
    free = json.loads(capsys.readouterr().out)
    assert (
        shown["epsilon"]["cyclic, clipping without effect"]["epsilon"]
        < free["epsilon"]["cyclic, clipping without effect"]["epsilon"]
    )


@pytest.mark.whole
def test_orders_and_losses_of_which_more_is_known(capsys):
    def epsilons(**changes):
        assert main([*arguments(weak_convexity="0", **changes), "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        return {name: one["epsilon"] for name, one in shown["epsilon"].items()}

    fixed = epsilons()
    shuffled = epsilons(sampler="shuffled", strong_convexity="0.1")
    assert shuffled["strongly convex losses"] < shuffled["cyclic, clipping without effect"]
    assert shuffled["cyclic, clipping without effect"] < fixed["cyclic, clipping without effect"]
    redrawn = epsilons(sampler="reshuffled", strong_convexity="0.1")
    assert set(redrawn) == {
        "standard epsilon",
        "linear heuristic",
        "lower bound, all iterates",
        "if it were Poisson",
    }
    assert redrawn["standard epsilon"] == fixed["standard epsilon"]
    assert redrawn["lower bound, all iterates"] < shuffled["lower bound, all iterates"]
    rough = epsilons(holder="0.5", diameter="0.001")
    assert set(rough) == {
        "standard epsilon",
        "any clipped losses on a domain",
        "Hölder gradients on a domain",
        "linear heuristic",
    }
    assert rough.pop("linear heuristic") is None
    assert (
        rough["Hölder gradients on a domain"]
        < rough["any clipped losses on a domain"]
        <= rough["standard epsilon"]
    )


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"batch_size": "2000"}, "batch_size: got 2000; expected at most 1000"),
        ({"batch_size": "2.5"}, "--batch-size: got 2.5; expected a whole number"),
        ({"records": None}, "--records: missing"),
        ({"sampling_rate": "0.01"}, "--sampling-rate: only --sampler poisson has one"),
        ({"momentum": "1.5"}, "momentum: got 1.5; expected a number in [0, 1)"),
        ({"smoothness": None}, "--weak-convexity: expected only with --smoothness"),
        ({"sampler": "full"}, "--batch-size: got 10; expected 1,000, the records"),
        ({"epochs": "3"}, "--steps: given beside --epochs"),
        ({"steps": None}, "--steps: missing"),
        ({"release_every": "0"}, "release_every: got 0; expected a whole number"),
        ({"average_last": "3", "ema_decay": "0.9"}, "ema_decay: expected only one of"),
    ],
)
def test_what_does_not_belong_together_is_refused(capsys, changes, message):
    assert main(arguments(**changes)) == 2
    assert message in capsys.readouterr().err


def test_a_sampling_rate_is_needed_where_batches_are_sampled(capsys):
    assert main(["epsilon", "--sigma", "1", "--steps", "10", "--delta", "1e-5"]) == 2
    assert "--sampling-rate: missing" in capsys.readouterr().err


def test_every_record_in_every_step_is_a_sampler(capsys):
    numbers = ["--noise-multiplier", "5", "--steps", "50", "--delta", "1e-5"]
    assert main(["epsilon", "--sampler", "full", *numbers]) == 0
    full = capsys.readouterr().out
    assert main(["epsilon", "--sampling-rate", "1", *numbers]) == 0
    assert capsys.readouterr().out == full
    assert main(["epsilon", "--sampler", "full", "--sampling-rate", "1", *numbers]) == 2
    assert "--sampling-rate: only --sampler poisson has one" in capsys.readouterr().err


def test_an_option_that_no_value_depends_on_is_named(capsys):
    words = ["epsilon", "--sigma", "1", "--q", "0.1", "--steps", "5", "--delta", "1e-5"]
    assert main([*words, "--learning-rate", "0.5", "--convex"]) == 0
    shown = capsys.readouterr().out
    assert "No value of this table depends on --convex, --learning-rate." in shown
    assert main(arguments(sampler="reshuffled", diameter="0.1")) == 0
    shown = capsys.readouterr().out
    assert "No value of this table depends on --smoothness, --diameter." in shown
    assert main([*words, "--smoothness", "1"]) == 2
    assert "batch_size: got none" in capsys.readouterr().err
