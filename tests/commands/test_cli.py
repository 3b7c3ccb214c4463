import argparse
import importlib
import inspect
import itertools
import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from hiddenstate import cli, commands, files
from hiddenstate.datasets import data
from hiddenstate.dpsgd import checkpoint
from hiddenstate.errors import InputError
from hiddenstate.papers import encoding_loss
from hiddenstate.pipeline import estimates, scores
from hiddenstate.study import config

ROOT = Path(__file__).parents[2]
SMOKE = str(ROOT / "workflow/config/scales/smoke.yaml")
CLAIMS = ROOT / "workflow/config/claims"


def run(capsys, *arguments):
    """Exit status and what was printed; an escaped exception fails the test with its traceback."""
    try:
        status = cli.main(list(map(str, arguments)))
    except SystemExit as stop:
        status = stop.code
    output = capsys.readouterr()
    assert "Traceback" not in output.err
    return status, output.out, output.err


def subcommands():
    help_text = cli.parser().format_help()
    return re.findall(r"^    ([a-z][\w-]+)", help_text, flags=re.MULTILINE)


def test_every_module_that_adds_a_command_is_listed():
    modules = {
        importlib.import_module(f"{commands.__name__}.{module.name}")
        for module in pkgutil.iter_modules(commands.__path__)
        if module.name != "comparing"  # it imports torch
    }
    assert {module for module in modules if hasattr(module, "add")} == set(cli.COMMANDS)


def test_there_are_subcommands():
    expected = {"simulate", "bound", "train", "estimate", "figures", "tables", "claims"}
    assert expected <= set(subcommands())


@pytest.mark.parametrize("name", subcommands())
def test_every_subcommand_explains_itself(capsys, name):
    status, out, _ = run(capsys, name, "--help")
    assert status == 0
    options = re.findall(r"^  (?:-h, )?(--[\w-]+|\w+)(?:[ ,].*)?$", out, flags=re.MULTILINE)
    assert len(options) >= 1
    summary = out.split("\n\n")[1]
    assert re.fullmatch(r"[A-Z].*\.", summary, flags=re.DOTALL), "no summary sentence"


def parsers():
    return next(
        a for a in cli.parser()._actions if isinstance(a, argparse._SubParsersAction)
    ).choices


WORDS = {"schema": "JSON in any case", "new-paper": "what to do next"}
"""What commands print that print no numbers."""


def prints(run):
    """Whether a command prints: in its module, or in its function if it shares the module."""
    alone = run.__name__ == "run"
    code = inspect.getsource(sys.modules[run.__module__] if alone else run)
    return re.search(r"\b_?print\w*\(", code) is not None


@pytest.mark.parametrize("name", subcommands())
def test_a_command_that_prints_numbers_prints_them_as_json_too(name):
    parser = parsers()[name]
    printing = prints(parser.get_default("run")) and name not in WORDS
    assert printing == ("--json" in parser._option_string_actions)


def test_printing_is_seen():
    printing = {name for name, parser in parsers().items() if prints(parser.get_default("run"))}
    assert set(WORDS) | {"epsilon", "audit", "digest", "plan", "verify", "collect"} <= printing
    assert not printing & {"train", "figures", "tables", "report", "restore", "gallery"}


