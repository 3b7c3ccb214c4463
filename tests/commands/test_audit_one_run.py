import json

import numpy as np
import pandas as pd
import pytest

from hiddenstate import cli
from hiddenstate.auditing import (
    ApproxDP,
    GaussianDP,
    flip_bound,
    guess,
    one_run_bound,
    one_run_p_value,
    planned_flips,
    planned_guesses,
    whole_gaussian_bound,
)
from hiddenstate.errors import InputError
from hiddenstate.streams import stream


@pytest.fixture
def audit(tmp_path):
    """200 canaries, 2 apart; the file, their scores and their coins, canaries in first."""
    rng = stream(0, "one-run command")
    coins = rng.random(200) < 0.5
    scores = rng.normal(size=200) + 2 * coins
    frame = pd.DataFrame({"world": np.where(coins, "in", "out"), "score": scores})
    # All of one training: a canary each, and one seed.
    frame = frame.assign(canary=range(200), seed=7, run=0)
    frame.to_csv(tmp_path / "scores.csv", index=False)
    order = np.argsort(~coins, kind="stable")
    return str(tmp_path / "scores.csv"), scores[order], coins[order]


def test_the_command_says_what_the_library_says(audit, capsys):
    path, scores, coins = audit
    command = ["audit-one-run", path, "--planned-mu", "2", "--delta", "1e-5", "--whole-gaussian"]
    assert cli.main([*command, "--claim-mu", "0.3", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    guesses = guess(scores, coins, planned_guesses(2, 200))
    assert (found["guesses"], found["right"]) == (guesses.made, guesses.correct)
    flips = flip_bound(guess(scores, coins, 200), planned_flips(2, 200))
    epsilon, mu = (one_run_bound(guesses, h) for h in (ApproxDP(1e-5), GaussianDP()))
    assert [b["value"] for b in found["bounds"]] == [epsilon.value, mu.value, flips.value]
    assert [b["hypothesis"] for b in found["bounds"]][1:] == [
        "each canary alone",
        "whole mechanism",
    ]
    assert found["claim"]["p_value"] == one_run_p_value(guesses, GaussianDP(), 0.3)
    assert cli.main([*command, "--claim-mu", "3"]) == 0
    printed = capsys.readouterr().out
    assert "mu 3: consistent with the guesses" in printed and "| whole mechanism   |" in printed


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], "give one of --guesses and --planned-mu"),
        (["--guesses", "9", "--planned-mu", "1"], "give one of --guesses and --planned-mu"),
        (["--guesses", "900"], "made: got 900; expected 1 to 200"),
        (["--guesses", "50", "--whole-gaussian"], "--whole-gaussian: needs --planned-mu"),
        (["--guesses", "50", "--claim", "3"], "--claim needs --delta"),
        (["--guesses", "50", "--confidence", "95"], "confidence: got 95"),
        (
            ["--beyond", "-99", "99", "--delta", "1e-5", "--claim", "3"],
            "--beyond: no score is -99 or less, or 99 or more",
        ),
    ],
)
def test_unusable_options_end_in_one_line(audit, capsys, options, expected):
    assert cli.main(["audit-one-run", audit[0], *options]) == 2
    error = capsys.readouterr().err
    assert expected in error and error.count("\n") == 1


@pytest.mark.whole
def test_equal_scores_of_a_file_sorted_by_world_refute_no_true_claim(tmp_path, capsys):
    """At 119 canaries one order for everybody refuted epsilon 0.05 in every audit."""
    coins = stream(1, "constant").random(119) < 0.5
    path = tmp_path / "c.csv"
    pd.DataFrame({"world": np.where(np.sort(coins), "out", "in"), "score": 0.0}).to_csv(path)
    command = ["audit-one-run", str(path), "--guesses", "119", "--claim", "0.05", "--delta", "1e-5"]
    refuted, seeds = 0, set()
    for _ in range(40):
        refuted += cli.main([*command, "--json"])
        seeds.add(json.loads(capsys.readouterr().out)["coins"])
    # 40 audits at 5 %: more than 7 have probability 0.0013.
    assert refuted <= 7 and len(seeds) == 40
    one, again = (
        (cli.main([*command, "--json", "--coins", "7"]), capsys.readouterr().out) for _ in range(2)
    )
    assert one == again and json.loads(one[1])["coins"] == 7
    cli.main([*command, "--coins", "7"])
    assert "repeat with --coins 7" in capsys.readouterr().out


