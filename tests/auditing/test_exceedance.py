"""How often does each valid rule claim more than the truth, at the shipped grid?

Mechanisms whose privacy is known exactly, in both directions, with ties, atoms and unequal worlds.
No cell may exceed the level by more than three standard errors of its audits; the small variant of
the default suite allows five.
"""

import math
from functools import cache

import numpy as np
import pytest

from hiddenstate.accounting.tradeoff import TradeoffCurve
from hiddenstate.auditing import (
    ApproxDP,
    Averaged,
    Bonferroni,
    Fixed,
    GaussianDP,
    Split,
    Tabulated,
    UniformBand,
    composed,
)
from hiddenstate.streams import stream

LEVEL = 0.05
SIZES = [(20, 20), (50, 50), (100, 400), (400, 100), (300, 300), (1000, 1000), (5000, 5000)]
RULES = [Averaged(), UniformBand(), UniformBand("dkw"), Split(), Bonferroni(), Fixed(0.5)]


def gaussian(rng, n_in, n_out):
    return rng.normal(size=n_in) + 1, rng.normal(size=n_out)


def weak(rng, n_in, n_out):
    return rng.normal(size=n_in) + 0.5, rng.normal(size=n_out)


def staircase(rng, n_in, n_out):
    return tuple(np.round(2 * scores) for scores in gaussian(rng, n_in, n_out))


def laplace(rng, n_in, n_out):
    return rng.laplace(size=n_in) + 1, rng.laplace(size=n_out)


def response(rng, n_in, n_out):
    truthful = 1 / (1 + np.exp(-1))
    return (rng.random(n_in) < truthful) * 1.0, (rng.random(n_out) > truthful) * 1.0


def atom(rng, n_in, n_out):
    ins, outs = rng.normal(size=n_in), rng.normal(size=n_out)
    ins[rng.random(n_in) < 0.02] = 9.0
    return ins, outs


def subsampled(rng, n_in, n_out, q=0.1, sigma=0.5):
    worlds = []
    for rate, n in ((q, n_in), (0, n_out)):
        shown = rng.normal(size=n) + (rng.random(n) < rate) / sigma
        worlds.append(np.log1p(q * np.expm1(shown / sigma - 0.5 / sigma**2)))
    return worlds


def revealed(null):
    """Revealing with probability p: slope 1 - p, unlike that of the other direction."""
    curves = [TradeoffCurve(np.array([0.0, 1.0]), np.array([1 - p, 0.0])) for p in (0.02, 0.0201)]
    if null == "in":
        curves = [curve.inverse() for curve in curves]
    return Tabulated("p", [0.02, 0.0201], curves, null)


@cache
def hypotheses(name):
    return {
        "gaussian": GaussianDP,
        "laplace": lambda: ApproxDP(0.0),
        "subsampled, out": lambda: composed([0.5, 0.4995], 0.1, 1),
        "subsampled, in": lambda: composed([0.5, 0.4995], 0.1, 1, null="in"),
        "atom, out": lambda: revealed("out"),
        "atom, in": lambda: revealed("in"),
    }[name]()


CELLS = [
    (gaussian, "gaussian", 1.0),
    (weak, "gaussian", 0.5),
    (staircase, "gaussian", 1.0),
    (laplace, "laplace", 1.0),
    (response, "laplace", 1.0),
    (subsampled, "subsampled, out", 0.5),
    (subsampled, "subsampled, in", 0.5),
    (atom, "atom, out", 0.02),
    (atom, "atom, in", 0.02),
]


def share(rule, draw, name, truth, size, audits, exceeding, level=LEVEL):
    """Share of audits that claim more than the truth."""
    block = max(1, 2_000_000 // max(size))
    found = 0
    for start in range(0, audits, block):
        rng = stream(9, "exceedance", draw.__name__, *size, start)
        pairs = [draw(rng, *size) for _ in range(min(block, audits - start))]
        ins, outs = (np.stack(world) for world in zip(*pairs, strict=True))
        found += exceeding(rule, ins, outs, hypotheses(name), truth, level)
    return found / audits


def allowed(audits, errors):
    return LEVEL + errors * math.sqrt(LEVEL * (1 - LEVEL) / audits)


@pytest.mark.parametrize(
    ("draw", "name", "truth"), CELLS, ids=[f"{d.__name__}-{name}" for d, name, _ in CELLS]
)
def test_few_audits_of_every_mechanism_stay_at_the_level(draw, name, truth, exceeding):
    """Detects an exceedance of 11 %; 68 % is what a curve read from the wrong axis has."""
    for rule in (Averaged(simulations=2_000), UniformBand(), Split()):
        assert share(rule, draw, name, truth, (60, 90), 600, exceeding) <= allowed(600, 5)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize(
    ("draw", "name", "truth"), CELLS, ids=[f"{d.__name__}-{name}" for d, name, _ in CELLS]
)
def test_no_valid_rule_exceeds_the_level(draw, name, truth, rule, size, exceeding):
    """4,000 audits a cell; a rule at 7 % fails (see below)."""
    assert share(rule, draw, name, truth, size, 4_000, exceeding) <= allowed(4_000, 3)


def test_the_study_fails_a_rule_two_points_above_the_level(exceeding):
    """The default at a nominal 8 %, which its certainty makes 7 %."""
    found = share(Averaged(), gaussian, "gaussian", 1.0, (50, 50), 4_000, exceeding, level=0.08)
    assert 0.06 < found < 0.085
    assert found > allowed(4_000, 3)
