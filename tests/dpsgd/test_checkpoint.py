import functools
from dataclasses import dataclass, field

import numpy as np
import torch

from hiddenstate.dpsgd.checkpoint import fingerprint
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
