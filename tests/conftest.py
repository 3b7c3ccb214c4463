"""What all tests share: tiers, examples, and directories that the processes of a session share.

No test depends on the machine's speed.
"""

import fcntl
import os
import shutil
import signal
import sys

import pytest
from hypothesis import settings

# A shell that starts the tests in the background makes them and all they start ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What a reader's shell says must change no test: unbuffered output, a cluster's profile, --strict.
# And without bytecode each program would compile every library again.
sys.dont_write_bytecode = False
for name in list(os.environ):
    own = name.startswith("HIDDENSTATE_") and name != "HIDDENSTATE_DATA"
    if own or name.startswith(("PYTHONDONTWRITE", "PYTHONUNBUFFERED", "SNAKEMAKE_")):
        del os.environ[name]

# Property tests draw the same examples every time; the fast tests draw the first few of them.
settings.register_profile("fast", derandomize=True, deadline=None, max_examples=25)
settings.register_profile("whole", derandomize=True, deadline=None)


def pytest_configure(config):
    settings.load_profile("fast" if "not whole" in config.option.markexpr else "whole")


def pytest_collection_modifyitems(items):
    """Begin with the runs of Snakemake, whose set-ups take seconds.

    An idle process takes tests from the end of another's list, so one process makes these set-ups.
    """
    items.sort(key=lambda item: item.path.parent.name != "workflow")


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """Make a directory that all processes of a session share; the first that asks makes it."""

    def directory(name, make):
        own = tmp_path_factory.getbasetemp()
        place = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
        made, done = place / name, place / f"{name}.done"
        with (place / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                shutil.rmtree(made, ignore_errors=True)
                make(made)
                done.touch()
        return made

    return directory


@pytest.fixture
def one_sum(monkeypatch):
    """Make an ensemble's sum of clipped gradients once, which takes longer than small trainings."""
    from hiddenstate.dpsgd.ensemble import Ensemble

    make, sums = Ensemble.clipped_sum, {}

    def clipped_sum(ensemble, device="cpu", kernel="auto"):
        # The ensemble is kept as well, so that no other one has its id.
        key = id(ensemble), str(device), kernel
        if key not in sums:
            sums[key] = ensemble, make(ensemble, device, kernel)
        return sums[key][1]

    monkeypatch.setattr(Ensemble, "clipped_sum", clipped_sum)
