"""Scores of trained models: trained, restored from the cache, refused, verified, resumed."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
import yaml

from hiddenstate import papers
from hiddenstate.pipeline import parts, scores
from hiddenstate.study import config

FAMILY = "worst_case_init"
TINY = {
    "seed": 1,
    FAMILY: {
        "shows": "tiny",
        "delta": 1e-5,
        "repeats": 1,
        "ideal_audits": 100,
        "tasks": {
            "digits": {
                "dataset": "digits",
                "model": "digits_cnn",
                "private": 719,
                "steps": 2,
                "learning_rate": {"average": 2.0, "worst": 2.0},
                "pretraining": [
                    {"dataset": "digits", "epochs": 1, "batch_size": 64, "learning_rate": 0.1}
                ],
                "models": 12,
            }
        },
        "figure3": [{"task": "digits", "epochs": [0], "records": [3], "epsilons": [10, 5]}],
        # Many enough to be interrupted after the first ones, and long enough to be killed.
        "figure4": [
            {"task": "digits", "epochs": [0], "epsilons": [10], "steps": [40], "models": 120},
            {"task": "digits", "epochs": [0], "epsilons": [10], "steps": [10]},
        ],
    },
}
CELL = "digits_pre0_n3_C1_T2_lr2_eps10_1x12"
OTHER = "digits_pre0_n3_C1_T2_lr2_eps5_1x12"
LONG = "digits_pre0_n719_C1_T40_lr2_eps10_1x120"
KILLED = "digits_pre0_n719_C1_T10_lr2_eps10_1x12"
AT_TINY = ("--cores", "2", "--config", "scale=tiny")


def scores_of(cell):
    return f"results/tiny/{FAMILY}/scores/{cell}.parquet"


def cached(directory, cell=CELL):
    return directory / f"results/cached/{FAMILY}/{cell}.parquet"


def job_of(directory, name):
    _, grid, _ = config.section(directory / "workflow/config/scales/tiny.yaml", FAMILY)
    return papers.load(FAMILY).jobs(grid)["train"][name]


def digest(path):
    return scores.digest(scores.read(path)[0])


def no_job_ran(directory):
    return not (directory / "logs").exists() and not (directory / "results/tiny").exists()


@pytest.fixture
def tiny(tmp_path, checkout):
    """A checkout with a scale of four cells."""
    return with_scale(checkout(tmp_path), TINY)


def with_scale(directory, content):
    (directory / "workflow/config/scales/tiny.yaml").write_text(yaml.safe_dump(content))
    return directory


@pytest.fixture(scope="module")
def trained(tmp_path_factory, checkout, snakemake):
    """A checkout in which one cell has been trained."""
    directory = with_scale(checkout(tmp_path_factory.mktemp("trained")), TINY)
    status, output = snakemake(directory, scores_of(CELL), *AT_TINY)
    assert status == 0, output[-5000:]
    return directory


@pytest.fixture
def filled(tiny, trained):
    """A checkout whose cache holds the trained cell."""
    cached(tiny).parent.mkdir(parents=True)
    shutil.copy(trained / scores_of(CELL), cached(tiny))
    return tiny


def test_trained_scores_say_where_they_come_from(trained):
    frame, origin = scores.read(trained / scores_of(CELL))
    assert frame["world"].value_counts().to_dict() == {"in": 12, "out": 12}
    assert origin["cell"] == job_of(trained, CELL).identity
    assert origin["seed"] == 1
    assert set(origin["data"]) == {"digits"}
    assert not (trained / f"results/tiny/{FAMILY}/checkpoints" / CELL).exists()


@pytest.mark.parametrize("change", ["scores=train", "missing_scores=skip"])
def test_a_finished_cell_is_not_trained_again(trained, snakemake, change):
    changes = (change, "device=cuda")
    status, output = snakemake(trained, "--dry-run", scores_of(CELL), *AT_TINY, *changes)
    assert status == 0, output
    assert "Nothing to be done" in output


@pytest.mark.whole
def test_a_cell_that_takes_long_is_trained_in_parts(tiny, trained, snakemake):
    """The scores of one job bit for bit, and another size of parts is no reason to train again."""
    hours = job_of(tiny, CELL).cost / 3600
    in_parts = [f"part_hours={share * hours:.6f}" for share in (0.4, 0.7, 0)]
    status, output = snakemake(tiny, "--dry-run", scores_of(CELL), *AT_TINY, in_parts[0])
    assert status == 0, output
    assert len(re.findall(r"part \d of 3", output)) == 3
    # One part, and then the rest, as after an interruption.
    folder = tiny / f"results/tiny/{FAMILY}/checkpoints" / CELL
    first = f"results/tiny/{FAMILY}/parts/{CELL}.part-2-of-3.parquet"
    status, output = snakemake(tiny, first, *AT_TINY, in_parts[0])
    assert status == 0, output[-3000:]
    assert parts.models(scores.read(tiny / first)[0]) == 24 // 3
    # Of a run with another size of parts.
    shutil.copy(tiny / first, tiny / first.replace("2-of-3", "1-of-8"))
    status, output = snakemake(tiny, scores_of(CELL), *AT_TINY, in_parts[0])
    assert status == 0, output[-3000:]
    assert "part 2 of 3" not in output and "part 3 of 3" in output
    assert digest(tiny / scores_of(CELL)) == digest(trained / scores_of(CELL))
    assert scores.parts(tiny / scores_of(CELL)) == 3
    assert not folder.exists()
    for other in in_parts:
        status, output = snakemake(tiny, "--dry-run", scores_of(CELL), *AT_TINY, other)
        assert status == 0 and "Nothing to be done" in output, output
        status, output = snakemake(trained, "--dry-run", scores_of(CELL), *AT_TINY, other)
        assert status == 0 and "Nothing to be done" in output, output
    # Other parameters are, as for any cell.
    changed = yaml.safe_load(yaml.safe_dump(TINY))
    changed[FAMILY]["tasks"]["digits"]["label"] = 3
    status, output = snakemake(
        with_scale(tiny, changed), "--dry-run", scores_of(CELL), *AT_TINY, in_parts[1]
    )
    assert status == 0, output
    assert len(re.findall(r"part \d of 2", output)) == 2


def test_a_cell_is_trained_again_when_its_parameters_change(trained, snakemake):
    # The name of a cell does not say its target's label.
    changed = yaml.safe_load(yaml.safe_dump(TINY))
    changed[FAMILY]["tasks"]["digits"]["label"] = 3
    with_scale(trained, changed)
    try:
        status, output = snakemake(trained, "--dry-run", scores_of(CELL), *AT_TINY)
    finally:
        with_scale(trained, TINY)
    assert status == 0
    assert re.search(rf"{FAMILY}_train +1", output)
    assert not re.search(rf"^{FAMILY}_start +1", output, flags=re.MULTILINE)


@pytest.mark.whole
def test_a_cell_is_trained_again_when_its_data_set_is_replaced(tiny, snakemake):
    """And not when the data are gone, which finished cells do without."""
    content = yaml.safe_load(yaml.safe_dump(TINY))
    own = "features:own.npz"
    stage = {"dataset": own, "epochs": 1, "batch_size": 8, "learning_rate": 0.1}
    task = {"dataset": own, "model": "features", "trains": "last layer", "private": 20}
    task |= {"canary": "clip_backdoor", "pretraining": [stage]}
    content[FAMILY]["tasks"]["digits"] |= task
    del content[FAMILY]["figure4"]
    with_scale(tiny, content)
    environment = {"HIDDENSTATE_DATA": str(tiny)}

    def write(seed):
        rng, parts = np.random.default_rng(seed), ("public", "private", "test")
        x = {f"{part}_x": rng.normal(size=(20, 4)) for part in parts}
        np.savez(tiny / "own.npz", **x, **{f"{part}_y": np.arange(20) % 10 for part in parts})

    def planned():
        dry = (tiny, "--dry-run", scores_of(CELL), *AT_TINY)
        status, output = snakemake(*dry, environment=environment)
        assert status == 0, output
        if "Nothing to be done" in output:
            return set()
        return set(re.findall(rf"^{FAMILY}_(\w+) +1$", output, flags=re.MULTILINE))

    write(1)
    status, output = snakemake(tiny, scores_of(CELL), *AT_TINY, environment=environment)
    assert status == 0, output[-5000:]
    assert planned() == set()
    write(2)
    assert planned() == {"start", "train"}
    (tiny / "own.npz").unlink()
    assert planned() == set()


def test_cached_scores_are_restored_bit_for_bit_and_not_trained(filled, snakemake):
    status, output = snakemake(filled, scores_of(CELL), *AT_TINY)
    assert status == 0, output[-5000:]
    assert (filled / scores_of(CELL)).read_bytes() == cached(filled).read_bytes()
    assert re.search(rf"{FAMILY}_restore +1", output)
    assert not (filled / f"results/tiny/{FAMILY}/starts").exists()
    # Restored scores are not what was asked for where the cache is to be ignored.
    status, output = snakemake(filled, "--dry-run", scores_of(CELL), *AT_TINY, "scores=train")
    assert status == 0
    assert re.search(rf"^{FAMILY}_start +1", output, flags=re.MULTILINE)
    assert re.search(rf"{FAMILY}_train +1", output)


def rewrite(path, **changes):
    frame, origin = scores.read(path)
    scores.write(path, frame, origin | changes)


def other_parameters(path):
    rewrite(path, cell=scores.read(path)[1]["cell"] | {"label": 3})


def other_seed(path):
    rewrite(path, seed=2)


def flipped_bytes(path):
    content = bytearray(path.read_bytes())
    # In the first column chunks, which follow the magic bytes.
    for place in range(40, 400):
        content[place] ^= 0xFF
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (other_parameters, "computed for label 3; expected 9"),
        (flipped_bytes, "damaged|not a readable Parquet file"),
    ],
)
def test_a_cached_file_of_something_else_is_refused_by_name(filled, snakemake, damage, expected):
    damage(cached(filled))
    status, output = snakemake(filled, scores_of(CELL), *AT_TINY)
    assert status != 0
    assert re.search(rf"results/cached/{FAMILY}/{CELL}.parquet: .*({expected})", output)
    assert no_job_ran(filled)


def test_a_bad_cached_file_is_refused_even_where_scores_are_there(filled, snakemake):
    target = filled / scores_of(CELL)
    target.parent.mkdir(parents=True)
    shutil.copy(cached(filled), target)
    (target.parents[1] / "estimates.csv").write_text("from an earlier run")
    other_seed(cached(filled))
    estimates = f"results/tiny/{FAMILY}/estimates.csv"
    status, output = snakemake(filled, "--dry-run", estimates, *AT_TINY)
    assert status != 0
    assert "computed for seed 2; expected 1" in output


def test_missing_cached_files_are_named_where_they_are_an_error(filled, snakemake):
    estimates = f"results/tiny/{FAMILY}/estimates.csv"
    status, output = snakemake(filled, estimates, *AT_TINY, "missing_scores=error")
    assert status != 0
    assert "missing_scores is 'error', and cached files are missing" in output
    assert CELL not in output
    for name in (OTHER, LONG, KILLED):
        assert f"results/cached/{FAMILY}/{name}.parquet" in output
    assert no_job_ran(filled)


@pytest.mark.whole
def test_what_is_neither_cached_nor_trained_may_be_left_out(filled, snakemake):
    """The figures are drawn from the cached cell alone, and nothing is trained."""
    estimates = f"results/tiny/{FAMILY}/estimates.csv"
    status, output = snakemake(filled, estimates, *AT_TINY, "missing_scores=skip")
    assert status == 0, output[-5000:]
    assert re.search(rf"{FAMILY}_restore +1", output)
    assert not re.search(rf"{FAMILY}_(train|start) +", output)
    rows = pd.read_csv(filled / estimates)
    counts = rows[rows["quantity"] == "repeats"].set_index("cell")
    assert counts["value"].to_dict() == {CELL: 1, OTHER: 0, LONG: 0, KILLED: 0}
    assert set(counts["planned"]) == {1}
    assert set(rows.loc[rows["quantity"] == "epsilon", "cell"]) == {CELL}


def test_an_absent_data_set_stops_only_what_would_be_trained(tmp_path, checkout, snakemake):
    directory = checkout(tmp_path)
    smoke = yaml.safe_load((directory / "workflow/config/scales/smoke.yaml").read_text())
    content = yaml.safe_load(yaml.safe_dump(TINY | {"encoding_loss": smoke["encoding_loss"]}))
    pictures = {"dataset": "cifar10", "model": "cifar_cnn", "private": 25_000}
    content[FAMILY]["tasks"]["digits"] |= pictures
    for stage in content[FAMILY]["tasks"]["digits"]["pretraining"]:
        stage["dataset"] = "cifar10"
    with_scale(directory, content)
    (tmp_path / "nothing").mkdir()
    environment = {"HIDDENSTATE_DATA": str(tmp_path / "nothing")}
    status, output = snakemake(directory, scores_of(CELL), *AT_TINY, environment=environment)
    assert status != 0
    place = tmp_path / "nothing/cifar-10-batches-py"
    assert f"some of its models cannot be trained: {place}: cifar10 is not there" in output
    assert "MissingInputException" in output
    assert re.search(rf"affected files:\s+{re.escape(str(place))}", output)
    assert no_job_ran(directory)
    dry = ("encoding_loss", "--dry-run", *AT_TINY)
    status, output = snakemake(directory, *dry, environment=environment)
    assert status == 0, output


@pytest.mark.whole
def test_a_family_that_the_scale_lacks_has_no_targets(tiny, snakemake):
    status, output = snakemake(tiny, "claims", "--dry-run", *AT_TINY)
    assert status == 0, output
    assert "encoding_loss" not in output
    status, output = snakemake(tiny, "encoding_loss", "--dry-run", *AT_TINY)
    assert status != 0
    assert "No rule to produce encoding_loss" in output


@pytest.mark.whole
def test_there_is_nothing_to_verify_without_a_cache(tiny, snakemake):
    status, output = snakemake(tiny, "verify_cache", *AT_TINY)
    assert status != 0
    assert "nothing to verify: no cell is cached" in output


@pytest.mark.whole
def test_verification_finds_forged_scores_and_clears_honest_ones(filled, trained, snakemake):
    shutil.copytree(
        trained / f"results/tiny/{FAMILY}/starts", filled / f"results/tiny/{FAMILY}/starts"
    )
    every = (*AT_TINY, "verify_cells=10")
    # As of trainings that take long, whose results stand whatever the code is.
    frame, origin = scores.read(cached(filled))
    origin = {key: value for key, value in origin.items() if key != "code"}
    scores.write(cached(filled), frame, origin)
    status, output = snakemake(filled, "verify_cache", *every)
    assert status == 0, output[-5000:]
    verdicts = pd.read_csv(filled / "results/tiny/verified.csv")
    assert set(verdicts["cell"]) == {CELL}
    assert verdicts["agree"].all()
    assert set(verdicts["new"]) == {20}
    # A file of the other cell, with a valid digest and scores that nobody trained.
    other = job_of(filled, OTHER)
    forged = origin | {"cell": other.identity, "made_by": other.maker.written}
    scores.write(cached(filled, OTHER), frame.assign(score=frame["score"] + 100), forged)
    status, output = snakemake(filled, "verify_cache", *every)
    assert status != 0
    assert f"differ from those computed again: {OTHER} (" in output
    verdicts = pd.read_csv(filled / "results/tiny/verified.csv")
    assert verdicts.groupby("cell")["agree"].all().to_dict() == {CELL: True, OTHER: False}
    # A verdict is of the code that trained again: of other code it is another's.
    dry = (filled, "verify_cache", "--dry-run", *every)
    assert f"{FAMILY}_verify" not in snakemake(*dry)[1]
    # And of the cached file, also where the one in its place is older.
    scores.write(cached(filled), frame, origin | {"wall_seconds": 1.0})
    os.utime(cached(filled), (0, 0))
    assert re.search(rf"{FAMILY}_verify +1", snakemake(*dry)[1])
    engine = filled / "src/hiddenstate/dpsgd/native/source.py"
    engine.write_text(f"{engine.read_text()}\nOTHER = 1\n")
    assert re.search(rf"{FAMILY}_verify +2", snakemake(*dry)[1])


@pytest.fixture
def training(request, tiny, trained, start):
    """A run in the middle of a training, in a process group of its own, and its checkpoint."""
    cell = getattr(request, "param", LONG)
    shutil.copytree(
        trained / f"results/tiny/{FAMILY}/starts", tiny / f"results/tiny/{FAMILY}/starts"
    )
    process = start(tiny, scores_of(cell), *AT_TINY, start_new_session=True)
    checkpoint = tiny / f"results/tiny/{FAMILY}/checkpoints" / cell
    deadline = time.monotonic() + 300
    while not list(checkpoint.rglob("[!.]*.npz")):
        assert process.poll() is None, process.communicate()[0][-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    yield process, checkpoint
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.whole
@pytest.mark.parametrize("to", ["all, as a terminal does", "the run alone"])
def test_an_interrupted_run_says_so_and_nothing_else(tiny, training, to):
    process, checkpoint = training
    if to == "the run alone":
        os.kill(process.pid, signal.SIGINT)
    else:
        os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "interrupted; the same command goes on" in output
    assert not re.search("failed|Traceback|Exception|KeyboardInterrupt", output), output
    # No job went on. Finished models are kept, and nobody is in their folder.
    assert not (tiny / scores_of(LONG)).exists()
    assert list(checkpoint.rglob("[!.]*.npz"))
    assert to == "the run alone" or not (checkpoint / ".lock").exists()


@pytest.mark.whole
@pytest.mark.parametrize("training", [KILLED], indirect=True)
def test_jobs_end_with_their_driver_and_no_finished_model_is_trained_again(
    tiny, trained, training, snakemake
):
    process, checkpoint = training
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(0.1)
    assert not (tiny / scores_of(KILLED)).exists(), "the kill came too late to test anything"
    # On a CPU every finished model has a file of its own.
    finished = len(list(checkpoint.rglob("[!.]*.npz")))
    status, output = snakemake(tiny, "--unlock", "--config", "scale=tiny")
    assert status == 0, output
    status, output = snakemake(tiny, scores_of(KILLED), *AT_TINY)
    assert status == 0, output[-5000:]
    log = (tiny / f"logs/tiny/{FAMILY}/scores/{KILLED}.log").read_text()
    assert re.search(r" (\d+)/24 ", log).group(1) == str(finished)
    assert not checkpoint.exists()
    uninterrupted = tiny / "uninterrupted.parquet"
    subprocess.run(
        [
            *(sys.executable, "-c", "from hiddenstate.cli import main; main()", "train", FAMILY),
            *("--config", "workflow/config/scales/tiny.yaml", "--cell", KILLED),
            *("--start", f"results/tiny/{FAMILY}/starts/digits_pre0_repeat0.parquet"),
            *("--out", uninterrupted),
        ],
        cwd=tiny,
        env=os.environ | {"PYTHONPATH": str(tiny / "src")},
        check=True,
        capture_output=True,
    )
    assert digest(tiny / scores_of(KILLED)) == digest(uninterrupted)


def test_the_scale_of_one_family_is_planned(tmp_path, checkout, snakemake, data_sets):
    directory = checkout(tmp_path)
    status, output = snakemake(
        *(directory, f"results/mnist-raw/{FAMILY}/estimates.csv", "--dry-run"),
        *("--config", "scale=mnist-raw"),
        environment=data_sets(directory, "mnist-raw"),
    )
    assert status == 0, output
    assert re.search(rf"{FAMILY}_train +\d+", output)
