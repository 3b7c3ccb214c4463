"""Canaries that are gradients: one coordinate of full clipping norm, chosen before training.

Source: Cebere, Bellet and Papernot 2025 (A_GC-R, A_GC-S). The score reads that coordinate of the
last iterate and of the initial parameters alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from hiddenstate.dpsgd.ensemble import Run
from hiddenstate.errors import InputError

Coordinate = int | Callable[[Run], int]


@dataclass(frozen=True)
class Periodic:
    """In the steps ``every``, 2 ``every``, ...; the first step is 1."""

    every: int = 1

    def __post_init__(self) -> None:
        if self.every < 1:
            raise InputError(f"every: got {self.every}; expected at least 1")

    def __call__(self, step: int) -> bool:
        """Whether the canary is inserted in this step."""
        return step % self.every == 0


@dataclass(frozen=True)
class Once:
    """In one step alone, the first by default."""

    at: int = 1

    def __post_init__(self) -> None:
        if self.at < 1:
            raise InputError(f"at: got {self.at}; expected at least 1")

    def __call__(self, step: int) -> bool:
        """Whether the canary is inserted in this step."""
        return step == self.at


@dataclass(frozen=True)
class Sampled:
    """Whenever the sampling draws it, for it has a place among the records as if it were one."""


@dataclass(frozen=True)
class DiracCanary:
    """Gradient C e_d; its score is theta_0[d] - theta_T[d].

    ``coordinate`` is d itself or a rule that picks it for each run, such as
    ``random_coordinate`` and ``least_updated_coordinate``.
    """

    coordinate: Coordinate
    schedule: Periodic | Once | Sampled = Periodic()

    @property
    def sampled(self) -> bool:
        """Whether the sampling decides when it is used, instead of a schedule of its own."""
        return isinstance(self.schedule, Sampled)

    @property
    def record(self) -> None:
        """None: the worlds have the same records."""

    def direction(self, run: Run) -> Tensor:
        """C e_d; shape (p,)."""
        direction = torch.zeros_like(run.initial)
        direction[self._pick(run)] = run.ensemble.mechanism.clipping_norm
        return direction

    def inserted(self, step: int) -> bool:
        """Whether the schedule has this step."""
        return not isinstance(self.schedule, Sampled) and self.schedule(step)

    def score(self, run: Run, last: Tensor) -> float:
        """How far the last iterate moved against the canary's coordinate."""
        d = self._pick(run)
        return float(run.initial[d] - last[d])

    def _pick(self, run: Run) -> int:
        if not callable(self.coordinate):
            return self.coordinate
        # A rule may simulate a whole training, and both the gradient and the score ask for it.
        cached = run.__dict__.get("_coordinate")
        if cached is None:
            cached = run.__dict__["_coordinate"] = self.coordinate(run)
        return cached


def random_coordinate(run: Run) -> int:
    """A_GC-R: a uniformly random coordinate of each run."""
    return int(run.stream("coordinate").integers(run.initial.numel()))


@dataclass(frozen=True)
class LeastUpdatedCoordinate:
    """A_GC-S: the coordinate that a simulated training without noise and canary moves least.

    The adversary knows the initial parameters and the batches, and simulates on its own. ``rank``
    orders coordinates by the sum of absolute steps, of squared steps, or by the net displacement;
    the paper's text leaves that open.
    """

    rank: Literal["absolute", "squared", "net"] = "absolute"

    def __call__(self, run: Run) -> int:
        """The coordinate; ties go to the lowest."""
        before, moved = run.initial.clone(), torch.zeros_like(run.initial)
        for theta in run.iterates(noise=False, canary=False):
            step = theta - before
            moved += step.square() if self.rank == "squared" else step.abs()
            before.copy_(theta)
        if self.rank == "net":
            moved = (before - run.initial).abs()
        return int(moved.argmin())
