"""Audits by the steps of a training."""

import json

import numpy as np
import pytest
from scipy.stats import norm

from hiddenstate import cli
from hiddenstate.auditing import StepAudit
from hiddenstate.errors import InputError
from hiddenstate.streams import stream

SIGMA = 0.6
MAY = norm.cdf(0.5 / SIGMA)  # a guess is right so often, at most


def guessed(case, right, made, audits, alike=False):
    """Right guesses; shape (audits, steps). alike: all canaries of a step are right or none is."""
    rng = stream(3, "steps", case)
    if alike:
        return made * (rng.random((audits, len(made))) < right)
    return rng.binomial(made, right, size=(audits, len(made)))


@pytest.mark.whole
@pytest.mark.parametrize("alike", [False, True], ids=["independent", "alike"])
@pytest.mark.parametrize("made", [[1] * 60, [0, 7, 12, 0, 3] * 12], ids=["one", "several"])
def test_a_true_claim_is_refuted_at_any_step_no_more_often_than_the_level(alike, made):
    rows = guessed("true", MAY, np.array(made), 2_000, alike)
    values = np.array([StepAudit(made, row).p_value(SIGMA) for row in rows])
    for level in (0.2, 0.05, 0.01):
        allowed = level + 3 * np.sqrt(level * (1 - level) / len(values))
        assert (values <= level).mean() <= allowed
    bounds = np.array([StepAudit(made, row).bound for row in rows[:300]])
    assert (bounds < SIGMA).mean() <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 300)


def test_the_study_sees_a_probability_that_is_a_little_too_small():
    """A rule that allowed 3 % fewer right guesses would be caught by it."""
    made = np.full(400, 5)
    rows = guessed("wrong", MAY, made, 300, alike=True)
    wrong = 0.5 / norm.ppf(0.97 * MAY)
    values = np.array([StepAudit(made, row).p_value(wrong) for row in rows])
    assert (values <= 0.05).mean() > 0.05 + 3 * np.sqrt(0.05 * 0.95 / 300)


def test_too_little_noise_is_found_within_a_few_trainings_of_twenty_steps():
    made = np.full(100, 20)
    rows = guessed("half", norm.cdf(0.5 * np.sqrt(2) / SIGMA), made, 200)
    assert np.mean([StepAudit(made, row).p_value(SIGMA) <= 0.05 for row in rows]) > 0.95


def test_p_values_are_the_wealth_of_the_bets():
    made, right = [4, 0, 2], [4, 0, 1]
    bets = np.linspace(0.05, 1, 20)
    first = (1 + bets * (1 / MAY - 1)).mean()
    both = ((1 + bets * (1 / MAY - 1)) * (1 + bets * (0.5 / MAY - 1))).mean()
    found = StepAudit(made, right).p_values(SIGMA)
    assert found == pytest.approx([1 / first] * 2 + [1 / max(first, both)], rel=1e-8)
    assert (found >= [1 / first, 1 / first, 1 / max(first, both)]).all()


def test_the_bound_is_what_the_p_value_refutes():
    audit = StepAudit([20] * 40, [18] * 40)
    assert audit.p_value(audit.bound) <= 0.05 < audit.p_value(0.995 * audit.bound)
    assert StepAudit([20] * 40, [10] * 40).bound == np.inf
    assert StepAudit([0] * 9, [0] * 9).p_values(SIGMA).tolist() == [1.0] * 9


def test_reach_is_what_such_an_audit_finds():
    audit = StepAudit([20] * 60, [15] * 60)
    made, reach = audit.made, audit.reach(SIGMA)
    assert 0 < reach < SIGMA and StepAudit([0], [0]).reach(SIGMA) == 0
    for factor, low, high in ((1.0, 0.84, 1.0), (1.1, 0.0, 0.85)):
        rows = guessed("reach", norm.cdf(0.5 / (factor * reach)), made, 300)
        share = np.mean([StepAudit(made, row).p_value(SIGMA) <= 0.05 for row in rows])
        assert low <= share <= high


