"""Canaries and scores for trainings with Opacus, or with torch and per-sample gradients.

    def train(world, seed):
        run = kit.Run(world, seed, noise_multiplier=0.6, sampling_rate=0.1, canary=record)
        loader = DataLoader(run.data(records), batch_size=16)
        model, optimizer, loader = PrivacyEngine().make_private(...)
        run.watch(model, optimizer, loader)
        ...                         # the training, as it is
        return run.scores()["likelihood"]

World "in" has one record more, the canary. It goes through the training's own loader, so that
sampling is audited as well, and is followed by its index in the data set: what happens to its input
on the way does not matter. Where it is in a batch, its gradient is replaced by a Dirac gradient,
the worst case, before the training clips. Without a record the canary is a gradient alone, inserted
by a coin of its own after clipping, which works with ghost clipping too.

Nothing else is changed. Sampler, sampling rate, expected batch size, noise multiplier and clipping
norm are those of the training's own loader and optimizer; one that is not as claimed is an error.
What Opacus computes from the number of records is, in world "in", what it is without the canary.

The scores read every step, as the claim is of all iterates. The auditor knows all records but the
canary, and takes the sum of their clipped gradients away; sampling is independent, so what is left
of a right training is noise and at times the canary, and "likelihood" is the logarithm of its exact
likelihood ratio. Steps are read from the gradients that the optimizer gets and from the parameters.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from hiddenstate.auditing.curve import seed as drawn_seed
from hiddenstate.auditing.hypotheses import number
from hiddenstate.auditing.steps import StepAudit
from hiddenstate.campaign import batches
from hiddenstate.errors import InputError, check_count, expect, is_whole
from hiddenstate.files import atomic
from hiddenstate.streams import key, stream

if TYPE_CHECKING:
    from opacus.optimizers import DPOptimizer

SCORES: dict[str, str] = {
    "likelihood": "likelihood ratio of the claimed mechanism along the canary's gradient",
    "joint": "the same, where each step may also be divided by its batch's actual size",
    "last iterate": "how far the last iterate is from the start, along the canary's gradient",
    "step size": "size of the parameters' steps",
    "smaller steps": "minus that size",
}
"""What the kit reads of a training, by name."""


@dataclass(frozen=True)
class Dirac:
    """A gradient in a few coordinates, the worst case: nothing else of it is cut off by clipping.

    norm: before clipping, in clipping norms; 100 also finds what clips too late. spread: in every
    parameter tensor, or in the first alone. pairs: in coordinates of opposite signs, so that noise
    which tensors, rows, columns or coordinates share cancels; or in one coordinate of a tensor. The
    default finds the most.
    """

    norm: float = 100.0
    spread: bool = True
    pairs: bool = True

    def __post_init__(self) -> None:
        positive = number("norm", self.norm) > 0
        expect(positive, "norm", self.norm, "a number of clipping norms above 0")

    def direction(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """The gradient of norm 1, one tensor for each parameter."""
        chosen = list(range(len(parameters))) if self.spread else [0]
        patterns = {index: {0: 1.0} for index in chosen}
        if self.pairs:
            # A tensor of one number has no pair.
            several = [index for index in chosen if parameters[index].numel() > 1]
            patterns = _signed_pairs({index: parameters[index] for index in several}) or patterns
        found = [torch.zeros_like(p) for p in parameters]
        for index, pattern in patterns.items():
            length = math.sqrt(len(patterns) * sum(sign**2 for sign in pattern.values()))
            for place, sign in pattern.items():
                found[index].view(-1)[place] = sign / length
        return found


Pattern = dict[int, float]
"""Signs by place in a flattened tensor."""


def _signed_pairs(tensors: dict[int, Tensor]) -> dict[int, Pattern]:
    """Coordinates of each tensor along which noise that is shared cancels.

    Shared by the coordinates, rows or columns of a tensor, or by the places of several that are
    drawn with one key: tensors go in pairs with opposite signs in the same places, and the places
    are a lattice of the lengths of both tensors' rows.
    """
    rows = {index: len(tensor.reshape(len(tensor), -1)[0]) for index, tensor in tensors.items()}
    size = {index: tensor.numel() for index, tensor in tensors.items()}
    flat = [index for index in tensors if rows[index] == 1 or rows[index] == size[index]]
    found: dict[int, Pattern] = {}
    for group in (flat, [index for index in tensors if index not in flat]):
        ordered = sorted(group, key=lambda index: -size[index])
        for one, other in zip(ordered[::2], [*ordered[1::2], None], strict=False):
            pair = [one] if other is None else [one, other]
            lengths = set() if one in flat else {rows[index] for index in pair}
            together = sum(lengths) + 1 < min(size[index] for index in pair)
            for index, sign in zip(pair, (1.0, -1.0), strict=False):
                # Where the lattice does not fit, each has its own.
                own = lengths if together or not lengths else {rows[index]}
                found[index] = {place: sign * s for place, s in _lattice(own).items()}
    return found


def _lattice(lengths: set[int]) -> Pattern:
    """A pair of neighbours, and the pair with the other signs at each length behind it."""
    pattern = {0: 1.0, 1: -1.0}
    for length in sorted(lengths):
        for place, sign in list(pattern.items()):
            pattern[place + length] = pattern.get(place + length, 0.0) - sign
    return {place: sign for place, sign in pattern.items() if sign}


TOLERANCE = 1e-3
"""How far a number may be from its claim, relatively: claims are typed with three digits."""


NO_CANARY = -1
"""What stands for a record of the training's own among the canaries of a batch."""


