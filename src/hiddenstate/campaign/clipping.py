"""Sums of clipped gradients: as they should be, and what else they are."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hiddenstate.errors import InputError

ACCURACY = 2e-3
"""How far a sum may be from another, in clipping norms times the square root of the rows."""


@dataclass(frozen=True)
class Wrong:
    """A sum that is not that of gradients clipped to the norm.

    kind: a word. words: what it is instead; empty for another rule whose records each contribute at
    most the norm. tensor: number of the tensor that differs most. contribution: the largest norm
    that one record contributes, in clipping norms, where it can be told.
    """

    kind: str
    words: str
    tensor: int = 0
    contribution: float | None = None


def _norms(samples: Sequence[Tensor]) -> Tensor:
    parts = [s.flatten(1).norm(dim=1) for s in samples]
    return torch.stack([p.to(parts[0].device) for p in parts], dim=1).norm(dim=1)


def _weighted(samples: Sequence[Tensor], factors: Tensor) -> list[Tensor]:
    return [torch.einsum("i,i...", factors.to(s.device, s.dtype), s) for s in samples]


def flat(samples: Sequence[Tensor], norm: float) -> list[Tensor]:
    """Sum of gradients, each clipped to the norm over all tensors."""
    # Opacus adds the same 1e-6 to norms.
    return _weighted(samples, (norm / (_norms(samples) + 1e-6)).clamp(max=1.0))


def by_layer(samples: Sequence[Tensor], norms: Sequence[float]) -> list[Tensor]:
    """Sum of gradients, each clipped to a norm for every tensor."""
    return [flat([s], float(norm))[0] for s, norm in zip(samples, norms, strict=True)]


def longer(norms: Sequence[float], norm: float) -> Wrong | None:
    """Fault of norms of tensors that are together longer than the norm that noise is for."""
    whole = math.sqrt(sum(float(each) ** 2 for each in norms))
    if whole <= norm * (1 + 1e-3):
        return None
    words = f"tensors are clipped to norms of {whole:.3g} together, noise is for {norm:.3g}"
    largest = max(range(len(norms)), key=lambda j: float(norms[j]))
    return Wrong("norms of tensors", words, largest, whole / norm)


def _distance(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    return math.sqrt(
        sum(float(((a - b).double() ** 2).sum()) for a, b in zip(one, other, strict=True))
    )


def compare(
    own: Sequence[Tensor], expected: Sequence[Tensor], samples: Sequence[Tensor], norm: float
) -> Wrong | None:
    """Fault of the optimizer's own sum, None if it is the one expected."""
    rows = len(samples[0])
    count = max(rows, 1)
    near = ACCURACY * norm * math.sqrt(count)
    if _distance(own, expected) <= near:
        return None
    gaps = [_distance([a], [b]) for a, b in zip(own, expected, strict=True)]
    tensor = gaps.index(max(gaps))
    total = (
        _weighted(samples, torch.ones(rows)) if rows else [torch.zeros_like(e) for e in expected]
    )
    length = math.sqrt(sum(float((t.double() ** 2).sum()) for t in total))
    within = near + 1e-3 * length
    whole, each = (min(1.0, n * norm / (length + 1e-6)) for n in (1, count))
    late = "the {} of the batch is clipped, not each record's gradient"
    known: list[tuple[str, str, list[Tensor]]] = [
        ("no clipping", "gradients are not clipped", total),
        ("late clipping", late.format("sum"), [t * each for t in total]),
        ("late clipping", late.format("sum"), [t * whole for t in total]),
        ("late clipping", late.format("mean gradient"), [t * each / count for t in total]),
        # Some divide by the records once more, as if it were a sum.
        ("late clipping", late.format("mean gradient"), [t * each / count**2 for t in total]),
        (
            "clipping by layer",
            "each tensor is clipped to the whole norm, so that a record contributes up to "
            f"{math.sqrt(len(samples)):.2g} norms",
            by_layer(samples, [norm] * len(samples)),
        ),
        (
            "value clipping",
            "numbers are clipped one by one, not the norm of the gradient",
            [s.clamp(-norm, norm).sum(dim=0) for s in samples],
        ),
    ]
    for kind, words, other in known if rows else []:
        if _distance(own, other) <= within:
            return Wrong(kind, words, tensor, _largest(kind, samples, norm))
    if not rows:
        return Wrong("another sum", "a batch without records has a sum that is not zero", tensor)
    factors, off = _factors(own, samples)
    if off <= within:
        contribution = float((factors.abs() * _norms(samples).double()).max()) / norm
        if contribution <= 1.01:
            return Wrong("another rule", "", tensor, contribution)
        return Wrong(
            "too long", "a record contributes more than the clipping norm", tensor, contribution
        )
    return Wrong(
        "another sum",
        "what noise is added to is no sum of the records' gradients, each cut to the norm",
        tensor,
    )


