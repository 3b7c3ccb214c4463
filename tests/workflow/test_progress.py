"""What a run prints: its rules' functions, run as plain Python on Snakemake's events."""

import inspect
import logging
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from snakemake.scheduling.job_scheduler import JobScheduler

from hiddenstate.pipeline import costs, sealed
from hiddenstate.study import claims, forecast, verdicts

RULES = Path(__file__).parents[2] / "workflow/rules/progress.smk"


@pytest.fixture
def names():
    logger = logging.getLogger("progress under test")
    logger.setLevel(logging.INFO)
    logger.handlers, logger.propagate = [], False
    found = {"logger": logger, "Path": Path, "forecast": forecast}
    exec(compile(RULES.read_text(), RULES, "exec"), found)
    return found


class Kept(logging.Handler):
    """What is printed, and what goes to the log file."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


@pytest.fixture
def run(names):
    """A run of three jobs that cost 10, 100 and 190 seconds, and what it prints and logs."""
    logger = names["logger"]
    printed, logged = Kept(), Kept()
    printed.addFilter(names["essential"])
    progress = names["Progress"]({1: 10.0, 2: 100.0, 3: 190.0}, 3, 2)
    for handler in (printed, logged, progress):
        logger.addHandler(handler)
    return logger, progress, printed.lines, logged.lines


def event(logger, name, level=logging.INFO, **fields):
    logger.log(level, f"event {name}", extra={"event": name, **fields})


def test_a_finished_job_is_one_line_and_all_else_is_in_the_log(run):
    logger, _, printed, logged = run
    logger.info("Select jobs to execute...")
    event(logger, "job_info", jobid=1, rule_msg="toy: simulate a")
    event(logger, "shellcmd")
    event(logger, "job_finished", job_id=1)
    assert len(printed) == 1
    assert printed[0].startswith("1 of 3  toy: simulate a  (0 s; about ")
    assert printed[0].endswith(" min left)")
    assert len(logged) == 5
    logger.warning("odd")
    assert printed[-1] == "odd"


def test_a_time_has_the_unit_that_suits_it(names):
    times = {1: "10 s", 44: "40 s", 89: "90 s", 95: "2 min", 3000: "50 min", 7200: "2.0 h"}
    assert {seconds: names["time_in_words"](seconds) for seconds in times} == times


def test_the_time_left_is_the_others_cost_at_the_pace_so_far(run):
    _, progress, *_ = run
    # 110 seconds' worth was done in 220: the other 190 take 380.
    progress.begin -= 220
    for job in (1, 2):
        progress.names[job], progress.started[job] = "job", time.monotonic()
        progress.finished.add(job)
    assert progress.left() == pytest.approx(380, rel=0.01)
    # A job at work counts with what it has had, not more than it costs.
    progress.started[3] = time.monotonic() - 95
    assert progress.left() == pytest.approx(95 * 220 / 205, rel=0.01)
    progress.started[3] -= 1000
    assert progress.left() == 0


def test_at_first_cores_are_taken_to_do_as_was_measured(run):
    _, progress, *_ = run
    assert progress.left() == pytest.approx(150, rel=0.01)


class Local:
    """What Snakemake says of a run on four cores."""

    is_main_process, output_settings = True, SimpleNamespace(verbose=False)
    nodes, cores = None, 4


class Cluster(Local):
    nodes = 100

    @property
    def cores(self):
        raise RuntimeError("Workflow requires a total number of cores to be defined")


@pytest.mark.parametrize(("where", "side_by_side"), [(Local, 4), (Cluster, 100)])
def test_a_run_is_shown_here_and_on_a_cluster(names, where, side_by_side):
    printed = Kept()
    printed.name = "DefaultStreamHandler"
    names["logger"].addHandler(printed)
    names |= {"workflow": where(), "costs_of_jobs": dict}
    names["show_progress"]()
    (added,) = [h for h in names["logger"].handlers if isinstance(h, names["Progress"])]
    assert added.cores == side_by_side
    assert printed.filters == [names["essential"]]


def test_a_job_costs_what_its_cells_do_or_its_share_of_their_models(names):
    def job(rule, cell=None, parts=None, given=(), cells=()):
        found = {"cell": cell, "parts": parts}
        return SimpleNamespace(
            rule=SimpleNamespace(name=rule),
            wildcards_dict={name: value for name, value in found.items() if value},
            input={"parts": list(given)},
            params=SimpleNamespace(family="toy", kind="simulate", cells=cells)
            if cells
            else SimpleNamespace(),
        )

    trained = SimpleNamespace(cost=600, cell=None, work=SimpleNamespace(size=lambda cell: (100, 5)))
    work = SimpleNamespace(kind="simulate")
    simulated = {name: SimpleNamespace(cost=9, work=work) for name in "bcdef"}
    every = {"train": {"a": trained}, "simulate": simulated, "bound": {}}
    family = SimpleNamespace(jobs=lambda grid: every)
    jobs = [job("toy_train", "a"), job("toy_verify", "a"), job("toy_figures"), job("all")]
    jobs += [job("toy_part", "a", "8"), job("toy_train", "a", given=["part1of8"])]
    jobs += [job("toy_simulate1", cells="bcd"), job("toy_simulate2", cells="ef")]
    names |= {
        "read_scale": lambda: SimpleNamespace(toy=None),
        "FAMILIES": {"toy": family},
        "config": {"verify_models": "20"},
        "costs": costs,
        "forecast": forecast,
        "workflow": SimpleNamespace(
            dag=SimpleNamespace(needrun_jobs=lambda: jobs, jobid=jobs.index)
        ),
    }
    assert names["costs_of_jobs"]() == {
        **{0: 600, 1: 120, 2: costs.DRAWING["figures"], 3: 0},
        **{4: 75, 5: 0},  # the parts of a cell train its models, and the last job gathers them
        **{6: 25, 7: 17},  # three of them start but once, and two more
    }


def test_a_failed_job_shows_the_end_of_its_log(run, tmp_path):
    logger, _, printed, _ = run
    log = tmp_path / "a.log"
    log.write_text("\n".join(f"line {i}" for i in range(100)))
    event(logger, "job_info", jobid=2, rule_msg="toy: train b")
    fields = {"jobid": 2, "rule_name": "toy_train", "log": [str(log)], "shellcmd": "hiddenstate x"}
    event(logger, "job_error", logging.ERROR, **fields)
    (told,) = printed
    assert told.startswith("failed: toy: train b\n")
    assert "line 99" in told and "line 85" in told and "line 84" not in told
    assert told.endswith("the command was: hiddenstate x")
    log.unlink()
    event(logger, "job_error", logging.ERROR, **fields)
    assert "cannot be read" in printed[-1]


def test_an_interrupted_run_tells_of_no_failure(run, names):
    logger, _, printed, _ = run
    event(logger, "job_info", jobid=2, rule_msg="toy: train b")
    before = signal.getsignal(signal.SIGINT)
    try:
        names["note_interruption"](False)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    event(logger, "job_error", logging.ERROR, jobid=2, rule_name="toy_train", log=[], shellcmd="")
    logger.error("RuleException: returned non-zero exit status 130")
    names |= {"SHOWN": {}, "FAMILIES": {}, "RESULTS": "nowhere"}
    names["show_outcome"]([], False)
    assert printed == ["interrupted; the same command goes on from there."]


def test_the_outcome_names_figures_and_verdicts(names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept = Kept()
    names["logger"].addHandler(kept)
    import os
    from pathlib import Path

    rows = [("a", "paper", "refuted"), ("b", "own", "holds"), ("c", "own", "holds")]
    frame = pd.DataFrame(columns=claims.COLUMNS, index=range(3), data="").assign(
        **{"id": [f"toy.{row[0]}" for row in rows], "ledger": [row[1] for row in rows]},
        verdict=[row[2] for row in rows],
    )
    for folder, n in (("results/toy", 3), ("results/toy/toy", 1)):
        (tmp_path / folder).mkdir(parents=True)
        sealed.write(tmp_path / folder / "claims.csv", frame[:n], "")
    expected = tmp_path / "expected.csv"
    expected.write_text("id,verdict\ntoy.a,confirmed\ntoy.b,holds\ntoy.c,holds\n")
    asked = ["results/toy/toy/claims.csv"]
    names |= {
        **{"os": os, "Path": Path, "verdicts": verdicts},
        "RESULTS": "results/toy",
        "FIGURES": "figures/toy",
        "FAMILIES": {"toy": None},
        "SHOWN": {"toy": ({"gap": "figures/toy/gap.pdf", "lost": "figures/toy/lost.pdf"}, [])},
        "expected_verdicts": lambda: ["expected.csv"],
        "workflow": SimpleNamespace(dag=SimpleNamespace(jobs=[SimpleNamespace(output=asked)])),
    }
    exec(compile(RULES.read_text(), RULES, "exec"), names)
    (tmp_path / "figures/toy").mkdir(parents=True)
    (tmp_path / "figures/toy/gap.pdf").write_text("")
    # A family alone.
    names["show_outcome"]([], True)
    assert kept.lines == [
        "figures   figures/toy/ (1, as PDF and PNG)",
        "verdicts  results/toy/toy/claims.md",
        "          1 sentence of the papers: 1 refuted",
        "          NOT as expected: 3 verdicts differ from expected.csv:",
        "          - toy.a: refuted, expected: confirmed",
        *(f"          - toy.{c}: no such claim, expected: holds" for c in "bc"),
    ]
    # All of them, compared with what is expected.
    asked.append("results/toy/claims.csv")
    kept.lines.clear()
    names["show_outcome"]([], True)
    assert kept.lines[1:] == [
        "verdicts  results/toy/claims.md",
        "          1 sentence of the papers: 1 refuted",
        "          2 statements of our own: 2 hold",
        "          NOT as expected: 1 verdict differs from expected.csv:",
        "          - toy.a: refuted, expected: confirmed",
    ]
    expected.write_text("id,verdict\ntoy.a,refuted\ntoy.b,holds\ntoy.c,holds\n")
    kept.lines.clear()
    names["show_outcome"]([], True)
    assert kept.lines[-1] == "          As expected: all 3 verdicts are those of expected.csv."
    # A failed run tells none: they may be of estimates of before.
    kept.lines.clear()
    names["show_outcome"]([], False)
    assert kept.lines[0].startswith("stopped: a job failed")
    assert not any("verdicts" in line for line in kept.lines)


def test_the_limit_that_the_hooks_lift_is_what_makes_snakemake_look_again():
    assert "job_rate_limiter.timespan" in inspect.getsource(JobScheduler.schedule)
    assert "scheduler.job_rate_limiter = None" in RULES.with_name("hooks.smk").read_text()
