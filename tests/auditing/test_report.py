import json
import re

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from hiddenstate import cli
from hiddenstate.accounting import gaussian
from hiddenstate.auditing import (
    Averaged,
    GaussianDP,
    SequentialAudit,
    claim,
    lower_bound,
    planning,
    reach,
    report,
)
from hiddenstate.auditing.other_way import OtherWayWarning, other_way
from hiddenstate.errors import InputError
from hiddenstate.rounding import shown
from hiddenstate.streams import stream


@pytest.fixture
def scores(tmp_path):
    rng = stream(0, "test_report")
    frame = pd.DataFrame(
        {
            "world": np.repeat(["in", "out"], 60),
            "score": np.concatenate((rng.normal(size=60) + 2, rng.normal(size=60))),
        }
    )
    path = tmp_path / "scores.csv"
    frame.to_csv(path, index=False)
    return path, frame


def test_the_command_prints_the_bounds_and_draws_them(scores, tmp_path, capsys):
    path, frame = scores
    figure = tmp_path / "audit.png"
    assert cli.main(["audit", str(path), "--delta", "1e-5", "--figure", str(figure)]) == 0
    printed = capsys.readouterr().out
    worlds = [frame.loc[frame["world"] == w, "score"] for w in ("in", "out")]
    mu = lower_bound(*worlds, GaussianDP(), Averaged()).value
    assert f"mu >= {shown(mu, 'lower', decimals=3)} " in printed
    assert "as published" not in printed
    assert figure.stat().st_size > 10_000


