"""Canaries and scores for trainings with Opacus, or with torch and per-sample gradients.

    def train(world, seed):
        run = kit.Run(world, seed, noise_multiplier=0.6, sampling_rate=0.1, canary=record)
        loader = DataLoader(run.data(records), batch_size=16)
        model, optimizer, loader = PrivacyEngine().make_private(...)
        run.watch(model, optimizer, loader)
        ...                         # the training, as it is
        return run.scores()["likelihood"]

World "in" has one record more, the canary. It goes through the training's own loader, so that
sampling is audited as well; where it is in a batch, its gradient is replaced by a Dirac gradient,
the worst case, before the training clips. What Opacus computes from the number of records (sampling
rate, steps, expected batch size) is told as a constant. Without a record the canary is a gradient
alone, inserted by a coin of its own after clipping, which works with ghost clipping too.

The scores read every step, as the claim is of all iterates. The auditor knows all records but the
canary, and takes the sum of their clipped gradients away; sampling is independent, so what is left
of a right training is noise and at times the canary, and "likelihood" is the logarithm of its exact
likelihood ratio. Steps are read from the gradients that the optimizer gets and from the parameters.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from scipy.stats import binom
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset

from hiddenstate.errors import InputError, expect
from hiddenstate.streams import key

if TYPE_CHECKING:
    from opacus.optimizers import DPOptimizer

Score = Literal["likelihood", "joint", "step size", "smaller steps"]

SCORES: dict[str, str] = {
    "likelihood": "likelihood ratio of the claimed mechanism along the canary's gradient",
    "joint": "the same, and of the batch size that the scale of the noise gives away",
    "step size": "size of the parameters' steps",
    "smaller steps": "minus that size",
}
"""What the kit reads of a training, by name."""


@dataclass(frozen=True)
class Dirac:
    """A gradient in a few coordinates, the worst case: nothing else of it is cut off by clipping.

    norm: before clipping, in clipping norms; 100 also finds what clips too late. spread: a
    coordinate of every parameter tensor, or one coordinate of the first alone. The default finds
    the most.
    """

    norm: float = 100.0
    spread: bool = True

    def __post_init__(self) -> None:
        expect(self.norm > 0, "norm", self.norm, "a number of clipping norms above 0")

    def direction(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """The gradient of norm 1, one tensor for each parameter."""
        found = [torch.zeros_like(p) for p in parameters]
        chosen = found if self.spread else found[:1]
        for tensor in chosen:
            tensor.view(-1)[0] = 1 / math.sqrt(len(chosen))
        return found


@dataclass
class Run:
    """One training of an audit: its two worlds, its seed, its canary and its scores.

    world: "in" or "out". noise_multiplier, sampling_rate: as claimed. canary: the record that world
    "in" has, as the data set gives records (tensors, the input first), None for a gradient alone.
    gradient: what replaces the record's gradient, None for its own. constant: whether sampling
    rate, steps and batch size are told as constants to Opacus.
    """

    world: str
    seed: int
    noise_multiplier: float
    sampling_rate: float
    canary: Any = None
    gradient: Dirac | None = field(default_factory=Dirac)
    constant: bool = True

    def __post_init__(self) -> None:
        expect(self.world in ("in", "out"), "world", self.world, "'in' or 'out'")
        expect(self.noise_multiplier > 0, "noise_multiplier", self.noise_multiplier, "above 0")
        expect(0 < self.sampling_rate <= 1, "sampling_rate", self.sampling_rate, "in (0, 1]")
        if self.canary is None and self.gradient is None:
            raise InputError("canary: got no record and no gradient; expected one of them")
        random.seed(self.seed)
        np.random.seed(self.seed % 2**32)  # noqa: NPY002, of whatever the training draws from it
        torch.manual_seed(self.seed)
        torch.set_num_threads(1)
        self._records: int | None = None
        self._there: list[Tensor] = []
        self._steps: list[_Step] = []
        self._others: list[Tensor] | None = None
        self._due = False
        self._coins = torch.Generator().manual_seed(key(self.seed, "kit", "coins") % 2**63)

    @property
    def present(self) -> bool:
        """Whether the canary is there."""
        return self.world == "in"

    def data(self, records: Dataset[Any]) -> Dataset[Any]:
        """The records of this world: with the canary in world "in", as the last of them."""
        self._records = len(records)
        if self.canary is None or not self.present:
            return records
        return ConcatDataset([records, _One(self.canary)])

    def watch(self, model: torch.nn.Module, optimizer: "DPOptimizer", loader: Any = None) -> None:
        """Put the canary's gradient in its place, and read every step.

        model, optimizer, loader: as ``make_private`` returned them, before the first step. Opacus's
        step hook, which its accountant needs, is left alone.
        """
        expect(self._records is not None, "data", None, "Run.data(records) before Run.watch")
        assert self._records is not None
        self.optimizer, self._parameters = optimizer, list(optimizer.params)
        ghost = "FastGradientClipping" in type(optimizer).__name__
        if ghost and self.canary is not None:
            raise InputError(
                "canary: got a record with ghost clipping, which makes no gradient of its own for "
                "it; expected a gradient alone (canary=None)"
            )
        if self.constant:
            optimizer.expected_batch_size = max(1, int(self._records * self.sampling_rate))
            sampler = getattr(loader, "batch_sampler", None)
            if sampler is not None and hasattr(sampler, "sample_rate"):
                sampler.sample_rate = self.sampling_rate
                sampler.steps = int(1 / self.sampling_rate)
        self._scale = float(optimizer.expected_batch_size or 1)
        if optimizer.loss_reduction != "mean":
            self._scale = 1.0
        if self.gradient is not None:
            self._direction = self.gradient.direction(self._parameters)
            self._length = min(self.gradient.norm, 1.0)
        else:
            self._direction = [torch.zeros_like(p) for p in self._parameters]
            self._length = 0.0
        if self.canary is not None:
            model.register_forward_pre_hook(self._look)
        self._wrap("clip_and_accumulate", self._clip)
        self._wrap("add_noise", self._noise)
        self._wrap("pre_step", self._stepped)

    def _wrap(self, name: str, wrapper: Callable[..., Any]) -> None:
        inner = getattr(self.optimizer, name)
        setattr(self.optimizer, name, lambda *given, **named: wrapper(inner, *given, **named))

    def _look(self, model: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        """Where in the batch the canary is."""
        if not (self.present and model.training and torch.is_grad_enabled()):
            return
        record = self.canary[0] if isinstance(self.canary, tuple | list) else self.canary
        shown, record = inputs[0], torch.as_tensor(record).to(inputs[0])
        same = (shown == record).flatten(1).all(dim=1) if len(shown) else torch.zeros(0).bool()
        if int(same.sum()) > 1:
            raise InputError(
                f"canary: {int(same.sum())} records of a batch have its input; expected a record "
                "that is not among the others"
            )
        self._there.append(same.cpu())

    def _clip(self, inner: Callable[[], None]) -> None:
        """Put the canary's gradient in, and sum up those of the others as claimed."""
        samples = [self.optimizer._get_flat_grad_sample(p) for p in self._parameters]
        count = len(samples[0])
        there = torch.cat([torch.zeros(count, dtype=torch.bool), *self._there])
        self._there = []
        if count:
            # The batches since the last step are the last that the model saw.
            there = there[-count:].to(samples[0].device)
            if self.gradient is not None and there.any():
                norm = self.gradient.norm * float(self.optimizer.max_grad_norm)
                for sample, direction in zip(samples, self._direction, strict=True):
                    sample[there] = (norm * direction).to(sample)
                for parameter, sample in zip(self._parameters, samples, strict=True):
                    parameter.grad_sample = sample
            norms = torch.stack([s.flatten(1).norm(dim=1) for s in samples], dim=1).norm(dim=1)
            factors = (float(self.optimizer.max_grad_norm) / (norms + 1e-6)).clamp(max=1.0)
            factors = torch.where(there, torch.zeros_like(factors), factors)
            sums = [torch.einsum("i,i...", factors.to(s), s) for s in samples]
            before = self._others
            self._others = (
                sums if before is None else [a + b for a, b in zip(before, sums, strict=True)]
            )
        inner()

    def _noise(self, inner: Callable[[], None]) -> None:
        """Insert a gradient that is no record's, by a coin of its own."""
        if self.canary is None:
            coin = float(torch.rand((), generator=self._coins)) < self.sampling_rate
            if coin and self.present:
                norm = self._length * float(self.optimizer.max_grad_norm)
                for parameter, direction in zip(self._parameters, self._direction, strict=True):
                    parameter.summed_grad = parameter.summed_grad + norm * direction.view_as(
                        parameter.summed_grad
                    )
        inner()

    def _stepped(self, inner: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Read what the optimizer is about to use; a virtual step is no step."""
        self._finish()
        taken = inner(*given, **named)
        if taken:
            clip = float(self.optimizer.max_grad_norm)
            grads = [p.grad.detach() * (self._scale / clip) for p in self._parameters]
            others = self._others or [torch.zeros_like(g) for g in grads]
            others = [o.view_as(g) / clip for o, g in zip(others, grads, strict=True)]
            self._others = None
            self._steps.append(
                _Step(
                    along=_dot(grads, self._direction) - _dot(others, self._direction),
                    products=(_dot(grads, grads), _dot(grads, others), _dot(others, others)),
                )
            )
            self._before = [p.detach().clone() for p in self._parameters]
            self._due = True
        return taken

    def _finish(self) -> None:
        """The size of the step before, once it has been taken."""
        if self._due:
            moved = [p.detach() - b for p, b in zip(self._parameters, self._before, strict=True)]
            self._steps[-1].size = math.sqrt(_dot(moved, moved))
            self._due = False

    def scores(self) -> dict[str, float]:
        """Every score of ``SCORES`` by its name; which one is the audit's is fixed before."""
        self._finish()
        if not self._steps:
            raise InputError("scores: got no step; expected Run.watch before the first step")
        sizes = [math.log(step.size) for step in self._steps if step.size > 0]
        size = float(np.mean(sizes)) if sizes else 0.0
        found = {"likelihood": 0.0, "joint": 0.0, "step size": size, "smaller steps": -size}
        p = sum(parameter.numel() for parameter in self._parameters)
        for step in self._steps:
            ratio = self._ratio(step.along)
            found["likelihood"] += float(np.logaddexp(*ratio))
            found["joint"] += float(np.logaddexp(ratio[0], ratio[1] + self._batch_ratio(step, p)))
        # Sums over the same steps in another order would differ in their last bits.
        return {name: float(f"{value:.9g}") for name, value in found.items()}

    def _ratio(self, along: float) -> tuple[float, float]:
        """Logarithms of the likelihood ratio's two parts: the canary not sampled, and sampled."""
        q, length = self.sampling_rate, self._length
        exponent = (along - length / 2) * length / self.noise_multiplier**2
        return math.log1p(-q) if q < 1 else -math.inf, math.log(q) + exponent

    def _batch_ratio(self, step: "_Step", parameters: int) -> float:
        """How much likelier a batch of this size is with the canary in it.

        The size k is that at which the step, times k, has noise of the claimed size left. A
        training that divides by the expected batch size shows that one, whatever the batch.
        """
        assert self._records is not None
        k = np.arange(1, self._records + 2)
        scaled = k / self._scale
        gg, go, oo = step.products
        left = gg * scaled**2 - 2 * go * scaled + oo
        size = int(k[np.argmin(np.abs(left - self.noise_multiplier**2 * parameters))])
        law = binom(self._records, self.sampling_rate)
        # An empty batch is divided by one.
        without = law.pmf(size) + (law.pmf(0) if size == 1 else 0.0)
        ratio = law.pmf(size - 1) / max(without, 1e-300)
        return float(np.clip(math.log(max(ratio, 1e-300)), -20, 20))


@dataclass
class _Step:
    """What is read of a step, in clipping norms: along the canary, and products of vectors."""

    along: float
    products: tuple[float, float, float]
    size: float = 0.0


class _One(Dataset[Any]):
    """A data set of one record."""

    def __init__(self, record: Any) -> None:
        self.record = record

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return self.record


def _dot(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Inner product of two vectors given by their parts."""
    return float(sum(torch.sum(a.double() * b.double()) for a, b in zip(one, other, strict=True)))
