"""The command line: a command for each question to the library and each job of the workflow."""

import argparse
import atexit
import errno
import io
import os
import re
import select
import signal
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

import hiddenstate
from hiddenstate.commands import (
    atlas,
    audit,
    audit_one_run,
    audit_steps,
    audit_training,
    cached,
    cells,
    check_training,
    claims,
    device_check,
    digest,
    drawing,
    epsilon,
    gallery,
    import_features,
    new_paper,
    noise,
    plan,
    plan_audit,
    suggest_canary,
    training,
)
from hiddenstate.commands.options import Commands, Run, command
from hiddenstate.errors import InputError
from hiddenstate.pipeline import usage

GROUPS: dict[str, dict[str, Run]] = {
    "Your training and its scores": {
        "epsilon": epsilon.run,
        "noise": noise.run,
        "atlas": atlas.run,
        "check-training": check_training.run,
        "suggest-canary": suggest_canary.run,
        "plan-audit": plan_audit.run,
        "audit-training": audit_training.run,
        "audit": audit.run,
        "audit-one-run": audit_one_run.run,
        "audit-steps": audit_steps.run,
    },
    "The papers and their runs": {
        "plan": plan.run,
        "cells": cells.cells,
        "keep": cached.keep,
        "verdicts": claims.verdicts,
        "gallery": gallery.run,
        "digest": digest.digest,
        "schema": digest.schema,
        "import-features": import_features.run,
        "new-paper": new_paper.run,
        "device-check": device_check.run,
    },
}
"""Commands for people, in the order of ``--help``."""
JOBS: dict[str, Run] = {
    "simulate": cells.simulate,
    "bound": cells.bound,
    "start": training.start,
    "train": training.train,
    "gather": training.gather,
    "restore": cached.restore,
    "verify": cached.verify,
    "recompute": cached.recompute,
    "verified": cached.verified,
    "estimate": drawing.estimate,
    "figures": drawing.figures,
    "claims": claims.claims,
    "collect": claims.collect,
    "report": claims.report,
}
"""Commands that the workflow's rules call."""
FAILED = 3
"""Exit status of a failure of the tool itself."""
_TRAINING = ("torch", "torchvision", "opacus")
"""What the package can be installed without."""
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
"""What a disk answers that is full, broken or read-only."""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors name the option and the expected value in plain words, in one line."""

    def error(self, message: str) -> NoReturn:
        kinds = {"int": "a whole number", "float": "a number"}
        if wrong := re.fullmatch(r"argument (\S+): invalid (\w+) value: (.*)", message):
            message = f"{wrong[1]}: got {wrong[3]}; expected {kinds.get(wrong[2], wrong[2])}"
        elif wrong := re.fullmatch(
            r"argument (\S+): invalid choice: (.*) \(choose from (.*)\)", message
        ):
            message = f"{wrong[1]}: got {wrong[2]}; expected one of {wrong[3]}"
        elif wrong := re.fullmatch(r"argument (\S+): (.*)", message):
            message = f"{wrong[1]}: {wrong[2]}"
        elif wrong := re.fullmatch(r"the following arguments are required: (.*)", message):
            message = f"missing {wrong[1]}"
        self.exit(2, f"hiddenstate: error: {message}; see {self.prog} --help\n")


def parser() -> argparse.ArgumentParser:
    """The parser of all commands; ``run`` of what it returns is the command."""
    return _parsers()[0]


def _parsers() -> tuple[argparse.ArgumentParser, Commands]:
    """The parser of all commands, and the jobs of ``hiddenstate job``."""
    made: argparse.ArgumentParser = _Parser(
        prog="hiddenstate",
        usage="hiddenstate COMMAND [OPTIONS]",
        description="How much does the last iterate of DP-SGD leak?",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--version", action="version", version=hiddenstate.__version__)
    # The epilogue lists the commands by group, which argparse cannot.
    commands = made.add_subparsers(
        required=True, prog="hiddenstate", metavar="COMMAND", help=argparse.SUPPRESS
    )
    groups = [f"{title}:\n{_added(commands, group)}" for title, group in GROUPS.items()]
    what = "Run one job of the workflow, as its rules do."
    job = commands.add_parser(
        "job",
        usage="hiddenstate job JOB [OPTIONS]",
        description=what,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    jobs = job.add_subparsers(
        required=True, prog="hiddenstate job", metavar="JOB", help=argparse.SUPPRESS
    )
    job.epilog = f"Jobs:\n{_added(jobs, JOBS)}\n\nOptions of a job: hiddenstate job JOB --help"
    groups.append(f"The workflow:\n{_line('job', what)}")
    last = "Options of a command: hiddenstate COMMAND --help. Jobs: hiddenstate job --help"
    made.epilog = "\n\n".join([*groups, last])
    return made, jobs


def _added(commands: Commands, group: dict[str, Run]) -> str:
    """Add the commands of a group; the lines that list them."""
    return "\n".join(_line(name, command(commands, name, run)) for name, run in group.items())


def _line(name: str, description: str) -> str:
    """A command's name, and the first sentence of what it does."""
    sentence = re.split(r"[.;] ", description)[0].removesuffix(".")
    return textwrap.fill(
        f"{name:<16}{sentence}", 80, initial_indent="  ", subsequent_indent=" " * 18
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status.

    0, and 1 where an audit refutes a claim or a device is wrong; 2 for bad input, told without a
    traceback; 3 for any other failure; 4 where an audit has looks to come. Whoever reads the output
    and stops, or interrupts, gets the shell's own statuses.
    """
    _have_streams()
    made, jobs = _parsers()
    words = [*(sys.argv[1:] if arguments is None else arguments)]
    if words and words[0] in jobs.choices:  # as spelled in version 0.4.0
        words.insert(0, "job")
    for word in words:
        if word.encode(errors="replace").decode() != word:
            made.error(f"got {word!r}; expected text in UTF-8")
    options = made.parse_args(words)
    _end_with_driver()
    if path := os.environ.get("HIDDENSTATE_USAGE"):
        cells = getattr(options, "cell", None) or ""
        family, cell = (
            getattr(options, "family", "all"),
            cells if isinstance(cells, str) else cells[0],
        )
        atexit.register(usage.append, path, family, options.named, cell)
    try:
        status = options.run(options) or 0
        # Here a closed pipe is still an error that is caught.
        sys.stdout.flush()
        return status
    except InputError as error:
        print(f"hiddenstate: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("hiddenstate: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        _discard_output()
        return 128 + signal.SIGPIPE
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name in _TRAINING:
            print(
                f"hiddenstate: error: this needs {error.name}, which is not installed; "
                "pip install 'hiddenstate[train]'",
                file=sys.stderr,
            )
            return 2
        if isinstance(error, OSError) and error.errno in _DISK:
            place = error.filename or "the output, or a temporary file"
            print(
                f"hiddenstate: error: {place}: cannot be written: {error.strerror}",
                file=sys.stderr,
            )
            _discard_output()
            return FAILED
        # Python's own status after a traceback is 1, which would accuse a training.
        traceback.print_exc()
        _discard_output()
        return FAILED


def _have_streams() -> None:
    """Have all standard streams; what their encoding lacks is printed as escapes.

    A closed one is replaced: the next file that is opened would get its number, and be printed to.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            null = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115
            os.set_inheritable(null.fileno(), True)  # processes that are started have it too
            setattr(sys, name, null)
        elif isinstance(stream, io.TextIOWrapper) and mode == "w":
            stream.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Spare the interpreter its last attempt to write what cannot be written."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end_with_driver() -> None:
    """End this job of a workflow once the process that runs the workflow has ended.

    A driver that is killed cannot end its jobs, and the next run would do their work once more. The
    environment variable HIDDENSTATE_DRIVER has its process id; only Linux tells when it ends.
    """
    driver = os.environ.get("HIDDENSTATE_DRIVER", "")
    try:
        ended = os.pidfd_open(int(driver))
    except (AttributeError, OSError, OverflowError, ValueError):
        return

    # A run that a script starts in the background ignores SIGINT, and so do its jobs.
    signal.signal(signal.SIGUSR1, signal.default_int_handler)

    def wait() -> None:
        # A pidfd can be read once its process has ended.
        select.select([ended], [], [])
        os.kill(os.getpid(), signal.SIGUSR1)
        # A job inside a long call of a library does not notice the signal.
        time.sleep(10)
        os._exit(130)

    threading.Thread(target=wait, daemon=True).start()
