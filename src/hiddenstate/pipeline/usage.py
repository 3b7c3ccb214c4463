"""What the processes of a run take, which they write down as they end."""

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
    seconds = sum(one.ru_utime + one.ru_stime for one in took)
    megabytes = max(one.ru_maxrss for one in took) / 1024
    run = os.environ.get("HIDDENSTATE_DRIVER", "")
    row = (run, family, command, cell, f"{seconds:.2f}", f"{megabytes:.0f}")
    with suppress(OSError), open(path, "a", encoding="utf-8") as opened:
        opened.write("\t".join(row) + "\n")
