"""A run whose results are cached, except what every run computes."""

import os
import re
import shutil

import pandas as pd
import pytest

from hiddenstate import cli
from hiddenstate.pipeline import scores

SCALE = "workflow/config/scales/small.yaml"
RESULTS = "results/small/encoding_loss"
AT_SMALL = ("--cores", "1", "--config", "scale=small")


@pytest.fixture
def filled(small_run, checkout, tmp_path):
    """A checkout whose cache has what a finished run made."""
    directory = checkout(tmp_path / "filled")
    shutil.copy(small_run / SCALE, directory / SCALE)
    keep = (
        "keep",
        "--config",
        str(directory / SCALE),
        "--cached",
        str(directory / "results/cached"),
    )
    assert cli.main([*keep, "--results", str(small_run / "results/small")]) in (0, None)
    return directory


def planned(directory, snakemake, *settings):
    """How many jobs of each rule are planned."""
    status, output = snakemake(directory, "encoding_loss", "--dry-run", *AT_SMALL, *settings)
    assert status == 0, output[-3000:]
    rules = re.findall(r"^encoding_loss_(\w+) +(\d+)$", output, re.MULTILINE)
    # The plan is printed before and after the jobs.
    return {rule: int(number) for rule, number in rules}, output


@pytest.mark.whole
def test_results_are_served_and_one_of_each_work_is_computed(filled, small_run, snakemake):
    cells = len(list((small_run / RESULTS).rglob("*.parquet")))
    kept = list((filled / "results/cached").rglob("*.parquet"))
    assert len(kept) == cells - 2
    found, _ = planned(filled, snakemake)
    assert (found["restore"], found["simulate1"], found["bound1"]) == (1, 1, 1)
    assert not {"simulate2", "bound2"} & found.keys()
    assert "restore" not in planned(filled, snakemake, "scores=train")[0]
    status, output = snakemake(filled, f"{RESULTS}/estimates.csv", *AT_SMALL)
    assert status == 0, output[-3000:]
    made, served = (d / RESULTS / "estimates.csv" for d in (small_run, filled))
    assert served.read_bytes() == made.read_bytes()
    # What is served and then damaged in the cache is named, and nothing is computed.
    kept[0].write_bytes(kept[0].read_bytes()[:300])
    status, output = snakemake(filled, "encoding_loss", "--dry-run", *AT_SMALL)
    assert status != 0 and "not a readable Parquet file" in output
    assert str(kept[0].relative_to(filled)) in output


@pytest.mark.whole
def test_what_other_code_made_is_computed_again(filled, snakemake):
    path = filled / "src/hiddenstate/adversaries/encoding_loss.py"
    code = path.read_text()
    path.write_text(f"{code}\n# A remark.\n")
    assert "restore" in planned(filled, snakemake)[0]
    path.write_text(f"{code}\nOTHER = 1\n")
    found, output = planned(filled, snakemake)
    assert "restore" not in found
    cached = {path.name for path in (filled / "results/cached/encoding_loss").glob("*.parquet")}
    assert cached < set(re.findall(r"[^/\s]+\.parquet", output))


@pytest.mark.whole
def test_a_tenth_of_the_cache_is_computed_again(filled, snakemake):
    status, output = snakemake(filled, "verify_cache", *AT_SMALL)
    assert status == 0, output[-3000:]
    verdicts = pd.read_csv(filled / "results/small/verified.csv")
    simulated = list((filled / "results/cached/encoding_loss").glob("*.parquet"))
    bounds = list((filled / "results/cached/encoding_loss/bounds").glob("*.parquet"))
    assert len(verdicts) == -(-len(simulated) // 10) - (-len(bounds) // 10)
    assert verdicts["agree"].all() and (verdicts["differing"] == 0).all()
    # A verdict is of the libraries and the comparison that gave it.
    dry = (filled, "verify_cache", "--dry-run", *AT_SMALL)
    assert "encoding_loss_recompute" not in snakemake(*dry)[1]
    for name, more in (
        ("scores", "own = packages\n\ndef packages():\n    return own() | {'scipy': '0.1'}\n"),
        ("verification", "OTHER = 1\n"),
    ):
        source = filled / f"src/hiddenstate/pipeline/{name}.py"
        kept = source.read_text()
        source.write_text(f"{kept}\n{more}")
        assert re.search(rf"encoding_loss_recompute +{len(verdicts)}\b", snakemake(*dry)[1]), name
        source.write_text(kept)
    for file in bounds:
        frame, origin = scores.read(file)
        scores.write_table(file, frame.assign(epsilon=frame["epsilon"] + 1e-3), origin)
    status, output = snakemake(filled, "verify_cache", *AT_SMALL)
    assert status != 0
    assert "cached results differ from those computed again: q0." in output


@pytest.mark.whole
def test_what_is_replaced_by_an_older_file_is_read_again(finished, snakemake):
    """As from a backup or an archive: verdicts on sentences of before were served."""
    expected = finished / "workflow/config/expected/small.csv"
    expected.write_text("id,verdict\n")
    target = (finished, "results/small/claims.csv", *AT_SMALL)
    assert snakemake(*target)[0] == 0
    for path, rule in (
        (expected, "collect_claims"),
        (finished / "workflow/config/claims/encoding_loss.yaml", "encoding_loss_claims"),
    ):
        assert "Nothing to be done" in snakemake(*target, "--dry-run")[1]
        before = path.read_bytes()
        path.write_bytes(before + b"\n")
        os.utime(path, (0, 0))
        assert re.search(rf"^{rule} +1$", snakemake(*target, "--dry-run")[1], re.MULTILINE), rule
        path.write_bytes(before)
        os.utime(path, (0, 0))
