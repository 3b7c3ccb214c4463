"""Workers that are forks of a process that has imported torch and Opacus."""

from multiprocessing import forkserver

import pytest

from hiddenstate.campaign import checking, workers


@pytest.fixture(scope="session")
def server():
    """It takes seconds to start, and ends with the tests."""
    made = forkserver.ForkServer()
    made.set_forkserver_preload([workers.__name__, "torch._dynamo", "opacus"])
    return made


@pytest.fixture
def imported(server, monkeypatch):
    """Trainings find torch and Opacus imported; those of a check share their hash seed then."""
    monkeypatch.setattr(forkserver, "connect_to_new_process", server.connect_to_new_process)
    monkeypatch.setattr(
        checking, "Worker", lambda training, log, fresh: workers.Worker(training, log)
    )