def test_parquet_and_csv_are_the_same_audit(scores, tmp_path):
    path, frame = scores
    other = tmp_path / "scores.parquet"
    frame.to_parquet(other)
    for a, b in zip(report.read(path), report.read(other), strict=True):
        assert np.allclose(a, b)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a,b\n1,2\n", r"has the columns a, b; expected 'world'"),
        ("world,value\nin,2\n", "expected 'score'"),
        ("world,score\nin,1\nmember,2\nout,1\n", "line 3: world: got 'member'; expected 'in'"),
        ("world,score\nin,1\nout,\n", "line 3: score: got nothing; expected a finite number"),
        ("world,score\nin,1\nout,inf\nout,nan\n", r"line 3: score: got inf; .* \(2 such rows\)"),
        ("world;score\nin;1\nout;1,5\n", "line 3: score: got '1,5'"),
        ("world,score\nin,2020-01-01\nout,2020-01-02\n", "score: got values of type date32"),
        ("world,score\nin,2020-01-01 10:00:00\nout,2020-01-02 10:00:00\n", "type timestamp"),
        (
            "world,score,repeat\nin,2,0\nout,1,1\n",
            r"repeat: got 2 values \(0, 1\); expected one audit",
        ),
        (
            "world,score,adversary\nin,2,grey\nout,1,all\n",
            r"adversary: got 2 values \(grey, all\)",
        ),
        ("world,score,canary\nin,2,a\nout,1,b\n", r"canary: got 2 values \(a, b\)"),
        ("world,score,seed\nin,2,5\nout,1,6\nout,1,5\n", "line 4: seed 5 stands twice"),
        ("world,score,score\nin,2,5\nout,1,6\n", "has 2 columns 'score'; expected one"),
        ("world,world,score\nin,in,5\nout,in,6\n", "has 2 columns 'world'; expected one"),
        ("world,score\nin,nan\nout,1\n", "line 2: score: got nan; expected a finite"),
        ("world,score\nin,NA\nout,1\n", "line 2: score: got 'NA'; expected a finite"),
        ("world,score,step\nin,2,10\nout,1,20\n", r"step: got 2 values \(10, 20\); expected"),
        ("world,score,epoch\nin,2,1\nout,1,2\n", "epoch: got 2 values"),
        (
            "world,score,run\nin,2,0\nout,1,0\nout,3,1\nout,1,0\n",
            "line 5: run 0 of world out stands twice; expected one score a run",
        ),
        ("", "not a readable table"),
        ("\n\n", "not a readable table"),
        ("world,score\n", "has no rows; expected scores"),
        ("world,score\nin,1\n\nout,\n", "line 4: score: got nothing"),
        ("\nworld,score\n\nin,1\n,2\n", "line 5: world: got nothing"),
        ("\nworld,score\n\nin,1\nout,1,5\nout,2,5\n", r"line 5: fields: got 3 \(out,1,5\); expe"),
        ("world,score\nin,1\nout\n", r"line 3: fields: got 1 \(out\); expected 2 separated by ','"),
        ("world\tscore\nin\t1,5\nout\t1\n", "line 2: score: got '1,5'; .* with a decimal point"),
    ],
)
def test_unusable_files_are_refused_in_words(tmp_path, content, words):
    path = tmp_path / "scores.csv"
    path.write_text(content)
    with pytest.raises(InputError, match=words) as caught:
        report.read(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        ("in,x\nin,1\nout,1\nout,2\n", [], "line 2: score: got 'x'; expected a finite number"),
        ("in,2\nin,1\nout,1\n", [], "scores.csv: got 1 score 'out'; expected 2 at least"),
        ("in,2\nin,1\n", [], "scores.csv: got 0 scores 'out'; expected 2 at least"),
        ("out,2\nout,1\n", ["--null-law", "norm", "0", "1"], "scores.csv: got 0 scores 'in'"),
        ("", [], "scores.csv: has no rows; expected scores"),
        ("in,2\nin,1\nout,1\nout,0\n", ["--delta", "2"], "delta: got 2.0"),
        ("in,2\nin,1\nout,1\nout,0\n", ["--confidence", "95"], "confidence: got 95.0"),
        ("in,2\nin,1\nout,1\nout,0\n", ["--figure", "fig"], "--figure: got fig; expected"),
        ("in,2\nin,1\nout,1\nout,0\n", ["--figure", "fig.xyz"], "--figure: got fig.xyz"),
        ("in,2\nin,1\nout,1\nout,0\n", ["--fpr", "1"], "fpr: got 1.0; expected"),
        ("in,2\nin,1\nout,1\nout,0\n", ["--claim", "-1"], "claim: got -1.0; expected"),
    ],
)
def test_unusable_audits_end_in_one_line(tmp_path, capsys, rows, options, words):
    path = tmp_path / "scores.csv"
    path.write_text("world,score\n" + rows)
    assert cli.main(["audit", str(path), "--delta", "1e-5", *options]) == 2
    error = capsys.readouterr().err
    assert words.replace("\\", "") in error
    assert error.count("\n") == 1


def test_printed_bounds_are_rounded_to_the_safe_side(scores, capsys):
    path, _ = scores
    command = ["audit", str(path), "--delta", "1e-5", "--fpr", "0.01", "0.1", "0.3", "--coins", "3"]
    cli.main([*command, "--json"])
    found = json.loads(capsys.readouterr().out)
    cli.main([*command, "--claim", "0.7", "--all"])
    printed = capsys.readouterr().out
    table = [line.split("|")[1:-1] for line in printed.splitlines() if line.startswith("| ")]
    values = [[word.strip() for word in row] for row in table]
    bounds = values[1 : 1 + len(found["bounds"])]
    for (_, _, value, holds), bound in zip(bounds, found["bounds"], strict=True):
        off = bound["value"] - float(value)
        assert abs(off) < 1e-3
        assert off >= 0 or not bound["valid"]
        assert holds == ("yes" if bound["valid"] else "no (estimate)")
    told = re.findall(r"of the attack: ([\d.]+) \(95 %: ([\d.]+) to ([\d.]+)\)", printed)
    for (value, low, high), interval in zip(told, found["intervals"], strict=True):
        assert abs(float(value) - interval["value"]) <= 5e-4
        assert interval["low"] - 1e-3 < float(low) <= interval["low"]
        assert interval["high"] <= float(high) < interval["high"] + 1e-3
    p_value = report.judge(*report.read(path), claim.approximate(0.7, 1e-5)).p_value
    assert p_value <= float(printed.split("p-value at most ")[1].split()[0]) <= 1.1 * p_value


