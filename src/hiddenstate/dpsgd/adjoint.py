"""The expected audit: what audits of a training give on average, from one training and a pass back.

An audit's separation is the difference of the mean scores with and without the canary over their
standard deviation. An adversary needs hundreds of trained models to estimate it, since the noise is
hidden from them. The experimenter knows the noise, and computes both parts directly:

* the *difference* from pairs of models, with and without the canary, that share their noise;
* the *spread* from derivatives. With ``a_T`` the score's gradient at the last iterate, and
  ``a_(t-1) = a_t - learning_rate J_t^T a_t`` through the derivatives ``J_t`` of the clipped sums,
  noise of step t moves the score by ``-learning_rate a_t . noise``. The variance of the score is
  at most ``noise^2 E sum |a_t|^2`` (Gaussian Poincare inequality) and at least
  ``noise^2 sum |E a_t|^2`` (Cauchy and Schwarz, as in Cacoullos 1982), with
  ``noise = learning_rate * noise_std``.

The two bounds hold where clipped sums have no jumps. Activations with kinks (ReLU) and max-pooling
make jumps, which derivatives do not see. The result is no lower bound on epsilon: pairs that share
their noise show more than any adversary sees.

Starts and batches that are hidden spread scores as well. The same derivatives say how far, to first
order: an entry of the start moves the score by ``a_0`` and what the score itself reads of the
start, and a record that a step samples moves it by ``-learning_rate a_t . g`` with its clipped
gradient ``g``. ``hidden`` adds the variances of all three.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import embedding, instance_norm, layer_norm
from torch.overrides import TorchFunctionMode

from hiddenstate import streams
from hiddenstate.accounting import gaussian, weighted
from hiddenstate.dpsgd.clipping import ClippedSum, checked_indices
from hiddenstate.dpsgd.kernels.base import Problem, named, single_precision
from hiddenstate.dpsgd.mechanism import Mechanism
from hiddenstate.dpsgd.probe import FAILURES, first_line, on_trial
from hiddenstate.dpsgd.run import Additions, Ensemble, Run
from hiddenstate.errors import InputError, check_count
from hiddenstate.sampling import Poisson
from hiddenstate.streams import World

Floats = NDArray[np.float64]
_BLOCK_BYTES = 2**25
"""Per-sample gradients that are differentiated at once."""
_RECORDS = 4
"""Records whose second derivatives are compared with finite differences, each."""
_NUMBERS = 2**18
"""Numbers of gradients and records whose sum is compared too, of 16 to 256 records."""


@dataclass(frozen=True, eq=False)
class Expected:
    """Expected result of audits of one training; no bound, and no score of any adversary.

    It is that of an adversary who knows the start and the batches, except for the canary's place.
    differences: shape (pairs,), score with the canary minus score without it, noise in common.
    upper, lower: ends of the scores' standard deviation. absent: the upper end of models without
    the canary. trajectories: of each model without the canary. norms: shape (pairs, steps), norms
    of its clipped gradients over the clipping norm. used: shape (pairs, steps), whether a step
    used it.
    noise_multiplier: of the mechanism. rate: with which Poisson batches draw the canary, 1 for
    others and for a canary with a schedule. errors: standard errors of upper and lower, over pairs
    and passes.
    """

    differences: Floats
    upper: float
    lower: float
    absent: float
    trajectories: Sequence["Trajectory"]
    norms: Floats
    used: NDArray[np.bool_]
    noise_multiplier: float
    rate: float
    errors: tuple[float, float]

    @property
    def separation(self) -> float:
        """Difference of the mean scores over the upper end of their standard deviation; 0 without a
        difference, as of a canary without a gradient."""
        return _ratio(float(self.differences.mean()), self.upper)

    @property
    def highest(self) -> float:
        """The same over the lower end, infinite where that alone is 0."""
        return _ratio(float(self.differences.mean()), self.lower)

    @property
    def error(self) -> float:
        """Standard error of the separation: of the difference, and of the upper end."""
        if self.upper == 0:
            return abs(self.separation)
        mean, pairs = float(self.differences.mean()), len(self.differences)
        spread = self.differences.std(ddof=1) / math.sqrt(pairs) if pairs > 1 else math.nan
        return math.hypot(spread, mean * self.errors[0] / self.upper) / self.upper

    @property
    def most(self) -> float:
        """The separation of a canary of full norm along the scores' own direction."""
        return math.sqrt(self.used.sum(1).mean()) / self.noise_multiplier

    @property
    def norm(self) -> float:
        """Root mean square of the canary's clipped norms over the clipping norm, at most 1."""
        squares = (self.norms**2)[self._could]
        # Clipped norms are of float32, which may round above the clipping norm.
        return min(1.0, math.sqrt(float(squares.mean()))) if len(squares) else 0.0

    @property
    def cosine(self) -> float:
        """Between the canary's gradients and what the score sees, over all steps, first order; 0
        without either."""
        first = float((self.weights * self._could).sum(1).mean())
        most = math.sqrt(self._could.sum(1).mean()) / self.noise_multiplier
        return min(1.0, _ratio(first, self.absent * self.norm * most))

    @property
    def weights(self) -> Floats:
        """Weights of the steps along each trajectory, shape (pairs, steps)."""
        return np.stack([one.weights for one in self.trajectories])

    @property
    def _could(self) -> NDArray[np.bool_]:
        """Steps that may use the canary, shape (pairs, steps): all of them with sampling."""
        return self.used if self.rate == 1 else np.ones_like(self.used)

    def epsilon(self, delta: float) -> float:
        """Epsilon at ``delta`` that this score reaches with as many models as one likes.

        An estimate: scores are taken as normal, and the canary's steps as known to nobody. With
        sampling it is the mean over the trajectories. It is at most that of all iterates, which
        means over deviations of scores that are not normal may exceed. Infinite where scores differ
        and have no noise.
        """
        if math.isinf(self.separation):
            return math.inf
        if self.rate == 1:
            return float(gaussian.epsilon(min(self.separation, self.most), delta))
        return float(np.mean([one.epsilon(self.rate, delta) for one in self.trajectories]))

    def explained(self, delta: float = 1e-5) -> str:
        """The separation, its epsilon at ``delta`` and its two factors, in a sentence each."""
        beyond = self.rate == 1 and self.separation > self.most
        more = ": the scores are not normal" if beyond else ""
        return (
            f"Audits with this canary and score show an epsilon of {self.epsilon(delta):.2f} on "
            f"average, with many models. They separate scores by {self.separation:.2f} standard "
            f"deviations, where {self.most:.2f} is the most that the noise allows{more}. The "
            f"canary's gradients have {self.norm:.0%} of the clipping norm. Their direction has a "
            f"cosine of {self.cosine:.2f} with what the score sees of the last iterate."
        )


