"""A verdict from one training: what its own numbers show of noise, clipping, sampling and claim.

    >>> from hiddenstate.campaign import whitebox
    >>> report = whitebox.check(train)  # doctest: +SKIP
    >>> print(report.words())  # doctest: +SKIP

Everything is tested at one joint level, by Bonferroni's inequality over all p-values. A finding
with a p-value above ``FIRM`` is reported only if a second training, with another seed, is suspect
too. So a right training is accused with a probability of about ``LEVEL`` squared. What can be
compared exactly (rates, steps, norms) needs no test.
"""

import inspect
import math
import secrets
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from scipy import stats
from scipy.special import chdtr, chdtrc, ndtr

from hiddenstate.auditing.hypotheses import number
from hiddenstate.auditing.intervals import LEAST
from hiddenstate.campaign.checking import same_noise
from hiddenstate.campaign.recording import Recorded, Step, recording
from hiddenstate.errors import InputError, check_count, expect
from hiddenstate.rounding import counted

LEVEL = 1e-3
"""Probability that one right training is suspect, over all that is tested."""
FIRM = 1e-9
"""P-value of a single test below which a finding needs no second training."""
ENOUGH_STEPS = 20
COORDINATES = 20_000
"""Residuals of a step that are compared with those of others."""
PREFIX = 256
"""Residuals of a tensor that are compared with those of other tensors."""

USUAL = {
    "no noise": "PrivacyEngine.make_private(noise_multiplier=...), DPOptimizer.add_noise",
    "missing noise": "DPOptimizer.add_noise: noise for every number of every parameter",
    "wrong deviation": "DPOptimizer.add_noise: std = noise_multiplier * max_grad_norm",
    "shared noise": "DPOptimizer.add_noise: one draw of the parameter's full shape for each",
    "same noise": "PrivacyEngine.make_private(noise_generator=...): seed it once, share it by all",
    "returning noise": "PrivacyEngine.make_private(noise_generator=...): never seed it again",
    "other noise": "DPOptimizer.add_noise: torch.normal in the parameter's own precision",
    "changed sum": "between optimizer.pre_step() and the step: p.grad must stay as it is",
    "clipping": "DPOptimizer.clip_and_accumulate, PrivacyEngine.make_private(max_grad_norm=...)",
    "micro-batches": "DPOptimizer.clip_and_accumulate: p.grad_sample has a row for each record",
    "ghost norm": "make_private(grad_sample_mode='ghost', max_grad_norm=...), model.max_grad_norm",
    "divisor": "DPOptimizer.scale_grad: expected_batch_size, a constant",
    "sampler": "PrivacyEngine.make_private(poisson_sampling=True), DPDataLoader",
    "accumulation": "make_private(poisson_sampling=True) forbids it: use BatchMemoryManager",
    "reused batch": "one optimizer.step() for each batch of the DataLoader",
    "sampling rate": "DataLoader(batch_size=...), DPDataLoader(sample_rate=...)",
    "steps": "optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(sample_rate=...))",
    "noise multiplier": "PrivacyEngine.make_private(noise_multiplier=...), a noise scheduler",
    "clipping norm": "PrivacyEngine.make_private(max_grad_norm=...)",
    "mixed records": "ModuleValidator: no layer may look at other records (batch norm)",
    "precision": "optimizer parameters in float32, also with autocast",
    "plain optimizer": "use the optimizer that make_private returned for every parameter",
}
"""The line of Opacus's API that usually causes a fault."""


@dataclass(frozen=True)
class Finding:
    """A fault. tensor, step: where it was seen, if at one place. p_value: None if compared."""

    fault: str
    words: str
    tensor: str | None = None
    step: int | None = None
    p_value: float | None = None

    @property
    def usual(self) -> str:
        """The line of Opacus's API that usually causes it."""
        return USUAL[self.fault]


