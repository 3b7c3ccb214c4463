"""Augmentation multiplicity: a record's gradient is the mean over random views of it.

The mean is taken before clipping, so a record's share of a step is bounded as without views, and
the noise and the accounting are the same. Source: De, Berrada, Hayes, Smith and Balle 2022.
"""

from dataclasses import dataclass
from numbers import Integral

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hiddenstate.errors import InputError, expect


@dataclass(frozen=True)
class Augmentation:
    """``views`` random views of an image: shifted by up to ``shift`` pixels, or mirrored, or both.

    What a shift moves in from outside the image is its reflection. Mirrored: left and right are
    swapped, in half of the views.
    """

    views: int
    shift: int = 4
    mirror: bool = True

    def __post_init__(self) -> None:
        for name, least in (("views", 1), ("shift", 0)):
            value = getattr(self, name)
            fine = isinstance(value, Integral) and int(value) >= least
            expect(fine, name, value, f"an integer of at least {least}")

    def check(self, record_shape: tuple[int, ...]) -> None:
        """Raise InputError unless records of this shape have such views."""
        if len(record_shape) != 3:
            raise InputError(
                f"augmentation: got records of shape {record_shape}; expected images, (channels, "
                "height, width)"
            )
        if self.shift >= min(record_shape[1:]):
            raise InputError(
                f"shift: got {self.shift}; expected less than {min(record_shape[1:])}, the images' "
                "height and width"
            )

    def draw(self, records: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Shifts down and right, each 0 to 2 ``shift``, and whether mirrored: (n, views, 3)."""
        shifts = rng.integers(2 * self.shift + 1, size=(records, self.views, 2))
        mirrored = rng.integers(2, size=(records, self.views, 1)) * self.mirror
        return np.concatenate((shifts, mirrored), axis=2)

    def apply(self, images: Tensor, drawn: Tensor) -> Tensor:
        """The views (n * views, c, h, w) of images (n, c, h, w), those of one image in a row."""
        s, (high, wide) = self.shift, images.shape[-2:]
        down, right, mirrored = drawn.flatten(0, 1).to(images.device).unbind(1)
        rows = _reflected(torch.arange(high, device=images.device) + down[:, None] - s, high)
        across = torch.arange(wide, device=images.device)
        # The window that the shift cuts out is mirrored, so columns turn before they are shifted.
        across = torch.where(mirrored[:, None] > 0, across.flip(0), across) + right[:, None] - s
        across = _reflected(across, wide)
        image = torch.arange(len(images), device=images.device).repeat_interleave(self.views)
        own = image[:, None, None], rows[:, :, None], across[:, None, :]
        # With channels last, an index of image, row and column takes all channels of a place.
        return images.movedim(1, -1)[own].movedim(-1, 1)


def _reflected(places: Tensor, size: int) -> Tensor:
    """Places of an image of this size, where those outside are mirrored at its border pixels."""
    # One reflection is enough, since ``check`` refuses shifts of a whole side.
    places = places.abs()
    return torch.minimum(places, 2 * (size - 1) - places)