def test_cells_and_digests_are_the_same_in_json(capsys, tmp_path):
    cells = ("cells", "encoding_loss", "--config", SMOKE)
    lines = run(capsys, *cells)[1].splitlines()
    rows = json.loads(run(capsys, *cells, "--json")[1])
    assert [f"{r['kind']}\t{r['cell']}\t{json.dumps(r['identity'])}" for r in rows] == lines
    frame = pd.DataFrame({"world": ["in", "out"], "repeat": 0, "run": 0, "score": [1.0, 0.0]})
    path = tmp_path / "a.parquet"
    scores.write(path, frame, scores.provenance({}, seed=0, wall_seconds=0))
    digest, name = run(capsys, "digest", path)[1].rstrip().split("  ")
    assert json.loads(run(capsys, "digest", path, "--json")[1]) == {name: digest}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["simulate", "nonesuch", "--config", SMOKE, "--cell", "x", "--out", "o"], "encoding_loss"),
        (
            ["simulate", "encoding_loss", "--config", "none.yaml", "--cell", "x", "--out", "o"],
            "none.yaml: no such file",
        ),
        (
            ["simulate", "encoding_loss", "--config", SMOKE, "--cell", "x", "--out", "o"],
            "no cell 'x' to simulate; expected one of",
        ),
        (
            ["bound", "encoding_loss", "--config", SMOKE, "--cell", "x", "y", "--out", "o"],
            "--out: got 1 files for 2 cells; expected one for each cell",
        ),
        (
            ["figures", "encoding_loss", "f9", "--config", SMOKE, "--estimates", "e", "--out", "o"],
            "unknown encoding_loss figure 'f9'; expected one of figure1",
        ),
        (
            ["figures", "encoding_loss", "--config", SMOKE, "--estimates", "e.csv", "--out", "o"],
            "e.csv: no such file",
        ),
        (["digest", "none.parquet"], "none.parquet: no such file"),
        (
            ["collect", "c.csv", "--config", SMOKE, "--out", "o"],
            "c.csv: no such file; expected verdicts written by `hiddenstate claims`",
        ),
        (
            ["verdicts", "c.csv", "--config", SMOKE],
            "c.csv: no such file; expected verdicts written by `hiddenstate claims`",
        ),
    ],
)
def test_bad_input_gets_one_clear_message(capsys, tmp_path, monkeypatch, arguments, expected):
    monkeypatch.chdir(tmp_path)
    status, _, err = run(capsys, *arguments)
    assert status == 2
    assert err.startswith("hiddenstate: error: ")
    assert expected in err
    assert list(tmp_path.iterdir()) == []


def test_an_estimates_file_of_something_else_is_refused(capsys, tmp_path):
    path = tmp_path / "e.csv"
    pd.DataFrame({"a": [1]}).to_csv(path)
    status, _, err = run(
        *(capsys, "tables", "encoding_loss", "--config", SMOKE),
        *("--estimates", path, "--out", tmp_path / "tables"),
    )
    assert status == 2
    assert "lacks the columns quantity" in err


@pytest.mark.parametrize("command", ["figures", "tables", "claims"])
@pytest.mark.parametrize(("family", "scale"), [("encoding_loss", "laptop"), ("atlas", "smoke")])
def test_estimates_of_another_scale_or_family_are_refused(capsys, tmp_path, command, family, scale):
    """A figure says which scale it shows, so it is drawn of no other's estimates."""
    _, grid, seed = config.section(SMOKE, "encoding_loss")
    path = tmp_path / "e.csv"
    row = {"quantity": "epsilon", "kind": "exact", "value": 1.0}
    estimates.write(path, pd.DataFrame([row]), config.grid_name(SMOKE, "encoding_loss", grid, seed))
    scale_file = Path(SMOKE).with_stem(scale)
    given = [family, "--estimates", path, "--out", tmp_path / "out"]
    if command == "claims":
        given += ["--claims", CLAIMS / f"{family}.yaml"]
    status, _, err = run(capsys, command, "--config", scale_file, *given)
    assert status == 2
    assert re.search(
        rf"e\.csv: grid: got 'encoding_loss at smoke .*expected '{family} at {scale}", err
    )
    assert list(tmp_path.iterdir()) == [path]


def test_verdicts_are_judged_collected_and_compared(capsys, tmp_path):
    path, claims = tmp_path / "e.csv", tmp_path / "encoding_loss.yaml"
    _, grid, seed = config.section(SMOKE, "encoding_loss")
    row = {"quantity": "epsilon", "kind": "exact", "value": 1.0}
    estimates.write(path, pd.DataFrame([row]), config.grid_name(SMOKE, "encoding_loss", grid, seed))
    claims.write_text("own: []\n")
    judge = ("claims", "encoding_loss", "--config", SMOKE, "--estimates", path)
    out = ("--out", tmp_path / "encoding_loss")
    assert run(capsys, *judge, *out, "--claims", claims)[0] == 0
    status, _, err = run(capsys, *judge, *out, "--claims", CLAIMS / "atlas.yaml")
    assert status == 2
    assert "atlas.yaml; expected encoding_loss.yaml" in err
    (tmp_path / "expected.csv").write_text("id,verdict\nencoding_loss.x,holds\n")
    collect = ("collect", tmp_path / "encoding_loss/claims.csv", "--config", SMOKE)
    status, out, _ = run(
        *(capsys, *collect, "--out", tmp_path, "--expected", tmp_path / "expected.csv")
    )
    assert status == 0
    assert "- encoding_loss.x: no such claim, expected: holds" in out
    assert "- encoding_loss.x: no such claim" in (tmp_path / "claims.md").read_text()


