# What a run prints: a line per finished job, the time that is left, the end of a failed job's log,
# and in the last lines where everything is. Snakemake's own log file keeps all that it has to say.

import atexit
import contextlib
import logging
import os
import re
import signal
import threading
import time
import traceback

import psutil

from pathlib import Path

SHOWN_OF_LOG = 15
"""Lines of a failed job's log that are printed."""


UNEXPECTED = 4
"""Exit status with --strict of a run with broken checks, or other verdicts than expected."""


interrupted = threading.Event()
"""Set once the run is interrupted: its jobs end then, and none of them has failed."""


GRACE = 3
"""Seconds that jobs have to end after an interruption."""


def end_jobs():
    """End the processes that this one started, and those that they did."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()


def note_interruption(here):
    """Take note of Ctrl-C, which a terminal gives to the jobs as well.

    Snakemake waits for them. So jobs that are at work ``here`` are ended a little later, for a
    Ctrl-C that was given to this process alone. Those of a cluster are cancelled by its plugin.
    """

    def note(number, frame):
        if here and not interrupted.is_set():
            timer = threading.Timer(GRACE, end_jobs)
            timer.daemon = True
            timer.start()
        interrupted.set()
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, note)


def time_in_words(seconds):
    """A time that is left, in the unit that suits it."""
    if seconds < 90:
        return f"{max(10, round(seconds, -1)):.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"


class Progress(logging.Handler):
    """Turns Snakemake's events into lines of its own.

    ``costs`` are seconds of one core by job number. The time left is what the other jobs cost, at
    the pace of those that are done or at work.
    """

    def __init__(self, costs, total, cores):
        super().__init__(logging.INFO)
        self.costs, self.total, self.cores = costs, total, cores
        self.names, self.started, self.finished, self.failed = {}, {}, set(), set()
        self.begin = time.monotonic()

    def emit(self, record):
        event = str(getattr(record, "event", None) or "")
        if event == "job_info":
            self.names[record.jobid] = record.rule_msg
            self.started[record.jobid] = time.monotonic()
        elif event == "job_finished":
            self.finish(record.job_id)
        elif event == "job_error":
            self.fail(record)

    def finish(self, job):
        self.finished.add(job)
        # A target that only names others has no message, and nobody waits for it.
        if self.names.get(job):
            took = time.monotonic() - self.started[job]
            line = f"{len(self.finished)} of {self.total}  {self.names[job]}  ({took:.0f} s"
            if len(self.finished) < self.total:
                line += f"; about {time_in_words(self.left())} left"
            say(f"{line})")

    def left(self):
        """Seconds until the end, as far as can be told."""
        now = time.monotonic()
        done = sum(self.costs.get(job, 0) for job in self.finished)
        for job in self.started.keys() - self.finished - self.failed:
            done += min(now - self.started[job], self.costs.get(job, 0))
        rest = max(0, sum(self.costs.values()) - done)
        # Until something can be told of the pace, each core is taken to do as was measured.
        known = min(1, done / 60)
        pace = known * (now - self.begin) / max(done, 1) + (1 - known) / self.cores
        return rest * pace

    def fail(self, record):
        self.failed.add(record.jobid)
        if interrupted.is_set():
            return
        lines = [f"failed: {self.names.get(record.jobid) or record.rule_name}"]
        for path in record.log:
            path = path.removesuffix(" (check log file(s) for error details)")
            lines.append(f"  the end of {path}:")
            try:
                ends = (
                    Path(path)
                    .read_text(encoding="utf-8", errors="replace")
                    .splitlines()[-SHOWN_OF_LOG:]
                )
            except OSError as error:
                ends = [f"(cannot be read: {error.strerror})"]
            lines += [f"    {line}" for line in ends or ["(it is empty)"]]
        if record.shellcmd:
            lines.append(f"  the command was: {record.shellcmd}")
        say("\n".join(lines), logging.ERROR)


def say(text, level=logging.INFO):
    """Print a line of the run's own, and keep it in the log."""
    logger.log(level, text, extra={"progress": True})


def essential(record):
    """Filter of what Snakemake prints beside: warnings and errors, except those told above."""
    if getattr(record, "progress", False):
        return True
    if interrupted.is_set():
        return False
    failed = str(getattr(record, "event", None) or "") == "job_error"
    return record.levelno >= logging.WARNING and not failed


def costs_of_jobs():
    """Seconds of one core of every job that is to be done, by its number."""
    scale, new = read_scale(), int(config["verify_models"])
    measured, families = {}, {}
    for name, family in FAMILIES.items():
        every = families[name] = family.jobs(getattr(scale, name))
        for kind, jobs in every.items():
            for cell, job in jobs.items():
                measured[f"{name}_{kind}", cell] = job.cost
                if kind == "train":
                    models, _ = job.work.size(job.cell)
                    measured[f"{name}_verify", cell] = job.cost * new / models

    def cost(job):
        drawing = costs.DRAWING.get(job.rule.name.rpartition("_")[2], 0)
        name, cell = job.rule.name, job.wildcards_dict.get("cell")
        if (kind := getattr(job.params, "kind", None)) in forecast.SHARED:
            alone = families[job.params.family][kind]
            return forecast.cost([alone[cell] for cell in job.params.cells])
        if name.endswith("_part"):
            whole = measured[f"{name.removesuffix('_part')}_train", cell]
            return whole / int(job.wildcards_dict["parts"])
        if job.input.get("parts"):
            return drawing  # its parts train the models
        return measured.get((name, cell), drawing)

    return {workflow.dag.jobid(job): cost(job) for job in workflow.dag.needrun_jobs()}


