"""The Opacus examples: the right training has the claimed score, and faults are found."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from hiddenstate.campaign import campaign

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def training():
    pytest.importorskip("opacus")
    sys.path.insert(0, str(EXAMPLES))
    try:
        yield _load("opacus_training")
    finally:
        sys.path.remove(str(EXAMPLES))


def _load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


pytestmark = pytest.mark.filterwarnings("ignore")


def test_the_right_training_steps_as_claimed(training, monkeypatch):
    """Steps along the canary are noise plus 0 or 1 clipping norms, sampled at the stated rate."""
    seen = []
    monkeypatch.setattr(training, "likelihood_ratio", lambda steps: seen.append(steps) or 0.0)
    monkeypatch.setattr(training, "NOISE_MULTIPLIER", 0.02)
    for seed in range(6):
        training.train("in", seed)
        training.train("out", seed)
    steps = np.array(seen)
    assert steps.shape == (12, training.STEPS)
    into, out = steps[::2], steps[1::2]
    assert np.abs(out).max() < 0.15 and 0.013 < out.std() < 0.028
    sampled = into > 0.5
    assert np.abs(into - sampled).max() < 0.15
    # Binomial with 120 trials of probability 0.1, four standard deviations.
    assert 0 < sampled.sum() < 12 + 4 * np.sqrt(120 * 0.1 * 0.9)


def test_runs_depend_on_their_seed_alone(training):
    assert training.train("in", 5) == training.train("in", 5) != training.train("in", 6)


@pytest.mark.whole
def test_every_fault_changes_the_training(training):
    for name in training.FAULTS:
        fault = getattr(training, name)
        assert np.isfinite(fault("in", 1))
        assert any(fault("in", s) != training.train("in", s) for s in (1, 2)), name


@pytest.mark.slow
def test_the_table_finds_a_gross_fault_and_not_the_right_training(training, tmp_path, capsys):
    faults = _load("opacus_faults")
    arguments = [str(tmp_path), "--workers", "2", "--faults", "none", "bias_noiseless"]
    right, wrong = faults.main([*arguments, "--looks", "5", "10"])
    assert right["verdict"] == "consistent" and right["models"] == 10
    assert wrong["verdict"] == "refuted"
    assert "| no noise on the biases | refuted |" in capsys.readouterr().out
    assert campaign.Script(EXAMPLES / "opacus_training.py").identity["function"] == "train"