@dataclass(frozen=True)
class Report:
    """Report on one training.

    findings: faults, empty if there are none. tests: p-values that share the level. steps, tensors:
    how many. seen: numbers of the training. notes: what could not be seen. coins: seed of what was
    drawn to test batch sizes.
    """

    findings: list[Finding]
    tests: int
    steps: int
    tensors: int
    seen: dict[str, Any]
    notes: list[str]
    coins: int
    level: float = LEVEL

    @property
    def weak(self) -> list[Finding]:
        """Findings that chance may have made, once in 1 / ``level`` right trainings."""
        return [f for f in self.findings if f.p_value is not None and f.p_value > FIRM]

    def confirmed(self, other: "Report | None") -> "Report":
        """The report without weak findings, unless another training is suspect too.

        other: on a training with another seed; None if there was none.
        """
        weak = self.weak
        if not weak or (other and any(f.p_value is not None for f in other.findings)):
            return self
        told = "a second one did not" if other else "hiddenstate check-training trains a second one"
        notes = [f"One training suggested {f.fault} (p = {f.p_value:.1g}); {told}." for f in weak]
        kept = [f for f in self.findings if f not in weak]
        return replace(self, findings=kept, notes=[*self.notes, *notes])

    def words(self) -> str:
        """The report in sentences."""
        lines = []
        if not self.findings:
            lines.append(
                f"No fault found in {counted(self.steps, 'step')} and "
                f"{counted(self.tensors, 'tensor')} "
                f"({counted(self.tests, 'test')} at a joint level of {self.level:g})."
            )
        for place, found in enumerate(self.findings, 1):
            where = [
                *([f"tensor {found.tensor}"] if found.tensor else []),
                *([f"step {found.step}"] if found.step is not None else []),
            ]
            p = found.p_value
            chance = "" if p is None else f", p = {p:.1g}" if p > 1e-300 else ", p < 1e-300"
            lines.append(f"{place}. {found.fault}: {found.words}")
            told = f"{', '.join(where)}{chance}".removeprefix(", ")
            lines += [f"   seen: {told}"] if told else []
            lines.append(f"   usual cause: {found.usual}")
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        findings = [asdict(found) | {"usual": found.usual} for found in self.findings]
        return asdict(self) | {"findings": findings}


def check(
    train: Callable[..., Any],
    *,
    noise_multiplier: float | None = None,
    sampling_rate: float | None = None,
    steps: int | None = None,
    clipping_norm: float | None = None,
    seed: int = 0,
    runs: int = 1,
) -> Report:
    """Check one recorded training.

    train: trains a model with Opacus; it is called without arguments, with ``seed`` or with
    ``world="out"`` and ``seed``, as its parameters ask. noise_multiplier, sampling_rate, steps,
    clipping_norm: as claimed; without them, what Opacus's accountant was told. runs: trainings; a
    second one, with the next seed, shows noise that is the same in both. One more is trained if
    the finding is weak. A training that ends by ``sys.exit()`` is judged like any other. Raises
    InputError if no step was taken with Opacus, or if the training fails.
    """
    expect(runs in (1, 2), "runs", runs, "1 or 2")
    claimed = claims(noise_multiplier, sampling_rate, steps, clipping_norm)
    seeded = "seed" in inspect.signature(train).parameters
    expect(runs == 1 or seeded, "runs", runs, "1, for the training takes no seed that could differ")

    def recorded(seed: int) -> Recorded:
        with recording(noise_multiplier, clipping_norm) as found:
            try:
                call(train, seed)
            except SystemExit as end:
                if end.code not in (None, 0):
                    raise InputError(
                        f"training: ended by sys.exit({end.code!r}); expected one that succeeds"
                    ) from end
        return found

    first, *more = [recorded(seed + run) for run in range(runs)]
    report = judge(first, claimed, again=more[0] if more else None)
    if not report.weak:
        return report
    last = recorded(seed + runs)
    if not seeded and same_noise(first.noise, last.noise):
        note = "The training seeds itself, so a second one is the same; give a function of a seed."
        return replace(report, notes=[*report.notes, note]).confirmed(None)
    return report.confirmed(judge(last, claimed, again=first if more else None))


def claims(
    noise_multiplier: float | None,
    sampling_rate: float | None,
    steps: int | None,
    clipping_norm: float | None,
) -> dict[str, float | None]:
    """The numbers by their names in words; InputError for one out of range."""
    for name, value in (("noise_multiplier", noise_multiplier), ("clipping_norm", clipping_norm)):
        expect(value is None or number(name, value) > 0, name, value, "a number above 0")
    known = sampling_rate is None or 0 < number("sampling_rate", sampling_rate) <= 1
    expect(known, "sampling_rate", sampling_rate, "a number above 0, at most 1")
    if steps is not None:
        check_count("steps", steps)
    return {
        "noise multiplier": noise_multiplier,
        "sampling rate": sampling_rate,
        "steps": steps,
        "clipping norm": clipping_norm,
    }