def show_progress():
    """Put lines of the run's own in the place of Snakemake's, which go on into its log file."""
    printed = [h for h in logger.handlers if h.name == "DefaultStreamHandler"]
    # A user who asks Snakemake for more, or for another way of logging, gets that.
    if not printed or not workflow.is_main_process or workflow.output_settings.verbose:
        return
    for handler in printed:
        handler.addFilter(essential)
    costs = costs_of_jobs()
    # On a cluster there are jobs side by side, and nobody says how many cores.
    logger.addHandler(Progress(costs, len(costs), workflow.nodes or workflow.cores))


def planned(path):
    """If the run was asked for a file, be it made before or now."""
    return any(path in map(str, job.output) for job in workflow.dag.jobs)


def judged():
    """Lines on the verdicts that the run was asked for, and if they are as expected."""
    if planned(f"{RESULTS}/claims.csv"):
        return told_of(RESULTS, expected_verdicts())
    folders = [f"{RESULTS}/{family}" for family in FAMILIES]
    asked = [folder for folder in folders if planned(f"{folder}/claims.csv")]
    expected = expected_verdicts()
    return [line for folder in asked for line in told_of(folder, expected, part=True)]


def told_of(folder, expected, *, part=False):
    """How the verdicts of a folder came out, in lines."""
    found = verdicts.read(Path(f"{folder}/claims.csv"))
    told = verdicts.lines(found)
    for path in expected:
        told += verdicts.compared(found, Path(path), part=part).splitlines()
    return [
        f"verdicts  {folder}/claims.md",
        *(f"          {line}" for line in told),
    ]


def terminated():
    """If the run was asked to end, as by `docker stop`, and its scheduler therefore stopped."""
    scheduler = getattr(workflow, "scheduler", None)
    return getattr(scheduler, "_user_kill", None) == "graceful"


def show_outcome(log, ok):
    """The last lines of a run."""
    if interrupted.is_set():
        say("interrupted; the same command goes on from there.")
    elif terminated():
        say(
            "ended by SIGTERM, after the jobs that were at work; the same command goes on from there."
        )
    elif not ok:
        say(
            "stopped: a job failed. What is finished is kept; the same command goes on from there."
        )
    drawn = sum(
        Path(path).exists()
        for figures, _ in SHOWN.values()
        for path in figures.values()
    )
    if drawn:
        say(f"figures   {FIGURES}/ ({drawn}, as PDF and PNG)")
    # After a failure they may be of estimates of before.
    told = judged() if ok else []
    for line in told:
        say(line)
    if ok and planned(f"{RESULTS}/report.html"):
        say(f"report    {RESULTS}/report.html")
    for path in log:
        say(f"log       {os.path.relpath(path)}")


ENDED = []


def of_another():
    """Results that the run was asked for and that are of another seed, parameters, code or data.

    Snakemake makes them again as long as it knows what they were made of: not if its own records
    are lost.
    """
    asked = {str(path) for job in workflow.dag.jobs for path in job.output}
    for family, paper in FAMILIES.items():
        for jobs in paper.jobs(getattr(GRID, family)).values():
            for name, job in jobs.items():
                path = Path(f"{RESULTS}/{family}/{job.work.folder}/{name}.parquet")
                here = str(path) in asked and path.exists()
                if here and not job.computed(path, GRID.seed):
                    yield path


def stopped(words):
    """End with status 1, past Snakemake's own, which is 0 where no job failed."""
    try:
        print(f"stopped: {words}", file=sys.stderr, flush=True)
    finally:
        os._exit(1)


def checked_at_the_end():
    """Check the outcome; an error here would leave Python's status as it is."""
    try:
        check_outcome()
    except Exception as error:
        known = isinstance(error, InputError)
        stopped(error if known else traceback.format_exc())


def check_outcome():
    """Refuse results of another run, and with --strict what is not as expected; as exit status."""
    if getattr(workflow, "execution_settings", None) is None or workflow.dryrun:
        return
    if ENDED == [False] or interrupted.is_set() or terminated():
        return
    if getattr(workflow, "_dag", None) is None:
        return
    if others := list(map(str, of_another())):
        stopped(
            f"{len(others)} results are of another seed, or of other parameters, code or data, "
            f"such as {others[0]}; remove them and run the same command again:\n"
            f"          rm {' '.join(others[:20])}{' …' if len(others) > 20 else ''}"
        )
    # Of what was there before, a file that was edited or cut is as new to Snakemake as it was.
    made = {Path(str(p)) for job in workflow.dag.jobs for p in job.output}
    grids = scale_files.grid_names(SCALE_FILE)
    outputs.check(made, grids, Path(FIGURES), Path(RESULTS))
    if os.environ.get("HIDDENSTATE_STRICT", "0") in ("", "0"):
        return
    if any(re.match(" *(NOT as|CHECK FAILED)", line) for line in judged()):
        # Snakemake's own status of a run whose jobs are all done is 0.
        os._exit(UNEXPECTED)
