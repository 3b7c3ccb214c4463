"""The command line: every job of the workflow, and every question to the library, is a command."""

import argparse
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress

import hiddenstate
from hiddenstate.commands import (
    atlas,
    audit,
    audit_one_run,
    audit_training,
    cached,
    cells,
    claims,
    device_check,
    digest,
    drawing,
    epsilon,
    estimate,
    gallery,
    new_paper,
    plan,
    plan_audit,
    report,
    schema,
    suggest_canary,
    training,
)
from hiddenstate.errors import InputError

COMMANDS = (
    *(cells, training, cached, estimate, drawing, claims, report, digest, schema, plan, gallery),
    *(epsilon, atlas, audit, plan_audit, suggest_canary, audit_training, audit_one_run),
    *(device_check, new_paper),
)
"""The modules of the commands, in the order of ``--help``: the workflow's, then the library's."""
FAILED = 3
"""Exit status of a failure of the tool itself."""
_TRAINING = ("torch", "torchvision", "opacus")
"""What the package can be installed without."""


def parser() -> argparse.ArgumentParser:
    """The parser of all commands; ``run`` of what it returns is the command."""
    made = argparse.ArgumentParser(
        prog="hiddenstate",
        description="How much does the last iterate of DP-SGD leak? "
        "Each command is one job of the workflow and can be run by hand.",
    )
    made.add_argument("--version", action="version", version=hiddenstate.__version__)
    commands = made.add_subparsers(required=True, metavar="COMMAND")
    for module in COMMANDS:
        module.add(commands)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status.

    0, and 1 where an audit refutes a claim or a device is wrong; 2 for bad input, told without a
    traceback; 3 for any other failure. Whoever reads the output and stops, or interrupts, gets the
    shell's own statuses.
    """
    options = parser().parse_args(arguments)
    _end_with_driver()
    try:
        status = options.run(options) or 0
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
        # Python's own status after a traceback is 1, which would accuse a training.
        traceback.print_exc()
        _discard_output()
        return FAILED


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
    except (AttributeError, OSError, ValueError):
        return

    def wait() -> None:
        select.select([ended], [], [])
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)
        os._exit(130)

    threading.Thread(target=wait, daemon=True).start()
