"""A model as the chain of layers that its ``forward`` runs, however it is written.

torch.fx records what ``forward`` does. Where that is one layer after the other, each on what the
one before gave, the chain is all there is to know of the model.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from hiddenstate.dpsgd.rules import untouched


def _flatten(start_dim: int = 0, end_dim: int = -1) -> nn.Module:
    return nn.Flatten(start_dim, end_dim)


_ACTS: dict[Any, Callable[..., nn.Module]] = {
    torch.tanh: nn.Tanh,
    F.tanh: nn.Tanh,
    "tanh": nn.Tanh,
    torch.relu: nn.ReLU,
    F.relu: nn.ReLU,
    "relu": nn.ReLU,
    F.max_pool2d: nn.MaxPool2d,
    torch.max_pool2d: nn.MaxPool2d,
    torch.flatten: _flatten,
    "flatten": _flatten,
}
"""Layers without parameters by the functions and methods that are the same."""


def run_order(model: nn.Module) -> list[nn.Module] | None:
    """The layers in the order in which they run, or None if the model is no such chain.

    Functions and methods come as the layers that they are. Layers with parameters are the model's
    own modules.
    """
    if not all(map(untouched, model.modules())):
        return None
    try:
        graph = fx.Tracer().trace(model)
    except Exception:  # whatever a forward does when it is given no numbers
        return None
    layers: list[nn.Module] = []
    last: fx.Node | None = None
    sizes: set[fx.Node] = set()  # numbers of records, and shapes, of which only these are used
    for node in graph.nodes:
        if node.op == "placeholder" and last is None:
            last = node
            continue
        if node.op == "output":
            return layers if node.args == (last,) else None
        if _asks_size(node, sizes):
            sizes.add(node)
            continue
        arguments, named = list(node.args), dict(node.kwargs)
        subject = arguments.pop(0) if arguments else named.pop("input", None)
        if last is None or subject is not last:
            return None
        layer = _layer(model, node, arguments, named, sizes)
        if layer is None:
            return None
        layers += layer
        last = node
    return None


def _asks_size(node: fx.Node, sizes: set[fx.Node]) -> bool:
    """Whether the node is a tensor's shape, or its number of records."""
    if node.op == "call_method" and node.target == "size":
        return node.args[1:] in ((), (0,)) and not node.kwargs
    if node.target is getattr:
        return node.args[1:] == ("shape",)
    return node.target is operator.getitem and node.args[0] in sizes and node.args[1:] == (0,)


def _layer(
    model: nn.Module, node: fx.Node, arguments: list, named: dict, sizes: set[fx.Node]
) -> list[nn.Module] | None:
    """The layer that the node is; none at all where it changes nothing."""
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
    if node.op not in ("call_function", "call_method") or node.target not in _ACTS:
        return None
    if any(isinstance(value, fx.Node) for value in (*arguments, *named.values())):
        return None
    named.pop("inplace", None)
    if node.target is F.relu:
        arguments = []
    try:
        return [_ACTS[node.target](*arguments, **named)]
    except TypeError:
        return None
