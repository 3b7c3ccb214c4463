"""Simulated audits of estimators: how much is claimed, what bugs are found, when audits stop."""

import math
from typing import Any

import numpy as np
import pandas as pd

from hiddenstate.auditing import Averaged, GaussianDP, SequentialAudit
from hiddenstate.auditing.methods import every
from hiddenstate.auditing.rules import LowerBoundRule
from hiddenstate.papers.estimators import bugs
from hiddenstate.papers.estimators.cells import (
    BLOCK,
    LEVEL,
    NAME,
    Calibrated,
    Detected,
    Floats,
    Sequential,
)
from hiddenstate.pipeline.cells import Cell
from hiddenstate.streams import key, stream

QUANTILES = (0.1, 0.5, 0.9)
"""Of the bounds of a point's audits, which it is summarised by."""


def detect(cell: Cell[Detected], seed: int) -> pd.DataFrame:
    """Scores of the last iterates of every buggy mechanism."""
    models = cell.parameters.models
    parts = []
    for bug in cell.parameters.bugs:
        for world in ("in", "out"):
            rng = stream(seed, NAME, bug, world)
            values = bugs.scores(bug, canary=world == "in", runs=models, rng=rng)
            columns = {"bug": bug, "world": world, "repeat": 0, "run": np.arange(models)}
            parts.append(pd.DataFrame(columns | {"score": values}))
    return pd.concat(parts, ignore_index=True)


def stop(cell: Cell[Sequential], seed: int) -> pd.DataFrame:
    """Models per data set that sequential audits use, and those of a fixed number, the last look's.

    Columns: x (true mu), method, claim, audits, refuted (how many refute the claim), models (mean)
    and error (its standard error).
    """
    p = cell.parameters
    claims = GaussianDP()
    rows = []
    for method, looks in (("sequential", p.looks), ("fixed number", p.looks[-1:])):
        test = SequentialAudit(claims, p.claim, looks)
        for truth in p.truths:
            at = test.refuted_at(claims, truth, audits=p.audits, seed=seed)
            # An audit that never refutes has -1, which picks the last look: it used all models.
            models = np.array(looks)[at]
            rows.append(
                {"x": truth, "method": method, "claim": p.claim, "audits": p.audits}
                | {"refuted": int((at >= 0).sum())}
                | {"models": models.mean(), "error": models.std() / math.sqrt(p.audits)}
            )
    return pd.DataFrame(rows)


def calibrate(cell: Cell[Calibrated], seed: int) -> pd.DataFrame:
    """Rate of false claims of each estimator, and the size of its claims, in a cell.

    Columns: x (scores per data set), method, valid, parameter, truth, audits, exceeding (audits
    that claim more than the truth), and the bounds' 10, 50 and 90 % quantiles low, value and high.
    """
    parameters = cell.parameters
    hypotheses, truth, _ = parameters.mechanism.setting
    rows = []
    for n in parameters.scores:
        for rule, values, exceeding in _audits(cell, n, seed):
            low, value, high = np.sort(values)
            rows.append(
                {"x": n, "method": rule.name, "valid": rule.valid, "truth": truth}
                | {"parameter": hypotheses.parameter, "audits": parameters.audits}
                | {"exceeding": exceeding, "low": low, "value": value, "high": high}
            )
    return pd.DataFrame(rows)


def _audits(cell: Cell[Calibrated], n: int, seed: int) -> list[tuple[LowerBoundRule, Floats, int]]:
    """Each rule, quantiles of its bounds on n scores per data set, and the number of false ones."""
    mechanism, audits = cell.parameters.mechanism, cell.parameters.audits
    hypotheses, truth, threshold = mechanism.setting
    # False for noise multipliers, of which a smaller one leaks more.
    upward = hypotheses.trivial == 0
    default = every(threshold)[0]
    # The default's bounds are in the order of its statistic, so those of a few of its values will
    # do, and a single test says which of them are beyond the truth.
    calibration = Averaged().sized((n, n), hypotheses, LEVEL)
    beyond = int(np.argmax(hypotheses.grid > truth if upward else hypotheses.grid < truth))
    found: list[list[Any]] = []
    for block in range(math.ceil(audits / BLOCK)):
        name = (NAME, cell.name, n, block)
        worlds = mechanism.scores(stream(seed, *name), (BLOCK, n))
        coins = key(seed, *name, "coins")
        _, *others = every(threshold, coins)
        bounds = [rule.bounds(*worlds, hypotheses, LEVEL)[0] for rule in others]
        found.append([calibration.observed(*worlds, coins), *bounds])
    statistic, *values = (np.concatenate(part)[:audits] for part in zip(*found, strict=True))
    shown = calibration.bounds(_quantiles(statistic))[0]
    exceeding = statistic > calibration.critical(beyond)
    return [(default, shown, int(exceeding.sum()))] + [
        (rule, _quantiles(value), int((value > truth if upward else value < truth).sum()))
        for rule, value in zip(others, values, strict=True)
    ]


def _quantiles(values: Floats) -> Floats:
    return np.quantile(values, QUANTILES, method="inverted_cdf")
