import numpy as np
import pandas as pd
import pytest

from hiddenstate import cli
from hiddenstate.auditing import Averaged, GaussianDP, lower_bound, report
from hiddenstate.errors import InputError
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
    line = next(x for x in printed.splitlines() if x.startswith("| mu") and "averaged" in x)
    assert f"{mu:.3f}" in line
    assert "True" in line
    assert "as published (not valid)" in printed
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
        ("world,score\nmember,2\nout,1\n", "world: got 'member'; expected 'in' or 'out'"),
        ("world,score,repeat\nin,2,0\nout,1,1\n", "holds 2 repeats; expected one audit"),
        ("", "not a readable table"),
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
        ("in,x\nin,1\nout,1\nout,2\n", [], "in_scores: 1 of 2 scores are not finite"),
        ("in,2\nin,1\nout,1\n", [], r"out_scores: got 1 score"),
        ("in,2\nin,1\n", [], r"out_scores: got 0 score"),
        ("in,2\nin,1\nout,1\nout,0\n", ["--delta", "0"], "delta: got 0.0"),
        ("in,2\nin,1\nout,1\nout,0\n", ["--confidence", "95"], "confidence: got 95.0"),
    ],
)
def test_unusable_audits_end_in_one_line(tmp_path, capsys, rows, options, words):
    path = tmp_path / "scores.csv"
    path.write_text("world,score\n" + rows)
    assert cli.main(["audit", str(path), "--delta", "1e-5", *options]) == 2
    error = capsys.readouterr().err
    assert words.replace("\\", "") in error
    assert error.count("\n") == 1
