"""Places of parameters in the packed weights and sums: numbers of parameters, 0 for padding."""

import numpy as np

from hiddenstate.dpsgd.native.calls import Layout, Tensor


def numbers(start: int, shape: tuple[int, ...]) -> Layout:
    """The parameters from the ``start``-th on, in this shape."""
    return np.arange(start + 1, start + 1 + int(np.prod(shape))).reshape(shape)


def per_channel(output: Tensor, start: int | None) -> Layout:
    """One parameter a channel, or none."""
    found = np.zeros(output.channels, np.int64)
    if start is not None:
        found[: output.real] = numbers(start, (output.real,))
    return found


def eights(w: Layout, lanes: int) -> Layout:
    """(inputs, outputs) as blocks of (inputs, eight vectors of outputs), and one of the rest."""
    cuts = range(8 * lanes, w.shape[1], 8 * lanes)
    return np.concatenate([block.ravel() for block in np.split(w, cuts, axis=1)])


def blocks(w: Layout, lanes: int) -> Layout:
    """(..., outputs) as (output block, ..., channel in block), two vectors a block if they fit."""
    outputs = w.shape[-1]
    block = lanes if outputs % (2 * lanes) else 2 * lanes
    return w.reshape(-1, outputs // block, block).transpose(1, 0, 2)
