"""The noise that a target epsilon needs."""

import functools
import json

import pytest

from hiddenstate.accounting import composition, gaussian, linear, sitting_out
from hiddenstate.cli import main

TARGET = ["noise", "--target-epsilon", "2", "--delta", "1e-5"]


def answered(capsys, *more):
    assert main([*TARGET, *more, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["noise"]


@pytest.mark.whole
def test_the_noise_meets_the_target_and_little_less_does_not(capsys):
    found = answered(capsys, "--q", "0.1", "--steps", "50")
    standard, heuristic = (one["noise_multiplier"] for one in found.values())
    assert composition.bracket(standard, 0.1, 50, 1e-5, width=1e-4).upper <= 2
    assert composition.bracket(0.97 * standard, 0.1, 50, 1e-5, width=1e-4).lower > 2
    assert linear.last_iterate_epsilon(heuristic, 0.1, 50, 1e-5) <= 2
    assert linear.last_iterate_epsilon(0.999 * heuristic, 0.1, 50, 1e-5) > 2


def test_an_order_and_its_optimiser(capsys):
    order = ["--sampler", "cyclic", "--records", "100", "--batch-size", "10", "--epochs", "3"]
    found = answered(capsys, *order, "--momentum", "0.5")
    standard = found["standard epsilon"]["noise_multiplier"]
    # Three visits of a swapped record.
    assert gaussian.mu(2.0, 1e-5) == pytest.approx(2 * 3**0.5 / standard, rel=1e-3)
    assert found["standard epsilon"]["epsilon"] <= 2
    assert found["linear heuristic"]["noise_multiplier"] < standard


def test_a_bound_that_is_refused_ends_in_its_reason(capsys):
    bins = ["--sampler", "balls-and-bins", "--records", "100", "--batch-size", "10"]
    assert main([*TARGET, *bins, "--epochs", "3", "--group", "2"]) == 2
    assert "error: standard epsilon: not known with --group" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--q", "0.1", "--steps", "5", "--target-epsilon", "0"], "--target-epsilon: got 0"),
        (["--q", "1e-7", "--steps", "5"], "no noise is needed"),
        (["--q", "0.1"], "--steps: missing"),
    ],
)
def test_what_cannot_be_met_is_said(capsys, more, message):
    assert main([*TARGET, *more]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.whole
def test_the_answer_in_words(capsys):
    assert main([*TARGET, "--records", "1000", "--batch-size", "100", "--epochs", "2"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Use noise multiplier ")
    assert "That is no guarantee." in shown
    assert "20 steps" in shown


@pytest.mark.whole
def test_the_least_proven_epsilon_meets_the_target(capsys, monkeypatch):
    """Where another bound than the standard one is what ``hiddenstate epsilon`` reports."""
    # Two commands try the same multipliers.
    for name in ("swapped", "added_or_removed"):
        monkeypatch.setattr(sitting_out, name, functools.cache(getattr(sitting_out, name)))
    order = ["--sampler", "reshuffled", "--drop-last", "--records", "1030", "--batch-size", "100"]
    found = answered(capsys, *order, "--epochs", "10")
    proven = found["shuffled, some records sit out"]["noise_multiplier"]
    assert proven < 0.9 * found["standard epsilon"]["noise_multiplier"]
    for noise, met in ((proven, True), (0.99 * proven, False)):
        command = ["epsilon", *order, "--epochs", "10", "--delta", "1e-5", "--json"]
        assert main([*command, "--noise-multiplier", str(noise)]) == 0
        rows = json.loads(capsys.readouterr().out)["epsilon"]
        assert (rows["shuffled, some records sit out"]["epsilon"] <= 2) is met
    assert main([*TARGET, *order, "--epochs", "10"]) == 0
    assert capsys.readouterr().out.startswith(f"Use noise multiplier {proven:.3g}")


def test_what_the_last_iterate_needs_is_less_and_says_for_whom(capsys):
    """Every bound counts that ``hiddenstate epsilon`` lists for the setting."""
    order = ["--sampler", "cyclic", "--records", "100", "--batch-size", "10", "--epochs", "50"]
    order += ["--smoothness", "1", "--convex"]
    found = answered(capsys, *order)
    last = found["cyclic, clipped"]["noise_multiplier"]
    assert last < 0.5 * found["standard epsilon"]["noise_multiplier"]
    for noise, met in ((last, True), (0.99 * last, False)):
        command = ["epsilon", *order, "--delta", "1e-5", "--json", "--noise-multiplier", str(noise)]
        assert main(command) == 0
        rows = json.loads(capsys.readouterr().out)["epsilon"]
        assert (rows["cyclic, clipped"]["epsilon"] <= 2) is met
    assert main([*TARGET, *order]) == 0
    least = found["cyclic, clipping without effect"]["noise_multiplier"]
    said = " ".join(capsys.readouterr().out.split())
    assert f"If only the last iterate is released, {least:.4g} is proven to be enough" in said
    assert "if clipping is never active" in said


def test_options_that_change_nothing_are_named(capsys):
    assert main([*TARGET, "--q", "0.1", "--steps", "5", "--convex", "--holder", "0.5"]) == 0
    assert "Nothing of this depends on --holder, --convex.\n" in capsys.readouterr().out


@pytest.mark.parametrize("sampler", ["poisson --sampling-rate 0.1", "full"])
def test_a_target_that_needs_too_little_noise_is_named(sampler, capsys):
    """The message was of a noise multiplier that nobody gave."""
    given = f"noise --sampler {sampler} --steps 10 --delta 1e-5 --target-epsilon 1e300"
    assert main(given.split()) == 2
    assert "--target-epsilon: got 1e+300; expected a number above 0, and" in capsys.readouterr().err
