"""Numbers in print and in JSON: no upper bound below itself, no lower bound above, none cut."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from command_line import run

from hiddenstate.commands.printing import records


def printed(capsys, pattern, *arguments):
    """The number that a command prints in words, and what it prints as JSON."""
    _, out, _ = run(capsys, *arguments)
    return float(re.search(pattern, out).group(1)), json.loads(run(capsys, *arguments, "--json")[1])


def test_json_has_every_digit():
    values = [0.02253200553734339, 1.8612718076176275e-15, 1e300, np.nan, np.inf]
    frame = pd.DataFrame(
        {"value": values, "list": [[1.0, np.nan]] * 5, "name": ["a", None] * 2 + ["b"]}
    )
    found = json.loads(json.dumps(records(frame)))
    assert [row["value"] for row in found] == [*values[:3], None, None]
    assert found[0]["list"] == [1.0, None]
    assert [row["name"] for row in found] == ["a", None, "a", None, "b"]


@pytest.mark.parametrize("mu", [0.7, 0.9, 3.1])
def test_what_half_of_the_audits_bound_is_rounded_up(capsys, tmp_path, mu):
    path, rng = tmp_path / "scores.csv", np.random.default_rng(0)
    world = np.where(rng.random(400) < 0.5, "in", "out")
    pd.DataFrame({"world": world, "score": rng.normal(world == "in")}).to_csv(path, index=False)
    asked = ("audit-one-run", path, "--planned-mu", mu)
    shown, told = printed(capsys, r"bound mu by at most ([\d.]+),", *asked)
    assert told["ceiling"] <= shown <= 1.01 * told["ceiling"]


@pytest.mark.parametrize("claim", [0.5, 1.2, 2.0])
def test_the_noise_that_steps_can_refute_is_rounded_down(capsys, tmp_path, claim):
    path = tmp_path / "steps.csv"
    path.write_text("made,right\n" + "30,15\n" * 200)
    asked = ("audit-steps", path, "--noise-multiplier", claim)
    shown, told = printed(capsys, r"noise multiplier is ([\d.]+) or less", *asked)
    assert 0.9 * told["reach"] <= shown <= told["reach"]


@pytest.mark.parametrize("seconds", [130, 170])
def test_hours_at_most_are_rounded_up(capsys, seconds):
    asked = ("plan-audit", "--claim-mu", "1", "--true", "3", "--seconds", seconds)
    _, out, _ = run(capsys, *asked)
    lines = [line.split("|") for line in out.splitlines() if "|" in line][2:]
    shown = [float(line[-2]) for line in lines]
    rows = json.loads(run(capsys, *asked, "--json")[1])
    rows = rows["plans"]
    assert all(row["hours"] <= number for row, number in zip(rows, shown, strict=True))


EPSILON = ("epsilon", "--sigma", 1, "--delta", 1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("audit-steps", "FILE"), "line 3: made: got 9223372036854775807; expected a whole"),
        (("plan-audit", "--claim-mu", 1, "--true", 3, "--seconds", "inf"), "--seconds: got inf"),
        (("plan-audit", "--claim-mu", 1, "--true", 3, "--delta", 5), "delta: got 5.0; expected a"),
        (("epsilon", "--sigma", 1e-5, "--q", 0.01, "--steps", 9, "--delta", 1e-5),
         "noise_multiplier: got 1e-05; expected a number from 0.001"),
        ((*EPSILON, "--q", 0.1, "--steps", 10**20), "than 9,007,199,254,740,992"),
        ((*EPSILON, "--q", 0.1, "--epochs", 1e300),
         "--epochs: got 1e+300; expected less than 9,007,199,254,740,992 steps, of which"),
        ((*EPSILON, "--q", 5e-324, "--epochs", 1), "--epochs: got 1; expected"),
        ((*EPSILON, "--sampler", "full", "--epochs", 1e17), "--epochs: got 1e+17; expected"),
        ((*EPSILON, "--records", 10, "--batch-size", "nan", "--epochs", 3,
          "--sampler", "fixed-size"),
         "--batch-size: got nan; expected a number of 1e-30 or more"),
        ((*EPSILON, "--records", 10, "--batch-size", "inf", "--epochs", 3, "--sampler", "cyclic"),
         "--batch-size: got inf"),
        ((*EPSILON, "--records", 10, "--batch-size", 1e-300, "--epochs", 3,
          "--sampler", "balls-and-bins"), "--batch-size: got 1e-300"),
        ((*EPSILON, "--records", 10**400, "--batch-size", 5, "--epochs", 3),
         "expected 1 to 1,000,000,000,000,000"),
        (("epsilon", "--sigma", 1, "--q", 1e-300, "--steps", 9, "--delta", 1e-5),
         "sampling_rate: got 1e-300; expected a number from 1e-50"),
        (("audit", "SCORES", "--delta", 0, "--null-law", "norm", 0, "inf"), "got 0 inf; "),
        (("audit", "SCORES", "--delta", 0, "--null-law", "norm", 0, 0), "--null-law: got 0 0"),
    ],
)  # fmt: skip
def test_numbers_that_overflow_or_are_no_law_are_refused(capsys, tmp_path, arguments, message):
    steps, scores = tmp_path / "steps.csv", tmp_path / "scores.csv"
    steps.write_text("made,right\n10,9\n9223372036854775807,9\n")
    pd.DataFrame({"world": "in", "score": np.arange(20.0)}).to_csv(scores, index=False)
    places = {"FILE": steps, "SCORES": scores}
    status, _, err = run(capsys, *(places.get(one, one) for one in arguments))
    assert status == 2
    assert message in err


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_whole_numbers_beyond_doubles_are_scores_too(capsys, tmp_path, suffix):
    path = tmp_path / f"scores{suffix}"
    scores = 10**18 + np.arange(40) * 10**6
    frame = pd.DataFrame({"world": ["out"] * 20 + ["in"] * 20, "score": scores})
    frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path)
    status, out, _ = run(capsys, "audit", path, "--delta", 1e-5)
    assert status == 0
    assert "epsilon" in out
