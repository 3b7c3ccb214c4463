"""A run that failed says so until its cause is gone, and an interrupted one is told as that."""

import os
import re
import shutil
import signal
import time

import pytest

from hiddenstate import papers
from hiddenstate.pipeline import scores, sealed
from hiddenstate.study import config, forecast

FAMILY = "encoding_loss"
SCORES = "results/small/encoding_loss/scores/q0.1_T100_sigma4_sound.parquet"
BOUND = "results/small/encoding_loss/bounds/q0.1_T100_sigma4.parquet"
ESTIMATES = "results/small/encoding_loss/estimates.csv"
SCALE = "workflow/config/scales/small.yaml"
AT_SMALL = ("--cores", "1", "--config", "scale=small")


def ended(process):
    """Status and output of a process of its own, at whose end the run is checked."""
    output, _ = process.communicate(timeout=600)
    return process.returncode, output


def planned(directory, snakemake, *targets):
    status, output = snakemake(directory, *targets, "--dry-run", *AT_SMALL)
    assert status == 0, output[-3000:]
    return output


@pytest.mark.whole
def test_a_damaged_result_fails_the_same_command_until_it_is_removed(finished, snakemake):
    scores = finished / SCORES
    scores.write_bytes(scores.read_bytes()[:700])
    for _ in range(2):
        status, output = snakemake(finished, "claims", *AT_SMALL)
        assert status != 0, output[-3000:]
        assert f"{SCORES}: not a readable Parquet file" in output
        assert "remove the file and run the same command again" in output
    scores.unlink()
    status, output = snakemake(finished, "claims", *AT_SMALL)
    assert status == 0, output[-3000:]
    assert scores.exists() and (finished / ESTIMATES).exists()
    assert "Nothing to be done" in planned(finished, snakemake, "claims")


@pytest.mark.parametrize(
    ("target", "gone"),
    [
        ("figures", ESTIMATES),
        ("tables", SCORES),
        ("claims", SCORES),
        ("claims", BOUND),
        (FAMILY, ESTIMATES),
        (f"{FAMILY}_figure2", SCORES),
        (f"{FAMILY}_figure2", "figures/small/encoding_loss/figure2.png"),
        (FAMILY, "figures/small/encoding_loss/figure2.png"),
        (FAMILY, "figures/small/encoding_loss/digests.json"),
        (FAMILY, "results/small/encoding_loss/claims.csv"),
        (FAMILY, "results/small/encoding_loss/tables/digests.json"),
        ("report", "figures/small/encoding_loss/figure2.pdf"),
        ("report", "results/small/encoding_loss/claims.md"),
        ("report", "results/small/claims.csv"),
        ("all", "figures/small/encoding_loss/figure2.png"),
        ("all", "results/small/encoding_loss/claims.csv"),
        ("claims", "results/small/claims.csv"),
    ],
)
def test_whatever_a_target_stands_on_is_a_reason_to_run(finished, snakemake, target, gone):
    path = finished / gone
    content = path.read_bytes()
    path.unlink()
    try:
        assert "Nothing to be done" not in planned(finished, snakemake, target)
    finally:
        path.write_bytes(content)


@pytest.mark.whole
def test_results_of_another_seed_are_refused_where_snakemake_s_records_are_lost(
    finished, snakemake, start
):
    """They were taken for the seed's own: nothing was to be done."""
    scale, records = finished / SCALE, finished / ".snakemake/metadata"
    text, kept = scale.read_text(), finished / "kept"
    records.rename(kept)
    seed = re.search(r"^seed: \d+$", text, re.MULTILINE)
    scale.write_text(text.replace(seed[0], "seed: 5") if seed else f"{text}seed: 5\n")
    try:
        status, output = ended(start(finished, FAMILY, *AT_SMALL))
        assert status == 1, output[-3000:]
        assert "are of another seed" in output and "results/small/encoding_loss/scores" in output
    finally:
        scale.write_text(text)
        shutil.rmtree(records, ignore_errors=True)
        kept.rename(records)
    assert "Nothing to be done" in planned(finished, snakemake, FAMILY)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("target", "name"),
    [
        (FAMILY, "figures/small/encoding_loss/figure2.pdf"),
        (FAMILY, "results/small/encoding_loss/tables/encodings.csv"),
        (FAMILY, "results/small/encoding_loss/claims.md"),
        ("report", "results/small/report.html"),
    ],
)
def test_what_was_cut_or_edited_is_refused_also_where_nothing_is_to_be_done(
    finished, start, target, name
):
    path = finished / name
    content, times = path.read_bytes(), (path.stat().st_atime, path.stat().st_mtime)
    path.write_bytes(content[:-40])
    os.utime(path, times)
    try:
        status, output = ended(start(finished, target, *AT_SMALL))
        assert status == 1 and f"stopped: {name}: is not the file" in output, output[-3000:]
    finally:
        path.write_bytes(content)
        os.utime(path, times)


@pytest.mark.whole
def test_a_check_at_the_end_that_fails_is_no_success(finished, start):
    """Of an error after the last job Python says nothing in its status."""
    (finished / "workflow/config/expected/small.csv").write_text("nonsense\n")
    run = start(finished, FAMILY, *AT_SMALL, environment={"HIDDENSTATE_STRICT": "1"})
    status, output = ended(run)
    assert status == 1 and "expected/small.csv" in output, output[-3000:]


