"""Models of worst_case_init, trained with DP-SGD in both worlds."""

from functools import partial

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from hiddenstate import models
from hiddenstate.adversaries import canaries
from hiddenstate.datasets import data
from hiddenstate.dpsgd import ensemble as engine
from hiddenstate.dpsgd.adjoint import expected
from hiddenstate.dpsgd.mechanism import Mechanism
from hiddenstate.errors import InputError
from hiddenstate.papers.worst_case_init.cells import (
    NAME,
    TESTED,
    AuditParameters,
    CanaryFile,
    ExpectedParameters,
)
from hiddenstate.papers.worst_case_init.starts import Records, See, features, part_of
from hiddenstate.pipeline.cells import Cell, Workplace
from hiddenstate.sampling import FullBatch
from hiddenstate.streams import stream


def train(cell: Cell[AuditParameters], seed: int, workplace: Workplace) -> pd.DataFrame:
    """Scores of the models of an audit, repeat by repeat, with the first ones' test accuracy.

    Also, the same in all rows of a repeat: the noise multiplier, and the mean norm of the private
    records' clipped gradients at the initial parameters.
    """
    p = cell.parameters
    mechanism = _mechanism(p)
    audits = [_repeat(p, repeat, mechanism, seed, workplace) for repeat in p.start.repeats]
    return pd.concat(audits, ignore_index=True)


def expect(cell: Cell[ExpectedParameters], seed: int, workplace: Workplace) -> pd.DataFrame:
    """Expected audit of one repeat of an audit, one row.

    Columns: difference (of the scores, over pairs), upper and lower (ends of their standard
    deviation), separation with its error, norm and cosine (its two factors), most.
    """
    p = cell.parameters
    audit, (repeat,) = p.audit, p.audit.start.repeats
    ensemble, _, _ = _ensemble(audit, repeat, _mechanism(audit), seed, workplace)
    found = expected(
        ensemble, pairs=p.pairs, seed=seed, name=(NAME, p.name), records=p.pass_back,
        device=workplace.device,
    )  # fmt: skip
    columns = ("upper", "lower", "separation", "error", "norm", "cosine", "most")
    row = {"difference": found.differences.mean()} | {key: getattr(found, key) for key in columns}
    return pd.DataFrame([row])


def _mechanism(p: AuditParameters) -> Mechanism:
    """DP-SGD with the noise multiplier of the audit's epsilon."""
    available = len(data.splits(p.start.dataset).private)
    if available != p.private:
        raise InputError(
            f"private: got {p.private}; expected {available}, "
            f"the private records of {p.start.dataset}"
        )
    return Mechanism(
        sampling=FullBatch(),
        steps=p.steps,
        learning_rate=p.learning_rate / p.private,
        clipping_norm=p.clipping_norm,
        noise_multiplier=1.0,
        adjacency="add_or_remove",
    ).calibrated(p.epsilon, p.delta, records=p.records)


def _ensemble(
    p: AuditParameters, repeat: int, mechanism: Mechanism, seed: int, workplace: Workplace
) -> tuple[engine.Ensemble, See, data.Splits]:
    """The models of one repeat, what they are shown of records, and the data set.

    A repeat has its own initial parameters and records.
    """
    start, device = p.start, workplace.device
    if workplace.start is None:
        raise InputError(f"start: got none; expected the initial parameters of {p.name}")
    splits = data.splits(start.dataset)
    order = stream(seed, NAME, "records", start.dataset, repeat).permutation(p.private)
    private = splits.private.take(order[: p.records - 1])
    see: See = np.asarray
    if start.trains == "all layers":
        model = models.build(start.model, splits.classes)
    else:
        backbone = part_of(workplace.start, start.repeat_of(repeat), "backbone")
        see = partial(features, start, backbone, device)
        model = models.logistic_regression(see(private.x[:1]).shape[1], splits.classes)
    theta = torch.from_numpy(part_of(workplace.start, start.repeat_of(repeat), "trained"))
    x = see(private.x)
    rng = stream(seed, NAME, "canary", start.dataset, repeat)
    canary = _canary(p, model, theta, x, private.y, splits.classes, rng)
    return engine.Ensemble(model, mechanism, x, private.y, canary, theta), see, splits


def _repeat(
    p: AuditParameters, repeat: int, mechanism: Mechanism, seed: int, workplace: Workplace
) -> pd.DataFrame:
    """The scores of one repeat."""
    start, device = p.start, workplace.device
    ensemble, see, splits = _ensemble(p, repeat, mechanism, seed, workplace)
    # Last layers are linear models that all see the same records: many at once on a CPU.
    linear = start.trains == "last layer" and device == "cpu"
    frame = engine.scores(
        ensemble,
        seed=seed,
        worlds=p.worlds,
        # On a CPU a chunk is what a kill may lose; on an accelerator it is what fits.
        chunk=1 if device == "cpu" else None,
        kernel="linear" if linear else "auto",
        measures={"accuracy": engine.Accuracy(see(splits.test.x), splits.test.y, TESTED)},
        **workplace.options(p.models, NAME, p.name, repeat=repeat),
    )
    theta = ensemble.initial
    assert isinstance(theta, Tensor)
    every = np.arange(len(ensemble.x))
    norms = ensemble.clipped_sum(device).norms(theta.to(device), every)
    return frame.assign(
        repeat=repeat,
        noise_multiplier=mechanism.noise_multiplier,
        gradient_norm=float(norms.clamp(max=p.clipping_norm).mean()),
    )


def _canary(
    p: AuditParameters,
    model: nn.Module,
    theta: Tensor,
    x: Records,
    y: np.ndarray,
    classes: int,
    rng: np.random.Generator,
) -> canaries.RecordCanary:
    """The canary, crafted from the initial parameters and the records it joins."""
    if isinstance(p.canary, CanaryFile):
        return canaries.RecordCanary(canaries.read(p.canary.file, x.shape[1:]), p.label)
    if p.canary == "mislabelled":
        return canaries.mislabelled(x, y, classes, rng)
    if p.canary == "clip_backdoor":
        nn.utils.vector_to_parameters(theta.clone(), model.parameters())
        with torch.no_grad():
            return canaries.clip_backdoor(x, lambda record: model(torch.from_numpy(record)))
    # Departure worst_case_init.blank_target: label and scale of the pixels are not stated.
    return canaries.blank(x.shape[1:], p.label)
