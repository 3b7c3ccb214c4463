"""``hiddenstate check-training``: what one training shows of noise, clipping and sampling."""

import argparse
import shlex
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hiddenstate.commands.printing import print_json
from hiddenstate.errors import InputError
from hiddenstate.files import require

_EXPECTED = "a Python file that trains a model with Opacus"


def run(options: argparse.Namespace) -> int:
    """Check one training of yours for faults in noise, clipping and sampling.

    Exit status 0 if no fault is found, 1 if one is, 2 for bad input.

    training FILE.py[:FUNCTION]: str | Python file, and its function train(), train(seed) or
        train(world, seed), which trains a model with Opacus (default: run the file as a script)
    --noise-multiplier NUMBER: float | claimed noise multiplier (default: what Opacus is told)
    --sampling-rate NUMBER: float | claimed sampling rate (default: what Opacus is told)
    --clipping-norm NUMBER: float | claimed clipping norm (default: what Opacus is told)
    --steps NUMBER: int | claimed steps (default: those that Opacus's accountant counts)
    --seed: int = 0 | seed given to the function (default 0)
    --runs: int(1,2) = 1 | trainings, 1 or 2 (default 1); a second one, with the next seed, shows
        shared noise
    --arguments TEXT: str | arguments of the file, in quotes: --arguments="--epochs 3"
    --json: flag | print JSON instead of words
    """
    from hiddenstate.campaign import whitebox

    path = options.training.partition(":")[0]
    # Before the file, which may train when it is imported.
    require(Path(path), _EXPECTED)
    claimed = ("noise_multiplier", "sampling_rate", "steps", "clipping_norm")
    whitebox.claims(*(getattr(options, name) for name in claimed))
    # A script that reads its arguments shall not find those of this command.
    with patch.object(sys, "argv", [path, *shlex.split(options.arguments or "")]):
        return _checked(options, _loaded(options.training))


def _checked(options: argparse.Namespace, train: Callable[..., Any]) -> int:
    from hiddenstate.campaign import whitebox

    # What the training prints is not the answer.
    with redirect_stdout(sys.stderr):
        report = whitebox.check(
            train,
            noise_multiplier=options.noise_multiplier,
            sampling_rate=options.sampling_rate,
            steps=options.steps,
            clipping_norm=options.clipping_norm,
            seed=options.seed,
            runs=options.runs,
        )
    if options.json:
        print_json(report.as_json())
    else:
        print(report.words())
    return int(bool(report.findings))


def _loaded(text: str) -> Callable[..., Any]:
    """The function that is named, or one that runs the file as a script."""
    from hiddenstate.campaign import trainings

    name, _, function = text.partition(":")
    path = require(Path(name), _EXPECTED)
    if not function:
        return lambda: trainings.ran(path)
    with redirect_stdout(sys.stderr):
        found = getattr(trainings.imported(path), function, None)
    if not callable(found):
        raise InputError(
            f"{path}: has no function {function}; name one of the file's, as FILE.py:FUNCTION"
        )
    return found
