"""Every cell of a small grid, run once."""

from contextlib import contextmanager

import pytest

from hiddenstate.dpsgd.given import Given
from hiddenstate.papers.gradient_crafting import FAMILY
from hiddenstate.papers.gradient_crafting.grid import GradientCraftingGrid
from hiddenstate.pipeline import estimates as files
from hiddenstate.pipeline.cells import Workplace

SEED = 3
GRID = {
    "shows": "small",
    "delta": 1e-5,
    "housing": {
        "insertions": 10,
        "batch_size": 20,
        "sweeps": [
            {
                "epsilons": [24],
                "models": 24,
                "repeats": 2,
                "centred": {"epsilons": [24], "models": 20, "repeats": 2},
            },
            {"epsilons": [24], "models": 20, "repeats": 1},
            {"epsilons": [24], "models": 20, "repeats": 1, "start": "shared"},
            {"epsilons": [24], "models": 20, "repeats": 1, "start": "reshuffled"},
            {"epsilons": [24], "models": 20, "repeats": 1, "every": 2},
        ],
    },
    "networks": {
        "digits_convnet": {
            "dataset": "digits",
            "model": "digits_cnn",
            "insertions": 2,
            "batch_size": 4,
            "sweeps": [
                {"epsilons": [24], "models": 20, "repeats": 1},
                {"epsilons": [24], "models": 20, "repeats": 1, "every": 2},
            ],
        },
        "digits_resnet": {
            "dataset": "digits",
            "model": "digits_resnet",
            "insertions": 2,
            "batch_size": 4,
            "sweeps": [
                {
                    "epsilons": [24],
                    "models": 20,
                    "repeats": 1,
                    "clipping_norms": [1, 2],
                    "adversaries": ["loss-based", "random coordinate", "one random coordinate"],
                },
            ],
        },
    },
    "expected": {
        "epsilons": [24],
        "every": [1, 2],
        "clipping_norms": [2],
        "starts": 3,
        "orders": 2,
    },
    "norms": {"every": [1], "runs": 2},
    "single": {
        "epsilons": [1, 4],
        "batch_sizes": [1, 2],
        "steps": 4,
        "audited": [[4, 2]],
        "runs": 100,
        "repeats": 2,
    },
    "hidden": {
        "mu": 1.0,
        "betas": [0, 1],
        "sampling_rates": [0.1, 1],
        "steps": [1, 3],
        "sampled_steps": [1, 3],
    },
    "ideal": {"epsilons": [4], "every": [1, 4], "models": [100], "audits": 20},
    "one_run": {
        "epsilons": [4],
        "housing": [10],
        "idle": [50],
        "audits": 2,
        "housing_audits": 2,
        "null_draws": 100,
        "validity_audits": 100,
        "networks": {
            "digits_cnn": {
                "dataset": "digits",
                "model": "digits_cnn",
                "canaries": [20],
                "insertions": 3,
                "batch_size": 4,
                "audits": 2,
            },
        },
    },
}


@pytest.fixture(scope="session")
def content():
    return GRID


@pytest.fixture(scope="session")
def grid():
    return GradientCraftingGrid.model_validate(GRID)


@contextmanager
def known_models():
    """Without the trial of each record alone, most of the time of small audits of networks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Given, "refuse_unlike", lambda *_: None)
        yield


@pytest.fixture(scope="module", autouse=True)
def models_are_known():
    with known_models():
        yield


@pytest.fixture(scope="session")
def results(grid):
    """What every work made, by folder and cell."""
    found = {"scores": {}, "bounds": {}}
    with known_models():
        for jobs in FAMILY.jobs(grid).values():
            for name, job in jobs.items():
                found[job.work.folder][name] = job.run(SEED, Workplace())
    return found


@pytest.fixture(scope="session")
def estimates(grid, results, tmp_path_factory):
    path = tmp_path_factory.mktemp("estimates") / "estimates.csv"
    files.write(path, FAMILY.estimates(grid, results["scores"], results["bounds"]), "a grid")
    return files.read(path, "a grid")
