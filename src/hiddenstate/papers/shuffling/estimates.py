"""Estimates of shuffling: what is claimed, proven and found of every mechanism."""

from typing import Any

import pandas as pd

from hiddenstate.auditing import ApproxDP, lower_bound, worlds
from hiddenstate.auditing.methods import CONFIDENCE, REPEATABLE
from hiddenstate.papers.shuffling import cells
from hiddenstate.papers.shuffling.cells import SILENT, Mechanism, ShufflingGrid, Simulated
from hiddenstate.pipeline.cells import Cell
from hiddenstate.pipeline.family import Made

Row = dict[str, Any]


def estimate(grid: ShufflingGrid, scores: Made, bounds: Made) -> pd.DataFrame:
    """Epsilons of every mechanism; the columns are those of its parameters.

    part: simulated, or trained, whose ideal audits are simulated ones of as many linear losses.
    method: of what is known without a run as in ``simulations.account``, of audits what the
    adversary sees.
    """
    rows: list[Row] = []
    for cell, table in bounds.of(cells.simulated):
        shared = _shared(cell)
        claimed: Row = {"method": "Poisson's accountant", "kind": "estimate"}
        claimed["value"] = cell.parameters.claim
        rows += [shared | claimed, *(shared | row for row in table.to_dict("records"))]
    for cell, runs in scores.of(cells.simulated):
        rows += _audits(_shared(cell), runs)
    for trained, runs in scores.of(cells.trained):
        shared = {"cell": trained.name, "part": "trained", "record": SILENT}
        rows += _audits(shared | _mechanism(trained.parameters), runs)
    return pd.DataFrame(rows).assign(quantity="epsilon")


def _mechanism(p: Mechanism) -> Row:
    return p.model_dump(include=set(Mechanism.model_fields))


def _shared(cell: Cell[Simulated]) -> Row:
    """Columns that all rows of a simulated cell share."""
    p = cell.parameters
    part = "ideal" if p.repeats > 1 else "simulated"
    return {"cell": cell.name, "part": part, "record": p.record} | _mechanism(p)


def _audits(shared: Row, runs: pd.DataFrame) -> list[Row]:
    """A valid lower bound of each repeat and adversary."""
    kind = {"kind": "lower", "confidence": CONFIDENCE}
    return [
        shared | kind | {"method": adversary, "repeat": repeat} | {
            "value": lower_bound(
                *worlds(part), ApproxDP(shared["delta"]), REPEATABLE, confidence=CONFIDENCE
            ).value,
        }
        for (adversary, repeat), part in runs.groupby(["adversary", "repeat"], sort=False)
    ]  # fmt: skip
