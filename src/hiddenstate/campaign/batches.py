"""Indices of the records in each batch of a DataLoader, seen where the loader draws them.

Inputs may be normalised, augmented, encoded or renamed on the way to the model; an index stays.
"""

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Protocol

from torch.utils.data import Subset, dataloader


class Listener(Protocol):
    """Listener that is called with each batch, for as long as it lives."""

    def arrived(self, loader: Any, indices: Sequence[int]) -> None:
        """A batch of these records of ``loader._dataset`` was handed out."""


_listeners: "weakref.WeakSet[Any]" = weakref.WeakSet()


def tell(listener: Listener) -> None:
    """Tell the listener of every batch from now on, of every DataLoader of this process."""
    _listeners.add(listener)
    iterators = dataloader._SingleProcessDataLoaderIter, dataloader._MultiProcessingDataLoaderIter
    for owner, name, wrapper in (
        (dataloader._BaseDataLoaderIter, "_next_index", _asking),
        *((owner, "_next_data", _handing) for owner in iterators),
    ):
        # Wrapped once, however many listeners there are.
        if not hasattr(getattr(owner, name), "_told"):
            wrapped = wrapper(getattr(owner, name))
            wrapped._told = True  # type: ignore[attr-defined]
            setattr(owner, name, wrapped)


def _asking(original: Callable[..., Any]) -> Callable[..., Any]:
    """Keep the indices in order: workers are asked for batches ahead of time."""

    @wraps(original)
    def next_index(self: Any) -> Any:
        found = original(self)
        # An epoch that was broken off leaves batches that nobody takes.
        if getattr(self, "_told_of", None) is not self._sampler_iter:
            self._told_of, self._asked = self._sampler_iter, deque()
        self._asked.append(found)
        return found

    return next_index


def _handing(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def next_data(self: Any) -> Any:
        found = original(self)
        asked = getattr(self, "_asked", None)
        if asked:
            indices = _listed(asked.popleft())
            for listener in tuple(_listeners):
                listener.arrived(self, indices)
        return found

    return next_data


def _listed(indices: Any) -> list[Any]:
    """Indices of a batch as plain numbers: some samplers give tensors, or lists of them."""
    plain = indices.tolist() if hasattr(indices, "tolist") else indices
    if not isinstance(plain, list | tuple):
        return [plain]
    return [one.item() if hasattr(one, "item") else one for one in plain]


def index_in(dataset: Any, inner: Any, index: int) -> int | None:
    """Index of the record in ``dataset``, made from ``inner`` by subsets and wrappers; else None.

    A wrapper that is no ``Subset`` is taken to keep the order of what its ``dataset`` has.
    """
    if dataset is inner:
        return index
    below = getattr(dataset, "dataset", None)
    found = None if below is None else index_in(below, inner, index)
    if found is None or not isinstance(dataset, Subset):
        return found
    return list(dataset.indices).index(found) if found in list(dataset.indices) else None


def poisson(sampler: Any) -> Any:
    """The sampler if it is one of Poisson sampling (it has a ``sample_rate``), or None."""
    # A virtual batch is split by a sampler around that of the loader.
    while sampler is not None and getattr(sampler, "sample_rate", None) is None:
        sampler = getattr(sampler, "sampler", None)
    return sampler


def words(batch_sampler: Any) -> str:
    """Describe in words how a batch sampler without Poisson sampling makes its batches."""
    sampler = getattr(batch_sampler, "sampler", None)
    order = type(sampler if sampler is not None else batch_sampler).__name__
    size = getattr(batch_sampler, "batch_size", None)
    return f"batches of {size} in the order of {order}" if size else f"batches by {order}"
