"""Memory that operations take, counted as they are dispatched, on whatever device they run.

Layers of few parameters may take hundreds of times what their shapes suggest, and torch.func keeps
what no layer shows: so it is measured, with a few records, not modelled.
"""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Allocations(TorchDispatchMode):
    """Counts the bytes of the tensors that operations make while it is entered.

    bytes: of those that are there now. peak: the most at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.peak = 0
        self._known: dict[weakref.ref[torch.UntypedStorage], int] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True would make torch import its compiler at the first operation, which takes seconds.
        return False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Run the operation and count what it allocates."""
        found = function(*args, **(kwargs or {}))
        # Most operations give one tensor, which needs no search.
        for tensor in (found,) if isinstance(found, torch.Tensor) else tree_leaves(found):
            if isinstance(tensor, torch.Tensor):
                self._allocated(tensor.untyped_storage())
        self.peak = max(self.peak, self.bytes)
        return found

    def _allocated(self, storage: torch.UntypedStorage) -> None:
        seen = weakref.ref(storage, self._freed)
        # A view, or a result in place, has a storage that is known and allocates nothing.
        if seen not in self._known:
            self._known[seen] = storage.nbytes()
            self.bytes += storage.nbytes()

    def _freed(self, seen: "weakref.ref[torch.UntypedStorage]") -> None:
        self.bytes -= self._known.pop(seen)


def peak(work: Callable[[], object]) -> int:
    """The most bytes that ``work`` has allocated at once."""
    with Allocations() as count:
        work()
    return count.peak


def slope(work: Callable[[int], object], few: int) -> float:
    """Bytes that each further record takes, by ``few`` of them and twice as many."""
    return (peak(lambda: work(2 * few)) - peak(lambda: work(few))) / few
