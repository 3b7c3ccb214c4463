"""The rule of recurrent layers: each matrix of their gates is a linear layer on a sequence.

One pass through the steps, forward and back, gives all records' gradients by the gates'
pre-activations. A record's gradient by a matrix is the product of these with what the matrix read.
"""

from collections.abc import Callable
from functools import partial, reduce
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from hiddenstate.dpsgd.rules import LinearRule, Rule, rule_for


@rule_for(nn.LSTM, nn.GRU, nn.RNN)
class RecurrentRule(Rule):
    """LSTM, GRU and RNN without projections, whose first state is zeros.

    Prepared, a and g are lists: what ``LinearRule`` prepares of each matrix.
    """

    @staticmethod
    def knows(layer: Any) -> bool:
        return not layer.proj_size and not (layer.dropout and layer.training)

    @staticmethod
    def records(layer: Any, outputs: Any) -> Any:
        return _turned(layer, outputs[0])

    @staticmethod
    def read(layer: Any, inputs: Tensor) -> Tensor:
        """Sequences (n, steps, in)."""
        return _turned(layer, inputs)

    @classmethod
    def run(
        cls,
        layer: Any,
        weights: dict[str, Tensor],
        a: Tensor,
        shape: torch.Size,
        anchor: Tensor,
        hear: Callable[[Any, Any], None],
    ) -> Any:
        directions = ("", "_reverse")[: 1 + layer.bidirectional]
        heard: dict[str, tuple[Tensor, Tensor]] = {}

        def keep(name: str, inputs: Tensor, state: Tensor, *back: Tensor) -> None:
            heard.update({f"ih_{name}": (inputs, back[0]), f"hh_{name}": (state, back[1])})
            # The last to be heard hands on all matrices, in the layer's own order.
            if len(heard) == 2 * layer.num_layers * len(directions):
                hear(*zip(*(heard[matrix] for matrix in _matrices(layer)), strict=True))

        states = []
        for i in range(layer.num_layers):
            found = []
            for way in directions:
                inputs = a.flip(2) if way else a
                of_inputs, of_state = (
                    {
                        n: weights[name]
                        for n in ("weight", "bias")
                        if (name := f"{n}_{m}") in weights
                    }
                    for m in (f"ih_l{i}{way}", f"hh_l{i}{way}")
                )
                # The inputs' part of all steps is one product; the states' part alone needs a loop.
                z = LinearRule.outputs(layer, of_inputs, inputs).unflatten(1, a.shape[1:3])
                then = partial(keep, f"l{i}{way}", inputs.detach())
                h, c = _Steps.apply(z, anchor, of_state, layer.mode, then)
                # The final state of either direction is the last step before h is turned back.
                states.append((h[:, :, -1].flatten(0, 1), c.flatten(0, 1)))
                found.append(h.flip(2) if way else h)
            a = torch.cat(found, -1)
        last, cells = map(torch.stack, zip(*states, strict=True))
        outputs = _turned(layer, a.flatten(0, 1)).contiguous()
        return outputs, (last, cells) if layer.mode == "LSTM" else last

    @staticmethod
    def prepare(layer: Any, a: Any, g: Any) -> Any:
        each = zip(_matrices(layer).values(), a, g, strict=True)
        return tuple(zip(*(LinearRule.prepare(*parts) for parts in each), strict=True))

    @staticmethod
    def mean(a: Any, g: Any, views: int) -> Any:
        each = zip(a, g, strict=True)
        return tuple(zip(*(LinearRule.mean(*parts, views) for parts in each), strict=True))

    @staticmethod
    def squared_norms(layer: Any, a: Any, g: Any) -> Tensor:
        each = zip(_matrices(layer).values(), a, g, strict=True)
        return reduce(torch.add, (LinearRule.squared_norms(*parts) for parts in each))

    @staticmethod
    def weighted_sums(layer: Any, a: Any, g: Any, weights: Tensor) -> dict[str, Tensor]:
        each = zip(_matrices(layer).items(), a, g, strict=True)
        return {
            f"{kind}_{name}": total
            for (name, matrix), inputs, back in each
            for kind, total in LinearRule.weighted_sums(matrix, inputs, back, weights).items()
        }

    @staticmethod
    def floats(layer: Any, output_shape: torch.Size) -> int:
        return output_shape[0] * sum(sum(p.shape) for p in layer.parameters() if p.dim() == 2)


def _turned(layer: Any, sequences: Any) -> Any:
    """Sequences with their records first, from as the layer has them; or back."""
    return sequences if layer.batch_first else sequences.transpose(0, 1)


