"""The adversaries of gradient_crafting, one entry each: cells, schema, costs and figures read it.

A new adversary is an entry here and, where its canary is of a new kind, a class in
``hiddenstate.adversaries.gradient_canaries`` with ``name`` equal to the entry's key.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from hiddenstate.adversaries import gradient_canaries
from hiddenstate.adversaries.gradient_canaries import RandomCoordinate, SimulatedCoordinate
from hiddenstate.errors import InputError

Rank = Literal["absolute", "squared", "net"]


@dataclass(frozen=True)
class Kind:
    """Kind of adversary: how its canary is made.

    gradients: from the rank of a scale file, whose gradients are the canary; None for a mislabelled
    record, read by its loss. each: whether every model has a canary of its own, so that the scores
    of all audits of a setting have one law. simulates: whether it simulates a training of each
    model to choose its canary, as costs count.
    """

    label: str
    gradients: Callable[[Rank], gradient_canaries.Adversary] | None
    each: bool = True
    simulates: bool = False


CRAFTED, RANDOM, ONE_RANDOM = "simulated coordinate", "random coordinate", "one random coordinate"
LOSS = "loss-based"

ADVERSARIES: dict[str, Kind] = {
    CRAFTED: Kind(
        "simulated coordinate (A_GC-S)",
        SimulatedCoordinate,
        simulates=True,
    ),
    RANDOM: Kind(
        "random coordinate of each model (A_GC-R)",
        lambda rank: RandomCoordinate(),
    ),
    ONE_RANDOM: Kind(
        "one random coordinate (A_GC-R)",
        lambda rank: RandomCoordinate(shared=True),
        each=False,
    ),
    LOSS: Kind("loss (A_L)", None, each=False),
}
"""By the word of a scale file and of a table; figures draw them in this order."""

THREE = (LOSS, RANDOM, CRAFTED)
"""Those of the paper."""


def kind(word: str) -> Kind:
    """The entry of this word; InputError if there is none."""
    if word not in ADVERSARIES:
        raise InputError(f"adversary: got {word[:100]!r}; expected one of {', '.join(ADVERSARIES)}")
    return ADVERSARIES[word]


def _known(word: str) -> str:
    try:
        kind(word)
    except InputError as error:
        raise ValueError(str(error)) from error
    return word


Adversary = Annotated[
    str, AfterValidator(_known), Field(json_schema_extra={"enum": sorted(ADVERSARIES)})
]
"""A word of a scale file that names an adversary."""
