"""Trainings that are right, and the same with one fault each, to see what a check finds.

    python tests/training_faults.py          the table of docs/white-box-faults.md

Five kinds of small model are trained with Opacus on made-up records. ``FAULTS`` are mistakes that
people reported or that are easily made, each put into that training; ``RIGHT`` are ways to train
that must not be accused.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.layers import DPLSTM
from opacus.schedulers import ExponentialNoise
from opacus.utils.batch_memory_manager import BatchMemoryManager
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from hiddenstate.campaign import whitebox

RECORDS, BATCH, EPOCHS, SIGMA, CLIP = 96, 12, 3, 0.8, 1.0
STEPS = EPOCHS * RECORDS // BATCH
CLAIM = {
    "noise_multiplier": SIGMA,
    "sampling_rate": BATCH / RECORDS,
    "steps": STEPS,
    "clipping_norm": CLIP,
}
"""What is claimed of every training here."""


class _Sequence(nn.Module):
    """Tokens to classes by an LSTM, or by a block of a transformer."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, width = kind, 12
        if kind == "lstm":
            self.inner: nn.Module = DPLSTM(6, width, batch_first=True)
        else:
            self.enter, self.norm = nn.Linear(6, width), nn.LayerNorm(width)
            self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
            self.widen, self.narrow = nn.Linear(width, 24), nn.Linear(24, width)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Records (batch, 5, 6) to (batch, 3)."""
        if self.kind == "lstm":
            return self.head(self.inner(x)[0][:, -1])
        h = self.enter(x)
        q, k, v = self.query(h), self.key(h), self.value(h)
        weights = (q @ k.transpose(1, 2) / math.sqrt(h.shape[-1])).softmax(dim=-1)
        h = self.norm(h + weights @ v)
        return self.head((h + self.narrow(self.widen(h).relu())).mean(dim=1))


class _Embedding(nn.Module):
    """A bag of words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(60, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Records (batch, 4) of words to (batch, 3)."""
        return self.head(self.words(x).mean(dim=1))


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 3))


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.Flatten(), nn.Linear(96, 3)
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP": (_mlp, (20,)),
    "CNN": (_cnn, (1, 8, 8)),
    "LSTM": (partial(_Sequence, "lstm"), (5, 6)),
    "embedding": (_Embedding, (4,)),
    "transformer": (partial(_Sequence, "transformer"), (5, 6)),
}
"""Kinds of model, and the shape of their records."""


@dataclass
class Training:
    """What a fault may change: before Opacus, after it, in each step, or the loop itself."""

    model: Any
    optimizer: Any
    loader: Any
    options: dict[str, Any]
    epochs: int = EPOCHS
    virtual: int | None = None
    accumulate: int = 1
    repeat: int = 1
    engine: Any = None
    loss: Any = None
    batch: int = 0
    step: int = 0
    rows: int = 0
    memory: SimpleNamespace = field(default_factory=SimpleNamespace)

    @property
    def parameters(self) -> list[Any]:
        """The optimizer's."""
        return list(self.optimizer.params)


Change = Callable[[Training], None]


def _nothing(training: Training) -> None:
    pass


@dataclass(frozen=True)
class Fault:
    """A mistake.

    words: what is done. source: who reported it, or planted. expected: names of ``whitebox.USUAL``
    that name it right; none where one training cannot show it. otherwise: what finds it then. only:
    kinds of model in which it is a mistake, all if empty. before, after, each, stepped: what it
    changes: before Opacus, after it, before each step and after it.
    """

    words: str
    expected: tuple[str, ...]
    source: str = "planted"
    otherwise: str = ""
    only: tuple[str, ...] = ()
    before: Change = _nothing
    after: Change = _nothing
    each: Change = _nothing
    stepped: Change = _nothing


def train(kind: str, fault: Fault, seed: int = 0) -> Training:
    """Train a model of this kind with this fault."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _train(kind, fault, seed)


def _train(kind: str, fault: Fault, seed: int) -> Training:
    torch.manual_seed(seed)
    make, shape = MODELS[kind]
    x = (
        torch.randint(60, (RECORDS, *shape))
        if kind == "embedding"
        else torch.randn(RECORDS, *shape)
    )
    records = TensorDataset(x, torch.randint(3, (RECORDS,)))
    model = make()
    made = Training(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loader=DataLoader(records, batch_size=BATCH),
        options={"noise_multiplier": SIGMA, "max_grad_norm": CLIP},
    )
    made.loss = nn.CrossEntropyLoss()
    fault.before(made)
    given = dict(made.options)
    ghost = given.get("grad_sample_mode") == "ghost"
    engine = PrivacyEngine()
    found = engine.make_private(
        module=made.model, optimizer=made.optimizer, data_loader=made.loader,
        **({"criterion": made.loss} if ghost else {}), **given,
    )  # fmt: skip
    if ghost:
        made.model, made.optimizer, made.loss, made.loader = found
    else:
        made.model, made.optimizer, made.loader = found
    made.engine = engine
    if made.accumulate > 1:
        made.model.allow_grad_accumulation()
    fault.after(made)
    for _ in range(made.epochs):
        manager: Any = nullcontext(made.loader)
        if made.virtual:
            manager = BatchMemoryManager(
                data_loader=made.loader,
                max_physical_batch_size=made.virtual,
                optimizer=made.optimizer,
            )
        with manager as batches:
            for inputs, labels in (batch for batch in batches for _ in range(made.repeat)):
                made.rows = len(labels)
                made.loss(made.model(inputs), labels).backward()
                made.batch += 1
                if made.batch % made.accumulate:
                    continue
                fault.each(made)
                made.optimizer.step()
                fault.stepped(made)
                made.optimizer.zero_grad()
                made.step += 1
    return made


# Noise.


def _noise_by(draw: Callable[[Training, int, Any], Tensor | float]) -> Change:
    """Noise of another kind: ``draw`` gives what is added to a tensor."""

    def after(training: Training) -> None:
        def add_noise() -> None:
            for j, p in enumerate(training.parameters):
                p.grad = (p.summed_grad + draw(training, j, p.summed_grad)).view_as(p)

        training.optimizer.add_noise = add_noise

    return after


def _normal(training: Training, like: Tensor, factor: float = 1.0) -> Tensor:
    clip = float(training.optimizer.max_grad_norm)
    return factor * training.optimizer.noise_multiplier * clip * torch.randn_like(like)


def _seeded(seed: Callable[[Training, int], int]) -> Change:
    """Noise of a generator that is made again."""

    def draw(training: Training, j: int, like: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(seed(training, j))
        deviation = training.optimizer.noise_multiplier * float(training.optimizer.max_grad_norm)
        return deviation * torch.randn(like.shape, generator=generator)

    return _noise_by(draw)


def _skipping(left_out: Callable[[Training, int, Tensor], bool]) -> Change:
    return _noise_by(lambda t, j, like: 0.0 if left_out(t, j, like) else _normal(t, like))


def _where_gradient(training: Training, j: int, like: Tensor) -> Tensor:
    return _normal(training, like) * (like != 0)


def _rows(training: Training, j: int, like: Tensor) -> Tensor:
    return _normal(training, like[:1]).expand_as(like)


def _uniform(training: Training, j: int, like: Tensor) -> Tensor:
    return SIGMA * CLIP * math.sqrt(3) * (2 * torch.rand_like(like) - 1)


def _laplace(training: Training, j: int, like: Tensor) -> Tensor:
    law = torch.distributions.Laplace(0.0, SIGMA * CLIP / math.sqrt(2))
    return law.sample(like.shape)


def _truncated(training: Training, j: int, like: Tensor) -> Tensor:
    return nn.init.trunc_normal_(torch.empty_like(like), 0.0, SIGMA, -2 * SIGMA, 2 * SIGMA)


def _averaged(training: Training, j: int, like: Tensor) -> Tensor:
    kept = vars(training.memory)
    kept[f"{j}"] = 0.5 * kept.get(f"{j}", torch.zeros_like(like)) + 0.5 * _normal(training, like)
    return kept[f"{j}"]


def _pool(training: Training, j: int, like: Tensor) -> Tensor:
    """Noise drawn once, and shuffled in every step."""
    kept = vars(training.memory)
    pool = kept.setdefault(f"{j}", _normal(training, like).flatten())
    return pool[torch.randperm(len(pool))].view_as(like)


def _shares(training: Training) -> None:
    _scaled_noise(1 / math.sqrt(2))(training)


def _scaled_noise(factor: float) -> Change:
    return _noise_by(lambda t, j, like: _normal(t, like, factor))


def _half(training: Training) -> None:
    """The noisy gradient is kept in half precision, as autocast would."""
    inner = training.optimizer.add_noise

    def add_noise() -> None:
        inner()
        for p in training.parameters:
            p.grad = p.grad.bfloat16().to(p.dtype)

    training.optimizer.add_noise = add_noise


def _fading(training: Training) -> None:
    training.memory.schedule = ExponentialNoise(training.optimizer, gamma=0.97)


# Clipping.


def _summed_by(rule: Callable[[list[Tensor]], list[Tensor]]) -> Change:
    """Another sum of the records' gradients."""

    def after(training: Training) -> None:
        def clip() -> None:
            samples = training.optimizer.grad_samples
            sums = rule(samples) if len(samples[0]) else [s.sum(dim=0) for s in samples]
            for p, part in zip(training.parameters, sums, strict=True):
                p.summed_grad = part if p.summed_grad is None else p.summed_grad + part

        training.optimizer.clip_and_accumulate = clip

    return after


def _length(parts: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float((p**2).sum()) for p in parts))