def _largest(kind: str, samples: Sequence[Tensor], norm: float) -> float | None:
    if kind == "no clipping":
        return float(_norms(samples).max()) / norm
    if kind == "clipping by layer":
        parts = torch.stack([s.flatten(1).norm(dim=1) for s in samples], dim=1).clamp(max=norm)
        return float(parts.norm(dim=1).max()) / norm
    if kind == "value clipping":
        return float(_norms([s.clamp(-norm, norm) for s in samples]).max()) / norm
    return None


def _factors(own: Sequence[Tensor], samples: Sequence[Tensor]) -> tuple[Tensor, float]:
    """The factor of each record's gradient in a sum, by least squares, and what it leaves over."""
    matrix = torch.cat([s.flatten(1) for s in samples], dim=1).double().T
    target = torch.cat([o.flatten() for o in own]).double()
    if not (matrix.isfinite().all() and target.isfinite().all()):
        raise InputError("training: a record's gradient is not finite; expected numbers")
    # Records by records: far fewer numbers than records by parameters.
    gram = matrix.T @ matrix
    # Records without a gradient have no factor.
    factors = torch.linalg.pinv(gram, hermitian=True, rtol=1e-10) @ (matrix.T @ target)
    return factors, float((matrix @ factors - target).norm())


def probe(optimizer: Any, norm: float | None) -> Wrong | None:
    """Clip gradients of known lengths by the optimizer's own methods; its state is put back."""
    parameters = list(optimizer.params)
    state = dict(vars(optimizer))
    kept = [(getattr(p, "grad_sample", None), p.summed_grad, p.grad) for p in parameters]
    random = torch.get_rng_state()
    generator = optimizer.generator
    drawn = None if generator is None else generator.get_state()
    own_norm = float(optimizer.max_grad_norm)
    # Below, at and far above the norm, so that clipping shows, also where it is late.
    lengths = own_norm * torch.tensor([0.01, 0.5, 1.0, 3.0, 30.0, 100.0])
    source = torch.Generator().manual_seed(1)
    rows = [torch.randn(len(lengths), *p.shape, generator=source).to(p) for p in parameters]
    scale = lengths / _norms(rows).cpu()
    rows = [r * scale.to(r).reshape(-1, *[1] * (r.ndim - 1)) for r in rows]
    expected = flat(rows, norm or own_norm)
    norms = getattr(optimizer, "max_grad_norms", None)
    if norms is not None and type(optimizer).__name__.endswith("PerLayerOptimizer"):
        expected = by_layer(rows, norms)
    try:
        for parameter, row in zip(parameters, rows, strict=True):
            parameter.grad_sample, parameter.summed_grad = row.clone(), None
        optimizer.clip_and_accumulate()
        optimizer.add_noise()
        own = [
            p.summed_grad.detach().reshape(e.shape)
            for p, e in zip(parameters, expected, strict=True)
        ]
        return compare(own, expected, rows, norm or own_norm)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
        return None  # it needs a training around it
    finally:
        vars(optimizer).clear()
        vars(optimizer).update(state)
        torch.set_rng_state(random)
        if drawn is not None:
            generator.set_state(drawn)
        for parameter, (sample, summed, gradient) in zip(parameters, kept, strict=True):
            parameter.grad_sample, parameter.summed_grad = sample, summed
            parameter.grad = gradient
