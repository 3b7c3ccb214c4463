"""Networks of the torch engine in gradient_crafting, trained with DP-SGD in both worlds."""

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd
from torch import Tensor, nn

from hiddenstate import data, models
from hiddenstate.adversaries import canaries
from hiddenstate.adversaries import gradient_canaries as crafted
from hiddenstate.adversaries.crafted_gradients import Insertions
from hiddenstate.adversaries.initialisation import average_case
from hiddenstate.dpsgd import ensemble as engine
from hiddenstate.dpsgd.driver import network
from hiddenstate.errors import InputError
from hiddenstate.family import Workplace
from hiddenstate.papers.gradient_crafting.adversaries import kind
from hiddenstate.papers.gradient_crafting.cells import NAME, NetworkAudit
from hiddenstate.streams import stream

SIDE_BY_SIDE = 25
"""Models of a chunk on a CPU, which go side by side unless native code knows the network."""


def train(p: NetworkAudit, seed: int, workplace: Workplace) -> pd.DataFrame:
    """Scores of one repeat of an audit, by every adversary.

    The models of world "out" are trained once, and each adversary reads them; those of world "in"
    are its own, but for their random numbers.
    """
    splits = data.splits(p.dataset)
    records = splits.train
    if p.batch_size > len(records):
        raise InputError(
            f"batch_size: got {p.batch_size}; expected at most {len(records)}, the records of "
            f"{p.dataset}"
        )
    model = models.build(p.model, splits.classes)
    mechanism = Insertions(**p.insertion).mechanism
    drawn = partial(average_case, model)
    shared = partial(stream, seed, NAME, p.name, "shared", p.repeat)
    initial: engine.Initial = drawn if p.start == "fresh" else drawn(shared("initialisation"))
    given = {word: _canary(word, p, model, records, shared(word)) for word in p.adversaries}
    first, *others = p.adversaries
    alone = workplace.device == "cpu" and network(model, records.x.shape[1:]) is not None

    def scored(word: str, world: Literal["in", "out"], **more: Any) -> pd.DataFrame:
        ensemble = engine.Ensemble(model, mechanism, records.x, records.y, given[word], initial)
        place = workplace.checkpoint
        return engine.scores(
            ensemble,
            models=workplace.models or p.models,
            seed=seed,
            name=(NAME, p.name, *([workplace.purpose] if workplace.purpose else []), p.repeat),
            worlds=(world,),
            device=workplace.device,
            workers=workplace.workers,
            chunk=SIDE_BY_SIDE if workplace.device == "cpu" else None,
            memory=workplace.memory,
            checkpoint=place and place / (world if world == "out" else f"{world}-{word}"),
            progress=workplace.progress,
            side_by_side=not alone,
            **more,
        )

    readings = {word: Reading(given[word]) for word in others}
    without = scored(first, "out", measures=readings).rename(columns={"score": first})
    parts = [
        part.assign(repeat=p.repeat, adversary=word)
        for word in p.adversaries
        for part in (
            scored(word, "in"),
            without[["world", "run"]].assign(score=without[word]),
        )
    ]
    columns = ["world", "repeat", "run", "score", "adversary"]
    return pd.concat(parts, ignore_index=True)[columns].astype({"score": np.float32})


@dataclass(frozen=True, eq=False)
class Reading:
    """What another canary's adversary reads in the last iterate of a run; a measure."""

    canary: engine.Canary

    def __call__(self, run: engine.Run, last: Tensor) -> float:
        """Its score."""
        return engine.read(self.canary.fixed(run.known()), last)


def _canary(
    word: str,
    p: NetworkAudit,
    model: nn.Module,
    records: data.Dataset,
    rng: np.random.Generator,
) -> engine.Canary:
    """The canary of whom a scale file calls so; ``rng`` draws what all runs of an audit share."""
    schedule, entry = crafted.Periodic(p.every), kind(word)
    if entry.gradients is None:
        record = canaries.mislabelled(records.x, records.y, records.classes, rng)
        return dataclasses.replace(record, schedule=schedule)
    if not entry.each:
        d = int(rng.integers(models.parameter_count(model)))
        return crafted.Inserted(crafted.Coordinate(d), schedule)
    return crafted.Inserted(entry.gradients(p.rank), schedule)