@pytest.mark.parametrize("separator", [";", "\t", ","])
def test_other_separators_are_read(tmp_path, separator):
    path = tmp_path / "scores.txt"
    rows = ["\ufeffworld,score,note", "in,2,a", "in, 1.5,b", "out,0,c", "out,-1e0,d"]
    path.write_text("\n".join(rows).replace(",", separator))
    ins, outs = report.read(path)
    assert (list(ins), list(outs)) == ([2.0, 1.5], [0.0, -1.0])


def test_parquet_goes_by_either_suffix(scores, tmp_path):
    path, frame = scores
    frame.to_parquet(tmp_path / "scores.pq")
    assert np.array_equal(report.read(tmp_path / "scores.pq")[0], report.read(path)[0])


def write(path, ins, outs):
    worlds = np.repeat(["in", "out"], [len(ins), len(outs)])
    pd.DataFrame({"world": worlds, "score": np.concatenate((ins, outs))}).to_csv(path, index=False)
    return str(path)


def test_the_exit_status_of_a_claim_can_gate_a_build(tmp_path, capsys):
    rng = stream(1, "claim")
    path = write(tmp_path / "scores.csv", rng.normal(size=60) + 3, rng.normal(size=60))
    common = ["audit", path, "--delta", "1e-5", "--curve", "gdp", "--claim"]
    assert cli.main([*common, "30"]) == 0
    assert "consistent with the scores, p-value at most" in capsys.readouterr().out
    assert cli.main([*common, "1"]) == 1
    assert "REFUTED, p-value at most" in capsys.readouterr().out


@pytest.mark.whole
def test_the_same_scores_refute_less_of_a_claim_that_promises_less():
    rng = stream(2, "claim")
    ins, outs = rng.normal(size=100) + 2, rng.normal(size=100)
    judged = report.judge(ins, outs, claim.gaussian_with(6.0, 1e-5))
    assert judged.refuted
    assert judged.tested == pytest.approx(gaussian.mu(6.0, 1e-5), abs=1.1e-3)
    assert report.epsilon_of(judged.tested, 1e-5) == pytest.approx(6.0, abs=0.01)
    assert not report.judge(ins, outs, claim.approximate(6.0, 1e-5)).refuted
    assert report.judge(ins, outs, claim.approximate(0.5, 0.0)).refuted
    with pytest.raises(InputError, match="Gaussian DP has no finite mu"):
        claim.gaussian_with(6.0, 0.0)


def test_epsilon_through_gaussian_dp_is_the_closed_form():
    norm = stats.norm
    for mu in (0.3, 1.0, 3.0):
        epsilon = report.epsilon_of(mu, 1e-5)
        delta = norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        assert delta == pytest.approx(1e-5, rel=1e-4)
        assert delta >= 1e-5 * (1 - 1e-9)
    assert report.epsilon_of(0.0, 1e-5) == 0


