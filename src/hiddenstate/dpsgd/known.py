"""Knowledge of an adversary who fixes a canary before training and sees the last iterate alone.

Runs of torch models (``run``) and of small networks (``crafted_gradients``) hand it the same:
``Known`` before the first step, and the last iterate after the last one. Neither noise nor an
iterate between is in reach.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hiddenstate.dpsgd.mechanism import Mechanism
from hiddenstate.errors import InputError

Floats = NDArray[np.float32]
Batch = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Movement:
    """Movement of each parameter (p,) in a training: over all steps, and in the end.

    absolute: the sum of its steps' sizes. squared: of their squares. net: from start to end. last:
    where it ended, if that is kept.
    """

    absolute: Floats
    squared: Floats
    net: Floats
    last: Floats | None = None


@dataclass(frozen=True, eq=False)
class Known:
    """Adversary's knowledge of a run before its training, in read-only copies.

    x, y: the records, without the canary. initial: shape (p,). batches: the records of each step.
    insertions: how many gradients a canary has. rng: the adversary's own random numbers for this
    run; shared_rng: for all runs of one audit alike. losses: maps parameters (p,), records and
    labels to the model's losses. simulated: how a training without noise and canary moves the
    parameters, from the same start; views of records are drawn anew.
    """

    mechanism: Mechanism
    x: NDArray[Any]
    y: NDArray[Any]
    initial: Floats
    batches: tuple[NDArray[np.int64], ...]
    insertions: int
    rng: np.random.Generator
    shared_rng: np.random.Generator
    losses: Callable[[NDArray[Any], NDArray[Any], NDArray[Any]], NDArray[Any]]
    simulated: Callable[[], Movement]


class FixedCanary(Protocol):
    """A canary of one run, all of it fixed, and its reading."""

    @property
    def gradients(self) -> NDArray[Any] | None:
        """One gradient for each insertion (insertions, p), of at most the clipping norm."""

    @property
    def record(self) -> tuple[NDArray[Any], int] | None:
        """Alternative to ``gradients``: a record and its label, whose clipped gradient is used."""

    @property
    def coordinate(self) -> int:
        """The coordinate that is read, -1 if it is not one alone."""

    def score(self, last: Floats) -> float:
        """The last iterate (p,) as a score: larger speaks for "in"."""


def gradients_of(
    canary: FixedCanary, record: object | None, shape: tuple[int, int], clipping_norm: float
) -> NDArray[Any] | None:
    """A canary's gradients (insertions, p), or None where a record is trained on instead.

    Raises InputError for both or neither, for another shape, and for a norm beyond clipping.
    """
    given = canary.gradients
    if (given is None) == (record is None):
        raise InputError(
            f"canary: it has {'neither a record nor' if given is None else 'a record and'} "
            "gradients; expected one of them (`canaries.mislabelled` and `canaries.blank` make "
            "records)"
        )
    if given is None:
        return None
    rows = numbers("canary: its gradients", given)
    if rows.shape != shape:
        raise InputError(
            f"canary: its gradients have shape {rows.shape}; expected {shape}, one for each "
            "insertion"
        )
    own = rows[:1] if rows.strides[0] == 0 else rows  # all the same
    norm = float(np.linalg.norm(own.astype(float), axis=1).max(initial=0))
    # A gradient that was scaled to the clipping norm in float32 may exceed it by rounding.
    if not norm <= clipping_norm * (1 + 1e-6):
        raise InputError(f"canary: its gradient has norm {norm}; expected at most {clipping_norm}")
    return rows


def score_of(canary: FixedCanary, last: Floats, model: str, learning_rate: float) -> float:
    """A canary's score of a model's last iterate (p,), of which it gets a copy.

    Raises InputError for one that is not finite.
    """
    score = float(canary.score(last.copy()))
    if math.isfinite(score):
        return score
    if np.isfinite(last).all():
        raise InputError(
            f"canary: gave {model} the score {score}, though its parameters are finite; expected "
            "a finite score, which a smaller learning_rate or other data may give"
        )
    raise InputError(
        f"learning_rate: {learning_rate} made {model} diverge (score {score}); expected a smaller "
        "one, or records and labels with gradients whose norms do not overflow"
    )


def numbers(name: str, values: Any, *, dimensions: int = 1, kinds: str = "biuf") -> NDArray[Any]:
    """An array of so many dimensions or more; InputError for what is none of such numbers.

    kinds: numpy's letters of the types that are taken.
    """
    if np.ma.is_masked(values):
        raise InputError(f"{name}: got an array with masked entries; expected numbers in all")
    try:
        found = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name}: {error}; expected an array of numbers") from error
    if found.dtype.kind not in kinds or found.ndim < dimensions:
        what = f"an array of {found.dtype}" if found.ndim else repr(values)
        real = "" if "c" in kinds else "real "
        raise InputError(f"{name}: got {what}; expected {real}numbers in an array")
    return found


def check_record(
    record: tuple[NDArray[Any], Any], x: NDArray[Any], y: NDArray[Any], *, whole: bool
) -> None:
    """Raise InputError for a canary's record that is no record like the others (x, y).

    whole: whether labels have to be integers.
    """
    values = numbers("canary: its record", record[0], dimensions=0)
    label = numbers(
        "canary: its label", record[1], dimensions=0, kinds="biuf" if whole else "biufc"
    )
    if len(x) and values.shape != np.shape(x)[1:]:
        raise InputError(f"canary: its record has shape {values.shape}; expected {np.shape(x)[1:]}")
    if len(y) and label.shape != np.shape(y)[1:]:
        raise InputError(f"canary: its label has shape {label.shape}; expected {np.shape(y)[1:]}")
    broken = np.flatnonzero(~np.isfinite(values))
    if len(broken):
        raise InputError(
            f"canary: its record holds {values.flat[broken[0]]} (entry {broken[0]}); expected "
            "finite numbers"
        )
    if whole and not (label.shape == () and np.isfinite(label) and label % 1 == 0):
        raise InputError(f"canary: its record has the label {label}; expected an integer")


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Read-only copy, backed by immutable bytes."""
    array = np.asarray(array)
    # Of bytes, for a flag alone could be set back.
    return np.ndarray(array.shape, array.dtype, array.tobytes())


def each_once(change: Callable[[Batch], Batch], batches: Sequence[Batch]) -> list[Batch]:
    """Apply ``change`` once per distinct batch, so that steps that shared a batch still do."""
    changed = {id(batch): change(batch) for batch in batches}
    return [changed[id(batch)] for batch in batches]
