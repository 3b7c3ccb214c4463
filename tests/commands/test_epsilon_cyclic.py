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
    numbers = dict(re.findall(r"^(\w+(?:, clipped)?) {2,}([0-9.]+) ", shown, re.M))
    # The learning rate is that of `epsilon`, 0.1.
    setting = Setting(
        sampling=Cyclic(10), records=1000, steps=1000, noise_multiplier=2.0,
        learning_rate=0.1, weak_convexity=0.01, smoothness=1.0,
    )  # fmt: skip
    expected = {g.bound.key: g.epsilon for g in bounds.found(setting, 1e-5)}
    assert {name: float(value) for name, value in numbers.items()} == pytest.approx(expected)
    upper = [name for name in numbers if name != "heuristic"]
    assert all(float(numbers[name]) >= expected[name] for name in upper)
    assert expected["gaussian"] < expected["paper"] < expected["composition"]
    for domain in ("all iterates released", "clipping turns no gradient", "any losses of this"):
        assert domain in shown


def test_a_domain_only_helps_and_json_says_all(capsys):
    assert main([*arguments(diameter="0.001"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["sampler"], shown["records"], shown["diameter"]) == ("cyclic", 1000, 0.001)
    assert main([*arguments(), "--json"]) == 0
    free = json.loads(capsys.readouterr().out)
    assert shown["epsilon"]["gaussian"]["epsilon"] < free["epsilon"]["gaussian"]["epsilon"]


def test_orders_and_losses_of_which_more_is_known(capsys):
    def epsilons(**changes):
        assert main([*arguments(weak_convexity="0", **changes), "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        return {name: one["epsilon"] for name, one in shown["epsilon"].items()}

    fixed = epsilons()
    shuffled = epsilons(sampler="shuffled", strong_convexity="0.1")
    assert shuffled["strongly convex"] < shuffled["gaussian"]
    assert shuffled["gaussian"] < fixed["gaussian"]
    redrawn = epsilons(sampler="reshuffled", strong_convexity="0.1")
    assert set(redrawn) == {"composition", "heuristic", "at least", "Poisson"}
    assert redrawn["composition"] == fixed["composition"]
    assert redrawn["at least"] < shuffled["at least"]
    rough = epsilons(holder="0.5", diameter="0.001")
    assert set(rough) == {"composition", "domain", "Hölder", "heuristic"}
    assert rough.pop("heuristic") is None
    assert rough["Hölder"] < rough["domain"] <= rough["composition"]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"batch_size": "3"}, "batch_size: got 3; expected a divisor of 1000 records"),
        ({"records": None}, "--records: got none"),
        ({"sampling_rate": "0.01"}, "--sampling-rate: expected only with --sampler poisson"),
        ({"momentum": "0.9"}, "--momentum: expected only with --sampler poisson"),
        ({"smoothness": None}, "--weak-convexity: expected only with --smoothness"),
        ({"sampler": "full"}, "--records: expected only with --sampler cyclic"),
        ({"sampler": "poisson"}, "--records: expected only with --sampler cyclic"),
    ],
)
def test_what_does_not_belong_together_is_refused(capsys, changes, message):
    assert main(arguments(**changes)) == 2
    assert message in capsys.readouterr().err


def test_a_sampling_rate_is_needed_where_batches_are_sampled(capsys):
    assert main(["epsilon", "--sigma", "1", "--steps", "10", "--delta", "1e-5"]) == 2
    assert "--sampling-rate: got none" in capsys.readouterr().err


def test_every_record_in_every_step_is_a_sampler(capsys):
    numbers = ["--noise-multiplier", "5", "--steps", "50", "--delta", "1e-5"]
    assert main(["epsilon", "--sampler", "full", *numbers]) == 0
    full = capsys.readouterr().out
    assert main(["epsilon", "--sampling-rate", "1", *numbers]) == 0
    assert capsys.readouterr().out == full
    assert main(["epsilon", "--sampler", "full", "--sampling-rate", "1", *numbers]) == 2
    assert "--sampling-rate: expected only with --sampler poisson" in capsys.readouterr().err
