"""Jobs of a run, in forks of a process that has imported the libraries that they import.

``python jobs.py SOCKET`` is that process. ``ask.py`` is the program `hiddenstate` that a run finds:
it asks for a fork, which has its arguments, files, directory and environment, and ends with its
exit status. The package itself is imported by each job, from the tree that it is of.
"""

import atexit
import contextlib
import importlib
import json
import os
import select
import signal
import socket
import sys

from snakemakes import end_with_parent, enter

LIBRARIES = (
    *("numpy", "pandas", "pyarrow.parquet", "pydantic", "yaml", "torch", "torch.func"),
    "torch._dynamo",  # which gradients by torch.func import
    *("scipy.stats", "scipy.optimize", "scipy.fft", "scipy.signal", "scipy.special"),
    *("matplotlib.pyplot", "matplotlib.backends.backend_pdf", "seaborn", "dp_accounting.pld"),
)


def job(directory, arguments, environment):
    """Be `hiddenstate` in a directory."""
    enter(directory, environment)
    sys.argv = ["hiddenstate", *arguments]
    return importlib.import_module("hiddenstate.cli").main()


def serve(connection):
    """Do one job, which ends if the client does; tell its exit status."""
    _, files, *_ = socket.recv_fds(connection, 1, 3)
    asked = json.loads(connection.makefile().readline())
    if not (child := os.fork()):
        end_with_parent()
        for number, file in enumerate(files):
            os.dup2(file, number)
        # A stream remembers if its file could be sought in, and a pipe cannot.
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
        status = 1
        try:
            status = job(**asked)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        finally:
            with contextlib.suppress(Exception):
                atexit._run_exitfuncs()
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)
    ended, status = 0, 0
    while not ended:
        gone, *_ = select.select([connection], [], [], 0.02)
        if gone:
            os.kill(child, signal.SIGTERM)
        ended, status = os.waitpid(child, 0 if gone else os.WNOHANG)
    with contextlib.suppress(OSError):
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def main():
    end_with_parent()
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in LIBRARIES:
        importlib.import_module(name)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(sys.argv[1])
        listening.listen()
        print("ready", flush=True)
        while True:
            connection, _ = listening.accept()
            if not os.fork():
                end_with_parent()
                serve(connection)
                os._exit(0)
            connection.close()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


if __name__ == "__main__":
    main()