def call(train: Callable[..., Any], seed: int) -> Any:
    """Train once, with the arguments that the function asks for."""
    names = inspect.signature(train).parameters
    given: dict[str, Any] = {"world": "out", "seed": seed}
    needed = [
        name
        for name, parameter in names.items()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    if unknown := set(needed) - set(given):
        raise InputError(
            f"training: needs the arguments {', '.join(sorted(unknown))}; give it none, seed, or "
            "(world, seed)"
        )
    return train(**{name: value for name, value in given.items() if name in names})


@dataclass
class _Tests:
    """P-values by what they test, and where."""

    found: list[tuple[str, float, int | None, int | None]] = field(default_factory=list)

    def add(self, kind: str, p: float, tensor: int | None = None, step: int | None = None) -> None:
        self.found.append((kind, float(np.clip(p, LEAST, 1)), tensor, step))

    def squares(self, kind: str, total: float, degrees: int, **where: int | None) -> None:
        """A sum of so many squared normal variables, two-sided."""
        if degrees:
            # Those of ``stats.chi2``, whose checks take longer than all else here.
            both = chdtr(degrees, total), chdtrc(degrees, total)
            self.add(kind, 2 * min(both), **where)

    def normal(self, kind: str, z: float, **where: int | None) -> None:
        """A normal variable, two-sided."""
        self.add(kind, 2 * ndtr(-abs(z)), **where)

    def failed(self, kind: str) -> list[tuple[float, int | None, int | None]]:
        """P-values of a kind that are below their share, the smallest first."""
        share = LEVEL / max(1, len(self.found))
        rows = [(p, tensor, step) for k, p, tensor, step in self.found if k == kind and p < share]
        return sorted(rows, key=lambda row: row[0])


def judge(
    recorded: Recorded,
    claimed: dict[str, float | None] | None = None,
    *,
    again: Recorded | None = None,
) -> Report:
    """The report on what was recorded."""
    if not recorded.steps:
        more = " (a plain optimizer stepped)" if recorded.plain else ""
        raise InputError(
            f"training: no step of Opacus's DPOptimizer was seen{more}; expected a training that "
            "uses what PrivacyEngine.make_private returned"
        )
    if len(recorded.optimizers) > 1:
        raise InputError(
            f"training: {len(recorded.optimizers)} private optimizers stepped; expected one, so "
            "train each model in a function of its own"
        )
    coins = secrets.randbits(32)
    given = {name: value for name, value in (claimed or {}).items() if value is not None}
    tests, notes = _Tests(), []
    steps = recorded.steps
    names = recorded.names or [f"tensor {j}" for j in range(len(steps[0].counts))]
    _deviations(tests, steps)
    scaled = _scaled(tests, steps)
    _within(tests, scaled)
    _between(tests, scaled, steps)
    _shapes(tests, scaled)
    _sampling(tests, recorded, coins)
    if again is not None:
        _runs(tests, steps, again.steps)
    findings = [
        *_compared(recorded, given),
        *_clipping(recorded, names),
        *_noise(tests, recorded, names),
        *_sampled(tests, recorded),
    ]
    if len(steps) < ENOUGH_STEPS:
        notes.append(f"{counted(len(steps), 'step')}; {ENOUGH_STEPS} or more show smaller faults.")
    if not recorded.batches:
        notes.append("No DataLoader's batches were seen, so the sampling is not tested.")
    if not recorded.compared:
        notes.append("No gradients of records were seen, so clipping in the steps is not tested.")
    if recorded.history is None and not given:
        notes.append("No accountant was seen, and nothing is claimed: give the claim to compare.")
    if recorded.outside:
        notes.append(
            f"{counted(recorded.outside, 'step')} changed tensors that Opacus does not have; the "
            "steps are not tested, and are private only if no record's gradient is in them."
        )
    if recorded.secure:
        notes.append("secure_mode is on; its noise is tested as any other.")
    seen = {
        "noise multiplier": steps[-1].noise_multiplier,
        "clipping norm": steps[-1].clipping_norm,
        "sampling rate": recorded.rate,
        "steps": len(steps),
        "records": recorded.records,
        "divisor": steps[-1].divisor,
        "accountant": recorded.history,
    }
    return Report(findings, len(tests.found), len(steps), len(names), seen, notes, coins)


# Tests.


def _deviations(tests: _Tests, steps: list[Step]) -> None:
    """Size of the residuals by tensor and by step, and how many are nothing."""
    tensors = range(len(steps[0].counts))
    for j in tensors:
        count = sum(s.counts[j] for s in steps)
        tests.squares("tensor", sum(s.squares[j] for s in steps), count, tensor=j)
        # The density is below 0.4 everywhere.
        chance = min(1.0, 0.8 * max(s.tolerance for s in steps))
        tests.add("tiny", stats.binom.sf(sum(s.tiny[j] for s in steps) - 1, count, chance), j)
    for t, s in enumerate(steps):
        tests.squares("step", sum(s.squares), sum(s.counts), step=t)


def _ratios(steps: list[Step]) -> list[float]:
    """Deviation of each tensor's residuals, over what is claimed."""
    return [
        float(np.sqrt(sum(s.squares[j] for s in steps) / max(1, sum(s.counts[j] for s in steps))))
        for j in range(len(steps[0].counts))
    ]


def _scaled(tests: _Tests, steps: list[Step]) -> list[tuple[int, list[np.ndarray]]]:
    """Residuals that are kept, by step; where their size is wrong, brought to size 1.

    What is wrong with their size is found by itself, and shall not hide what else is wrong.
    """
    # Few tests share the level yet, so more fail than in the end; this only decides scaling.
    wrong = {tensor for _, tensor, _ in tests.failed("tensor")}
    sizes = [ratio if j in wrong else 1.0 for j, ratio in enumerate(_ratios(steps))]
    odd = {step for _, _, step in tests.failed("step")}
    found = []
    for t, s in enumerate(steps):
        if s.residuals is None:
            continue
        rows = []
        for j, r in enumerate(s.residuals):
            size = sizes[j]
            if t in odd:
                size = float(np.sqrt(s.squares[j] / max(1, s.counts[j])))
            # What has no noise at all has none to be compared.
            rows.append(r / size if size > 0.01 else np.zeros_like(r))
        found.append((t, rows))
    return found


def _within(tests: _Tests, scaled: list[tuple[int, list[np.ndarray]]]) -> None:
    """Find noise that numbers of a tensor share: sums over its rows, columns and all."""
    for j in range(len(scaled[0][1])):
        blocks = [rows[j] for _, rows in scaled if np.any(rows[j])]
        if not blocks:
            continue
        if blocks[0].ndim == 2 and min(blocks[0].shape) > 1:
            for axis, kind in ((0, "rows"), (1, "columns")):
                sums = [b.sum(axis=axis) / np.sqrt(b.shape[axis]) for b in blocks]
                total = float(sum((s**2).sum() for s in sums))
                tests.squares(kind, total, sum(s.size for s in sums), tensor=j)
        if blocks[0].size > 1:
            sums = [b.sum() / np.sqrt(b.size) for b in blocks]
            tests.squares("total", float(sum(s**2 for s in sums)), len(sums), tensor=j)
        first = np.sort(np.concatenate([b.ravel() for b in blocks[:1]]).astype(float))
        if first.size > 1:
            near = 4e-6
            pairs = int(((first[1:] - first[:-1]) < near).sum())
            # Of n normal variables; and single precision has no more numbers than that.
            mean = first.size**2 / 2 * (near / np.sqrt(np.pi) + 2.0**-22)
            tests.add("equal", stats.poisson.sf(pairs - 1, mean) if pairs else 1.0, j)


def _between(tests: _Tests, scaled: list[tuple[int, list[np.ndarray]]], steps: list[Step]) -> None:
    """Find noise that tensors or steps share, and sums that come back."""
    tensors = len(scaled[0][1])
    prefix = np.zeros((tensors, len(scaled), PREFIX))
    there = np.zeros((tensors, PREFIX))
    for s, (_, rows) in enumerate(scaled):
        for j, r in enumerate(rows):
            flat = r.ravel()[:PREFIX]
            prefix[j, s, : flat.size] = flat
            there[j, : flat.size] = 1
    flat = prefix.reshape(tensors, -1)
    products = flat @ flat.T
    by_place = (prefix**2).sum(axis=1)
    for i in range(tensors):
        for j in range(i):
            # Given the longer one, normal: the shorter is as long as what they share.
            short, long = (i, j) if there[i].sum() <= there[j].sum() else (j, i)
            length = float((by_place[long] * there[short]).sum())
            if length > 0 and np.any(flat[short]):
                # The second tensor takes the place of a step.
                tests.normal("tensors", products[i, j] / np.sqrt(length), tensor=i, step=j)
    kept = [
        np.concatenate([r.ravel() for r in rows])[:COORDINATES].astype(float) for _, rows in scaled
    ]
    matrix = np.array(kept)
    gram = matrix @ matrix.T
    for a in range(len(kept)):
        for b in range(a):
            if gram[a, a] > 0 and gram[b, b] > 0:
                z = gram[a, b] / np.sqrt(gram[b, b])
                # The earlier step takes the place of a tensor.
                tests.normal("steps", z, tensor=scaled[b][0], step=scaled[a][0])
    for kind, values in (
        ("along", [s.along for s in steps]),
        ("along last", [s.along_last for s in steps]),
        ("repeated", [s.repeated for s in steps]),
    ):
        known = [v for v in values if v is not None]
        # Residuals of another size would fail these as well.
        if known and not tests.failed("tensor") and not tests.failed("step"):
            tests.squares(kind, float(np.sum(np.square(known))), len(known))
            tests.normal(kind, float(np.sum(known)) / np.sqrt(len(known)))


def _shapes(tests: _Tests, scaled: list[tuple[int, list[np.ndarray]]]) -> None:
    """Test that the residuals are normal."""
    parts = [r.ravel() for _, rows in scaled for r in rows if np.any(r)]
    pooled = np.concatenate(parts) if parts else np.zeros(0)
    pooled = pooled[:: max(1, len(pooled) // COORDINATES)].astype(float)
    if len(pooled) < 50:
        return
    tests.add("normal", stats.kstest(pooled, "norm").pvalue)
    # Kolmogorov and Smirnov's test hardly sees the tails.
    for bound in (2.5, 3.5):
        beyond = int((np.abs(pooled) > bound).sum())
        chance = 2 * stats.norm.sf(bound)
        both = (
            stats.binom.cdf(beyond, len(pooled), chance),
            stats.binom.sf(beyond - 1, len(pooled), chance),
        )
        tests.add("normal", 2 * min(both))


def _sampling(tests: _Tests, recorded: Recorded, coins: int) -> None:
    """Test that batches, and how often records come, are as Poisson sampling makes them."""
    n, drawn, most = recorded.records, recorded.batches, recorded.rate
    if not drawn or not n or most is None or most >= 1:
        return
    rng, rates = np.random.default_rng(coins), np.array(recorded.rates, dtype=float)

    def normal(counts: np.ndarray, of: int, rate: Any) -> np.ndarray:
        law = stats.binom(of, rate)
        # Spread uniformly over its own step of the law, a count has an exactly normal quantile.
        uniform = law.cdf(counts - 1) + rng.random(len(counts)) * law.pmf(counts)
        return stats.norm.ppf(np.clip(uniform, 1e-300, 1 - 1e-16))

    sizes = normal(np.array([len(batch) for batch in drawn]), n, rates)
    tests.squares("sizes", float((sizes**2).sum()), len(sizes))
    tests.normal("sizes", float(sizes.sum()) / np.sqrt(len(sizes)))
    often = []
    for rate in np.unique(rates):
        of = [batch for batch, own in zip(drawn, rates, strict=True) if own == rate]
        counts = np.bincount([i for batch in of for i in batch if 0 <= i < n], minlength=n)
        often.append(normal(counts, len(of), rate))
    tests.squares("records", float((np.array(often) ** 2).sum()), n * len(often))


def _runs(tests: _Tests, one: list[Step], other: list[Step]) -> None:
    """Test that two trainings have different noise."""
    for t, (a, b) in enumerate(zip(one, other, strict=False)):
        if a.residuals is None or b.residuals is None:
            continue
        x, y = (np.concatenate([r.ravel() for r in s.residuals or []]) for s in (a, b))
        length = float(np.sqrt((y.astype(float) ** 2).sum()))
        if x.size == y.size and length > 0.01 * np.sqrt(y.size):
            size = max(1.0, float(np.sqrt((x.astype(float) ** 2).mean())))
            tests.normal("runs", float(x.astype(float) @ y) / length / size, step=t)


# Findings.


def _compared(recorded: Recorded, claimed: dict[str, float]) -> Iterator[Finding]:
    """Numbers that are not as claimed, or as the accountant was told."""
    steps = recorded.steps
    history = recorded.history
    # What is not claimed is compared with what the accountant was told.
    whose = dict.fromkeys(claimed, "claimed")
    sigmas = [claimed["noise multiplier"]] * len(steps) if "noise multiplier" in claimed else []
    if history is not None:
        # Another step hook in place of the accountant's leaves it without a step.
        told = {"steps": float(sum(t for *_, t in history))}
        if len({q for _, q, _ in history}) == 1:
            told["sampling rate"] = history[0][1]
        claimed = told | claimed
        sigmas = sigmas or [sigma for sigma, _, t in history for _ in range(t)]

    def words_of(name: str) -> str:
        return whose.get(name, "told to the accountant")

    for t, s in enumerate(steps):
        sigma = s.noise_multiplier
        if not sigma > 0:
            yield Finding("no noise", f"the noise multiplier is {sigma:g}", step=t)
            break
        if t < len(sigmas) and sigma < sigmas[t] * (1 - 1e-3):
            said = f"{words_of('noise multiplier')} {sigmas[t]:g}"
            yield Finding("noise multiplier", f"{sigma:g}, {said}", step=t)
            break
    norm = claimed.get("clipping norm")
    for t, s in enumerate(steps):
        if norm is not None and abs(s.clipping_norm - norm) > 1e-3 * norm:
            yield Finding("clipping norm", f"{s.clipping_norm:g}, claimed {norm:g}", step=t)
            break
    count = claimed.get("steps")
    # Steps past Opacus are steps of the training as well.
    taken = len(steps) + len(recorded.bare)
    if count is not None and taken > count:
        yield Finding("steps", f"the training took {taken}, {words_of('steps')} {count:g}")
    # Full batches need no sampler, for nothing is drawn.
    everything = all(len(set(b)) == recorded.records == len(b) for b in recorded.batches)
    rate = claimed.get("sampling rate")
    own = 1.0 if recorded.batches and everything else recorded.rate
    if rate is not None and own is not None and own > rate * (1 + 1e-3):
        said = f"{words_of('sampling rate')} {rate:.4g}"
        yield Finding("sampling rate", f"the loader draws at {own:.4g}, {said}")
    several = next((t for t, s in enumerate(steps) if s.accumulated > 1), None)
    if several is not None and not everything:
        yield Finding(
            "accumulation",
            f"a step sums {steps[several].accumulated} batches that are drawn apart, so a record "
            "that is in two of them moves it by twice the clipping norm",
            step=several,
        )
    if recorded.reused:
        yield Finding(
            "reused batch",
            f"{counted(len(recorded.reused), 'step')} took gradients of no new batch, so a record "
            "counts more often than the accountant says",
            step=recorded.reused[0],
        )
    if recorded.batches and recorded.rate is None and not everything:
        yield Finding(
            "sampler",
            f"the loader makes {recorded.sampler}, not Poisson batches, on which the accountant's "
            "amplification rests",
        )
    for size, sampler, drawn in recorded.loaders:
        if sampler not in ("RandomSampler", "SequentialSampler") or drawn >= 2 * size:
            yield Finding(
                "sampling rate",
                f"Opacus replaced a {sampler}, batches of {size}, by Poisson sampling of "
                f"{drawn:.4g} records a batch on average",
            )
    if recorded.ghost is not None and abs(recorded.ghost[0] - recorded.ghost[1]) > 1e-6:
        clipped, noisy = recorded.ghost
        yield Finding("ghost norm", f"gradients are clipped to {clipped:g}, noise is for {noisy:g}")
    divisors = {round(s.divisor / s.accumulated, 6) for s in steps}
    if len(divisors) > 1 and all(s.divisor == max(1, s.rows) for s in steps):
        yield Finding("divisor", "the expected batch size is that of each batch", step=0)
    if recorded.mixed > 1e-2:
        yield Finding(
            "mixed records",
            "a record's output or loss depends on the other records of its batch "
            f"(by {100 * recorded.mixed:.0f} %), so its gradient is not its own",
        )
    for t, s in enumerate(steps):
        if s.dtype in ("float16", "bfloat16"):
            yield Finding("precision", f"the noisy gradient has {s.dtype} numbers", step=t)
            break
    if recorded.bare:
        yield Finding(
            "no noise",
            f"{len(recorded.bare)} steps were taken by optimizer.original_optimizer, without "
            "clipping and noise",
            step=recorded.bare[0],
        )
    for name in dict.fromkeys(recorded.plain):
        times = recorded.plain.count(name)
        yield Finding("plain optimizer", f"{name} took {times} steps on private parameters")
    if recorded.micro:
        step, rows, records = recorded.micro[0]
        why = "one record changes a clipped mean of several by up to twice the norm"
        if rows > records:
            why = "a record with several gradients contributes more than the norm"
        words = f"{rows} gradients were clipped for {records} records: {why}"
        yield Finding("micro-batches", words, step=step)


def _clipping(recorded: Recorded, names: list[str]) -> Iterator[Finding]:
    for step, wrong in recorded.wrong[:1]:
        longest = max((w.contribution or 0 for _, w in recorded.wrong if w.kind == wrong.kind))
        more = f"; a record contributes up to {longest:.3g} clipping norms" if longest > 1 else ""
        at = " of gradients of known length, after the training" if step is None else ""
        yield Finding("clipping", f"{wrong.words}{at}{more}", _name(names, wrong.tensor), step)


def _noise(tests: _Tests, recorded: Recorded, names: list[str]) -> Iterator[Finding]:
    steps = recorded.steps
    missing: list[tuple[float, int, float]] = []
    for p, tensor, _ in tests.failed("tiny"):
        assert tensor is not None
        share = sum(s.tiny[tensor] for s in steps) / sum(s.counts[tensor] for s in steps)
        missing.append((p, tensor, share))
    # A step without noise is missing in every tensor.
    bare = [t for t, s in enumerate(steps) if sum(s.tiny) > 0.9 * sum(s.counts)]
    if missing and bare:
        several = f"{len(bare)} of {len(steps)} steps have no noise"
        many = several if len(bare) > 1 else "this step has no noise"
        fault = "no noise" if len(bare) == len(steps) else "missing noise"
        yield Finding(fault, many, step=bare[0], p_value=missing[0][0])
    elif missing:
        p, tensor, share = max(missing, key=lambda row: row[2])
        where = "no noise" if share > 0.9 else f"no noise in {100 * share:.2g} % of its numbers"
        also = [names[j] for _, j, _ in missing if j != tensor]
        more = f"; also in {', '.join(also[:4])}" if also else ""
        first = next(
            t for t, s in enumerate(steps) if s.tiny[tensor] > 0.5 * share * s.counts[tensor]
        )
        yield Finding("missing noise", f"{where}{more}", _name(names, tensor), first, p)
    again = [*tests.failed("steps"), *tests.failed("repeated")]
    shared = [
        (p, tensor, kind)
        for kind in ("total", "rows", "columns", "equal")
        for p, tensor, _ in tests.failed(kind)
    ]
    # Noise that returns makes all of this fail; noise that is shared does so in one step.
    clear = [row for row in shared if _in_one_step(recorded, row[1], row[2])]
    if clear:
        shared, again = clear, []
    elif again:
        shared = []
    parts = {"total": "all numbers", "rows": "rows", "columns": "columns", "equal": "numbers"}
    if shared and not missing:
        p, tensor, kind = min(shared)
        words = f"{parts[kind]} of a tensor have noise in common"
        yield Finding("shared noise", words, _name(names, tensor), None, p)
    same = [row for row in tests.failed("tensors") if _same_in_one_step(recorded, *row[1:])]
    if same:
        p, one, other = same[0]
        pairs = f"{_name(names, one)} and {_name(names, other)} have the same noise"
        more = f", and {len(same) - 1} pairs more" if len(same) > 1 else ""
        yield Finding("same noise", pairs + more, _name(names, one), None, p)
    if again:
        p, before, step = min(again, key=lambda row: row[0])
        words = f"the noise has that of step {before} in it"
        if step is None:
            words = "noise depends on that of the step before"
        yield Finding("returning noise", words, None, step, p)
    if runs := tests.failed("runs"):
        p, _, step = runs[0]
        words = "two trainings with different seeds have the same noise"
        yield Finding("returning noise", words, None, step, p)
    if missing:
        return
    yield from _sizes(tests, recorded, names)
    odd = tests.failed("normal")
    wrong = tests.failed("tensor") or tests.failed("step")
    # Normal residuals of steps with different sizes are no normal sample together.
    if odd and not shared and not same and not again and (not wrong or _alike(steps)):
        yield Finding("other noise", "the noise is not normal", None, None, odd[0][0])
    for kind in ("along", "along last"):
        if (moved := tests.failed(kind)) and not again:
            which = "this step's" if kind == "along" else "the last step's"
            words = f"what is released has more or less of {which} sum than the clipped sum"
            yield Finding("changed sum", words, None, None, moved[0][0])
            break


def _kept(recorded: Recorded) -> list[np.ndarray]:
    """Residuals of a step in the middle, where a first step is no exception."""
    kept = [s.residuals for s in recorded.steps if s.residuals is not None]
    return kept[len(kept) // 2]


def _in_one_step(recorded: Recorded, tensor: int | None, kind: str) -> bool:
    """True if a tensor's numbers share their noise in one step."""
    assert tensor is not None
    tests, block = _Tests(), _kept(recorded)[tensor].astype(float)
    size = float(np.sqrt((block**2).mean()))
    if size > 0:
        _within(tests, [(0, [block / size])])
    return any(k == kind and p < 1e-4 for k, p, *_ in tests.found)


def _same_in_one_step(recorded: Recorded, one: int | None, other: int | None) -> bool:
    """True if two tensors have the same noise in one step."""
    assert one is not None and other is not None
    a, b = (_kept(recorded)[j].astype(float).ravel()[:PREFIX] for j in (one, other))
    n = min(a.size, b.size)
    a, b = a[:n], b[:n]
    length = float(np.sqrt((a**2).sum() * (b**2).sum()))
    # By chance the correlation of PREFIX numbers is about a sixteenth.
    return length > 0 and abs(float(a @ b)) > 0.3 * length


def _alike(steps: list[Step]) -> bool:
    """True if all steps have residuals of the same size."""
    sizes = [sum(s.squares) / max(1, sum(s.counts)) for s in steps]
    return max(sizes) < 1.5 * min(sizes)


def _sizes(tests: _Tests, recorded: Recorded, names: list[str]) -> Iterator[Finding]:
    """Findings on the size of the noise, where it is another than claimed."""
    steps = recorded.steps
    by_tensor, by_step = tests.failed("tensor"), tests.failed("step")
    if not by_tensor and not by_step:
        return
    p = min(row[0] for row in (*by_tensor, *by_step))
    count = sum(sum(s.counts) for s in steps)
    if _by_rows(steps):
        words = "sums are divided by the number of records drawn, which tells that number"
        yield Finding("divisor", words, None, by_step[0][2] if by_step else None, p)
        return
    ratios = _ratios(steps)
    by_steps = [float(np.sqrt(sum(s.squares) / sum(s.counts))) for s in steps]
    overall = float(np.sqrt(sum(sum(s.squares) for s in steps) / count))
    wrong = [tensor for _, tensor, _ in by_tensor if tensor is not None]
    fine = [ratio for j, ratio in enumerate(ratios) if j not in wrong]
    if by_step and len(by_step) < len(steps) / 2 and abs(np.median(by_steps) - 1) < 0.05:
        at = by_step[0][2]
        assert at is not None
        words = f"the deviation is {by_steps[at]:.3g} of what is claimed"
        words += f"; also wrong in {len(by_step) - 1} other steps" if len(by_step) > 1 else ""
        yield Finding("wrong deviation", words, None, at, p)
        return
    apart = max(ratios[j] for j in wrong) > 1.25 * min(ratios[j] for j in wrong) if wrong else False
    if wrong and (apart or (fine and abs(np.mean(fine) - 1) < 0.05)):
        tensor = wrong[0]
        words = f"the deviation is {ratios[tensor]:.3g} of what is claimed"
        more = [names[j] for j in wrong if j != tensor]
        words += f"; also wrong in {', '.join(more[:4])}" if more else ""
        yield Finding("wrong deviation", words, _name(names, tensor), None, p)
        return
    words = f"the deviation is {overall:.3g} of what is claimed{_as_if(overall, steps)}"
    yield Finding("wrong deviation", words, None, by_step[0][2] if by_step else None, p)


def _by_rows(steps: list[Step]) -> bool:
    """True if division by the number of records drawn explains the residuals of every step."""
    gain = 0.0
    for s in steps:
        n, rows = sum(s.counts), max(s.rows, 1)
        if min(chdtr(n, s.by_rows), chdtrc(n, s.by_rows)) < 1e-4 / len(steps):
            return False
        # Logarithm of the likelihood ratio of what is released.
        gain += (sum(s.squares) - s.by_rows) / 2 + n * math.log(rows / s.divisor)
    return gain > 10


def _as_if(ratio: float, steps: list[Step]) -> str:
    """Mistake that would give noise of this size."""
    step = steps[-1]
    guesses = {
        "the noise were divided by the batch size twice": 1 / step.divisor,
        "the noise multiplier were the deviation, whatever the clipping norm": (
            1 / step.clipping_norm if step.clipping_norm else 1.0
        ),
        "the deviation were taken for the variance": step.noise_multiplier**-0.5,
        **{f"one of {w} workers added its share alone": w**-0.5 for w in (2, 3, 4, 8)},
    }
    near = [
        words for words, value in guesses.items() if value < 0.99 and abs(ratio / value - 1) < 0.02
    ]
    return f", as if {near[0]}" if near else ""


def _sampled(tests: _Tests, recorded: Recorded) -> Iterator[Finding]:
    """Batches that are not as their sampler says."""
    rate = recorded.rate
    if odd := tests.failed("sizes"):
        sizes = [len(batch) for batch in recorded.batches]
        words = (
            f"batches have {min(sizes)} to {max(sizes)} records, {np.mean(sizes):.3g} on average; "
            f"Poisson sampling of {recorded.records} records at rate {rate:.4g} makes others"
        )
        yield Finding("sampler", words, p_value=odd[0][0])
    elif odd := tests.failed("records"):
        words = "how often each record is drawn is not as Poisson sampling makes it"
        yield Finding("sampler", words, p_value=odd[0][0])


def _name(names: list[str], tensor: int | None) -> str | None:
    return None if tensor is None else names[tensor] if tensor < len(names) else f"tensor {tensor}"