def _matrices(layer: Any) -> dict[str, Any]:
    """Weight and bias of each matrix that has one of them trained, by its name."""
    found = {}
    for name in (n.removeprefix("weight_") for n, _ in layer.named_parameters() if "weight" in n):
        own = {n: getattr(layer, f"{n}_{name}", None) for n in ("weight", "bias")}
        if any(p is not None and p.requires_grad for p in own.values()):
            found[name] = SimpleNamespace(**own)
    return found


class _Steps(torch.autograd.Function):
    """All steps of one layer in one direction, from the inputs' part of the pre-activations.

    z: (models, n, steps, gates). Gives the states (models, n, steps, width), and the last cell of
    an LSTM. ``hear`` is given the states before each step, and the gradients by the inputs' and by
    the states' part.
    """

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, anchor: Tensor, of_state: dict[str, Tensor], mode: str, hear: Any
    ) -> tuple[Tensor, Tensor]:
        ctx.weight, ctx.mode, ctx.hear = of_state["weight"], mode, hear
        width = ctx.weight.shape[-1]
        bias = of_state["bias"][:, None] if "bias" in of_state else z.new_zeros(())
        h = c = z.new_zeros(*z.shape[:2], width)
        states, cells, gates = [h], [c], []
        for of_inputs in z.unbind(2):
            part = torch.baddbmm(bias, h, ctx.weight.mT)
            both = of_inputs + part
            if mode == "LSTM":
                # torch's order of gates is input, forget, cell, output; the cell's alone is a tanh.
                gate = both.sigmoid()
                gate[..., 2 * width : -width] = both[..., 2 * width : -width].tanh()
                i, f, g, o = gate.chunk(4, -1)
                c = torch.addcmul(f * c, i, g)
                h = o * c.tanh()
                cells.append(c)
                gates.append(gate)
            elif mode == "GRU":
                # The reset gate scales only the states' part of the new gate, kept apart for it.
                r, k = both[..., :-width].sigmoid().chunk(2, -1)
                new = torch.addcmul(of_inputs[..., -width:], r, part[..., -width:]).tanh()
                h = torch.lerp(new, h, k)
                gates.append(torch.cat((r, k, new, part[..., -width:]), -1))
            else:
                h = both.tanh() if mode == "RNN_TANH" else both.relu()
            states.append(h)
        ctx.states = torch.stack(states)
        ctx.cells, ctx.gates = (torch.stack(part) if part else None for part in (cells, gates))
        return ctx.states[1:].movedim(0, 2), c

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        before, after = ctx.states[:-1], ctx.states[1:]
        cell, ratio = ctx.mode == "LSTM", None
        slopes: tuple[Tensor, ...]
        if cell:
            i, f, g, o = ctx.gates.chunk(4, -1)
            c = ctx.cells[1:].tanh()
            slopes = g * i * (1 - i), ctx.cells[:-1] * f * (1 - f), i * (1 - g * g), c * o * (1 - o)
            through, stays = o * (1 - c * c), f
        elif ctx.mode == "GRU":
            r, k, new, part = ctx.gates.chunk(4, -1)
            slope = (1 - k) * (1 - new * new)
            slopes = slope * part * r * (1 - r), (before - new) * k * (1 - k), slope
            ratio, stays = torch.cat((torch.ones_like(r), torch.ones_like(r), r), -1), k
        else:
            slopes = (1 - after * after if ctx.mode == "RNN_TANH" else (after > 0).to(after),)
        # Slopes of all steps at once: the loop multiplies them by what comes back.
        back = torch.cat(slopes, -1)
        h, c = torch.zeros_like(before[0]), gradients[1]
        # A GRU's gradients by the states' part have the reset gate too; others are the same.
        by_state = back if ratio is None else torch.empty_like(back)
        for t in reversed(range(len(back))):
            h = h + gradients[0][:, :, t]
            if cell:
                c = torch.addcmul(c, h, through[t])
            back[t] *= torch.cat((c, c, c, h) if cell else (h,) * len(slopes), -1)
            if ratio is not None:
                torch.mul(back[t], ratio[t], out=by_state[t])
            past = torch.bmm(by_state[t], ctx.weight)
            if cell:
                c = c * stays[t]
            h = torch.addcmul(past, h, stays[t]) if ratio is not None else past
        by_inputs = back.movedim(0, 2)
        ctx.hear(before.movedim(0, 2), by_inputs, by_state.movedim(0, 2))
        return by_inputs, None, None, None, None