def test_no_coins_are_told_where_no_equal_scores_are_guessed_differently(audit, capsys):
    cli.main(["audit-one-run", audit[0], "--guesses", "50", "--json"])
    assert json.loads(capsys.readouterr().out)["coins"] is None


def test_guesses_that_are_nearly_all_wrong_reassure_nobody(audit, tmp_path, capsys):
    frame = pd.read_csv(audit[0])
    frame.assign(score=-4 * frame["score"]).to_csv(tmp_path / "losses.csv", index=False)
    command = ["audit-one-run", str(tmp_path / "losses.csv"), "--guesses", "100"]
    for claim in ([], ["--claim-mu", "1"]):
        assert cli.main([*command, *claim]) == 2
        told = capsys.readouterr()
        assert "of the guesses are right" in told.err and "consistent" not in told.out
    assert cli.main([*command, "--claim-mu", "1", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["claim"]["decision"] == "other way"
    assert cli.main([*command, "--claim-mu", "0.1", "--negate"]) == 1


def test_consistent_guesses_say_what_they_would_have_found(audit, capsys):
    command = ["audit-one-run", audit[0], "--guesses", "100", "--claim-mu", "1"]
    assert cli.main(command) == 0
    assert "finds canaries whose scores differ" in capsys.readouterr().out
    assert cli.main([*command, "--json"]) == 0
    claim = json.loads(capsys.readouterr().out)["claim"]
    assert claim["decision"] == "consistent" and claim["reach"]["value"] > 1
    assert cli.main([*command[:2], "--guesses", "4", "--claim-mu", "3"]) == 0
    assert "finds no excess at all" in capsys.readouterr().out


def test_canaries_of_several_trainings_are_refused(tmp_path, capsys):
    frame = pd.DataFrame({"world": ["in", "out"] * 4, "score": np.arange(8.0)})
    for column in ("run", "seed"):
        frame.assign(**{column: [0, 0, 0, 0, 1, 1, 1, 1]}).to_csv(tmp_path / "s.csv", index=False)
        assert cli.main(["audit-one-run", str(tmp_path / "s.csv"), "--guesses", "4"]) == 2
        assert f"{column}: got 2 values" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "save", "expected"),
    [
        ("x.npy", lambda f: f.write(b""), "x.npy: No data left in file; expected draws of all"),
        ("x.npy", lambda f: np.save(f, np.full((100, 200), "a")), "x.npy: got type <U1; expected"),
        ("x.npy", lambda f: np.save(f, np.ones((100, 200)) * 1j), "got type complex128; expected"),
        ("x.npy", lambda f: np.savez(f, a=np.ones((100, 200))), "x.npy: got several arrays"),
        (
            "x.npy",
            lambda f: np.save(f, np.full((100, 200), np.inf)),
            "x.npy: 20000 of 20,000",
        ),
        ("x.csv", lambda f: f.write(b"\n"), "x.csv: is empty; expected draws of all scores"),
        ("x.csv", lambda f: f.write("1,2".encode("utf-16")), "x.csv: cannot be read: 'utf-8'"),
        ("x.csv", lambda f: f.write(b"1,b"), "x.csv: not a readable matrix"),
    ],
)
@pytest.mark.parametrize("negate", [[], ["--negate"]])
def test_what_are_no_draws_is_refused_by_name(
    audit, tmp_path, capsys, name, save, expected, negate
):
    with (tmp_path / name).open("wb") as file:
        save(file)
    command = ["audit-one-run", audit[0], "--guesses", "40", "--null-scores", tmp_path / name]
    assert cli.main([*map(str, command), *negate]) == 2
    error = capsys.readouterr().err
    assert expected in error and error.count("\n") == 1


def test_complex_scores_are_refused(audit):
    _, scores, coins = audit
    for call in (
        lambda: guess(np.asarray(scores) * 1j, coins, 9),
        lambda: whole_gaussian_bound(scores, coins, null_scores=np.ones((100, 200)) * 1j),
    ):
        with pytest.raises(InputError, match=r"scores: (?s:.*)expected numbers"):
            call()


def test_draws_may_be_bytes_also_with_a_minus(audit, tmp_path, capsys):
    """A minus of bytes is none."""
    draws = stream(0, "bytes").integers(200, size=(100, 200))
    found = []
    for kind in (np.uint8, float):
        np.save(tmp_path / "x.npy", draws.astype(kind))
        command = ("audit-one-run", audit[0], "--guesses", "40", "--negate", "--json")
        cli.main([*command, "--null-scores", str(tmp_path / "x.npy")])
        found.append(json.loads(capsys.readouterr().out)["bounds"])
    assert found[0] == found[1]