def test_scores_of_other_parameters_are_refused(capsys, tmp_path):
    cell = "q0.1_T100_sigma1_sound"
    out = tmp_path / "scores" / f"{cell}.parquet"
    assert (
        run(capsys, "simulate", "encoding_loss", "--config", SMOKE, "--cell", cell, "--out", out)[0]
        == 0
    )
    changed = tmp_path / "changed.yaml"
    changed.write_text(Path(SMOKE).read_text().replace("runs: 200", "runs: 201"))
    # The first cell of the grid is missing; give it this file under its name.
    first = "q0.1_T100_sigma4_published"
    out.rename(out.with_name(f"{first}.parquet"))
    status, _, err = run(
        *(capsys, "estimate", "encoding_loss", "--config", changed),
        *("--results", tmp_path, "--out", tmp_path / "e.csv"),
    )
    assert status == 2
    assert f"{first}.parquet: computed for" in err
    assert not (tmp_path / "e.csv").exists()


TINY = """
seed: 1
worst_case_init:
  shows: tiny
  delta: 1.0e-5
  repeats: 1
  ideal_audits: 100
  tasks:
    digits:
      dataset: digits
      model: digits_cnn
      private: 719
      steps: 1
      learning_rate: {average: 2, worst: 2}
      pretraining: [{dataset: digits, epochs: 1, batch_size: 64, learning_rate: 0.1}]
      models: 2
  figure3:
    - {task: digits, epochs: [0, 1], records: [3], epsilons: [10]}
"""
START = "digits_pre0_repeat0"
CELL = "digits_pre0_n3_C1_T1_lr2_eps10_1x2"
WORST = "digits_pre1_n3_C1_T1_lr2_eps10_1x2"


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A directory with a scale file, where commands write."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    return tmp_path


def trains(capsys, command, cell, *arguments):
    family = ("worst_case_init", "--config", "tiny.yaml", "--cell", cell)
    return run(capsys, command, *family, *arguments)


def test_time_that_an_interrupted_run_took_counts(capsys, tiny, monkeypatch):
    def full(*arguments):
        raise InputError("no space left")

    assert trains(capsys, "start", START, "--out", "start.parquet")[0] == 0
    trained = ("--start", "start.parquet", "--checkpoint", "kept", "--out", "scores.parquet")
    with monkeypatch.context() as slow:
        slow.setattr(scores, "write", full)
        clock = SimpleNamespace(perf_counter=itertools.count(0, 1000).__next__)
        slow.setattr(checkpoint, "time", clock)
        assert trains(capsys, "train", CELL, *trained)[0] == 2
    chunks = 1000 * len(list((tiny / "kept").rglob("*.npz")))
    assert trains(capsys, "train", CELL, *trained)[0] == 0
    assert chunks < scores.origin("scores.parquet")["wall_seconds"] < chunks + 100