@pytest.mark.parametrize(
    ("made", "right", "expected"),
    [
        ([2, 2], [1, 3], "right: step 2 has 3 of 2"),
        ([2, 2], [1, -1], "right: step 2 has -1 of 2"),
        ([2, 2], [1], "right: got 1; expected 2"),
        ([], [], "made: expected a whole number"),
        ([1.5], [1], "made: expected a whole number"),
    ],
)
def test_what_are_no_guesses_is_refused(made, right, expected):
    with pytest.raises(InputError, match=expected):
        StepAudit(made, right)


@pytest.mark.parametrize("noise", [0.0, -1.0, np.inf, np.nan])
def test_a_noise_that_is_no_number_above_0_is_refused(noise):
    expected = r"noise_multiplier: got .*; expected (a|one finite) number"
    with pytest.raises(InputError, match=expected):
        StepAudit([20], [15]).p_values(noise)


def test_the_command(tmp_path, capsys):
    path, other = tmp_path / "a.csv", tmp_path / "b.csv"
    for file in (path, other):
        file.write_text("made,right\n" + "20,18\n" * 30)
    found = StepAudit([20] * 60, [18] * 60)
    command = ["audit-steps", str(path), str(other), "--noise-multiplier", "0.6"]
    assert cli.main([*command, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["noise_multiplier_at_most"] == found.bound
    assert told["p_value"] == found.p_value(0.6) <= 0.05 < found.p_values(0.6)[30]
    assert found.p_values(0.6)[told["refuted_at_step"] - 1] <= 0.05
    assert cli.main(command) == 1 and "REFUTED at step" in capsys.readouterr().out
    assert cli.main([*command[:3], "--noise-multiplier", "0.5"]) == 0
    assert "with 90 % probability if the noise multiplier" in capsys.readouterr().out
    assert cli.main(["audit-steps", str(path)]) == 0
    assert "Some step has a noise multiplier of at most" in capsys.readouterr().out
    for text, expected in (
        (
            "made,right\n3,4\n",
            "a.csv: line 2: right: got 4; expected a whole number from 0 to the guesses",
        ),
        ("made,right\nx,4\n", "a.csv: line 2: made: got x; expected a whole number from 0 to"),
        ("made,right\n\n3,3\n\n3,\n", "a.csv: line 5: right: got nothing; expected a whole number"),
        ("made,right\n3,2.5\n", "a.csv: line 2: right: got 2.5; expected a whole number"),
        ("made,right\nTrue,True\n", "a.csv: line 2: made: got True; expected a whole number"),
        ("made,right\n-3,-3\n", "a.csv: line 2: made: got -3; expected a whole number"),
        ("made;right\n3;3\n", "a.csv: columns: got made;right; expected made, right"),
        ("made,right,seed\n3,3,1\n", "columns: got made, right, seed; expected made, right"),
        ("made,right\n", "a.csv: has no rows"),
        ("made,right\n" + "200,100,99\n" * 20, "a.csv: line 2: fields: got 3; expected 2, as in"),
        ("made,right\n3,3\n\n3\n", "a.csv: line 4: fields: got 1; expected 2, as in the header"),
        ("made,right\n0,0\n", "b.csv: made: got 0 in each row; expected guesses"),
        ("", "a.csv: not a readable CSV file"),
    ):
        path.write_text(text)
        other.write_text("made,right\n0,0\n")
        assert cli.main(command) == 2
        assert expected in capsys.readouterr().err


def test_no_p_value_is_zero():
    assert StepAudit([20] * 4000, [20] * 4000).p_value(5.0) > 0


def test_masked_guesses_are_refused():
    with pytest.raises(InputError, match="made: got 1; expected no masked guesses"):
        StepAudit(np.ma.array([5, 5], mask=[1, 0]), [5, 5])
