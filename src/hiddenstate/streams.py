"""Named random streams: a draw depends on its name and on nothing else.

A stream is named by the root seed and a path of words and integers, such as ``("encoding_loss",
cell, "in", block, "noise")``. The name is hashed to the key of a counter-based generator, so the
same name gives the same numbers whatever was drawn before it, in whichever process, order or
chunk. Work that draws for many models at once splits them into blocks of a fixed size and gives
each block its own stream; chunks are whole numbers of blocks.
"""

import hashlib
import json
import operator
from typing import Literal

import numpy as np

from hiddenstate.errors import InputError

World = Literal["in", "out"]
"""Data set of a run: with the canary, or without it."""


def model_in_words(world: str, index: int) -> str:
    """The name of a model in messages, such as "model 3 with the canary"."""
    return f"model {index} {'with' if world == 'in' else 'without'} the canary"


def key(seed: int, *name: str | int) -> int:
    """128-bit key of the stream with this root seed and name; InputError for fractions."""
    # JSON tells words from numbers, and where each part of a name ends.
    text = json.dumps([_whole(seed), *(n if isinstance(n, str) else _whole(n) for n in name)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")


def _whole(number: int) -> int:
    try:
        return operator.index(number)
    except TypeError as error:
        # Cut off, 0.1 and 0.5 would name the same stream.
        raise InputError(
            f"random stream: got {number!r}; expected seeds and numbers in names to be integers"
        ) from error


def stream(seed: int, *name: str | int) -> np.random.Generator:
    """Independent generator of the stream with this root seed and name (Philox-4x64, counter 0)."""
    return np.random.Generator(np.random.Philox(key=key(seed, *name)))