def test_a_cell_is_started_trained_restored_and_verified(capsys, tiny):
    assert trains(capsys, "start", START, "--out", "start.parquet")[0] == 0
    trained = ("--start", "start.parquet", "--checkpoint", "kept", "--out", "scores.parquet")
    assert trains(capsys, "train", CELL, *trained)[0] == 0
    assert not (tiny / "kept").exists()
    (tiny / "cached").mkdir()
    (tiny / f"cached/{CELL}.parquet").write_bytes((tiny / "scores.parquet").read_bytes())
    restore = ("restore", "worst_case_init", "--config", "tiny.yaml", "--cached", "cached")
    assert run(capsys, *restore, "--out", "again")[0] == 0
    restored = [path.name for path in (tiny / "again").iterdir()]
    assert restored == [f"{CELL}.parquet"]
    assert (tiny / "again" / restored[0]).read_bytes() == (tiny / "scores.parquet").read_bytes()
    verified = ("--cached", "scores.parquet", "--start", "start.parquet", "--out", "v.csv")
    status, _, err = trains(capsys, "verify", CELL, *verified, "--models", "20")
    assert status == 2
    assert "got 20 new and 2 cached scores" in err
    status, out, _ = trains(capsys, "verify", CELL, *verified, "--models", "100")
    assert status == 0
    assert out.count("True") == 2
    # What was trained again has noise of its own.
    verdicts = pd.read_csv("v.csv")
    assert set(verdicts["new"]) == {100}
    status, out, _ = run(capsys, "verified", "v.csv", "--out", "all.csv", "--json")
    assert status == 0 and [row["agree"] for row in json.loads(out)] == [True, True]
    verdicts.assign(agree=[True, False]).to_csv("bad.csv", index=False)
    status, _, err = run(capsys, "verified", "v.csv", "bad.csv", "--out", "all.csv")
    assert status == 2
    assert f"differ from scores trained again: {CELL} (p-values in all.csv)" in err

    # One bad file of two, and nothing is restored.
    (tiny / f"cached/{WORST}.parquet").write_bytes((tiny / "scores.parquet").read_bytes())
    status, _, err = run(capsys, *restore, "--out", "never")
    assert status == 2
    assert f"cached/{WORST}.parquet: computed for start.stages []" in err
    (tiny / f"cached/{WORST}.parquet").write_text("not Parquet")
    status, _, err = run(capsys, *restore, "--out", "never")
    assert status == 2
    assert f"cached/{WORST}.parquet: not a readable Parquet" in err
    assert not (tiny / "never").exists()

    before = sorted(path.name for path in tiny.iterdir())
    out = ("--out", "o.parquet")
    other = ("--cached", "scores.parquet", "--start", "start.parquet")
    for command, cell, arguments, expected in (
        ("train", WORST, (*other[2:], *out), "start.parquet: computed for stages []; expected [{"),
        ("verify", WORST, (*other, *out), "scores.parquet: computed for start.stages []"),
        ("train", CELL, (*other[2:], *out, "--workers", "0"), "workers: got 0; expected an"),
        ("train", CELL, (*other[2:], *out, "--device", "gpu"), "--device: got 'gpu'; expected"),
        ("start", START, (*out, "--device", "gpu"), "--device: got 'gpu'; expected"),
    ):
        status, _, err = trains(capsys, command, cell, *arguments)
        assert status == 2, (command, arguments)
        assert err.splitlines()[-1].startswith("hiddenstate: error: "), err
        assert expected in err
    assert sorted(path.name for path in tiny.iterdir()) == before


@pytest.mark.parametrize(
    ("command", "cell", "arguments", "expected"),
    [
        ("start", CELL, (), f"no cell '{CELL}' to start; expected one of 2: {START}"),
        ("train", START, (), f"no cell '{START}' to train; expected one of 2: {CELL}"),
        ("train", CELL, (), f"--start: missing; expected the initial parameters {START}"),
        ("train", CELL, ("--start", "s.parquet"), "s.parquet: no such file"),
        ("verify", CELL, ("--cached", "c.parquet"), "c.parquet: no such file"),
    ],
)
def test_bad_input_of_training_commands_is_named(capsys, tiny, command, cell, arguments, expected):
    status, _, err = trains(capsys, command, cell, *arguments, "--out", "o.parquet")
    assert status == 2
    assert err.startswith("hiddenstate: error: ")
    assert expected in err
    assert [path.name for path in tiny.iterdir()] == ["tiny.yaml"]


def test_verdicts_of_something_else_are_refused(capsys, tiny):
    status, _, err = run(capsys, "verified", "--out", "o.csv")
    assert status == 2
    assert "nothing to verify: no cell is cached" in err
    status, _, err = run(capsys, "verified", "none.csv", "--out", "o.csv")
    assert status == 2
    assert "none.csv: no such file; expected a file written by `hiddenstate verify`" in err
    (tiny / "e.csv").write_text("a,b\n1,2\n")
    status, _, err = run(capsys, "verified", "e.csv", "--out", "o.csv")
    assert status == 2
    assert "e.csv: lacks the columns cell and agree" in err
    assert not (tiny / "o.csv").exists()


def test_a_family_that_the_scale_lacks_is_named(capsys, tiny):
    family = ("encoding_loss", "--config", "tiny.yaml", "--cell", "x", "--out", "o.parquet")
    status, _, err = run(capsys, "simulate", *family)
    assert status == 2
    assert "tiny.yaml: has no section encoding_loss" in err


def test_cells_that_share_a_job_are_as_if_each_had_its_own(capsys, tmp_path):
    cells = ["q0.1_T100_sigma1_published", "q0.1_T100_sigma1_sound"]
    command = ("simulate", "encoding_loss", "--config", SMOKE)
    shared = [tmp_path / f"{cell}.parquet" for cell in cells]
    assert run(capsys, *command, "--cell", *cells, "--out", *shared)[0] == 0
    for cell, path in zip(cells, shared, strict=True):
        alone = tmp_path / "alone.parquet"
        assert run(capsys, *command, "--cell", cell, "--out", alone)[0] == 0
        assert scores.read(alone)[1]["digest"] == scores.read(path)[1]["digest"]
        assert scores.read(alone)[1]["cell"] == scores.read(path)[1]["cell"]


