"""Initial parameters of worst_case_init: drawn, or pre-trained without privacy."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import nn

from hiddenstate import models
from hiddenstate.adversaries import initialisation
from hiddenstate.datasets import data
from hiddenstate.dpsgd.augmentation import Augmentation
from hiddenstate.papers.worst_case_init.cells import NAME, StartParameters
from hiddenstate.papers.worst_case_init.grid import Stage, Weights
from hiddenstate.pipeline.cells import Cell, Workplace
from hiddenstate.streams import stream

Records = NDArray[np.float32]
See = Callable[[Records], Records]
"""What a model is shown of records."""


def initialise(cell: Cell[StartParameters], seed: int, workplace: Workplace) -> pd.DataFrame:
    """Initial parameters of each repeat: columns repeat, part ("backbone", "trained") and value.

    Without stages they are a Xavier draw (average case), else trained from that draw (worst case).
    More epochs of the last stage go on where fewer end.
    """
    p, device = cell.parameters, workplace.device
    splits = data.splits(p.dataset)
    build = partial(models.build, p.model)
    frames = []
    for repeat in p.repeats:
        # Departure worst_case_init.repeats: what runs share is not stated.
        draw = partial(stream, seed, NAME, "start", p.dataset, p.model, repeat)
        parts: dict[str, Records] = {}
        if p.trains == "all layers":
            parts["trained"] = _trained(p, build, splits.classes, p.stages, draw, device)
        else:
            if p.backbone:
                parts["backbone"] = _trained(p, build, splits.classes, p.backbone, draw, device)
            see = partial(features, p, parts.get("backbone"), device)
            layer = partial(models.logistic_regression, see(splits.test.x[:1]).shape[1])
            draw = partial(draw, "last layer")
            parts["trained"] = _trained(p, layer, splits.classes, p.stages, draw, device, see)
        frames += [
            pd.DataFrame({"repeat": repeat, "part": part, "value": value})
            for part, value in parts.items()
        ]
    return pd.concat(frames, ignore_index=True)


def _trained(
    p: StartParameters,
    build: Callable[[int], nn.Module],
    classes: int,
    stages: Sequence[Stage | Weights],
    draw: Callable[..., np.random.Generator],
    device: str,
    see: See = lambda x: x,
) -> Records:
    """Parameters (p,) after the stages in turn, from a Xavier draw or from a file.

    A stage with other classes than the one before keeps all but the last layer, which is drawn.
    """
    theta: Any = None
    body = 0
    # The last round has no stage: it fits the last layer to the task's own classes.
    for i, stage in enumerate([*stages, None]):
        if isinstance(stage, Weights):
            theta, last = initialisation.read(stage.weights, stage.sha256, build)
            body = len(theta) - last
            continue
        source = data.splits(stage.dataset) if stage else None
        model = build(source.classes if source else classes)
        drawn = initialisation.average_case(model, draw("xavier", i), normal=p.xavier == "normal")
        # Weights and biases of the last layer.
        last = sum(p.numel() for p in list(model.parameters())[-2:])
        if theta is None:
            theta = drawn
        elif len(theta) != len(drawn):
            theta = torch.cat((theta[:body], drawn[-last:]))
        body = len(drawn) - last
        if stage and source:
            records = source.public if stage.half else source.train
            theta = initialisation.pretrained(
                model, see(records.x), records.y, start=theta, rng=draw("order", i), device=device,
                epochs=stage.epochs, batch_size=stage.batch_size,
                learning_rate=stage.learning_rate, momentum=stage.momentum,
                weight_decay=stage.weight_decay, drops=stage.drops, shuffled=stage.shuffled,
                augmentation=Augmentation(views=1) if stage.augmented else None,
            )  # fmt: skip
    return theta.numpy()


def part_of(start: pd.DataFrame, repeat: int, part: str) -> Records | None:
    """One repeat's initial parameters of that part, or None if there are none."""
    found = start.loc[(start["repeat"] == repeat) & (start["part"] == part), "value"]
    return found.to_numpy(np.float32, copy=True) if len(found) else None


def features(start: StartParameters, backbone: Records | None, device: str, x: Records) -> Records:
    """Features that the frozen backbone makes of records: its last layer's inputs (n, width)."""
    if backbone is None:
        return x.reshape(len(x), -1)
    model = models.build(start.model, data.splits(start.dataset).classes)
    nn.utils.vector_to_parameters(torch.tensor(backbone), model.parameters())
    model = model[:-1].to(device).eval()
    with torch.no_grad():
        parts = torch.from_numpy(x).split(512)
        return torch.cat([model(part.to(device)).flatten(1).cpu() for part in parts]).numpy()