def _late(samples: list[Tensor]) -> list[Tensor]:
    sums = [s.sum(dim=0) for s in samples]
    factor = min(1.0, len(samples[0]) * CLIP / (_length(sums) + 1e-6))
    return [factor * s for s in sums]


def _norms(samples: list[Tensor]) -> Tensor:
    return torch.stack([s.flatten(1).norm(dim=1) for s in samples], dim=1).norm(dim=1)


def _by_factor(factors: Callable[[Tensor], Tensor]) -> Change:
    return _summed_by(
        lambda samples: [torch.einsum("i,i...", factors(_norms(samples)), s) for s in samples]
    )


def _each_layer(samples: list[Tensor]) -> list[Tensor]:
    factors = [(CLIP / (s.flatten(1).norm(dim=1) + 1e-6)).clamp(max=1.0) for s in samples]
    return [torch.einsum("i,i...", f, s) for f, s in zip(factors, samples, strict=True)]


def _values(samples: list[Tensor]) -> list[Tensor]:
    return [s.clamp(-CLIP, CLIP).sum(dim=0) for s in samples]


def _long(training: Training) -> None:
    """Losses so large that gradients are longer than the norm, as early in most trainings."""
    inner = training.loss
    training.loss = lambda *given: 30 * inner(*given)


def _micro(training: Training) -> None:
    for p in training.parameters:
        pairs = p.grad_sample[: len(p.grad_sample) // 2 * 2]
        p.grad_sample = pairs.reshape(-1, 2, *p.shape).mean(dim=1)


def _virtual_sum(training: Training) -> None:
    """Parts of a batch are added up, and what is clipped is their sum."""
    training.virtual = 4
    inner = training.optimizer.add_noise

    def add_up() -> None:
        for p in training.parameters:
            part = p.grad_sample.sum(dim=0)
            p.summed_grad = part if p.summed_grad is None else p.summed_grad + part

    def add_noise() -> None:
        factor = min(
            1.0, BATCH * CLIP / (_length([p.summed_grad for p in training.parameters]) + 1e-6)
        )
        for p in training.parameters:
            p.summed_grad *= factor
        inner()

    training.optimizer.clip_and_accumulate, training.optimizer.add_noise = add_up, add_noise


def _ghost(training: Training) -> None:
    training.options["grad_sample_mode"] = "ghost"


def _ghost_norm(training: Training) -> None:
    training.model.max_grad_norm = 10 * CLIP


# Sums.


def _batch_size(training: Training) -> None:
    """The mean over the records that were drawn."""

    def scale() -> None:
        for p in training.parameters:
            p.grad /= max(1, training.rows)

    training.optimizer.scale_grad = scale


def _expected_size(training: Training) -> None:
    training.optimizer.expected_batch_size = max(1, training.rows)


def _leaking(training: Training) -> None:
    """A tenth of the gradient without noise on top, as by a penalty that is computed apart."""
    inner = training.optimizer.scale_grad

    def scale() -> None:
        raw = [p.grad_sample.sum(dim=0) for p in training.parameters]
        inner()
        for p, g in zip(training.parameters, raw, strict=True):
            p.grad += 0.5 * g.view_as(p) / BATCH

    training.optimizer.scale_grad = scale


def _remembered(training: Training) -> None:
    """The clipped sum of the last step is in this one's, as with momentum before the noise."""
    inner = training.optimizer.clip_and_accumulate

    def clip() -> None:
        inner()
        kept = getattr(training.memory, "sums", None)
        if kept is not None:
            for p, old in zip(training.parameters, kept, strict=True):
                p.summed_grad = p.summed_grad + 0.9 * old
        training.memory.sums = [p.summed_grad.clone() for p in training.parameters]

    training.optimizer.clip_and_accumulate = clip


def _head_too(training: Training) -> None:
    last = list(training.model.parameters())[-2:]
    training.memory.plain = torch.optim.SGD(last, lr=0.1)


def _plain_step(training: Training) -> None:
    training.memory.plain.step()


def _raw_step(training: Training) -> None:
    """A step on the gradients as they are, between two private ones."""
    if training.step % 4 == 1:
        for p in training.parameters:
            p.grad = p.grad_sample.mean(dim=0)
        training.optimizer.original_optimizer.step()


class _OverBatch(nn.Module):
    """Batch norm as a function, which Opacus's validator does not see."""

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (batch, classes), normalised over the batch."""
        return x if len(x) < 2 else (x - x.mean(dim=0)) / (x.std(dim=0) + 1e-5)


def _batch_norm(training: Training) -> None:
    training.model = nn.Sequential(training.model, _OverBatch())
    training.optimizer = torch.optim.SGD(training.model.parameters(), lr=0.1)


# Batches.


def _reloaded(**options: Any) -> Change:
    def before(training: Training) -> None:
        training.loader = DataLoader(training.loader.dataset, **options)

    return before


def _accumulate(training: Training) -> None:
    """Two batches a step, each half as large, which the accountant is told as one."""
    training.accumulate = 2
    _reloaded(batch_size=BATCH // 2)(training)


def _twice(training: Training) -> None:
    training.repeat = 2


def _told_more(training: Training) -> None:
    def told(optimizer: Any) -> None:
        told = {"noise_multiplier": 2.0, "sample_rate": BATCH / RECORDS}
        training.engine.accountant.step(**told)

    training.optimizer.attach_step_hook(told)


def _every_record(training: Training) -> None:
    training.options["poisson_sampling"] = False
    training.epochs = STEPS
    _reloaded(batch_size=RECORDS)(training)


def _fixed(training: Training) -> None:
    training.options["poisson_sampling"] = False
    _reloaded(batch_size=BATCH, shuffle=True)(training)


def _weighted(training: Training) -> None:
    sampler = WeightedRandomSampler(torch.ones(RECORDS), BATCH * 2)
    _reloaded(batch_size=BATCH, sampler=sampler)(training)


class _Once(UniformWithReplacementSampler):
    """Says that it is Poisson sampling; every record is in one random batch of an epoch."""

    def __iter__(self) -> Iterator[list[int]]:
        where = torch.randint(self.steps, (self.num_samples,))
        for batch in range(self.steps):
            yield (where == batch).nonzero().flatten().tolist()


class _Favoured(UniformWithReplacementSampler):
    """Draws half of the records at 1.8 times the rate, and the others seldom."""

    def __iter__(self) -> Iterator[list[int]]:
        rates = torch.full((self.num_samples,), 0.2 * self.sample_rate)
        rates[: self.num_samples // 2] = 1.8 * self.sample_rate
        for _ in range(self.steps):
            yield (torch.rand(self.num_samples) < rates).nonzero().flatten().tolist()


class _Same(UniformWithReplacementSampler):
    """Batches of a size that does not vary."""

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(self.steps):
            yield torch.randperm(self.num_samples)[:BATCH].tolist()


def _sampler(kind: type) -> Change:
    def after(training: Training) -> None:
        training.loader.batch_sampler.__class__ = kind

    return after


def _more_epochs(training: Training) -> None:
    training.epochs *= 2


def _option(name: str, value: Any) -> Change:
    def before(training: Training) -> None:
        training.options[name] = value

    return before


AUDIT = "an audit with the kit (audit-training)"
CHECK = "the check of audit-training, which compares the data sets"
NOTHING = "not found by anything here"
NOISE = ("no noise", "missing noise")

FAULTS: dict[str, Fault] = {
    "no noise": Fault("the noise is left out", NOISE, after=_noise_by(lambda t, j, like: 0.0)),
    "no noise on a layer": Fault(
        "no noise on the last layer", NOISE,
        after=_skipping(lambda t, j, like: j >= len(t.parameters) - 2)),
    "no noise on biases": Fault(
        "no noise on tensors of one dimension", NOISE,
        after=_skipping(lambda t, j, like: like.ndim == 1)),
    "noise where gradient": Fault(
        "noise only where the gradient is not zero", (*NOISE, "wrong deviation"),
        only=("embedding",), after=_noise_by(_where_gradient)),
    "first step": Fault(
        "no noise in the first step", NOISE, after=_skipping(lambda t, j, like: t.step == 0)),
    "every other step": Fault(
        "noise in every other step", NOISE, after=_skipping(lambda t, j, like: t.step % 2 == 0)),
    "one key": Fault(
        "one key for the noise of all tensors", ("same noise",), "jax-ml/jax#3646",
        after=_seeded(lambda t, j: 1000 + t.step)),
    "generator for each layer": Fault(
        "a generator with the same seed for each tensor, in every step",
        ("same noise", "returning noise"), "VsonicV/es-at-scale#46", after=_seeded(lambda t, j: 7)),
    "broadcast noise": Fault(
        "one number of noise for a whole tensor", ("shared noise",),
        after=_noise_by(lambda t, j, like: float(_normal(t, torch.zeros(1))))),
    "noise for a row": Fault(
        "one row of noise for all rows", ("shared noise",), after=_noise_by(_rows)),
    "frozen generator": Fault(
        "the noise generator is made again in every step", ("returning noise",),
        after=_seeded(lambda t, j: j)),
    "generator by epoch": Fault(
        "the noise generator is made again in every epoch", ("returning noise",),
        after=_seeded(lambda t, j: 1000 * j + t.step % (RECORDS // BATCH))),
    "noise from a pool": Fault(
        "noise is drawn once and shuffled", ("returning noise", "changed sum", "other noise",
        "shared noise", "wrong deviation"), after=_noise_by(_pool)),
    "averaged noise": Fault(
        "noise is an exponential moving average", ("returning noise", "wrong deviation"),
        after=_noise_by(_averaged)),
    "share of noise": Fault(
        "noise of one of two workers: sigma / sqrt(2)", ("wrong deviation",), after=_shares),
    "noise divided twice": Fault(
        "noise is divided by the batch size twice", ("wrong deviation", *NOISE),
        after=_scaled_noise(1 / BATCH)),
    "sigma for deviation": Fault(
        "the noise multiplier is the deviation, with clipping norm 2", ("wrong deviation",),
        before=_option("max_grad_norm", 2.0), after=_scaled_noise(0.5)),
    "variance": Fault(
        "sigma squared for sigma", ("wrong deviation",), after=_scaled_noise(SIGMA)),
    "noise on one layer less": Fault(
        "a tensor has nine tenths of the noise", ("wrong deviation",),
        after=_noise_by(lambda t, j, like: _normal(t, like, 0.8 if j == 0 else 1.0))),
    "uniform noise": Fault("uniform noise", ("other noise",), after=_noise_by(_uniform)),
    "Laplace noise": Fault("Laplace noise", ("other noise",), after=_noise_by(_laplace)),
    "truncated noise": Fault(
        "noise is cut off at two deviations", ("other noise", "wrong deviation"),
        after=_noise_by(_truncated)),
    "mixed precision": Fault(
        "the noisy gradient is kept in half precision", ("precision",), after=_half),
    "schedule of noise": Fault(
        "noise fades by a schedule, the claim does not", ("noise multiplier", "wrong deviation"),
        after=_fading, stepped=lambda t: t.memory.schedule.step()),
    "smaller sigma": Fault(
        "a smaller noise multiplier than claimed", ("noise multiplier",),
        before=_option("noise_multiplier", 0.7)),
    "no clipping": Fault(
        "gradients are not clipped", ("clipping",),
        after=_summed_by(lambda s: [x.sum(dim=0) for x in s])),
    "late clipping": Fault(
        "the sum is clipped, not each gradient", ("clipping",), "tensorflow/privacy#153",
        after=_summed_by(_late)),
    "virtual steps": Fault(
        "parts of a batch are added up and clipped together", ("clipping",), after=_virtual_sum),
    "clipping by layer": Fault(
        "every tensor is clipped to the norm, with noise for one", ("clipping",),
        "ooples/AiDotNet#1318", after=_summed_by(_each_layer)),
    "value clipping": Fault(
        "numbers are clipped, not norms", ("clipping",), after=_summed_by(_values)),
    "clipping by the mean norm": Fault(
        "all gradients are cut by the mean of their norms", ("clipping",),
        after=_by_factor(lambda n: (CLIP / (n.mean() + 1e-6)).clamp(max=1.0).expand_as(n))),
    "another clipping norm": Fault(
        "a norm of three for clipping, of one for the noise", ("clipping",),
        after=_by_factor(lambda n: (3 * CLIP / (n + 1e-6)).clamp(max=1.0))),
    "larger clipping norm": Fault(
        "a clipping norm of two where one is claimed", ("clipping norm",),
        before=_option("max_grad_norm", 2.0)),
    "micro-batches": Fault(
        "means of two records are clipped", ("micro-batches",), "tensorflow/privacy#620",
        each=_micro),
    "ghost norm": Fault(
        "ghost clipping to ten times the norm of the noise", ("ghost norm", "clipping"),
        "meta-pytorch/opacus#664", before=_ghost, after=_ghost_norm),
    "actual batch size": Fault(
        "the mean over the records drawn", ("divisor",), "meta-pytorch/opacus#420",
        after=_batch_size),
    "expected batch size": Fault(
        "expected_batch_size is set to each batch's size", ("divisor",), each=_expected_size),
    "gradient on top": Fault(
        "half of the sum comes once more, without noise", ("changed sum", "wrong deviation",
        "clipping"), after=_leaking),
    "momentum before noise": Fault(
        "the last sum is in the next, noise is for one", ("clipping", "changed sum"),
        after=_remembered),
    "plain optimizer": Fault(
        "a plain optimizer steps the last layer too", ("plain optimizer",), after=_head_too,
        stepped=_plain_step),
    "raw steps": Fault(
        "every fourth step is taken without Opacus", (*NOISE, "steps"), each=_raw_step),
    "batch norm": Fault(
        "batch norm as a function", ("mixed records",), before=_batch_norm),
    "shuffled batches": Fault(
        "shuffled batches accounted for as Poisson sampling", ("sampler",),
        "lxuechen/private-transformers#7", before=_fixed),
    "batches twice as large": Fault(
        "batches twice as large as the accountant was told", ("sampling rate",),
        "meta-pytorch/opacus#444", before=_reloaded(batch_size=2 * BATCH)),
    "weighted sampler": Fault(
        "Opacus replaces a weighted sampler, at another rate", ("sampling rate",),
        "meta-pytorch/opacus#813", before=_weighted),
    "balls and bins": Fault(
        "every record once an epoch, in random batches", ("sampler",), after=_sampler(_Once)),
    "favoured records": Fault(
        "half of the records are drawn more often", ("sampler",), after=_sampler(_Favoured)),
    "fixed size": Fault(
        "batches of one size, called Poisson", ("sampler",), after=_sampler(_Same)),
    "accumulation": Fault(
        "gradients of two sampled batches are added up for a step", ("accumulation",),
        before=_accumulate),
    "a batch twice": Fault(
        "two steps take the gradients of one batch", ("reused batch",), before=_twice),
    "every record": Fault(
        "every record is in every step, called sampled", ("sampling rate",),
        before=_every_record),
    "twice the steps": Fault(
        "twice the steps that are claimed", ("steps",), before=_more_epochs),
    "a record twice": Fault(
        "a person has several records", (), otherwise=NOTHING),
    "chosen on private data": Fault(
        "settings were chosen by runs on the private data", (), otherwise=NOTHING),
    "statistics of the data": Fault(
        "inputs are normalised by moments of the private data", (), otherwise=AUDIT),
    "records decide the rate": Fault(
        "the learning rate follows from the number of records", (), otherwise=CHECK),
}  # fmt: skip
"""Mistakes by name."""


# What is right.


def _bmm(training: Training) -> None:
    training.virtual = 5


def _optimizer(make: Callable[..., Any]) -> Change:
    def before(training: Training) -> None:
        training.optimizer = make(training.model.parameters(), lr=0.02)

    return before


def _groups(training: Training) -> None:
    first, *others = training.model.parameters()
    training.optimizer = torch.optim.SGD(
        [{"params": others, "lr": 0.05}, {"params": [first], "lr": 0.2}], lr=0.1
    )


def _frozen(training: Training) -> None:
    first, *others = training.model.parameters()
    first.requires_grad = False
    training.optimizer = torch.optim.SGD(others, lr=0.1)


def _schedule(training: Training) -> None:
    training.memory.schedule = torch.optim.lr_scheduler.StepLR(training.optimizer, 5, 0.5)


def _automatic(training: Training) -> None:
    _by_factor(lambda n: CLIP / (n + 0.01))(training)


class _Dropping(nn.Module):
    """A model whose inputs are dropped by a function."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(nn.functional.dropout(x, 0.5, self.training))


def _dropout(training: Training) -> None:
    training.model = _Dropping(training.model)
    training.optimizer = torch.optim.SGD(training.model.parameters(), lr=0.1)


def _evaluation(training: Training) -> None:
    """The accuracy on the records, in batches of another size."""
    for _ in DataLoader(training.loader.dataset, batch_size=7):
        pass


def _generator(training: Training) -> None:
    training.options["noise_generator"] = torch.Generator().manual_seed(torch.seed() % 2**31)


def _sum_of_losses(training: Training) -> None:
    training.options["loss_reduction"] = "sum"
    training.loss = nn.CrossEntropyLoss(reduction="sum")


RIGHT: dict[str, Fault] = {
    "SGD": Fault("", ()),
    "Adam": Fault("", (), before=_optimizer(torch.optim.Adam)),
    "momentum": Fault("", (), before=_optimizer(partial(torch.optim.SGD, momentum=0.9))),
    "BatchMemoryManager": Fault("", (), after=_bmm),
    "parameter groups": Fault("", (), before=_groups),
    "a frozen tensor": Fault("", (), before=_frozen),
    "long gradients": Fault("", (), before=_long),
    "a learning-rate schedule": Fault(
        "", (), after=_schedule, stepped=lambda t: t.memory.schedule.step()
    ),
    "ghost clipping": Fault("", (), before=_ghost),
    "automatic clipping": Fault("", (), after=_automatic),
    "a noise generator": Fault("", (), before=_generator),
    "sum of losses": Fault("", (), before=_sum_of_losses),
    "workers": Fault("", (), before=_reloaded(batch_size=BATCH, num_workers=1)),
    "functional dropout": Fault("", (), before=_dropout),
    "evaluation between steps": Fault("", (), stepped=_evaluation),
    "more noise": Fault("", (), before=_option("noise_multiplier", 1.5 * SIGMA)),
}
"""Ways to train that are right."""


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def check(kind: str, fault: Fault, seed: int = 0) -> whitebox.Report:
    """What one training with this fault shows, given the claim of all trainings here."""
    with _one_thread():
        claim: dict[str, Any] = dict(CLAIM)
        if fault is FAULTS["sigma for deviation"]:
            claim["clipping_norm"] = 2.0
        return whitebox.check(partial(train, kind, fault), seed=seed, **claim)


@dataclass(frozen=True)
class Row:
    """A fault and what was found, by kind of model: names of findings, the first one first."""

    name: str
    fault: Fault
    found: dict[str, tuple[str, ...]]

    def named(self, kind: str) -> bool:
        """Whether the fault was named right in this kind of model."""
        return bool(set(self.found[kind]) & set(self.fault.expected))

    def there(self, kind: str) -> bool:
        """Whether it is a mistake in this kind of model that one training can show."""
        return bool(self.fault.expected) and (not self.fault.only or kind in self.fault.only)

    @property
    def everywhere(self) -> bool:
        """Whether it was named in all kinds of model."""
        kinds = [kind for kind in self.found if self.there(kind)]
        return bool(kinds) and all(self.named(kind) for kind in kinds)


def table(
    names: Sequence[str] = tuple(FAULTS), kinds: Sequence[str] = tuple(MODELS), seed: int = 0
) -> Iterator[Row]:
    """Train once for each fault and kind of model."""
    for name in names:
        fault = FAULTS[name]
        row = Row(name, fault, dict.fromkeys(kinds, ()))
        for kind in kinds:
            if row.there(kind):
                row.found[kind] = tuple(f.fault for f in check(kind, fault, seed).findings)
        yield row


def markdown(rows: Sequence[Row]) -> str:
    """The table of the documentation."""
    kinds = list(rows[0].found) if rows else []
    lines = [
        f"| fault | source | {' | '.join(kinds)} |",
        f"|---|---|{'---|' * len(kinds)}",
    ]
    for row in rows:
        told = []
        for kind in kinds:
            if not row.fault.expected:
                told.append(f"not shown; {row.fault.otherwise}")
            elif not row.there(kind):
                told.append("no mistake here")
            else:
                named = [name for name in row.found[kind] if name in row.fault.expected]
                told.append(named[0] if named else "**not found**")
        lines.append(f"| {row.fault.words} | {row.fault.source} | {' | '.join(told)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    every = list(table())
    unseen = sum(not row.fault.expected for row in every)
    print(
        f"{markdown(every)}\n\n{sum(row.everywhere for row in every)} of {len(every)} faults are "
        "named from one training in every kind of model that has them; "
        f"{unseen} cannot be seen in one training."
    )