def test_the_cell_of_a_shared_job_that_fails_is_named(capsys, tmp_path, monkeypatch):
    def fail(mechanism):
        raise ValueError("out of range")

    monkeypatch.setattr(encoding_loss.simulations, "_noise_multiplier", fail)
    cells = ["q0.1_T100_sigma1_published", "q0.1_T100_sigma1_sound"]
    command = ("simulate", "encoding_loss", "--config", SMOKE, "--cell", *cells)
    assert cli.main([*command, "--out", *(str(tmp_path / cell) for cell in cells)]) == cli.FAILED
    assert capsys.readouterr().err.rstrip().endswith("(of the cell q0.1_T100_sigma1_published)")


def test_scores_of_data_that_were_replaced_are_refused(capsys, tiny, monkeypatch):
    """Their path is in the cell's parameters and their content was in none: both passed as new."""
    monkeypatch.setenv("HIDDENSTATE_DATA", str(tiny))
    text = TINY.replace("dataset: digits", "dataset: 'features:own.npz'")
    text = text.replace("model: digits_cnn", "model: features\n      trains: last layer")
    text = text.replace("private: 719", "private: 20\n      canary: clip_backdoor")
    (tiny / "tiny.yaml").write_text(text)

    def write(seed):
        rng = np.random.default_rng(seed)
        x = {f"{part}_x": rng.normal(size=(20, 4)) for part in ("public", "private", "test")}
        y = {f"{part}_y": np.arange(20) % 10 for part in ("public", "private", "test")}
        np.savez(tiny / "own.npz", **x, **y)
        data._digest.cache_clear()
        data._splits.cache_clear()

    write(1)
    trained = ("--start", "start.parquet", "--out", f"cached/{CELL}.parquet")
    assert trains(capsys, "start", START, "--out", "start.parquet")[0] == 0
    assert trains(capsys, "train", CELL, *trained)[0] == 0
    restore = ("restore", "worst_case_init", "--config", "tiny.yaml", "--cached", "cached")
    assert run(capsys, *restore, "--out", "again")[0] == 0
    write(2)
    expected = r"{}: computed for files of features:own.npz \w{{64}}; expected \w{{64}}(;|$)"
    for status, _, err in (
        trains(capsys, "train", CELL, *trained[:2], "--out", "o.parquet"),
        run(capsys, *restore, "--out", "never"),
    ):
        assert status == 2
        name = "start.parquet" if "start" in err else f"cached/{CELL}.parquet"
        assert re.search(expected.format(re.escape(name)), err.strip())
    family, grid, seed = config.section("tiny.yaml", "worst_case_init")
    job = family.jobs(grid)["train"][CELL]
    assert not scores.computed(f"cached/{CELL}.parquet", job.identity, seed, job.files)
    # Where the data are not, as beside a cache from elsewhere, nothing can be compared.
    (tiny / "own.npz").unlink()
    assert run(capsys, *restore, "--out", "again")[0] == 0
    assert scores.computed(f"cached/{CELL}.parquet", job.identity, seed, job.files)
    # The same data in other files of the same content are the same.
    write(1)
    assert run(capsys, *restore, "--out", "again")[0] == 0


def test_a_plan_that_skips_what_is_missing_trains_nothing(capsys, tiny):
    for missing, kinds in (("train", {"start", "train", "bound"}), ("skip", {"bound"})):
        plan = ("plan", "--config", "tiny.yaml", "--results", "none", "--missing", missing)
        status, out, _ = run(capsys, *plan)
        assert status == 0
        assert set(re.findall(r"worst_case_init \| (\w+)", out)) == kinds | {"drawing"}


def test_no_command_loads_torch():
    code = "import sys, hiddenstate.cli, hiddenstate.plotting; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.fixture
def bounds(tmp_path):
    """Bounds of two mechanisms under the names that a scale file gives them."""
    family, grid, seed = config.section(SMOKE, "encoding_loss")
    jobs = family.jobs(grid)["bound"]
    files = {}
    for i, (name, job) in enumerate(list(jobs.items())[:2]):
        files[name] = tmp_path / "bounds" / f"{name}.parquet"
        table = pd.DataFrame({"fpr": [0.0, 0.5, 1.0], "fnr": [1.0, 0.1 * i, 0.0]})
        origin = scores.provenance(job.identity, seed=seed, wall_seconds=0.0)
        scores.write_table(files[name], table, origin)
    for name, job in family.jobs(grid)["simulate"].items():
        table = pd.DataFrame({"world": ["in", "out"], "repeat": 0, "run": 0, "score": [1.0, 0.0]})
        origin = scores.provenance(job.identity, seed=seed, wall_seconds=0.0)
        scores.write(tmp_path / "scores" / f"{name}.parquet", table, origin)
    return files


