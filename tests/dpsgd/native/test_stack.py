"""No array in native code that a network sizes overflows a thread's stack."""

import subprocess
import sys

import pytest

from hiddenstate.dpsgd.native import compiling

PROGRAM = """
import numpy as np, torch
from torch import nn
from hiddenstate.dpsgd.clipping import ClippedSum, flat_parameters
torch.manual_seed(0)
shape, model = {case}
records = np.random.default_rng(0).normal(size=(2, *shape)).astype(np.float32)
total = ClippedSum(model, records, np.array([0, 1]))
theta = flat_parameters(model)
found = total(theta, np.arange(2), 0.5)
expected = ClippedSum(model, records, np.array([0, 1]), kernel="torch")(theta, np.arange(2), 0.5)
assert (found - expected).norm() <= 1e-4 * expected.norm()
print(total.kind)
"""
WIDE = 65536
CASES = {
    "linear": f"(2,), nn.Sequential(nn.Linear(2, {WIDE}), nn.Tanh(), nn.Linear({WIDE}, 2))",
    "norm": f"(2,), nn.Sequential(nn.Linear(2, {WIDE}), nn.GroupNorm(32, {WIDE}), nn.ReLU(), "
    f"nn.Linear({WIDE}, 2))",
    "norm without gain": f"(2,), nn.Sequential(nn.Linear(2, {WIDE}), "
    f"nn.GroupNorm(32, {WIDE}, affine=False), nn.Linear({WIDE}, 2))",
    "many channels": "(1, 4, 4), nn.Sequential(nn.Conv2d(1, 16384, 3), nn.MaxPool2d(2), nn.ReLU(), "
    "nn.Flatten(), nn.Linear(16384, 2))",
    "norm of images": "(1, 3, 3), nn.Sequential(nn.Conv2d(1, 32768, 3), nn.GroupNorm(8, 32768), "
    "nn.Flatten(), nn.Linear(32768, 2))",
    "wide image": "(1, 4, 8194), nn.Sequential(nn.Conv2d(1, 16, 3), nn.MaxPool2d(2), nn.Flatten(), "
    "nn.Linear(65536, 2))",
    "average": "(1, 4, 8194), nn.Sequential(nn.Conv2d(1, 16, 3), nn.AvgPool2d(2), nn.Flatten(), "
    "nn.Linear(65536, 2))",
}


@pytest.mark.whole
@pytest.mark.skipif(compiling.compiler() is None, reason="no C compiler")
@pytest.mark.parametrize(
    "case", ["norm", *(pytest.param(c, marks=pytest.mark.slow) for c in CASES if c != "norm")]
)
def test_a_wide_layer_runs_on_a_small_stack(case):
    """512 KiB, as threads of some systems have; an overflow ends the process."""
    program = PROGRAM.format(case=CASES[case])
    command = ["bash", "-c", 'ulimit -s 512; exec "$0" -W ignore -c "$1"', sys.executable, program]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    assert done.stdout.strip() in ("native", "torch")
    if case.startswith(("linear", "norm")):
        assert done.stdout.strip() == "native"
