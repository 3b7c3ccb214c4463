"""The command that a practitioner runs before training."""

import json
import re
import subprocess
import sys

import pytest
from scipy import stats

from hiddenstate.accounting import tradeoff
from hiddenstate.accounting.linear import full_batch_epsilon, last_iterate_epsilon
from hiddenstate.accounting.linear import tradeoff_curve as linear_curve
from hiddenstate.accounting.weighted import epsilon as weighted_epsilon
from hiddenstate.accounting.weighted import optimiser_weights
from hiddenstate.cli import main

MECHANISM = {"--sigma": "0.5", "--q": "0.01", "--steps": "100", "--delta": "1e-6"}


def arguments(**changes):
    options = MECHANISM | {f"--{name}": value for name, value in changes.items()}
    return ["epsilon", *(word for pair in options.items() for word in pair)]


def test_three_numbers_and_a_warning(capsys):
    assert main(arguments()) == 0
    shown = capsys.readouterr().out
    numbers = dict(re.findall(r"^([\w, é-]+?) {2,}([0-9.]+)  ", shown, re.M))
    assert float(numbers["standard epsilon"]) == pytest.approx(7.9161, abs=2e-3)
    heuristic = last_iterate_epsilon(0.5, 0.01, 100, 1e-6)
    assert float(numbers["linear heuristic"]) == pytest.approx(heuristic, rel=5e-4)
    assert float(numbers["full-batch heuristic"]) == pytest.approx(
        full_batch_epsilon(0.5, 0.01, 100, 1e-6), rel=5e-4
    )
    assert float(numbers["standard epsilon"]) < float(numbers["standard epsilon, by Rényi DP"])
    assert "no guarantee" in shown