@dataclass(frozen=True, eq=False)
class Trajectory:
    """A training without the canary, to first order in the canary and in the noise; no bound.

    weights: shape (steps,), how far the canary's clipped gradient moves the score where a step uses
    it; 0 for steps that are not in a canary's schedule. deviation: of what all noise adds to the
    score. batches: of what the draw of Poisson batches adds, 0 with others. start: of what the draw
    of the start adds, 0 for a start that is known.
    """

    weights: Floats
    deviation: float
    batches: float = 0.0
    start: float = 0.0

    def epsilon(self, rate: float, delta: float) -> float:
        """Epsilon of the weights of steps that have the canary at a rate, summed, at most that of
        all iterates. The rate is 1 for a canary with a schedule.

        It is that of who knows the start and the batches, except for the canary's place; ``hidden``
        has that of who knows neither. Weights below 0 count as 0.
        """
        weights = np.maximum(self.weights, 0)
        if not weights.any():
            return 0.0
        return weighted.epsilon(1.0, rate, weights, delta, noise_std=self.deviation).lower


def _ratio(part: float, whole: float) -> float:
    """Part over whole; 0 of nothing, and infinite over nothing."""
    if whole == 0:
        return math.copysign(math.inf, part) if part else 0.0
    return part / whole


def hidden(trajectories: Sequence[Trajectory]) -> Trajectory:
    """The law of a score whose start and batches are hidden, over trajectories; no bound.

    Its weights are the mean ones. Its deviation is the root mean square of all that noise, batches
    and starts add. At any rate and delta its epsilon is at most that of all iterates, for a weight
    is at most the deviation that noise of its step adds, over the noise multiplier.
    """
    parts = [(one.deviation, one.batches, one.start) for one in trajectories]
    variance = np.square(parts).sum(1).mean()
    return Trajectory(np.mean([one.weights for one in trajectories], 0), math.sqrt(variance))


