"""A model as the layers that its ``forward`` runs and what each reads, however it is written.

torch.fx records what ``forward`` does. Where that is known layers alone, each on what layers before
it gave, the graph is all there is to know of the model.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from hiddenstate.dpsgd.rules import untouched


class Add(nn.Module):
    """The sum of two tensors of one shape, as a layer."""

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        return one + other


@dataclass(frozen=True)
class Step:
    """A layer and the tensors that it reads: 0 is the records, i + 1 what step i gave."""

    layer: nn.Module
    sources: tuple[int, ...]


def _flatten(start_dim: int = 0, end_dim: int = -1) -> nn.Module:
    # ``torch.flatten`` begins at axis 0 unless told, ``nn.Flatten`` at 1.
    return nn.Flatten(start_dim, end_dim)


_LAYERS: dict[Any, Callable[..., nn.Module]] = {
    torch.tanh: nn.Tanh,
    torch.tanh_: nn.Tanh,
    F.tanh: nn.Tanh,
    "tanh": nn.Tanh,
    "tanh_": nn.Tanh,
    torch.relu: nn.ReLU,
    torch.relu_: nn.ReLU,
    F.relu: nn.ReLU,
    F.relu_: nn.ReLU,
    "relu": nn.ReLU,
    "relu_": nn.ReLU,
    F.gelu: nn.GELU,
    F.silu: nn.SiLU,
    F.max_pool2d: nn.MaxPool2d,
    torch.max_pool2d: nn.MaxPool2d,
    F.avg_pool2d: nn.AvgPool2d,
    F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
    torch.flatten: _flatten,
    "flatten": _flatten,
}
"""Layers without parameters by the functions and methods that are the same."""
_IN_PLACE = {torch.tanh_, torch.relu_, F.relu_, "tanh_", "relu_", operator.iadd, "add_"}
_MAY_BE_IN_PLACE = {F.relu, F.silu}
"""Functions whose second argument says whether they are."""
_SUMS = {torch.add, operator.add, operator.iadd, "add", "add_"}


def steps(model: nn.Module) -> list[Step] | None:
    """The layers in the order in which they run, the last giving the output; or None.

    Functions and methods come as the layers that they are. Layers with parameters are the model's
    own modules. None where anything else is done, or a layer's output is not used.
    """
    if not all(map(untouched, model.modules())):
        return None
    try:
        graph = fx.Tracer().trace(model)
    except Exception:  # whatever a forward does when it is given no numbers
        return None
    found: list[Step] = []
    tensors: dict[fx.Node, int] = {}
    memory: dict[fx.Node, fx.Node] = {}  # where tensors lie: views lie where the viewed one does
    sizes: set[fx.Node] = set()  # numbers of records, and shapes, of which only these are used
    for node in graph.nodes:
        if node.op == "placeholder" and not tensors:
            tensors[node], memory[node] = 0, node
            continue
        if node.op == "output":
            used = {source for step in found for source in step.sources} | {len(found)}
            given = isinstance(node.args[0], fx.Node) and tensors.get(node.args[0]) == len(found)
            return found if given and len(used) == len(found) + 1 else None
        if _asks_size(node, sizes):
            sizes.add(node)
            continue
        arguments, named = list(node.args), dict(node.kwargs)
        sources = [arguments.pop(0) if arguments else named.pop("input", None)]
        if node.op != "call_module" and node.target in _SUMS:
            sources.append(arguments.pop(0) if arguments else named.pop("other", None))
        if not all(isinstance(s, fx.Node) and s in tensors for s in sources):
            return None
        layers = _layers(model, node, arguments, named, sizes)
        if layers is None:
            return None
        read, place = tuple(tensors[s] for s in sources), memory[sources[0]]
        if _in_place(model, node):
            if place.op == "placeholder":
                return None  # it would change the records
            # What lay there is gone, and must not be read below.
            tensors = {n: i for n, i in tensors.items() if memory[n] is not place}
        for layer in layers:
            found.append(Step(layer, read))
            read = (len(found),)
        tensors[node] = read[0]
        views = all(isinstance(layer, nn.Flatten) for layer in layers)
        memory[node] = place if views else node
    return None


def run_order(model: nn.Module) -> list[nn.Module] | None:
    """The layers in the order in which they run, or None if the model is no chain of them."""
    found = steps(model)
    if found is None or any(step.sources != (i,) for i, step in enumerate(found)):
        return None
    return [step.layer for step in found]


def _asks_size(node: fx.Node, sizes: set[fx.Node]) -> bool:
    """True if the node is a tensor's shape, or its number of records."""
    if node.op == "call_method" and node.target == "size":
        return node.args[1:] in ((), (0,)) and not node.kwargs
    if node.target is getattr:
        return node.args[1:] == ("shape",)
    return node.target is operator.getitem and node.args[0] in sizes and node.args[1:] == (0,)


def _in_place(model: nn.Module, node: fx.Node) -> bool:
    """True if the node writes into the tensor that it reads first."""
    if node.op == "call_module":
        return bool(getattr(model.get_submodule(str(node.target)), "inplace", False))
    return (
        node.target in _IN_PLACE
        or bool(node.kwargs.get("inplace"))
        or (node.target in _MAY_BE_IN_PLACE and node.args[1:2] == (True,))
    )


def _layers(
    model: nn.Module, node: fx.Node, arguments: list, named: dict, sizes: set[fx.Node]
) -> list[nn.Module] | None:
    """The layers that the node is; none at all where it changes nothing."""
    if node.op == "call_module":
        module = model.get_submodule(str(node.target))
        if arguments or named:
            return None
        idle = type(module) is nn.Identity or (
            isinstance(module, nn.modules.dropout._DropoutNd)
            and (module.p == 0 or not module.training)
        )
        return [] if idle else [module]
    if node.op == "call_method" and node.target in ("view", "reshape"):
        if len(arguments) == 1 and isinstance(arguments[0], list | tuple):
            arguments = list(arguments[0])
        if named or len(arguments) != 2:
            return None
        first, second = arguments
        one_row = first in sizes if isinstance(first, fx.Node) else first == -1
        return [nn.Flatten()] if one_row and isinstance(second, int) else None
    if node.op not in ("call_function", "call_method"):
        return None
    if any(isinstance(value, fx.Node) for value in (*arguments, *named.values())):
        return None
    if node.target in _SUMS:
        return [Add()] if not arguments and named in ({}, {"alpha": 1}) else None
    if node.target in (torch.mean, "mean"):
        return _mean(*arguments, **named)
    if node.target not in _LAYERS:
        return None
    named.pop("inplace", None)
    if node.target in _MAY_BE_IN_PLACE:
        arguments = []  # the only one, whether it is in place, is read by ``_in_place``
    try:
        return [_LAYERS[node.target](*arguments, **named)]
    except TypeError:  # an argument that the layer does not have
        return None


def _mean(dim: Any = None, keepdim: bool = False, **other: Any) -> list[nn.Module] | None:
    """The mean over an image's places, as layers."""
    places = isinstance(dim, tuple | list) and all(isinstance(d, int) for d in dim)
    # Axes below 0 count from the end of an image's four.
    if other or not places or sorted(d % 4 for d in dim) != [2, 3]:
        return None
    return [nn.AdaptiveAvgPool2d(1)] if keepdim else [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
