"""Canaries that are records: one data set has one more, and its loss is the score."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hiddenstate.adversaries.gradient_canaries import Schedule
from hiddenstate.dpsgd.known import Floats, Known
from hiddenstate.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class RecordReading:
    """A record, read by its loss at the last iterate; its gradient comes from the record itself."""

    losses: Callable[[NDArray[Any], NDArray[Any], NDArray[Any]], NDArray[Any]]
    record: tuple[NDArray[Any], int]
    gradients: None = None
    coordinate: int = -1

    def score(self, last: Floats) -> float:
        """Minus the record's loss."""
        x, y = self.record
        return -float(self.losses(last, np.asarray(x)[None], np.asarray(y)[None])[0])


@dataclass(frozen=True, eq=False)
class RecordCanary:
    """A record that only one data set has; the adversary thresholds its loss.

    The sampling decides when it is used, or else a ``schedule``, whatever the sampling draws; then
    the mechanism has to say in how many steps (``insertions``). Source: the audit of Annamalai and
    De Cristofaro 2024, Algorithm 2.
    """

    x: NDArray[np.float32]
    y: int
    schedule: Schedule | None = None

    @property
    def record(self) -> tuple[NDArray[np.float32], int]:
        return self.x, self.y

    @property
    def sampled(self) -> bool:
        return self.schedule is None

    def inserted(self, step: int) -> bool:
        return self.schedule is not None and self.schedule(step)

    def fixed(self, known: Known) -> RecordReading:
        return RecordReading(known.losses, self.record)


def blank(record_shape: tuple[int, ...], label: int) -> RecordCanary:
    """The record of zeros. The label is not fixed by the papers, so it has to be said."""
    return RecordCanary(np.zeros(record_shape, np.float32), label)


def read(path: str | Path, record_shape: tuple[int, ...]) -> NDArray[np.float32]:
    """A record of the user's own from a .npy file, as the model sees it."""
    try:
        with Path(path).open("rb") as opened:
            record = np.lib.format.read_array(opened, allow_pickle=False)
            record = record.astype(np.float32, casting="same_kind")
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path}: not a readable .npy file ({error})") from error
    if record.shape != record_shape:
        raise InputError(f"{path}: got a record of shape {record.shape}; expected {record_shape}")
    if not np.isfinite(record).all():
        raise InputError(f"{path}: got non-finite values; expected finite ones")
    return record


def mislabelled(
    x: NDArray[np.float32], y: NDArray[np.int64], classes: int, rng: np.random.Generator
) -> RecordCanary:
    """A random one of the given records with a random wrong label."""
    if classes < 2:
        raise InputError(f"classes: got {classes}; expected at least 2")
    i = int(rng.integers(len(y)))
    # A copy: whoever writes into the records changes no canary.
    return RecordCanary(np.array(x[i]), int((y[i] + rng.integers(1, classes)) % classes))


def clip_backdoor(
    x: NDArray[np.float32],
    logits_of: "Callable[[NDArray[np.float32]], Tensor | NDArray[np.float32]]",
    classes: int | None = None,
) -> RecordCanary:
    """ClipBKD: a record along the direction in which the data vary least, least likely label.

    x: shape (records, *record shape). ``logits_of`` maps records (1, *record shape) to logits (1,
    classes) of a model trained on such data; the label is the class it thinks least likely. The
    record has the data's mean norm. Source: Jagielski, Ullman and Oprea 2020, Algorithm 2.
    """
    flat = x.reshape(len(x), -1).astype(np.float64)
    # Eigenvectors of the Gram matrix, ascending: the first has the least singular value.
    _, vectors = np.linalg.eigh(flat.T @ flat)
    # An eigenvector has no sign of its own: its largest entry is made positive.
    direction = vectors[:, 0] * np.sign(vectors[np.abs(vectors[:, 0]).argmax(), 0])
    record = (direction * np.linalg.norm(flat, axis=1).mean()).astype(np.float32)
    record = record.reshape(x.shape[1:])
    logits = logits_of(record[None])
    if hasattr(logits, "detach"):  # a tensor of torch
        logits = logits.detach().cpu()
    logits = np.asarray(logits)[0]
    return RecordCanary(record, int(logits[:classes].argmin()))