@dataclass(eq=False)
class Run:
    """One training of an audit: its two data sets, its seed, its canary and its scores.

    world: "in" or "out". noise_multiplier, sampling_rate: as claimed; so are steps and
    clipping_norm, if given. canary: the record that world "in" has, as the data set gives records,
    None for a gradient alone. gradient: what replaces the record's gradient, None for its own.
    constant: whether what differs from the claim is an error, and what Opacus computes from the
    number of records is kept as it is without the canary; False audits a training as it is.
    """

    world: str
    seed: int
    noise_multiplier: float
    sampling_rate: float
    canary: Any = None
    gradient: Dirac | None = field(default_factory=Dirac)
    constant: bool = True
    steps: int | None = None
    clipping_norm: float | None = None

    def __post_init__(self) -> None:
        expect(self.world in ("in", "out"), "world", self.world, "'in' or 'out'")
        fits = is_whole(self.seed) and -(2**63) <= self.seed < 2**64
        expect(fits, "seed", self.seed, "a whole number of at most 64 bits, as torch takes")
        for name in ("noise_multiplier", "sampling_rate", "clipping_norm"):
            value = getattr(self, name)
            if name != "clipping_norm" or value is not None:
                expect(number(name, value) > 0, name, value, "above 0")
        expect(self.sampling_rate <= 1, "sampling_rate", self.sampling_rate, "in (0, 1]")
        if self.steps is not None:
            check_count("steps", self.steps)
        if self.canary is None and self.gradient is None:
            raise InputError("canary: got no record and no gradient; expected one of them")
        random.seed(self.seed)
        np.random.seed(self.seed % 2**32)  # noqa: NPY002, of whatever the training draws from it
        torch.manual_seed(self.seed)
        # Sums over several threads would round differently.
        torch.set_num_threads(1)
        self._data: _Records | None = None
        self._where: list[tuple[Any, dict[int, int]]] = []
        self._there: list[Tensor] = []
        self._steps: list[_Step] = []
        self._others: list[Tensor] | None = None
        self._drawn: int | None = None
        self._due = False
        # A generator of its own: coins drawn from the training's would change its noise.
        self._coins = torch.Generator().manual_seed(key(self.seed, "kit", "coins") % 2**63)
        self.draws = 0

    @property
    def present(self) -> bool:
        return self.world == "in"

    def data(self, records: Dataset[Any]) -> Dataset[Any]:
        """The records of this world: with the canary in world "in", as the last of them."""
        if not hasattr(records, "__len__"):
            raise InputError(
                f"data: got {type(records).__name__}, which has no length; expected a data set "
                "with a length and records by index"
            )
        there = self.canary is not None and self.present
        self._data = _Records(records, [self.canary] if there else [])
        return self._data

    def watch(self, model: torch.nn.Module, optimizer: "DPOptimizer", loader: Any = None) -> None:
        """Put the canary's gradient in its place, and read every step.

        model, optimizer, loader: as ``make_private`` returned them, before the first step. Opacus's
        step hook, which its accountant needs, is left alone. Raises InputError if what they have is
        not what is claimed, and if the canary cannot be followed.
        """
        expect(self._data is not None, "data", None, "Run.data(records) before Run.watch")
        self.optimizer, self._parameters = optimizer, list(optimizer.params)
        self._ghost = "FastGradientClipping" in type(optimizer).__name__
        if self.canary is not None:
            if self._ghost:
                raise InputError(
                    "canary: got a record with ghost clipping, which makes no gradient of its own "
                    "for it; expected a gradient alone (canary=None)"
                )
            if loader is None:
                raise InputError(
                    "loader: missing; give the loader that make_private returned, in which the kit "
                    "follows the canary by its index"
                )
            self._follow(loader.dataset)
        if self.constant:
            self._compare(loader)
        self._start = [parameter.detach().clone() for parameter in self._parameters]
        self._scale = float(optimizer.expected_batch_size or 1)
        # Opacus divides a sum by the batch size only where the loss is a mean.
        if optimizer.loss_reduction != "mean":
            self._scale = 1.0
        if self.gradient is not None:
            self._direction = self.gradient.direction(self._parameters)
            self._length = min(self.gradient.norm, 1.0)
        else:
            self._direction = [torch.zeros_like(p) for p in self._parameters]
            self._length = 0.0
        self._wrap("clip_and_accumulate", self._clip)
        self._wrap("add_noise", self._noise)
        self._wrap("pre_step", self._stepped)

    @property
    def _records(self) -> int:
        """Number of records without the canary."""
        assert self._data is not None
        return len(self._data.records)

    @property
    def _size(self) -> int:
        """Number of records that the claim speaks of."""
        return self._records

    def _follow(self, dataset: Any) -> None:
        """Find the canary in the loader's data set, which may be made from that of ``data``."""
        where = batches.index_in(dataset, self._data, self._records)
        reached = where is not None
        if self.present and where is not None and dataset is not self._data:
            reached = self._reaches(dataset, where)
        if not reached and (self.present or where is not None):
            raise InputError(
                f"canary: the loader's data set ({type(dataset).__name__}) does not give it; "
                "expected the data set that Run.data returned, or one that is made from it"
            )
        self._where.append((dataset, {} if where is None or not self.present else {where: 0}))
        batches.tell(self)

    def _reaches(self, dataset: Any, where: int) -> bool:
        """True if the record there is made from the canary; asking advances no generator."""
        assert self._data is not None
        states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
        self._data.given = None
        try:
            dataset[where]
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002
            torch.set_rng_state(states[2])
        return self._data.given == self._records

    def _compare(self, loader: Any) -> None:
        """Hold the training's own numbers against the claim."""
        optimizer, claimed = self.optimizer, self.sampling_rate
        self._same("noise multiplier", float(optimizer.noise_multiplier), self.noise_multiplier)
        if self.clipping_norm is not None:
            self._same("clipping norm", float(optimizer.max_grad_norm), self.clipping_norm)
        if loader is not None:
            sampler = batches.poisson(loader.batch_sampler)
            if sampler is None:
                made = batches.words(loader.batch_sampler)
                raise InputError(
                    f"sampler: the loader makes {made}; claimed Poisson "
                    f"sampling at rate {claimed:g} (make_private with poisson_sampling=True)"
                )
            if self.canary is not None and self.present:
                self._without_canary(sampler)
            self._same("sampling rate", float(sampler.sample_rate), claimed)
        expected = self._size * claimed
        own = optimizer.expected_batch_size
        # Opacus rounds its expected batch size down to an integer.
        if optimizer.loss_reduction == "mean" and abs(float(own) - expected) > 1 + 1e-9:
            raise InputError(
                f"expected batch size: the optimizer has {own}; claimed {expected:g}, "
                f"{self._size} records at rate {claimed:g}"
            )

    def _without_canary(self, sampler: Any) -> None:
        """Make what Opacus computed from the records, canary included, what it is without it."""
        n, rate = self._records, float(sampler.sample_rate)
        batches_ = round(1 / rate)
        # An epoch has a batch more exactly if the other records fill theirs.
        more = batches_ > 1 and n % (batches_ - 1) == 0 and 1 / batches_ == rate
        new = rate
        if more and not _close(rate, self.sampling_rate):
            new = 1 / (batches_ - 1)
        if not _close(new, self.sampling_rate):
            return
        # Opacus's own formulas: numbers that the training set itself stay as they are.
        if self.optimizer.expected_batch_size == int((n + 1) * rate):
            self.optimizer.expected_batch_size = int(n * new)
        if sampler.steps == int(1 / rate):
            sampler.steps = int(1 / new)
        sampler.sample_rate = new

    def _same(self, name: str, own: float, claimed: float) -> None:
        if not _close(own, claimed):
            raise InputError(
                f"{name}: the training has {own:g}, claimed {claimed:g}; they must be the same "
                f"before an audit can test the claim"
            )

    def _wrap(self, name: str, wrapper: Callable[..., Any]) -> None:
        inner = getattr(self.optimizer, name)
        setattr(self.optimizer, name, lambda *given, **named: wrapper(inner, *given, **named))

    def arrived(self, loader: Any, indices: Sequence[int]) -> None:
        """Remember where the canary is in a batch of its data set."""
        for dataset, where in self._where:
            if loader._dataset is dataset:
                found = [where.get(int(index), NO_CANARY) for index in indices]
                self._there.append(torch.tensor(found, dtype=torch.long))

    def _rows(self, count: int) -> Tensor:
        """Canary that each of the model's last rows is, ``NO_CANARY`` if none; (count,)."""
        there, self._there = self._there, []
        if self.canary is None:
            return torch.full((count,), NO_CANARY)
        if there and not len(there[-1]) and count <= 1:
            # Opacus can make up a record where a batch is empty.
            return torch.full((count,), NO_CANARY)
        taken: list[Tensor] = []
        while there and sum(map(len, taken)) < count:
            # Batches before those were looked at without a step.
            taken.insert(0, there.pop())
        found = torch.cat([torch.zeros(0, dtype=torch.long), *taken])
        if len(found) != count:
            raise InputError(
                f"canary: the optimizer has gradients of {count} records, the loader's last "
                f"batches had {len(found)}; expected one for each record that the loader of "
                "Run.watch draws, or the canary cannot be followed"
            )
        return found

    def _clip(self, inner: Callable[[], None]) -> None:
        """Put the canary's gradient in, and sum up those of the others as claimed."""
        samples = [self.optimizer._get_flat_grad_sample(p) for p in self._parameters]
        count = len(samples[0])
        rows = self._rows(count).to(samples[0].device)
        there = rows != NO_CANARY
        self._count(rows)
        self._drawn = (self._drawn or 0) + count - int(there.sum())
        if count:
            clip = float(self.optimizer.max_grad_norm)
            if self.gradient is not None and there.any():
                self._insert(samples, rows, self.gradient.norm * clip)
                for parameter, sample in zip(self._parameters, samples, strict=True):
                    parameter.grad_sample = sample
            norms = torch.stack([s.flatten(1).norm(dim=1) for s in samples], dim=1).norm(dim=1)
            # Opacus adds the same 1e-6, so that its sum and this one agree.
            factors = (clip / (norms + 1e-6)).clamp(max=1.0)
            factors = torch.where(there, torch.zeros_like(factors), factors)
            sums = [torch.einsum("i,i...", factors.to(s), s) for s in samples]
            before = self._others
            self._others = (
                sums if before is None else [a + b for a, b in zip(before, sums, strict=True)]
            )
        inner()

    def _count(self, rows: Tensor) -> None:
        """Count the draws of the canary among these rows."""
        self.draws += int((rows != NO_CANARY).sum())

    def _insert(self, samples: Sequence[Tensor], rows: Tensor, norm: float) -> None:
        """Put a gradient of this norm in the rows of the canary."""
        for sample, direction in zip(samples, self._direction, strict=True):
            sample[rows != NO_CANARY] = (norm * direction).to(sample)

    def _noise(self, inner: Callable[[], None]) -> None:
        """Insert a gradient that is no record's, by a coin of its own."""
        if self._ghost:
            # No record's gradient is there to be clipped again; their sum is.
            self._others = [
                parameter.summed_grad.detach().clone() for parameter in self._parameters
            ]
        if self.canary is None:
            coin = float(torch.rand((), generator=self._coins)) < self.sampling_rate
            if coin and self.present:
                self.draws += 1
                norm = self._length * float(self.optimizer.max_grad_norm)
                for parameter, direction in zip(self._parameters, self._direction, strict=True):
                    parameter.summed_grad = parameter.summed_grad + norm * direction.view_as(
                        parameter.summed_grad
                    )
        inner()

    def _stepped(self, inner: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Read what the optimizer is about to use; a virtual step is no step."""
        self._finish()
        samples = getattr(self._parameters[0], "grad_sample", None)
        if isinstance(samples, list) and len(samples) > 1:
            raise InputError(
                f"step {len(self._steps)}: sums {len(samples)} batches that were drawn apart, in "
                "which a record may come twice; expected one batch a step (BatchMemoryManager "
                "splits large ones)"
            )
        taken = inner(*given, **named)
        if taken:
            if self.constant:
                own = float(self.optimizer.noise_multiplier)
                self._same(
                    f"noise multiplier of step {len(self._steps)}", own, self.noise_multiplier
                )
                if self.steps is not None and len(self._steps) == self.steps:
                    raise InputError(
                        f"steps: the training takes more than the claimed {self.steps}"
                    )
            clip = float(self.optimizer.max_grad_norm)
            # Back from the mean to the sum.
            grads = [p.grad.detach() * (self._scale / clip) for p in self._parameters]
            others = self._others or [torch.zeros_like(g) for g in grads]
            others = [o.view_as(g) / clip for o, g in zip(others, grads, strict=True)]
            self._read(grads, others)
            self._others = self._drawn = None
            self._before = [p.detach().clone() for p in self._parameters]
            self._due = True
        return taken

    def _read(self, grads: Sequence[Tensor], others: Sequence[Tensor]) -> None:
        """Keep what the scores need of a step and of the sum of the others, in clipping norms."""
        self._steps.append(
            _Step(
                gradient=_dot(grads, self._direction),
                other=_dot(others, self._direction),
                products=(_dot(grads, grads), _dot(grads, others), _dot(others, others)),
                drawn=self._drawn,
            )
        )

    def _finish(self) -> None:
        """The size of the step before, once it has been taken."""
        if self._due:
            moved = [p.detach() - b for p, b in zip(self._parameters, self._before, strict=True)]
            self._steps[-1].size = math.sqrt(_dot(moved, moved))
            self._due = False

    def scores(self) -> dict[str, float]:
        """Every score of ``SCORES`` by its name; which one is the audit's is fixed before."""
        self._finish()
        self._complete()
        sizes = [math.log(step.size) for step in self._steps if step.size > 0]
        size = float(np.mean(sizes)) if sizes else 0.0
        ratio = sum(float(np.logaddexp(*self._ratio(step.along))) for step in self._steps)
        moved = [a - b.detach() for a, b in zip(self._start, self._parameters, strict=True)]
        found = {
            "likelihood": ratio,
            "joint": self._joint(ratio),
            "last iterate": _dot(moved, self._direction),
            "step size": size,
            "smaller steps": -size,
        }
        # Sums over the same steps in another order would differ in their last bits.
        return {name: float(f"{value:.9g}") for name, value in found.items()}

    def _complete(self) -> None:
        """Refuse a training without steps, with other steps than claimed, or without the canary."""
        if not self._steps:
            raise InputError("scores: got no step; expected Run.watch before the first step")
        if self.constant and self.steps is not None and len(self._steps) != self.steps:
            raise InputError(f"steps: the training took {len(self._steps)}, claimed {self.steps}")
        if self.present and not self.draws:
            never = (1 - self.sampling_rate) ** len(self._steps)
            if never < 1e-6:
                raise InputError(
                    f"canary: drawn in none of {len(self._steps)} steps; expected about "
                    f"{self.sampling_rate * len(self._steps):.0f} draws at rate "
                    f"{self.sampling_rate:g}"
                )

    def _ratio(self, along: Any) -> tuple[float, Any]:
        """Logarithms of the likelihood ratio's two parts: the canary not sampled, and sampled."""
        q, length = self.sampling_rate, self._length
        exponent = (along - length / 2) * length / self.noise_multiplier**2
        return math.log1p(-q) if q < 1 else -math.inf, math.log(q) + exponent

    def _joint(self, ratio: float) -> float:
        """Logarithm of the likelihood ratio if steps are divided by either size of the batch.

        The auditor knows how many other records were drawn, as their draws are independent of the
        canary's. Divided by the expected size, a step has the ratio of the likelihood score;
        divided by the actual one, its scale shows whether one record more was there. Both are as
        probable before the training, and the noise of its steps tells which it is.
        """
        p, sigma = sum(parameter.numel() for parameter in self._parameters), self.noise_multiplier
        with_, without, more = [0.0, 0.0], [0.0, 0.0], int(self.canary is not None)
        for step in self._steps:
            if step.drawn is None:
                return ratio
            size, rate = step.drawn, self.sampling_rate
            # Divided by the expected size, and by the actual one without the canary and with it.
            scales = [(1.0, 1.0), (max(1, size) / self._scale, max(1, size + more) / self._scale)]
            for by, (absent, there) in enumerate(scales):
                alone = step.density(absent, 0.0, p, sigma)
                both = step.density(there, self._length, p, sigma)
                without[by] += alone
                kept = math.log1p(-rate) if rate < 1 else -math.inf
                with_[by] += float(np.logaddexp(alone + kept, both + math.log(rate)))
        one, other = (float(np.logaddexp(sums[0], sums[1])) for sums in (with_, without))
        return one - other


@dataclass
class _Step:
    """Numbers that are read of a step, in clipping norms.

    gradient, other: the step and the sum of the others along the canary. products: of the step with
    itself, with the others, and of these. drawn: how many other records the batch had, if known.
    """

    gradient: float
    other: float
    products: tuple[float, float, float]
    drawn: int | None
    size: float = 0.0

    @property
    def along(self) -> float:
        """The step less the others, along the canary."""
        return self.gradient - self.other

    def density(self, scale: float, length: float, parameters: int, sigma: float) -> float:
        """Logarithm of the density of the step if it times ``scale`` is sum and noise.

        length: of the canary in the sum. Up to what is the same for every scale and length.
        """
        gg, go, oo = self.products
        left = gg * scale**2 - 2 * scale * (go + length * self.gradient) + oo
        left += 2 * length * self.other + length**2
        return parameters * math.log(scale) - left / (2 * sigma**2)


class OneRun(Run):
    """One training with many canaries, each of them in by a coin of its own.

    seed: of the training. noise_multiplier, sampling_rate: as claimed. canaries: records, as the
    data set gives records, one for each canary; they may be equal. norm: of their gradients before
    clipping, in clipping norms. coins: seed of the canaries' coins; None: a new one, which the
    attribute ``coins`` tells. Other arguments: as of ``Run``.

    All canaries are in the data set, so that batches, rates and steps say nothing of the coins. A
    canary whose coin fell on "in" has a gradient in a coordinate of its own, wherever it is drawn;
    one whose coin fell on "out" has none. The score of a canary is the logarithm of the likelihood
    ratio of the steps along its coordinate.

        run = kit.OneRun(seed, noise_multiplier=1.0, sampling_rate=0.1, canaries=[record] * 500)
        ...                     # run.data, run.watch and the training, as with kit.Run
        run.write("canaries.csv")   # for hiddenstate audit-one-run
    """

    def __init__(
        self,
        seed: int,
        noise_multiplier: float,
        sampling_rate: float,
        canaries: Sequence[Any],
        *,
        norm: float = 100.0,
        coins: int | None = None,
        steps: int | None = None,
        clipping_norm: float | None = None,
    ) -> None:
        expect(len(canaries) > 0, "canaries", len(canaries), "at least 1 record")
        super().__init__(
            "in", seed, noise_multiplier, sampling_rate, canaries[0], Dirac(norm),
            steps=steps, clipping_norm=clipping_norm,
        )  # fmt: skip
        self.canaries, self.coins = list(canaries), drawn_seed(coins)
        self.included = stream(self.coins, "kit", "one run").random(len(canaries)) < 0.5
        self._along: list[NDArray[np.float64]] = []

    def data(self, records: Dataset[Any]) -> Dataset[Any]:
        """The records, and behind them all canaries."""
        super().data(records)
        assert self._data is not None
        self._data.more = self.canaries
        return self._data

    @property
    def _size(self) -> int:
        return self._records + len(self.canaries)

    def watch(self, model: torch.nn.Module, optimizer: "DPOptimizer", loader: Any = None) -> None:
        """Put the canaries' gradients in their places, and read every step; see ``Run.watch``."""
        super().watch(model, optimizer, loader)
        parameters = sum(parameter.numel() for parameter in self._parameters)
        m = len(self.canaries)
        expect(m <= parameters, "canaries", m, f"at most {parameters}, one for each parameter")
        self._places = (torch.arange(m) * parameters) // m
        starts = np.cumsum([0, *(parameter.numel() for parameter in self._parameters)])
        self._tensor = np.searchsorted(starts, self._places.numpy(), side="right") - 1
        self._inside = self._places.numpy() - starts[self._tensor]

    def _follow(self, dataset: Any) -> None:
        super()._follow(dataset)
        numbers = range(len(self.canaries))
        where = {self._records + number: number for number in numbers}
        if dataset is not self._data:
            found = {batches.index_in(dataset, self._data, index): where[index] for index in where}
            where = {index: number for index, number in found.items() if index is not None}
            if len(where) < len(self.canaries):
                raise InputError(
                    f"canaries: the loader's data set ({type(dataset).__name__}) does not give all "
                    "of them; expected one that keeps every record that Run.data gave"
                )
        self._where = [(dataset, where)]

    def _without_canary(self, sampler: Any) -> None:
        """All canaries are records in either case."""

    def _count(self, rows: Tensor) -> None:
        self.draws += int(self.included[rows[rows != NO_CANARY].cpu().numpy()].sum())

    def _insert(self, samples: Sequence[Tensor], rows: Tensor, norm: float) -> None:
        there = torch.nonzero(rows != NO_CANARY).view(-1)
        for sample in samples:
            sample[there] = 0
        for row in there.tolist():
            number = int(rows[row])
            if self.included[number]:
                flat = samples[int(self._tensor[number])][row].view(-1)
                flat[int(self._inside[number])] = norm

    def _read(self, grads: Sequence[Tensor], others: Sequence[Tensor]) -> None:
        along, other = (torch.cat([t.reshape(-1) for t in sums]) for sums in (grads, others))
        left = along[self._places].double() - other[self._places].double()
        self._along.append(left.cpu().numpy())
        super()._read(grads, others)

    def scores(self) -> dict[str, float]:
        """The score of each canary by its number."""
        self._finish()
        self._complete()
        ratio = np.logaddexp(*self._ratio(np.array(self._along))).sum(axis=0)
        return {str(number): float(f"{value:.9g}") for number, value in enumerate(ratio)}

    def write(self, path: str | Path) -> None:
        """Write canaries, their worlds and scores as ``hiddenstate audit-one-run`` reads them."""
        rows = [
            f"{number},{'in' if self.included[int(number)] else 'out'},{score!r}"
            for number, score in self.scores().items()
        ]
        with atomic(path) as temporary:
            temporary.write_text("\n".join(["canary,world,score", *rows]) + "\n")


class Steps(OneRun):
    """One training whose canaries toss a coin in every step that draws them.

    Arguments as of ``OneRun``; ``coins`` seeds the coins of the steps. A canary has its gradient in
    the sum where its coin falls on "in", and none where it falls on "out". The auditor guesses each
    coin from the step alone, so that the audit may be looked at after every step.

        run = kit.Steps(seed, noise_multiplier=1.0, sampling_rate=0.1, canaries=[record] * 500)
        ...                     # run.data, run.watch and the training, as with kit.Run
        run.audit().p_value(1.0)    # so far; the loop may stop at any step
        run.write("steps.csv")      # for hiddenstate audit-steps
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._tosses = stream(self.coins, "kit", "steps")
        self._tossed: dict[int, bool] = {}
        self.made: list[int] = []
        self.right: list[int] = []

    def _count(self, rows: Tensor) -> None:
        drawn = rows[rows != NO_CANARY].tolist()
        self.draws += len(drawn)
        for canary in drawn:
            self._tossed[canary] = self.included[canary] = bool(self._tosses.random() < 0.5)

    def _read(self, grads: Sequence[Tensor], others: Sequence[Tensor]) -> None:
        super()._read(grads, others)
        along = self._along.pop()
        self.made.append(len(self._tossed))
        self.right.append(
            sum((along[n] > self._length / 2) == coin for n, coin in self._tossed.items())
        )
        self._tossed = {}

    def audit(self, confidence: float = 0.95) -> StepAudit:
        """The audit of the steps so far."""
        return StepAudit(np.array(self.made), np.array(self.right), confidence)

    def write(self, path: str | Path) -> None:
        """Write guesses by step as ``hiddenstate audit-steps`` reads them."""
        self._complete()
        rows = [f"{made},{right}" for made, right in zip(self.made, self.right, strict=True)]
        with atomic(path) as temporary:
            temporary.write_text("\n".join(["made,right", *rows]) + "\n")


class _Records(Dataset[Any]):
    """Records, and more behind them."""

    def __init__(self, records: Any, more: list[Any]) -> None:
        self.records, self.more = records, more
        self.given: int | None = None
        """Index of what was given last."""

    def __len__(self) -> int:
        return len(self.records) + len(self.more)

    def __getitem__(self, index: int) -> Any:
        index = int(index)
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        self.given = index % len(self)
        beyond = self.given - len(self.records)
        return self.records[self.given] if beyond < 0 else self.more[beyond]


def _close(own: float, claimed: float) -> bool:
    return abs(own - claimed) <= TOLERANCE * abs(claimed)


def _dot(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    return float(sum(torch.sum(a.double() * b.double()) for a, b in zip(one, other, strict=True)))
