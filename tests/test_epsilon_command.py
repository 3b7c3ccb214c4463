"""The command that a practitioner runs before training."""

import re

import pytest

from hiddenstate.accounting.linear import full_batch_epsilon, last_iterate_epsilon
from hiddenstate.cli import main

MECHANISM = {"--sigma": "0.5", "--q": "0.01", "--steps": "100", "--delta": "1e-6"}


def arguments(**changes):
    options = MECHANISM | {f"--{name}": value for name, value in changes.items()}
    return ["epsilon", *(word for pair in options.items() for word in pair)]


def test_three_numbers_and_a_warning(capsys):
    assert main(arguments()) == 0
    shown = capsys.readouterr().out
    numbers = dict(re.findall(r"^(standard|heuristic|full batch) +([0-9.]+)", shown, re.M))
    assert float(numbers["standard"]) == pytest.approx(7.9161, abs=2e-3)
    heuristic = last_iterate_epsilon(0.5, 0.01, 100, 1e-6)
    assert float(numbers["heuristic"]) == pytest.approx(heuristic, abs=1e-6)
    assert float(numbers["full batch"]) == pytest.approx(
        full_batch_epsilon(0.5, 0.01, 100, 1e-6), abs=1e-6
    )
    assert "NO GUARANTEE" in shown


def test_long_names_mean_the_same(capsys):
    assert main(arguments()) == 0
    short = capsys.readouterr().out
    words = ["--noise-multiplier", "0.5", "--sampling-rate", "0.01"]
    assert main(["epsilon", *words, "--steps", "100", "--delta", "1e-6"]) == 0
    assert capsys.readouterr().out == short


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("sigma", "0", "noise_multiplier: got 0.0"),
        ("q", "2", "sampling_rate: got 2.0"),
        ("steps", "0", "steps: got 0"),
        ("delta", "1", "delta: got 1.0"),
    ],
)
def test_bad_input_is_told_without_a_traceback(capsys, name, value, message):
    assert main(arguments(**{name: value})) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.out == ""