def test_a_printed_upper_bound_is_not_below_the_certified_one(capsys):
    """Rounded to nearest, 12.5783636 stood below the lower end of the bracket."""
    options = arguments(sigma="1.1", q="1", steps="7", delta="1e-5")
    assert main(options) == 0
    printed = re.search(r"^standard epsilon +([0-9.]+)", capsys.readouterr().out, re.M)
    assert main([*options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["epsilon"]["standard epsilon"]
    assert found["lower"] <= found["epsilon"] <= float(printed[1])
    assert float(printed[1]) <= found["epsilon"] * (1 + 1e-3)


@pytest.mark.whole
def test_json_of_an_optimiser(capsys):
    optimiser = ["--schedule", "cosine", "--momentum", "0.9", "--weight-decay", "0.01"]
    assert main([*arguments(), *optimiser, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["schedule"] == "cosine"
    weights = optimiser_weights(100, schedule="cosine", momentum=0.9, weight_decay=0.01)
    bounds = weighted_epsilon(0.5, 0.01, weights, 1e-6)
    heuristic = shown["epsilon"]["linear heuristic"]
    assert (heuristic["lower"], heuristic["epsilon"]) == pytest.approx(bounds)
    standard = shown["epsilon"]["standard epsilon"]
    assert 0 < standard["epsilon"] - standard["lower"] < 2e-3


def test_the_anchor(capsys):
    anchor = {"sigma": "1.3", "q": "0.05", "steps": "777", "delta": "1e-5"}
    assert main(arguments(**anchor)) == 0
    numbers = dict(re.findall(r"^([\w, é-]+?) {2,}([0-9.]+)  ", capsys.readouterr().out, re.M))
    assert float(numbers["linear heuristic"]) == 5.037
    assert 0 < float(numbers["standard epsilon"]) - 6.00392 < 2e-3


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
        ("q", "2", "--sampling-rate: got 2; expected a probability"),
        ("steps", "0", "steps: got 0"),
        ("delta", "1", "delta: got 1.0"),
    ],
)
def test_bad_input_is_told_without_a_traceback(capsys, name, value, message):
    assert main(arguments(**{name: value})) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.out == ""


def test_an_accountant_that_says_nothing_says_why_and_the_others_answer(capsys):
    assert main(arguments(steps="10000000000")) == 0
    shown = capsys.readouterr().out
    assert re.search(
        r"^standard epsilon +--  none: --steps: got 10000000000; expected at most", shown, re.M
    )
    assert re.search(r"^standard epsilon, by Rényi DP +[0-9.]+ ", shown, re.M)


def test_a_cold_start_imports_nothing_heavy():
    """Processor time is what the user waits for; these take half a second to three each."""
    code = (
        "import sys; from hiddenstate.cli import main;"
        "main(sys.argv[1:]);"
        "print(sorted({'pandas', 'pyarrow', 'torch', 'dp_accounting', 'scipy.stats', 'matplotlib'}"
        " & set(sys.modules)))"
    )
    words = ["epsilon", "--steps", "777", "--q", ".05", "--sigma", "1.3", "--delta", "1e-5"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert "5.037" in done.stdout


def test_the_default_rows_import_no_optimiser_and_the_parser_no_numpy():
    """What importing them took was most of the command's time."""
    words = ["epsilon", "--sigma", "1", "--q", "0.1", "--steps", "10", "--delta", "1e-5"]
    program = (
        "import sys; from hiddenstate import cli; first = 'numpy' in sys.modules; "
        f"cli.main({words!r}); print(first, 'scipy.optimize' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "False False", done.stderr


@pytest.mark.whole
def test_attacks_at_a_false_positive_rate_are_bounded_by_the_exact_trade_off(capsys, tmp_path):
    """Of full batches and of linear losses it is known; a bound is below it by very little."""
    words = ["epsilon", "--sampler", "full", "--sigma", "20", "--steps", "100", "--delta", "1e-5"]
    picture = tmp_path / "curve.png"
    assert main([*words, "--alpha", "0.05", "--json", "--figure", str(picture)]) == 0
    assert picture.stat().st_size > 10_000
    found = json.loads(capsys.readouterr().out)["attacks"]
    exact = float(tradeoff.gaussian(0.5, 0.05))
    advantage = 1 - 2 * stats.norm.cdf(-0.25)
    for name in ("standard epsilon", "linear heuristic"):
        assert exact - 2e-3 <= found[name]["beta"] <= exact
        assert advantage <= found[name]["advantage"] <= advantage + 2e-3
    assert main([*words, "--alpha", "0.05"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "No attack that accuses 5 % of the absent records finds more than 12.7 % of the" in shown
    assert main([*arguments(alpha="0.1"), "--json"]) == 0
    beta = json.loads(capsys.readouterr().out)["attacks"]["linear heuristic"]["beta"]
    curve = linear_curve(0.5, 0.01, 100, null="either")
    assert float(curve(0.1)) - 3e-3 <= beta <= float(curve(0.1)) + 1e-5


def test_a_rate_that_is_none_is_refused(capsys):
    assert main(arguments(alpha="1.5")) == 2
    assert "--alpha" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "words", "standard"),
    [
        (["--group", "5"], "add or remove 5 records", 25.34),
        (["--adjacency", "swap"], "swap a record", 5.723),
        (["--sampler", "fixed-size"], "drawn without replacement (swap a record)", 20.36),
    ],
)
def test_groups_swaps_and_fixed_sizes(capsys, more, words, standard):
    setting = ["--records", "6000", "--batch-size", "256", "--epochs", "10"]
    assert main(["epsilon", "--sigma", "1.1", "--delta", "1e-5", *setting, *more]) == 0
    shown = capsys.readouterr().out
    assert words in " ".join(shown.split())
    value = float(re.search(r"standard epsilon +([0-9.]+)", shown)[1])
    assert value == pytest.approx(standard, rel=2e-3)


def test_the_answer_names_a_smaller_bound_of_the_last_iterate_only_where_there_is_one(capsys):
    order = ["epsilon", "--sampler", "cyclic", "--records", "10000", "--batch-size", "100"]
    order += ["--sigma", "5", "--steps", "1000", "--delta", "1e-5", "--smoothness", "1"]
    assert main(order) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "If only the last iterate is released, 2.64 is proven for the losses that its row" in shown
    )
    domain = ["epsilon", "--sampler", "full", "--sigma", "5", "--steps", "20", "--delta", "1e-5"]
    domain += ["--convex", "--smoothness", "0", "--diameter", "1e6", "--batch-size", "1"]
    assert main(domain) == 0
    shown = capsys.readouterr().out
    assert "If only the last iterate" not in shown
    assert all(len(line) <= 100 for line in shown.splitlines())


def test_what_all_iterates_of_a_drawn_order_leak_is_between_two_numbers(capsys):
    order = ["epsilon", "--sampler", "reshuffled", "--records", "1000", "--batch-size", "100"]
    assert main([*order, "--sigma", "2", "--steps", "100", "--delta", "1e-5"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "In the worst case all iterates leak between 6.11 and 17.9;" in shown


@pytest.mark.whole
def test_records_that_sit_out_of_shuffled_batches(capsys):
    order = ["epsilon", "--sampler", "reshuffled", "--records", "1050", "--batch-size", "100"]
    order += ["--sigma", "2", "--epochs", "10", "--delta", "1e-5"]
    assert main([*order, "--drop-last"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "100 steps through 1,050 records" in shown
    assert "in each epoch without 50 records that sit out (swap a record)" in shown
    least = float(shown.split("Report epsilon = ")[1].split()[0])
    assert least < 0.9 * 17.86  # that of known batches
    assert main(order) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "110 steps through 1,050 records" in shown
    assert "sit out" not in shown
    assert main(["epsilon", "--q", "0.1", "--drop-last", *order[7:]]) == 2
    assert "--drop-last: got --sampler poisson" in capsys.readouterr().err
