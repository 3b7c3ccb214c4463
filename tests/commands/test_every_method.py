"""Every public function of ``auditing`` can be had from the shell, and says the same there."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from hiddenstate import auditing, cli
from hiddenstate.auditing import (
    ApproxDP,
    Averaged,
    Fixed,
    GaussianDP,
    SequentialAudit,
    guess_beyond,
    known_null_bound,
    lower_bound,
    one_canary_ceiling,
    one_run_bound,
    report,
    whole_gaussian_bound,
)
from hiddenstate.streams import stream

# name: the command and the option, or the row or column of its output, that gives it.
SHELL = {
    "ApproxDP": ("audit", "--delta"),
    "AsPublished": ("audit", "FILE"),
    "Averaged": ("audit", "--area"),
    "Bonferroni": ("audit", "FILE"),
    "EmpiricalCurve": ("audit", "--figure"),
    "Fixed": ("audit", "--threshold"),
    "GaussianDP": ("audit", "--claim-mu"),
    "Guesses": ("audit-one-run", "--guesses"),
    "Imitation": ("audit-one-run", "--planned-mu"),
    "LowerBound": ("audit", "--json"),
    "SequentialAudit": ("audit", "--looks"),
    "Split": ("audit", "--coins"),
    "StepAudit": ("audit-steps", "FILE"),
    "Tabulated": ("audit", "--noise-multiplier"),
    "UniformBand": ("audit", "FILE"),
    "Verdict": ("audit", "--looks"),
    "composed": ("audit", "--noise-multiplier"),
    "empirical_curve": ("audit", "--figure"),
    "flip_bound": ("audit-one-run", "--whole-gaussian"),
    "guess": ("audit-one-run", "--guesses"),
    "guess_beyond": ("audit-one-run", "--beyond"),
    "known_null_bound": ("audit", "--null-law"),
    "lower_bound": ("audit", "FILE"),
    "one_canary_ceiling": ("audit-one-run", "--planned-mu"),
    "one_run_bound": ("audit-one-run", "--delta"),
    "one_run_p_value": ("audit-one-run", "--claim-mu"),
    "planned_flips": ("audit-one-run", "--whole-gaussian"),
    "planned_guesses": ("audit-one-run", "--planned-mu"),
    "whole_gaussian_bound": ("audit-one-run", "--deviation"),
    "whole_gaussian_p_value": ("audit-one-run", "--deviation"),
    "worlds": ("audit", "FILE"),
}


def test_every_public_name_has_its_option(capsys):
    assert set(SHELL) == set(auditing.__all__)
    for command, option in sorted(set(SHELL.values())):
        with pytest.raises(SystemExit):
            cli.main([command, "--help"])
        assert option in capsys.readouterr().out, (command, option)


@pytest.fixture
def runs(tmp_path):
    rng = stream(0, "every method")
    worlds = rng.normal(size=60) + 1.5, rng.normal(size=60)
    path = tmp_path / "scores.csv"
    frame = {"world": np.repeat(["in", "out"], 60), "score": np.concatenate(worlds)}
    pd.DataFrame(frame).to_csv(path, index=False)
    return str(path), *worlds


def printed(capsys, *arguments):
    status = cli.main([*map(str, arguments), "--json"])
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.whole
def test_a_threshold_and_a_share_of_the_area(runs, capsys):
    path, into, out = runs
    _, found = printed(capsys, "audit", path, "--delta", 1e-5, "--threshold", 0.7, "--area", 0.1)
    rows = {(row["parameter"], row["method"]): row for row in found["bounds"]}
    for hypotheses in (ApproxDP(1e-5), GaussianDP()):
        for rule in (Fixed(0.7), Fixed(0.7, "joint-beta"), Averaged(area=0.1)):
            row = rows[hypotheses.parameter, rule.name]
            assert row["value"] == pytest.approx(lower_bound(into, out, hypotheses, rule).value)
            assert row["valid"] == rule.valid


@pytest.mark.whole
def test_looks_that_were_planned(runs, tmp_path, capsys):
    path, into, out = runs
    command = ("audit", path, "--delta", 1e-5, "--claim-mu", 0.2, "--looks", 20, 60)
    status, found = printed(capsys, *command)
    verdict = SequentialAudit(GaussianDP(), 0.2, [20, 60]).judge(into, out)
    assert status == 1 and verdict.decision == "refuted"
    assert found["sequential"]["p_value"] == verdict.p_value and found["claim"] is None
    assert cli.main([*map(str, command)]) == 1
    assert "mu 0.2: refuted at look 1, after 20 scores with" in capsys.readouterr().out
    pd.read_csv(path).sort_values("score").to_csv(tmp_path / "sorted.csv", index=False)
    assert (
        cli.main([*map(str, command[:1]), str(tmp_path / "sorted.csv"), *map(str, command[2:])])
        == 2
    )
    assert "sorted by score" in capsys.readouterr().err
    assert cli.main(["audit", path, "--delta", "0", "--looks", "20"]) == 2
    assert "a look needs a claim" in capsys.readouterr().err


@pytest.mark.parametrize("rate", ["0", "1", "nan"])
def test_a_rate_out_of_range_is_refused_before_the_scores_are_judged(
    tmp_path, capsys, monkeypatch, rate
):
    path = tmp_path / "scores.csv"
    path.write_text("world,score\nin,1\nin,2\nout,1\nout,0\n")
    for work in ("judge", "bounds"):
        monkeypatch.setattr(report, work, None)
    command = ["audit", str(path), "--delta", "1e-5", "--claim", "1", "--fpr", "0.1", rate]
    assert cli.main(command) == 2
    assert f"fpr: got {float(rate)}; expected" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("looks", "status", "told"),
    [
        ((8, 16), 4, "continue at look 1, after 8 scores with"),
        ((8, 15), 0, "consistent at look 2, after 15 scores with"),
        ((16,), 2, "got 15 scores 'out'; expected 16 at least, as many as the first of --looks"),
    ],
)
def test_a_claim_is_consistent_after_the_last_look_alone(tmp_path, capsys, looks, status, told):
    path, score = tmp_path / "scores.csv", stream(0, "alike").normal(size=32)
    world = ["in"] * 17 + ["out"] * 15
    pd.DataFrame({"world": world, "score": score}).to_csv(path, index=False)
    command = ["audit", str(path), "--delta", "0", "--claim", "1", "--looks", *map(str, looks)]
    assert cli.main(command) == status
    output = capsys.readouterr()
    assert told in output.out + output.err


@pytest.mark.whole
def test_a_null_law_that_is_known(runs, tmp_path, capsys):
    path, into, _ = runs
    command = ("audit", path, "--delta", 1e-5, "--null-law", "norm", 0, 1)
    status, found = printed(capsys, *command)
    assert status == 0
    for row, hypotheses in zip(found["bounds"], (ApproxDP(1e-5), GaussianDP()), strict=True):
        assert row["value"] == known_null_bound(into, stats.norm.sf, hypotheses).value > 0
    assert cli.main([*map(str, command), "--negate"]) == 2
    assert "the scores point the other way" in capsys.readouterr().err
    for law in (
        ["poisson", "1"],
        ["norm", "0", "-1"],
        ["norm", "x"],
        ["none"],
        ["norm"] + ["1"] * 5,
    ):
        assert cli.main(["audit", path, "--delta", "0", "--null-law", *law]) == 2
        assert "--null-law" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "minus"),
    [
        (("--null-law", "norm", 1, 1), ("--null-law", "norm", -1, 1)),
        (("--threshold", 0.5, "--coins", 1), ("--threshold", -0.5, "--coins", 1)),
    ],
)
def test_negate_leaves_options_in_the_units_of_the_file(tmp_path, capsys, options, minus):
    score, world = stream(3, "negate").normal(1, 1, size=80), ["in", "out"] * 40
    score[::2] += 0.5
    found = []
    for sign, own in ((1, options), (-1, (*minus, "--negate"))):
        path = tmp_path / f"scores{sign}.csv"
        pd.DataFrame({"world": world, "score": sign * score}).to_csv(path, index=False)
        found.append(printed(capsys, "audit", path, "--delta", 1e-5, *own)[1]["bounds"])
    assert found[0] == found[1] and any(row["value"] > 0 for row in found[0])


@pytest.mark.parametrize("more", [("--threshold", 1), ("--area", 0.1), ("--coins", 0), ("--all",)])
def test_options_that_a_null_law_would_ignore_are_refused(runs, capsys, more):
    command = ("audit", runs[0], "--delta", 1e-5, "--null-law", "norm", 0, 1, *more)
    assert cli.main([*map(str, command)]) == 2
    assert "--null-law: prints the default bounds alone" in capsys.readouterr().err


def test_guesses_beyond_losses(canaries, tmp_path, capsys):
    path = tmp_path / "losses.csv"
    frame = pd.read_csv(canaries[0])
    frame.assign(score=-frame["score"]).to_csv(path, index=False)
    how = ("--delta", 1e-5, "--beyond")
    found = printed(capsys, "audit-one-run", canaries[0], *how, 0, 2.5)
    assert printed(capsys, "audit-one-run", path, *how, -2.5, 0, "--negate") == found
    assert found[1]["bounds"][0]["value"] > 0
    assert cli.main(["audit-one-run", str(path), "--delta", "1e-5", "--beyond", "1", "0"]) == 2
    assert "--beyond: got 1 0; expected LOW below HIGH" in capsys.readouterr().err


@pytest.fixture
def canaries(tmp_path):
    rng = stream(1, "every method")
    coins = rng.random(100) < 0.5
    scores = rng.normal(size=100) + 2 * coins
    path = tmp_path / "canaries.csv"
    pd.DataFrame({"world": np.where(coins, "in", "out"), "score": scores}).to_csv(path, index=False)
    return str(path), scores, coins


def test_guesses_beyond_thresholds(canaries, capsys):
    path, scores, coins = canaries
    command = ("audit-one-run", path, "--beyond", -0.5, 2.5)
    _, found = printed(capsys, *command, "--delta", 1e-5)
    guesses = guess_beyond(scores, coins, -0.5, 2.5)
    assert (found["guesses"], found["right"]) == (guesses.made, guesses.correct)
    (bound,) = found["bounds"]
    assert bound["value"] == one_run_bound(guesses, ApproxDP(1e-5)).value
    assert cli.main(list(map(str, command))) == 2
    assert "--beyond: needs --delta" in capsys.readouterr().err


def test_null_laws_of_the_whole_mechanism(canaries, tmp_path, capsys):
    path, scores, coins = canaries
    noise = stream(2, "every method").normal(size=(120, 100))
    np.save(tmp_path / "noise.npy", noise)
    np.savetxt(tmp_path / "null.csv", noise + 0.01, delimiter=",")
    command = ("audit-one-run", path, "--planned-mu", 2)
    given = ("--null-scores", tmp_path / "null.csv")
    for options, law in (
        (("--deviation", 1), {"deviation": 1.0}),
        (given, {"null_scores": noise + 0.01}),
        (
            ("--deviation", 1, *given, "--null-noise", tmp_path / "noise.npy"),
            {"deviation": 1.0, "null_scores": noise + 0.01, "null_noise": noise},
        ),
    ):
        _, found = printed(capsys, *command, *options)
        last = found["bounds"][-1]
        assert last["value"] == whole_gaussian_bound(scores, coins, **law).value > 0
    assert found["ceiling"] == one_canary_ceiling(2, 100)
    assert cli.main([*map(str, command), "--null-scores", path]) == 2
    assert "not a readable matrix" in capsys.readouterr().err