def estimate(capsys, directory):
    family = ("encoding_loss", "--config", SMOKE, "--results", directory)
    return run(capsys, "estimate", *family, "--out", directory / "e.csv")


def test_bounds_of_another_mechanism_are_refused_by_name(capsys, tmp_path, bounds):
    shutil.copy(bounds["q0.1_T100_sigma1"], bounds["q0.1_T100_sigma4"])
    status, _, err = estimate(capsys, tmp_path)
    assert status == 2
    expected = "computed for mechanism.noise_multiplier 1.0; expected 4.0"
    assert f"q0.1_T100_sigma4.parquet: {expected}" in err
    assert not (tmp_path / "e.csv").exists()


def test_bounds_with_a_flipped_byte_are_refused_by_name(capsys, tmp_path, bounds):
    path = bounds["q0.1_T100_sigma4"]
    good = path.read_bytes()
    before, _ = scores.read(path)
    for position in range(0, len(good), 29):
        path.write_bytes(bytes([*good[:position], good[position] ^ 0x10, *good[position + 1 :]]))
        try:
            after, _ = scores.read(path)
        except InputError as error:
            assert str(path) in str(error)
        else:
            # What was hit says nothing of the values.
            pd.testing.assert_frame_equal(after, before)
    # The first page of values.
    path.write_bytes(bytes([*good[:40], good[40] ^ 0x10, *good[41:]]))
    status, _, err = estimate(capsys, tmp_path)
    assert status == 2
    assert f"{path}: " in err
    assert "damaged" in err or "not a readable Parquet file" in err


COSTLY = {"torch", "sklearn", "matplotlib", "scipy.stats", "scipy.optimize", "dp_accounting"}


def test_a_job_loads_what_it_needs_and_no_more():
    """Hundreds of jobs load a family, each of these takes them up to a second."""
    code = "import sys, hiddenstate.cli\nfrom hiddenstate import papers\n"
    code += "for name in papers.names(): papers.load(name)\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not COSTLY & set(run.stdout.split())


def test_an_interrupted_command_says_so_in_a_line(capsys, monkeypatch):
    def interrupt(options):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.schema, "run", interrupt)
    assert run(capsys, "schema") == (130, "", "hiddenstate: interrupted\n")


WAITING = """
import sys, time
from hiddenstate import cli
cli.schema.run = lambda options: (print("on", flush=True), time.sleep(60))
sys.exit(cli.main(["schema"]))
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux tells")
def test_a_job_ends_with_the_driver_of_its_run():
    with subprocess.Popen(["sleep", "60"]) as driver:
        environment = os.environ | {"HIDDENSTATE_DRIVER": str(driver.pid)}
        command = [sys.executable, "-c", WAITING]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, env=environment, **pipes) as job:
            assert job.stdout.readline() == "on\n"
            assert job.poll() is None
            driver.kill()
            assert job.wait(timeout=30) == 130
            assert job.stderr.read() == "hiddenstate: interrupted\n"


def test_a_cell_that_another_process_trains_is_refused(capsys, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    family, grid, _ = config.section(SMOKE, "gradient_crafting")
    cell = next(iter(family.jobs(grid)["train"]))
    arguments = ("train", "gradient_crafting", "--config", SMOKE, "--cell", cell)
    with files.alone(checkpoint, ""):
        status, _, err = run(
            *(capsys, *arguments, "--checkpoint", checkpoint, "--out", tmp_path / "o.parquet")
        )
    assert status == 2
    assert f"{checkpoint}: another process trains {cell}; wait until it has ended" in err
    assert not (tmp_path / "o.parquet").exists()


def test_training_without_its_libraries_says_what_to_install(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch", None)
    family, grid, _ = config.section(SMOKE, "gradient_crafting")
    cell = next(iter(family.jobs(grid)["train"]))
    arguments = ("train", "gradient_crafting", "--config", SMOKE, "--cell", cell, "--out", tmp_path)
    status, _, err = run(capsys, *arguments)
    assert status == 2
    assert err == (
        "hiddenstate: error: this needs torch, which is not installed; "
        "pip install 'hiddenstate[train]'\n"
    )