@torch.inference_mode(False)
@torch.enable_grad()
def vjp(
    gradients: ClippedSum,
    theta: Tensor,
    indices: NDArray[np.int64],
    clipping_norm: float,
    vector: Tensor,
) -> Tensor:
    """Vector (p,) times the derivative of the clipped sum at theta (p,), by torch's own rules.

    indices: the records that are summed. Per-sample gradients are differentiated again; models that
    ``torch.func`` does not know are taken record by record. Raises InputError for a model that
    torch does not differentiate twice, or not rightly.
    """
    theta, vector = gradients.taken(theta, clipping_norm), gradients.taken(vector, name="vector")
    indices = checked_indices(indices, gradients.records)
    vector = vector.clone()  # one that was made in inference mode enters no graph
    with single_precision(gradients.device):
        return _vjp(gradients, theta, indices, clipping_norm, vector)[0]


def _vjp(
    gradients: ClippedSum,
    theta: Tensor,
    indices: NDArray[np.int64],
    clipping_norm: float,
    vector: Tensor,
) -> tuple[Tensor, float]:
    """The product, and the sum of squares of the records' clipped gradients times the vector."""
    problem = gradients.kernel.problem
    if problem not in _CHECKED:
        _refuse_other_derivatives(problem, theta, clipping_norm)
        _CHECKED.add(problem)
    rows = max(1, _BLOCK_BYTES // (theta.element_size() * gradients.parameters))
    total, squares = torch.zeros_like(theta), 0.0
    for start in range(0, len(indices), rows):
        chosen = torch.from_numpy(np.asarray(indices[start : start + rows])).to(problem.x.device)
        at = theta.detach().clone().requires_grad_()
        each = _per_sample(problem, at, problem.x[chosen], problem.y[chosen])
        # In float64, for in float32 squares overflow, and with them the norms' derivatives.
        norms = torch.linalg.vector_norm(each, dim=1, dtype=torch.float64)
        clips = norms > clipping_norm
        # A norm of 0 has no derivative, and none is asked for.
        factors = torch.where(clips, clipping_norm / torch.where(clips, norms, 1.0), 1.0)
        products = factors * (each @ vector)
        squares += float(products.detach().double().square().sum())
        if products.requires_grad:  # gradients of linear losses are constant
            total += torch.autograd.grad(products.sum(), at)[0]
    return total, squares


class _TwiceDifferentiable(TorchFunctionMode):
    """Calls whose second derivatives torch or torch.func has wrong are made otherwise, or refused.

    Layer and instance norms scale and shift what torch normalises for them. Embeddings have no
    padding.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in (embedding, torch.embedding):
            # One has tokens first, and None where there is no padding; the other weights, and -1.
            names = ("input", "weight") if func is embedding else ("weight", "indices")
            call = dict(zip((*names, "padding_idx"), args, strict=False)) | (kwargs or {})
            none = None if func is embedding else -1
            padding = call.get("padding_idx", none)
            # Refused by the call, for the few records that are compared may have no padding.
            if padding != none and call["weight"].requires_grad:
                raise InputError(
                    f"model: an embedding has padding_idx {padding}, which torch forgets in second "
                    "derivatives; expected no padding_idx, or other products"
                )
        if func not in (layer_norm, instance_norm):
            return func(*args, **(kwargs or {}))
        given = signature(func).bind(*args, **(kwargs or {}))
        # A weight of a layer norm has its last axes, one of an instance norm the second.
        after = 0 if func is layer_norm else given.arguments["input"].ndim - 2
        scale, shift = (given.arguments.pop(name, None) for name in ("weight", "bias"))
        found = func(*given.args, **given.kwargs)
        if scale is not None:
            found = found * scale.reshape(*scale.shape, *[1] * after)
        return found if shift is None else found + shift.reshape(*shift.shape, *[1] * after)


def _per_sample(problem: Problem, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Gradients (records, p) of each record's loss, which can be differentiated again."""
    model = problem.model

    def one(parameters: Tensor, record: Tensor, label: Tensor) -> Tensor:
        outputs = functional_call(model, named(parameters, model), (record[None],))
        return problem.loss(outputs, label[None])[0]

    x = x.contiguous()  # torch.func's convolutions are far slower with channels last
    # Fused attention has no second derivative.
    with sdpa_kernel(SDPBackend.MATH), _TwiceDifferentiable():
        try:
            return vmap(grad(one), (None, 0, 0))(theta, x, y)
        except RuntimeError:
            pairs = zip(x, y, strict=True)
            losses = (one(theta, record, label) for record, label in pairs)
            return torch.stack(
                [torch.autograd.grad(loss, theta, create_graph=True)[0] for loss in losses]
            )


_CHECKED: WeakSet[Problem] = WeakSet()
"""Problems whose second derivatives were compared with finite differences."""
_STEPS = (1e-5, 1e-6, 1e-7, 1e-8)
_STEPS_OF_FLOAT32 = (3e-2, 1e-2, 3e-3)


def _refuse_other_derivatives(problem: Problem, theta: Tensor, clipping_norm: float) -> None:
    """InputError where torch's second derivatives are not those of the gradients.

    Derivatives of a few records' gradients, and of the sum of more with random signs, are compared
    with finite differences in float64, near theta (p,), in a random direction. A kink (ReLU)
    between two points tells by steps of two sizes whose differences disagree; where none agree,
    nothing is known, nor of gradients that are as good as 0 beside the clipping norm. The sum is
    that of autograd too, by which the clipped sums are compared.
    """
    try:
        with on_trial():
            found = _compared(problem, theta, clipping_norm, torch.float64)
    except InputError:
        raise
    except FAILURES:  # a model that does not run in float64
        try:
            with on_trial():
                found = _compared(problem, theta, clipping_norm, problem.dtype)
        except FAILURES as error:
            raise InputError(
                f"model: torch does not differentiate its gradients ({first_line(error)}); "
                "expected a model with second derivatives"
            ) from error
    if found:
        raise InputError(
            f"model: the derivative of records' gradients is {found[0]:g} in some direction by "
            f"finite differences and {found[1]:g} by torch; expected a model without detach() or "
            "other steps that torch differentiates otherwise than they are"
        )


def _compared(
    problem: Problem, theta: Tensor, clipping_norm: float, dtype: torch.dtype
) -> tuple[float, float] | None:
    """A derivative by finite differences, and torch's own, where they differ; else None."""
    # Of large models fewer, so that both take about as long.
    together = min(256, max(16, _NUMBERS // (problem.parameters + problem.x[0].numel())))
    (x, y), (xs, ys) = (_spread(problem, records, dtype) for records in (_RECORDS, together))
    loss = problem.loss
    if isinstance(loss, nn.Module):
        loss = copy.deepcopy(loss).cpu().to(dtype)
    own = replace(problem, model=copy.deepcopy(problem.model).cpu().to(dtype), loss=loss, x=x, y=y)
    at = theta.detach().cpu().to(dtype)
    rng = np.random.default_rng(0)
    noise, direction, vector = (
        torch.from_numpy(rng.normal(size=len(at))).to(dtype) for _ in range(3)
    )
    # Near theta, for at a special point (zeros, say) a wrong derivative may be right.
    scale = 0.1 * float(at.square().mean().sqrt()) or 0.1
    at, direction = (at + scale * noise).requires_grad_(), scale * direction
    signs = torch.from_numpy(rng.choice((-1.0, 1.0), len(ys))).to(dtype)
    steps = _STEPS if dtype == torch.float64 else _STEPS_OF_FLOAT32
    largest = _refuse_other_gradients(own, at, xs, ys, signs)
    # More records have more kinks: of these, far steps would tell nothing. With clipping off, what
    # counts as 0 is small beside the largest gradient or 1, for all may be rounding alone.
    along, least = (at, direction, vector), 1e-3 * min(clipping_norm, max(largest, 1.0))
    return _differing(
        lambda at, graph: _per_sample(own, at, x, y), *along, steps, least
    ) or _differing(
        lambda at, graph: _summed(own, at, xs, ys, signs, graph), *along, steps[1:], least
    )


def _refuse_other_gradients(
    problem: Problem, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor
) -> float:
    """The records' largest gradient norm; InputError where they do not sum to autograd's."""
    rows = max(_RECORDS, _BLOCK_BYTES // (theta.element_size() * problem.parameters))
    total, norms = -_summed(problem, theta, x, y, weights, False)[0].double(), []
    for part in torch.arange(len(y)).split(rows):
        each = _per_sample(problem, theta, x[part], y[part]).detach().double()
        total += weights[part].double() @ each
        norms.append(each.norm(dim=1))
    every = torch.cat(norms)
    off, size = float(total.norm()), float(every.sum())
    if off > (1e-6 if theta.dtype == torch.float64 else 1e-3) * size:
        raise InputError(
            f"model: torch.func's gradients of {len(y)} records sum to another vector than "
            f"autograd's, off by {off:.3g} where their norms sum to {size:.3g}; expected a model "
            "whose functions have right rules for torch.func.vmap"
        )
    return float(every.max())


def _spread(problem: Problem, records: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """So many records, or all, from the first to the last, and their labels, on the CPU."""
    picked = torch.linspace(0, len(problem.y) - 1, records).long().unique().to(problem.device)
    x, y = (part[picked].cpu() for part in (problem.x, problem.y))
    x, y = (part.to(dtype) if part.is_floating_point() else part for part in (x, y))
    return x.contiguous(), y


def _summed(
    problem: Problem, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor, graph: bool
) -> Tensor:
    """Gradient (1, p) of the records' losses, summed with weights."""
    with sdpa_kernel(SDPBackend.MATH), _TwiceDifferentiable():
        outputs = functional_call(problem.model, named(theta, problem.model), (x,))
        total = weights @ problem.loss(outputs, y)
        return torch.autograd.grad(total, theta, create_graph=graph)[0][None]


def _differing(
    gradients: Callable[[Tensor, bool], Tensor],
    at: Tensor,
    direction: Tensor,
    vector: Tensor,
    steps: Sequence[float],
    least: float,
) -> tuple[float, float] | None:
    """The same of gradients (n, p) at parameters (p,), with a graph if that is asked for.

    least: norm of a gradient below which its rounding is that of one so long.
    """
    # Relative error of a difference quotient, and its rounding, which grows as steps shrink.
    close, floor = (1e-5, 1e-13) if at.dtype == torch.float64 else (3e-2, 1e-5)
    each = gradients(at, True)
    known = torch.zeros(len(each), dtype=at.dtype)
    if each.requires_grad:
        rows = [
            torch.autograd.grad(g @ vector, at, retain_graph=True, materialize_grads=True)[0]
            for g in each
        ]
        known = torch.stack(rows) @ direction
    size = each.detach().norm(dim=1).clamp(min=least) * vector.norm()
    before, room = None, size
    for step in steps:
        points = (at + s * direction for s in (step, -step))
        ends = [gradients(point.detach().requires_grad_(), False) for point in points]
        found = ((ends[0] - ends[1]).detach() @ vector) / (2 * step)
        room = close * found.abs() + floor * size / step
        # Two steps that agree tell; across a kink they differ, and smaller ones decide.
        if before is not None:
            told = (found - before).abs() <= room
            wrong = told & ((found - known).abs() > 10 * room)
            if bool(wrong.any()):
                i = int(wrong.nonzero()[0])
                return float(found[i]), float(known[i])
            if bool(told.all()):
                return None
        before = found
    return None


@torch.inference_mode(False)
@torch.enable_grad()
def expected(
    ensemble: Ensemble,
    *,
    pairs: int = 2,
    seed: int = 0,
    name: tuple[str | int, ...] = (),
    records: int | None = None,
    device: str = "cpu",
) -> Expected:
    """Expected audit of an ensemble whose canary is a record, or a gradient read at a coordinate.

    All of its models have one start and one draw of the batches, which ``name`` decides. pairs: of
    models with and without the canary that share their noise; 2 give both ends of the spread.
    records: of each step's batch in the pass back, drawn anew for each step and for two
    passes, whose products have no bias; None takes all, in one pass. seed, name: of the random
    streams.

    Raises InputError for a mechanism without noise, and for a canary with another score.
    """
    check_count("pairs", pairs)
    if records is not None:
        check_count("records", records)
    mechanism = _supported(ensemble)
    gradients = ensemble.clipped_sum(device)
    with single_precision(gradients.device):
        found = [_pair(ensemble, gradients, seed, name, i, records) for i in range(pairs)]
    noise = mechanism.learning_rate * mechanism.noise_std
    # A product of two passes with records of their own has no bias, unlike one's square.
    own = [np.mean([_product(passes[0], passes[-1]) for passes in pair.passes]) for pair in found]
    # With and without the canary apart, as an audit's deviation pools both.
    cross = [
        np.mean([_product(a[0], b[-1]) for a, b in zip(one.passes, other.passes, strict=True)])
        for one in found
        for other in found
        if one is not other
    ]
    absent = [_product(pair.passes[1][0], pair.passes[1][-1]) for pair in found]
    # Nothing is amplified where the canary's own schedule decides on its steps.
    sampled = ensemble.canary.sampled and isinstance(mechanism.sampling, Poisson)
    (upper, above), (lower, below) = (_root(np.array(squares)) for squares in (own, cross))
    return Expected(
        differences=np.array([p.difference for p in found]),
        upper=noise * upper,
        lower=noise * lower,
        absent=noise * _root(np.array(absent))[0],
        trajectories=[p.trajectory for p in found],
        norms=np.stack([p.norms for p in found]),
        used=np.stack([p.used for p in found]),
        noise_multiplier=mechanism.noise_multiplier,
        rate=mechanism.sampling.rate if sampled else 1.0,
        errors=(noise * above, noise * below),
    )


@torch.inference_mode(False)
@torch.enable_grad()
def trajectory(
    ensemble: Ensemble,
    *,
    start: Tensor | None = None,
    seed: int = 0,
    name: tuple[str | int, ...] = (),
    device: str = "cpu",
) -> Trajectory:
    """One model without the canary and a pass back through it, as in the first pair of
    ``expected``; the same is raised.

    start: deviation of each entry of the initial parameters, shape (p,); None if they are known.
    """
    _supported(ensemble)
    gradients = ensemble.clipped_sum(device)
    if start is not None:
        start = gradients.taken(start, name="start")
    with single_precision(gradients.device):
        present, absent = _runs(ensemble, gradients, seed, name, 0)
        iterates = _iterates(absent)
        # Without a number of records nothing is drawn from the generator.
        back = _back(absent, iterates, None, np.random.default_rng())
        found = _canary_along(present, iterates, back)[0]
        if start is None:
            return found
        moved = (back.start + _score_by_start(absent)).double() * start
    return replace(found, start=float(torch.linalg.vector_norm(moved)))


def _supported(ensemble: Ensemble) -> Mechanism:
    """The mechanism of an ensemble that has expected audits; InputError for any other."""
    mechanism = ensemble.mechanism
    if mechanism.noise_std <= 0:
        raise InputError("noise_multiplier: got 0; expected noise, over which scores spread")
    if mechanism.adjacency == "replace" or ensemble.augmentation is not None:
        raise InputError("mechanism: expected adjacency 'add_or_remove' and no augmentation")
    return mechanism


def _runs(
    ensemble: Ensemble,
    gradients: ClippedSum,
    seed: int,
    name: tuple[str | int, ...],
    index: int,
) -> list[Run]:
    """Runs with and without the canary that share their noise."""
    worlds: tuple[World, World] = ("in", "out")
    return [Run(w, 0, index, ensemble, gradients, seed, name, paired=True) for w in worlds]


def _iterates(run: Run) -> list[Tensor]:
    """The start and all iterates of a run."""
    return [run.initial.clone(), *(theta.clone() for theta in run.iterates())]


def _product(one: Tensor, other: Tensor) -> float:
    return float((one.double() * other).sum())


def _root(squares: Floats) -> tuple[float, float]:
    """Root of a mean of squares, and its standard error; 0 and not known without any."""
    if not len(squares):
        return 0.0, math.nan
    root = math.sqrt(max(0.0, float(squares.mean())))
    if len(squares) < 2 or root == 0:
        return root, math.nan
    # A root's error is that of its square, over twice the root.
    return root, float(squares.std(ddof=1)) / math.sqrt(len(squares)) / (2 * root)


@dataclass(frozen=True, eq=False)
class _Pair:
    """One pair: its difference, the adjoints (steps, p) of passes with and without the canary,
    and the canary's part, along the model without it."""

    difference: float
    passes: Sequence[Sequence[Tensor]]
    trajectory: Trajectory
    norms: Floats
    used: NDArray[np.bool_]


def _pair(
    ensemble: Ensemble,
    gradients: ClippedSum,
    seed: int,
    name: tuple[str | int, ...],
    index: int,
    records: int | None,
) -> _Pair:
    """Train a pair, and go back through both models."""
    runs = _runs(ensemble, gradients, seed, name, index)
    iterates = [_iterates(run) for run in runs]
    scored = [run.score(each[-1]) for run, each in zip(runs, iterates, strict=True)]
    rng = streams.stream(seed, *name, "pass back", index)
    passes = [
        [_back(run, each, records, rng) for _ in range(1 if records is None else 2)]
        for run, each in zip(runs, iterates, strict=True)
    ]
    trajectory, norms, used = _canary_along(runs[0], iterates[1], passes[1][0])
    adjoints = [[back.adjoints for back in each] for each in passes]
    return _Pair(scored[0] - scored[1], adjoints, trajectory, norms, used)


def _canary_along(
    run: Run, iterates: Sequence[Tensor], back: "_Back"
) -> tuple[Trajectory, Floats, NDArray[np.bool_]]:
    """Effects of a canary in any step along iterates without it: the trajectory, the gradients'
    norms over the clipping norm, and the steps of ``run`` that use it."""
    mechanism, inserted = run.ensemble.mechanism, Additions([run])
    canary = [_canary(run, inserted, theta, step) for step, theta in enumerate(iterates[:-1])]
    moved = torch.stack([gradient for gradient, _ in canary])
    used = np.array([here for _, here in canary])
    weights = (-mechanism.learning_rate * (back.adjoints * moved).sum(1)).double().cpu().numpy()
    if not run.ensemble.canary.sampled:  # its schedule never uses it in other steps
        weights = weights * used
    noise = mechanism.learning_rate * mechanism.noise_std
    trajectory = Trajectory(
        weights,
        noise * math.sqrt(_product(back.adjoints, back.adjoints)),
        back.batches,
    )
    norms = (moved.norm(dim=1) / mechanism.clipping_norm).double().cpu().numpy()
    return trajectory, norms, used


@dataclass(frozen=True, eq=False)
class _Back:
    """A pass back: derivatives of the score by the parameters after each step, (steps, p), and by
    those before the first, (p,); and the deviation that the draw of batches adds."""

    adjoints: Tensor
    start: Tensor
    batches: float


def _back(
    run: Run, iterates: Sequence[Tensor], records: int | None, rng: np.random.Generator
) -> _Back:
    """A pass back through a training."""
    mechanism, gradients = run.ensemble.mechanism, run.gradients
    sampling = mechanism.sampling
    adjoint, rows, variance = _score_gradient(run, iterates[-1]), [], 0.0
    for theta, batch in zip(reversed(iterates[:-1]), reversed(run.trained_on), strict=True):
        rows.append(adjoint)
        scale, chosen = 1.0, batch
        if records is not None and records < len(batch):
            scale, chosen = len(batch) / records, rng.choice(batch, records, replace=False)
        back, squares = _vjp(gradients, theta, chosen, mechanism.clipping_norm, adjoint)
        adjoint = adjoint - scale * mechanism.learning_rate * back
        if isinstance(sampling, Poisson):  # a record that is sampled stands for 1 / rate of them
            variance += scale * (1 - sampling.rate) * squares
    deviation = mechanism.learning_rate * math.sqrt(variance)
    return _Back(torch.stack(rows[::-1]), adjoint, deviation)


def _canary(run: Run, inserted: Additions, theta: Tensor, step: int) -> tuple[Tensor, bool]:
    """The canary's clipped gradient in a step, as if the step used it, and whether it does."""
    mechanism, own = run.ensemble.mechanism, len(run.ensemble.x)
    if run.ensemble.canary.record is None:
        return inserted.as_used(step + 1)[0], run.adds(step + 1)
    gradient = run.gradients(theta, np.array([own]), mechanism.clipping_norm)
    return gradient, own in run.trained_on[step]


def _score_gradient(run: Run, last: Tensor) -> Tensor:
    """Gradient (p,) of the score at the last iterate; InputError for a score that has no known."""
    fixed = run.fixed
    if fixed.coordinate < 0 and fixed.record is None:
        raise InputError("canary: its score has no known derivative; expected a record, or one "
                         "coordinate")  # fmt: skip
    draw = np.random.default_rng(0).normal(size=len(last))
    shift = 0.1 * (last.square().mean().sqrt() + 0.1) * torch.from_numpy(draw).to(last)
    # At a second point too, for another score may agree at one.
    for at in (last, last + shift):
        known, found = float(_known_score(run, at)), run.score(at)
        # A score has the rounding of parameters, from which it may be a small difference.
        if not abs(found - known) <= 1e-3 * abs(known) + 1e-5 * (1 + float(at.abs().max())):
            what = (
                "minus its record's loss"
                if fixed.coordinate < 0
                else (f"minus the movement of coordinate {fixed.coordinate}")
            )
            raise InputError(
                f"canary: gave a model the score {found:g}, where {what} is {known:g}; expected "
                "that score, whose derivative is known"
            )
    at = last.detach().clone().requires_grad_()
    return torch.autograd.grad(_known_score(run, at), at)[0]


def _known_score(run: Run, theta: Tensor) -> Tensor:
    """The score that a record's or a coordinate's canary has at theta (p,)."""
    if (read := run.fixed.coordinate) >= 0:
        return run.initial.to(theta)[read] - theta[read]
    problem = run.gradients.kernel.problem
    own = torch.tensor([len(run.ensemble.x)], device=problem.x.device)
    outputs = functional_call(problem.model, named(theta, problem.model), (problem.x[own],))
    return -problem.loss(outputs, problem.y[own])[0]


def _score_by_start(run: Run) -> Tensor:
    """Gradient (p,) of the score by the start where the last iterate stays."""
    found = torch.zeros_like(run.initial)
    if run.fixed.coordinate >= 0:  # its score is minus the movement from the start
        found[run.fixed.coordinate] = 1.0
    return found