@pytest.mark.whole
def test_a_figure_of_other_estimates_is_refused_where_nothing_is_to_be_done(finished, start):
    """Figures of another scale, with their digests, were believed."""
    path = finished / "figures/small/encoding_loss/figure2.png"
    times = {p: (p.stat().st_atime, p.stat().st_mtime) for p in path.parent.iterdir()}
    sealed.sign(path.parent, {path.name: "of other estimates"})
    for one, time_ in times.items():
        os.utime(one, time_)
    status, output = ended(start(finished, "figures", *AT_SMALL))
    assert "Nothing to be done" in output
    expected = "stopped: figures/small/encoding_loss/figure2.png: was drawn from other estimates"
    assert status == 1 and expected in output, output[-3000:]


@pytest.mark.whole
def test_strict_fails_as_often_as_it_is_asked(finished, start):
    """Also where the verdicts were made before, so that nothing is to be done."""
    expected = finished / "workflow/config/expected/small.csv"
    judged = (finished / "results/small/claims.csv").read_text().splitlines()[1].split(",")[0]
    expected.write_text(f"id,verdict\n{judged},nonsense\n")
    for value, status in (("1", 4), ("1", 4), ("0", 0)):
        environment = {"HIDDENSTATE_STRICT": value}
        run = start(finished, "claims", *AT_SMALL, environment=environment)
        assert ended(run)[0] == status


def test_changed_code_is_a_reason_to_compute_again_and_a_remark_is_none(finished, snakemake):
    path = finished / "src/hiddenstate/adversaries/encoding_loss.py"
    code = path.read_text()
    path.write_text(f"{code}\n# A remark.\n")
    assert "Nothing to be done" in planned(finished, snakemake, "all")
    path.write_text(f"{code}\nOTHER = 1\n")
    assert f"{FAMILY}_simulate1" in planned(finished, snakemake, "all")


@pytest.mark.whole
def test_an_error_in_the_code_fails_the_same_command_again(finished, snakemake):
    path = finished / "src/hiddenstate/papers/encoding_loss/estimates.py"
    code = path.read_text()
    path.write_text(code + "\n\ndef estimate(*_):\n    raise ZeroDivisionError\n")
    try:
        for _ in range(2):
            status, output = snakemake(finished, FAMILY, *AT_SMALL)
            assert status != 0, output[-3000:]
            assert "ZeroDivisionError" in output
    finally:
        path.write_text(code)


# Enough cells to be interrupted in the middle; cheap ones.
CELLS = [
    f"results/small/encoding_loss/scores/q0.1_T100_sigma{sigma}_{encoding}.parquet"
    for sigma in (4, 1)
    for encoding in ("published", "sound")
]


def digests(directory):
    return {name: scores.digest(scores.read(directory / name)[0]) for name in CELLS}


@pytest.mark.whole
def test_scores_are_the_same_on_one_core_and_after_a_kill(
    small_run, tmp_path, checkout, start, snakemake
):
    directory = checkout(tmp_path)
    shutil.copy(small_run / SCALE, directory / SCALE)
    arguments = [*AT_SMALL, "--", *CELLS]
    process = start(directory, *arguments, start_new_session=True)
    first = directory / CELLS[0]
    deadline = time.monotonic() + 300
    while not any((directory / name).exists() for name in CELLS):
        assert process.poll() is None, process.communicate()[0][-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    done = [name for name in CELLS if (directory / name).exists()]
    assert 0 < len(done) < len(CELLS), "the kill came too late to test anything"
    written = {name: (directory / name).stat().st_mtime_ns for name in done}
    status, output = snakemake(directory, "--unlock", "--config", "scale=small")
    assert status == 0, output
    status, output = snakemake(directory, *arguments)
    assert status == 0, output[-3000:]
    assert first.exists()
    assert digests(directory) == digests(small_run)
    # A job whose end Snakemake had recorded is not run twice; the last one may be, all its cells.
    again = {name for name in done if (directory / name).stat().st_mtime_ns != written[name]}
    _, grid, _ = config.section(directory / SCALE, FAMILY)
    jobs = forecast.shared(papers.load(FAMILY).jobs(grid)).values()
    names = {path.rpartition("/")[2].removesuffix(".parquet") for path in again}
    touched = [cells for cells in jobs if names & {job.cell.name for job in cells}]
    assert len(touched) <= 1


def results(directory):
    """Whatever a smoke run made: scores and bounds as digests, tables and figures as they are."""
    # What a kill left half-written has a hidden name of its own.
    places = [directory / "results/smoke", directory / "figures/smoke"]
    whole = [p for place in places for p in place.rglob("*.*") if not p.name.startswith(".")]
    # The page has the times that the jobs took.
    made = [path for path in whole if path.name != "report.html"]
    return {
        path.relative_to(directory): scores.digest(scores.read(path)[0])
        if path.suffix == ".parquet"
        else path.read_bytes()
        for path in made
    }


def written(place):
    """Number of tables, while folders come and go."""
    return sum(name.endswith(".parquet") for _, _, names in os.walk(place) for name in names)


@pytest.mark.slow
def test_ten_kills_change_no_result(smoke_run, tmp_path, checkout, start, snakemake):
    """Of a smoke run of everything, each with a tenth of the cells more than the one before."""
    directory = checkout(tmp_path / "killed")
    arguments = ["all", "--cores", "2", "--config", "scale=smoke"]
    wanted = results(smoke_run)
    cells = sum(path.suffix == ".parquet" for path in wanted)
    for kill in range(10):
        process = start(directory, *arguments, start_new_session=True)
        while written(directory / "results/smoke") < kill * cells // 10 + 1:
            assert process.poll() is None, process.communicate()[0][-3000:]
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    status, output = snakemake(directory, *arguments)
    assert status == 0, output[-3000:]
    assert results(directory) == wanted
