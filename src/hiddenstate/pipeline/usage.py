"""Time and memory of a run's processes, which they write down as they end."""

import os
import resource
from contextlib import suppress
from pathlib import Path

COLUMNS = ("run", "family", "command", "cell", "seconds", "megabytes")
"""Of a line: the run's driver, the job, its processor seconds, and the most memory it had."""


def append(
    path: str | Path, family: str, command: str, cell: str = "", workers: bool = True
) -> None:
    """Add this process's line to a file; with the processes that it started and waited for.

    A file that cannot be written to ends no job.
    """
    who = [resource.RUSAGE_SELF, *([resource.RUSAGE_CHILDREN] if workers else [])]
    took = [resource.getrusage(one) for one in who]
    most = max([_own_kilobytes(took[0].ru_maxrss), *(one.ru_maxrss for one in took[1:])])
    seconds = sum(one.ru_utime + one.ru_stime for one in took)
    run = os.environ.get("HIDDENSTATE_DRIVER", "")
    row = (run, family, command, cell, f"{seconds:.2f}", f"{most / 1024:.0f}")
    with suppress(OSError), open(path, "a", encoding="utf-8") as opened:
        opened.write("\t".join(row) + "\n")


def _own_kilobytes(otherwise: int) -> int:
    """The most memory of this process; not that of a large one that started it, as Linux counts."""
    with suppress(OSError, StopIteration):
        told = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) for line in told if line.startswith("VmHWM:"))
    return otherwise
