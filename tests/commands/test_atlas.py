"""The command that compares every bound on a user's own setting."""

import json
import re
import subprocess
import sys

import pytest

from hiddenstate.accounting import composition
from hiddenstate.accounting.linear import last_iterate_epsilon
from hiddenstate.cli import main

MECHANISM = {"--sigma": "1", "--q": "0.1", "--steps": "20", "--delta": "1e-5", "--runs": "100"}


def arguments(**changes):
    options = MECHANISM | {f"--{name}": value for name, value in changes.items()}
    return ["atlas", *(word for pair in options.items() if pair[1] for word in pair)]


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    """JSON and picture of one setting, where there is no torch and no source tree."""
    place = tmp_path_factory.mktemp("atlas")
    more = ["--json", "--figure", "atlas.png"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *arguments(), *more],
        capture_output=True,
        text=True,
        cwd=place,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout), place / "atlas.png"


WITHOUT_TORCH = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "opacus", "sklearn", "snakemake"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
from hiddenstate.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""The command line where the library alone is installed."""


def test_every_bound_is_there_with_its_assumption(answered):
    found, _ = answered
    rows = {row["name"]: row for row in found["bounds"] if row["group"] != "trained"}
    bracket = composition.fine_bracket(1.0, 0.1, 20, 1e-5)
    assert rows["standard epsilon"]["value"] == pytest.approx(bracket.upper, abs=1e-9)
    heuristic = float(last_iterate_epsilon(1.0, 0.1, 20, 1e-5))
    assert rows["linear heuristic"]["value"] == pytest.approx(heuristic, abs=1e-9)
    assert {f"gradient-crafting audit, k = {k}" for k in (1, 5, 25)} < set(rows)
    assert {"standard epsilon, by Rényi DP", "full-batch heuristic", "quadratic regulariser"} < set(
        rows
    )
    assert {"history regulariser", "encoding-loss audit"} < set(rows)
    trained = {row["name"]: row for row in found["bounds"] if row["group"] == "trained"}
    assert {"worst-case-initialisation audit", "gradient-crafting audit, k = 5"} < set(trained)
    for row in trained.values():
        assert f"yours is {bracket.upper:.3f}" in row["assumption"]
    assert found["setting"]["sampler"] == "poisson"
    assert found["setting"]["sampling_rate"] == 0.1
    assert all(row["assumption"] for row in found["bounds"])
    assert [line.split(",")[0].split(":")[0].split(".")[0] for line in found["answer"][1:3]] == [
        "If every loss were linear",
        "In the worst case hiding the iterates saves next to nothing",
    ]
    # The largest of several bounds at 95 % was said to hold at 95 %.
    audits = [row["value"] for row in found["bounds"] if row["group"] == "simulated"]
    audits = [value for value in audits if value is not None]
    last = found["answer"][-1]
    assert len(audits) == 3 and last.startswith("The strongest of 3 simulated attacks")
    assert last.endswith("with 95 % confidence, which each attack has of its own.")
    assert float(re.search(r"epsilon >= ([0-9.]+)", last)[1]) <= max(audits)


def test_the_picture_is_written(answered):
    assert answered[1].read_bytes().startswith(b"\x89PNG")
    assert answered[1].stat().st_size > 20_000


@pytest.mark.whole
def test_a_fixed_order_and_trainings_that_stand_apart(capsys):
    cyclic = [
        "--sampler",
        "cyclic",
        "--records",
        "100",
        "--batch-size",
        "10",
        "--smoothness",
        "1",
    ]
    assert main([*arguments(q=None), *cyclic]) == 0
    shown = capsys.readouterr().out
    assert "audits of trainings at other settings" in shown
    assert re.search(r"^ +worst-case-initialisation audit +[0-9]+ % +another setting", shown, re.M)
    # The first lines answer the question.
    proven, curved = (
        float(re.search(rf"^ +{name} +([0-9.]+)", shown, re.M)[1])
        for name in ("standard epsilon", "cyclic, clipped")
    )
    answer = re.sub(r"\s+", " ", shown)
    reported = re.match(r"Report epsilon = ([0-9.]+)\. It holds for every loss", answer)
    assert 0 <= float(reported[1]) - proven < 0.01 * proven
    stated = re.search(r"alone leaks at most ([0-9.]+) if[^.]*cyclic, clipped\"", answer)
    assert 0 <= float(stated[1]) - curved < 0.01 * curved


@pytest.mark.parametrize(
    ("changes", "more", "message"),
    [
        ({"sigma": "0"}, [], "noise_multiplier: got 0.0; expected a number from 0.001"),
        ({"q": "2"}, [], "--sampling-rate: got 2; expected a probability"),
        ({"steps": "0"}, [], "steps: got 0"),
        ({"delta": "1"}, [], "delta: got 1.0"),
        ({"delta": "nan"}, [], "delta: got nan"),
        ({"runs": "3"}, [], "runs: got 3"),
        ({"seed": "-1"}, [], "seed: got -1; expected a whole number from 0"),
        ({"steps": "2000000"}, [], "steps: got 2000000; expected at most 1,000,000"),
        ({"q": None}, [], "--sampling-rate: missing"),
        ({}, ["--batch-size", "0"], "--batch-size: got 0; expected a number of 1e-30 or more"),
        ({}, ["--figure", "atlas.gif"], "--figure: got atlas.gif"),
        (
            {"q": None},
            [
                "--sampler",
                "cyclic",
                "--records",
                "100",
                "--batch-size",
                "300",
            ],
            "batch_size: got 300",
        ),
    ],
)
def test_bad_input_is_told_without_a_traceback(capsys, changes, more, message):
    assert main([*arguments(**changes), *more]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.out == ""


@pytest.mark.whole
@pytest.mark.parametrize("command", ["epsilon", "audit"])
def test_the_other_commands_of_the_library_need_no_torch(tmp_path, command):
    scores = tmp_path / "scores.csv"
    scores.write_text("world,score\n" + "".join(f"in,{2 + i}\nout,{-i}\n" for i in range(30)))
    words = {
        "epsilon": ["epsilon", *arguments()[1:-2]],
        "audit": ["audit", str(scores), "--delta", "1e-5"],
    }
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *words[command]], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "epsilon" in done.stdout
