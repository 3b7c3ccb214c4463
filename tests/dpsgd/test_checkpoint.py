import functools
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import torch

from hiddenstate.dpsgd import checkpoint
from hiddenstate.dpsgd.checkpoint import Checkpoint, fingerprint
from hiddenstate.models import fcnn


@dataclass(frozen=True, eq=False)
class Settings:
    values: np.ndarray = field(repr=False)
    rate: float = 0.1


class Bare:
    def __init__(self, depth):
        self.depth = depth


def draw(model, rng, scale=1.0):
    return scale


def test_equal_things_have_equal_fingerprints_wherever_they_lie_in_memory():
    def parts():
        return (
            Settings(np.arange(3.0)),
            Bare(3),
            functools.partial(draw, fcnn(), scale=2.0),
            draw,
            {"a": torch.ones(2), "b": 1},
            ("name", 1),
        )

    assert fingerprint(*parts()) == fingerprint(*parts())


def test_unequal_things_have_unequal_fingerprints():
    things = [
        Settings(np.arange(3.0)),
        Settings(np.arange(3.0), 0.2),
        Settings(np.arange(4.0)),
        Bare(3),
        Bare(4),
        functools.partial(draw, fcnn()),
        functools.partial(draw, fcnn(), scale=2.0),
        draw,
        np.arange(3.0),
        np.arange(3),
        np.arange(6).reshape(2, 3),
        np.arange(6).reshape(3, 2),
        torch.ones(2),
        1,
        "1",
    ]
    assert len({fingerprint(thing) for thing in things}) == len(things)


def test_the_seconds_kept_are_those_between_writes(tmp_path, monkeypatch):
    now = SimpleNamespace(at=5.0)
    monkeypatch.setattr(checkpoint, "time", SimpleNamespace(perf_counter=lambda: now.at))
    for place, took in (("a", (3, 4)), ("b", (10,))):
        kept = Checkpoint(tmp_path / place, "mark", ("score",))
        for index, seconds in enumerate(took):
            now.at += seconds
            kept.write({("in", 0, index): {"score": 1.0}})
        now.at += 100  # lost with what was not kept
    assert checkpoint.spent(tmp_path) == 17
    assert checkpoint.spent(None) == checkpoint.spent(tmp_path / "none") == 0
    np.savez(tmp_path / "old.npz", values=[1.0])  # of a release that told no time
    assert checkpoint.spent(tmp_path) == 17