def test_json_and_few_scores(tmp_path, capsys):
    path = write(tmp_path / "scores.csv", [3.0, 4.0, 5.0], [0.0, 1.0])
    assert cli.main(["audit", path, "--delta", "0", "--json", "--claim", "9"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["scores"] == {"in": 3, "out": 2}
    assert found["claim"]["refuted"] is False
    assert [b["method"] for b in found["bounds"] if b["default"]] == ["averaged", "averaged"]
    assert not any(b["method"] == "split" for b in found["bounds"])
    assert found["intervals"][0]["quantity"] == "AUC"


@pytest.mark.whole
def test_the_plan_command_counts_models(capsys):
    common = ["plan-audit", "--true", "30", "--delta", "1e-5"]
    assert cli.main([*common, "--claim", "4", "--power", "0.8"]) == 0
    printed = capsys.readouterr().out
    assert "| Gaussian DP with epsilon 4 at delta 1e-05 " in printed
    assert "sequential" in printed
    assert cli.main([*common, "--claim", "30"]) == 2
    assert "--claim: got 30; expected less than --true, 30" in capsys.readouterr().err


def test_checkpoints_of_the_same_runs_are_refused_in_any_format(tmp_path):
    """Twenty runs without a leak, ten checkpoints of each: mu was bounded by 0.6 from below."""
    scores = stream(3, "checkpoints").normal(size=40)
    frame = pd.DataFrame(
        {
            "world": np.repeat(["in", "out"], 20).tolist() * 10,
            "run": [*range(20), *range(20)] * 10,
            "score": np.tile(scores, 10),
        }
    )
    frame.to_parquet(tmp_path / "scores.parquet")
    frame.to_csv(tmp_path / "scores.csv", index=False)
    for name, row in (("scores.parquet", "row 41"), ("scores.csv", "line 42")):
        with pytest.raises(InputError, match=f"{row}: run 0 of world in stands twice"):
            report.read(tmp_path / name)
    frame[:40].to_parquet(tmp_path / "scores.parquet")
    assert [len(side) for side in report.read(tmp_path / "scores.parquet")] == [20, 20]


@pytest.mark.whole
def test_a_confidence_of_999_in_a_thousand_has_every_bound(scores, capsys):
    """The uniform band's 10,000 simulations did not do, and no option had more."""
    path, _ = scores
    command = ["audit", str(path), "--delta", "1e-5", "--claim", "8", "--confidence"]
    assert cli.main([*command, "0.999", "--all"]) == 0
    assert "uniform band" in capsys.readouterr().out
    assert cli.main([*command, "0.9999"]) == 2
    assert "expected at most 0.9993" in capsys.readouterr().err


@pytest.mark.whole
def test_a_claim_may_be_a_mu_or_the_mechanism_itself(tmp_path, capsys):
    rng = stream(4, "claim")
    path = write(tmp_path / "scores.csv", rng.normal(size=60) + 3, rng.normal(size=60))
    common = ["audit", path, "--delta", "1e-5"]
    assert cli.main([*common, "--claim-mu", "1"]) == 1
    assert "claim: mu 1: REFUTED" in capsys.readouterr().out
    assert cli.main([*common, "--sigma", "4", "--q", "0.5", "--steps", "2"]) == 1
    assert "noise multiplier 4, sampling rate 0.5, 2 steps: REFUTED" in capsys.readouterr().out
    assert cli.main([*common, "--claim-mu", "9"]) == 0
    assert cli.main([*common, "--claim-mu", "9", "--claim", "1"]) == 2
    assert cli.main([*common, "--sigma", "4"]) == 2


@pytest.mark.whole
def test_models_and_hours_of_a_mechanisms_claim_are_planned(capsys):
    mechanism = ["--noise-multiplier", "1.5", "--sampling-rate", "0.5", "--steps", "4"]
    command = ["plan-audit", *mechanism, "--true", "0.5", "--seconds", "3.6", "--workers", "2"]
    assert cli.main([*command, "--json"]) == 0
    fixed, sequential = json.loads(capsys.readouterr().out)["plans"]
    assert fixed["power"] >= 0.9 <= sequential["power"]
    assert fixed["hours"] == pytest.approx(fixed["models"] / 1000)
    assert sequential["expected"] < fixed["models"]
    assert cli.main(["plan-audit", "--claim-mu", "1", "--true", "3"]) == 0
    assert "| mu 1 " in capsys.readouterr().out
    assert cli.main([*command, "--true", "2"]) == 2
    assert "expected a noise multiplier above 0 and less than" in capsys.readouterr().err


@pytest.mark.whole
def test_tied_scores_are_audited_with_coins_that_are_told(tmp_path, capsys):
    path = write(tmp_path / "scores.csv", [1.0] * 40 + [0.0] * 20, [1.0] * 20 + [0.0] * 40)
    command = ["audit", path, "--delta", "1e-5", "--json"]
    seeds = set()
    for _ in range(2):
        assert cli.main(command) == 0
        printed = capsys.readouterr().out
        seeds.add(coins := json.loads(printed)["coins"])
        assert cli.main([*command, "--coins", str(coins)]) == 0
        assert capsys.readouterr().out == printed
    assert len(seeds) == 2
    assert cli.main([*command[:-1], "--coins", "5"]) == 0
    assert "repeat with --coins 5" in capsys.readouterr().out
    untied = write(tmp_path / "untied.csv", [1.0, 2.0], [-1.0, 0.0])
    assert cli.main(["audit", untied, "--delta", "1e-5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["coins"] is None


def test_huge_scores_are_judged_without_a_warning(recwarn):
    report.bounds([1e308, 1e307, 1e306], [-1e308, -1e307, -1e306], 1e-5, 0.95)
    assert not [warning for warning in recwarn if warning.category is RuntimeWarning]


def backwards(n=200):
    rng = stream(0, "backwards")
    return rng.normal(size=n) - 4, rng.normal(size=n)


@pytest.mark.whole
def test_scores_that_point_the_other_way_reassure_nobody(tmp_path, capsys):
    """The area under the curve was 0.005, every bound 0, the claim consistent, the status 0."""
    path = write(tmp_path / "losses.csv", *backwards())
    command = ["audit", path, "--delta", "1e-5"]
    for claim_ in ([], ["--claim", "1"], ["--claim-mu", "1"]):
        assert cli.main([*command, *claim_]) == 2
        told = capsys.readouterr()
        assert "the scores point the other way" in told.err and "--negate" not in told.out
        assert "consistent" not in told.out
    assert cli.main([*command, "--claim", "1", "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert found["claim"]["decision"] == "other way" and found["other_way"]["share"] < 0.01
    assert cli.main([*command, "--claim", "1", "--negate"]) == 1
    assert "REFUTED" in capsys.readouterr().out
    with pytest.warns(OtherWayWarning, match="point the other way"):
        assert lower_bound(*backwards(), GaussianDP()).value == 0


@pytest.mark.whole
def test_scores_that_leak_nothing_are_seldom_said_to_point_the_other_way():
    """At 1 in 1,000 more than 8 of 2,000 have probability 0.0002; the test finds a deviation."""
    rng = stream(1, "backwards")
    for n in (8, 50):
        found = sum(
            other_way(rng.normal(size=n), rng.normal(size=n)) is not None for _ in range(2_000)
        )
        assert found <= 8
    found = sum(
        other_way(rng.normal(size=50) - 1, rng.normal(size=50)) is not None for _ in range(40)
    )
    assert found > 30
    rare = np.where(rng.random(1_000) < 0.02, -9.0, rng.normal(size=1_000))
    assert other_way(rare, rng.normal(size=1_000)) is not None
    # Scores that are wider with the canary speak for it at their upper end.
    wide = [other_way(3 * rng.normal(size=100), rng.normal(size=100)) for _ in range(200)]
    assert sum(one is not None for one in wide) <= 4


@pytest.mark.whole
@pytest.mark.parametrize("sets", [150, pytest.param(600, marks=pytest.mark.slow)])
def test_no_set_of_coins_makes_equal_scores_point_the_other_way(sets):
    """One set in 1,000 did: an area of 0.5, called the other way."""
    equal = np.ones(60)
    assert not any(other_way(equal, equal, coins) for coins in range(sets))
    losses = np.repeat([0.0, 1.0], 200), np.repeat([0.0, 1.0], [80, 320])
    assert all(other_way(*losses, coins) for coins in range(20))
    assert not any(other_way(*losses[::-1], coins) for coins in range(20))


def test_a_sequential_audit_of_scores_that_point_the_other_way_has_no_verdict():
    verdict = SequentialAudit(GaussianDP(), 1.0, looks=[50, 200]).judge(*backwards())
    assert verdict.decision == "other way" and verdict.other_way.p_value < 1e-6


@pytest.mark.whole
def test_consistent_says_what_it_would_have_found(tmp_path, capsys):
    rng = stream(2, "consistent")
    path = write(tmp_path / "scores.csv", rng.normal(size=100) + 0.5, rng.normal(size=100))
    command = ["audit", path, "--delta", "1e-5", "--claim-mu", "1"]
    assert cli.main(command) == 0
    told = capsys.readouterr().out
    assert "With 95 % confidence: mu >= " in told
    assert cli.main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["claim"]
    assert found["bound"]["value"] > 0
    least = found["reach"]["value"]
    assert f"finds mu {shown(least, 'upper', 3)} or more with probability 90 %" in told
    # The plan of an audit with this truth and power asks for about as many models.
    plan = planning.fixed(GaussianDP(), 1.0, GaussianDP(), least, power=0.9)
    assert plan.looks[0] == pytest.approx(100, rel=0.15)


@pytest.mark.parametrize(
    ("made", "models", "words"),
    [
        (lambda: claim.dpsgd(0.6, 0.1, 20), 100, "finds noise multiplier"),
        (lambda: claim.approximate(1.0, 1e-5), 100, "a Gaussian mechanism of epsilon"),
        (lambda: claim.approximate(1.0, 0.0), 100, "epsilon"),
        (lambda: claim.approximate(8.0, 1e-5), 100, "finds no excess at all"),
        (lambda: claim.gaussian_dp(25.0), 10, "finds no excess at all"),
    ],
)
def test_every_claim_has_a_reach(made, models, words):
    claimed = made()
    test = SequentialAudit(claimed.hypotheses, claimed.value, [models])
    found = reach.reach(claimed, test)
    assert words in str(found)
    assert np.isfinite(found.value) or "no excess" in str(found)


def test_claims_above_epsilon_20_are_judged(tmp_path, capsys):
    path = write(tmp_path / "scores.csv", [3.0, 4.0, 5.0], [0.0, 1.0, 2.0])
    for claim_ in (["--claim", "30"], ["--claim", "30", "--curve", "gdp"], ["--claim-mu", "22"]):
        assert cli.main(["audit", path, "--delta", "1e-5", *claim_]) == 0
        assert "consistent with the scores" in capsys.readouterr().out
    assert cli.main(["audit", path, "--delta", "1e-5", "--claim", "1e9"]) == 2
    assert "expected an epsilon of 0 to 500" in capsys.readouterr().err
    mechanism = ["--sigma", "0.001", "--q", "0.1", "--steps", "20"]
    assert cli.main(["audit", path, "--delta", "1e-5", *mechanism]) == 2
    error = capsys.readouterr().err
    assert "leaks so much" in error and "interval" not in error


@pytest.mark.parametrize("column", ["fold", "model", "checkpoint", "client", "iteration"])
def test_columns_that_may_say_that_rows_share_a_run_are_refused(tmp_path, capsys, column):
    frame = pd.DataFrame({"world": ["in", "out"] * 4, "score": np.arange(8.0), column: [0] * 8})
    for path, save in (("s.csv", frame.to_csv), ("s.parquet", frame.to_parquet)):
        save(tmp_path / path, index=False)
        command = ["audit", str(tmp_path / path), "--delta", "1e-5"]
        assert cli.main(command) == 2
        assert f"then give --ignore {column}" in capsys.readouterr().err
        assert cli.main([*command, "--ignore", column]) == 0
        assert cli.main([*command, "--ignore", "other"]) == 2
        capsys.readouterr()


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\ufeff" + text.replace("\n", "\r\n"),
        lambda text: text.replace(",", ";"),
        lambda text: text.replace("\n", "\n\n"),
        lambda text: f"\n{text}\n",
    ],
    ids=["CRLF", "byte order mark", "semicolons", "blank lines", "blank ends"],
)
def test_files_of_spreadsheets_are_read(tmp_path, change):
    path = tmp_path / "scores.csv"
    path.write_bytes(change("world,score\nin,1.5\nout,-2\nin,1.5\nout,0\n").encode())
    into, out = report.read(path)
    # A row that stands twice is another run with the same score.
    assert into.tolist() == [1.5, 1.5] and out.tolist() == [-2.0, 0.0]
