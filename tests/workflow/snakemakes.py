"""Snakemake, run in forks of a process that has imported it and its libraries.

A line of JSON on standard input asks for a run; its exit status is the answer. The package itself
is imported by each run, from the tree that it is of.
"""

import contextlib
import ctypes
import importlib
import json
import os
import signal
import sys
import traceback

LIBRARIES = ("snakemake.cli", "numpy", "pandas", "pyarrow.parquet", "pydantic", "scipy.stats")


PR_SET_PDEATHSIG = 1


def end_with_parent():
    """A run ends with this process, and this process with the tests, where the system can do it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def enter(directory, environment, *places):
    """Be in a directory and an environment, with its packages before others."""
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:1] = [*places, *environment["PYTHONPATH"].split(os.pathsep)]


def run(directory, arguments, environment, output):
    """Be `python -m snakemake` in a directory; what is printed goes into a file."""
    end_with_parent()
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    enter(directory, environment, directory)
    cli = importlib.import_module("snakemake.cli")
    sys.argv = [cli.__file__, *arguments]
    cli.main()


def main():
    end_with_parent()
    for name in LIBRARIES:
        importlib.import_module(name)
    for line in sys.stdin:
        if pid := os.fork():
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
            continue
        status = 1
        try:
            run(**json.loads(line))
        except SystemExit as end:
            status = end.code or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)


if __name__ == "__main__":
    main()
