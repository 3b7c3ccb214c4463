"""How often does each valid rule claim more than the truth, at the shipped grid?

Mechanisms whose privacy is known exactly, in both directions, with ties, atoms and unequal worlds.
No cell may exceed the level by more than three standard errors of its audits; the small variant of
the default suite allows five. Gaussian, Laplace and randomised-response mechanisms are their own
mirror images; the others come in both directions. The whole study,

    pytest tests/auditing/test_exceedance.py -m slow -s

prints the worst cell of each mechanism and rule, as in docs/auditing.md.
"""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest

from hiddenstate.accounting.tradeoff import TradeoffCurve
from hiddenstate.auditing import (
    ApproxDP,
    Averaged,
    Bonferroni,
    Fixed,
    GaussianDP,
    SequentialAudit,
    Split,
    Tabulated,
    UniformBand,
    composed,
)
from hiddenstate.auditing.averaged import break_ties
from hiddenstate.streams import stream

LEVEL = 0.05
SIZES = [(20, 20), (50, 50), (100, 400), (400, 100), (300, 300), (1000, 1000), (5000, 5000)]
RULES = [Averaged(), UniformBand(), UniformBand("dkw"), Split(), Bonferroni(), Fixed(0.5)]


def gaussian(rng, ins, outs):
    return rng.normal(size=ins) + 1, rng.normal(size=outs)


def weak(rng, ins, outs):
    return rng.normal(size=ins) + 0.5, rng.normal(size=outs)


def staircase(rng, ins, outs):
    return tuple(np.round(2 * scores) for scores in gaussian(rng, ins, outs))


def laplace(rng, ins, outs):
    return rng.laplace(size=ins) + 1, rng.laplace(size=outs)


def response(rng, ins, outs):
    truthful = 1 / (1 + np.exp(-1))
    return (rng.random(ins) < truthful) * 1.0, (rng.random(outs) > truthful) * 1.0


def atom(rng, ins, outs):
    """A score far out with probability 0.02, and a claim of that alone."""
    return np.where(rng.random(ins) < 0.02, 9.0, rng.normal(size=ins)), rng.normal(size=outs)


def atoms(rng, ins, outs):
    """Randomised response with two answers more, of probability 0.01, that give a world away."""
    worlds = response(rng, ins, outs)
    return tuple(
        np.where(rng.random(scores.shape) < 0.01, away, scores)
        for scores, away in zip(worlds, (2.0, -1.0), strict=True)
    )


def subsampled(rng, ins, outs, steps=1, q=0.1, sigma=0.5):
    """The log-likelihood ratio of all iterates of the subsampled Gaussian."""
    worlds = []
    for rate, shape in ((q, ins), (0, outs)):
        ratio = np.zeros(shape)
        for _ in range(steps):
            shown = rng.normal(size=shape) + (rng.random(shape) < rate) / sigma
            ratio += np.log1p(q * np.expm1(shown / sigma - 0.5 / sigma**2))
        worlds.append(ratio)
    return worlds


def ten_steps(rng, ins, outs):
    return subsampled(rng, ins, outs, steps=10, sigma=1.0)


def revealed(null):
    """Revealing with probability p: slope 1 - p, unlike that of the other direction."""
    curves = [TradeoffCurve(np.array([0.0, 1.0]), np.array([1 - p, 0.0])) for p in (0.02, 0.0201)]
    if null == "in":
        curves = [curve.inverse() for curve in curves]
    return Tabulated("p", [0.02, 0.0201], curves, null)


# name: how scores are drawn, the hypotheses they are judged by, and which of them is true.
MECHANISMS = {
    "Gaussian, mu 1": (gaussian, GaussianDP, 1.0),
    "Gaussian, mu 0.5": (weak, GaussianDP, 0.5),
    "staircase (rounded Gaussian)": (staircase, GaussianDP, 1.0),
    "Laplace": (laplace, lambda: ApproxDP(0.0), 1.0),
    "randomised response": (response, lambda: ApproxDP(0.0), 1.0),
    "randomised response with atoms": (atoms, lambda: ApproxDP(0.01), 1.0),
    "one step, null out": (subsampled, lambda: composed([0.5, 0.4995], 0.1, 1), 0.5),
    "one step, null in": (subsampled, lambda: composed([0.5, 0.4995], 0.1, 1, null="in"), 0.5),
    "ten steps, null out": (ten_steps, lambda: composed([1.0, 0.999], 0.1, 10), 1.0),
    "ten steps, null in": (ten_steps, lambda: composed([1.0, 0.999], 0.1, 10, null="in"), 1.0),
    "rare atom, null out": (atom, lambda: revealed("out"), 0.02),
    "rare atom, null in": (atom, lambda: revealed("in"), 0.02),
}


@cache
def hypotheses(mechanism):
    return MECHANISMS[mechanism][1]()


def shares(exceeding, mechanism, size, audits, rules, level=LEVEL):
    """Share of audits in which each rule claims more than the truth, on the same scores."""
    draw, _, truth = MECHANISMS[mechanism]
    block = max(1, 1_000_000 // max(size))
    found = np.zeros(len(rules))
    for start in range(0, audits, block):
        rng = stream(9, "exceedance", draw.__name__, *size, start)
        rows = min(block, audits - start)
        worlds = draw(rng, (rows, size[0]), (rows, size[1]))
        tossed = [replace(r, coins=start) if isinstance(r, Averaged) else r for r in rules]
        found += [exceeding(rule, *worlds, hypotheses(mechanism), truth, level) for rule in tossed]
    return found / audits


def allowed(audits, errors):
    return LEVEL + errors * math.sqrt(LEVEL * (1 - LEVEL) / audits)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_few_audits_of_every_mechanism_stay_at_the_level(mechanism, exceeding):
    """Detects an exceedance of 11 %; 68 % is what a curve read from the wrong axis has."""
    rules = [Averaged(simulations=2_000), UniformBand(), Split()]
    found = shares(exceeding, mechanism, (60, 90), 600, rules)
    assert found.max() <= allowed(600, 5)


@pytest.fixture(scope="module")
def worst():
    """Largest share of each mechanism and rule, printed in the end."""
    rows = {}
    yield rows
    table = pd.DataFrame(rows).T.map(lambda share: f"{100 * share:.1f} %")
    print("\n" + table.rename_axis("mechanism").to_markdown())


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_no_valid_rule_exceeds_the_level(mechanism, size, exceeding, worst):
    """4,000 audits a cell; a rule at 7 % fails (see below)."""
    found = shares(exceeding, mechanism, size, 4_000, RULES)
    names = [rule.name for rule in RULES]
    row = worst.setdefault(mechanism, dict.fromkeys(names, 0.0))
    row.update({name: max(row[name], share) for name, share in zip(names, found, strict=True)})
    assert found.max() <= allowed(4_000, 3), dict(zip(names, found, strict=True))


def test_the_study_fails_a_rule_two_points_above_the_level(exceeding):
    """The default at a nominal 8 %, which its certainty makes 7 %."""
    found = shares(exceeding, "Gaussian, mu 1", (50, 50), 4_000, [Averaged()], level=0.08)
    assert 0.06 < found < 0.085
    assert found > allowed(4_000, 3)


BROKEN = [19, 22, 45, 56, 60, 69]
"""Numbers of scores at which coins that the scores' ranks named refuted true claims, always."""


def constant(rng, shape):
    return np.zeros(shape), np.zeros(shape)


def rarely(delta):
    """+1 with this probability in world in, -1 in world out, 0 otherwise: (0, delta)-DP."""

    def draw(rng, shape):
        return (rng.random(shape) < delta) * 1.0, (rng.random(shape) < delta) * -1.0

    return draw


# name: how scores are drawn, the hypotheses, and the true claim that is judged.
TIED = {
    "constant, mu 0.02": (constant, GaussianDP(), 0.02),
    "constant, epsilon 0.1": (constant, ApproxDP(1e-5), 0.1),
    "(0, 0.001)-DP, epsilon 0": (rarely(1e-3), ApproxDP(1e-3), 0.0),
    "(0, 0.001)-DP, epsilon 0.1": (rarely(1e-3), ApproxDP(1e-3), 0.1),
    "(0, 0.01)-DP, epsilon 0": (rarely(0.01), ApproxDP(0.01), 0.0),
    "(0, 0.01)-DP, epsilon 0.1": (rarely(0.01), ApproxDP(0.01), 0.1),
}


def refuted(law, n, audits):
    """Share of audits of mostly equal scores that refute a true claim: default, and one look."""
    draw, claims, claim = TIED[law]
    index = int(np.argmax(claims.grid >= claim))
    worlds = draw(stream(10, "tied", law, n), (audits, n))
    default = Averaged(coins=n).contradicts(*worlds, claims, LEVEL, index)
    look = SequentialAudit(claims, claim, [n])
    standings = tuple(-side for side in break_ties(*worlds, n))
    statistic = next(iter(look._statistics([standings], look.sizes)))
    return float(default.mean()), float((statistic[:, 0] > look.critical).mean())


@pytest.mark.parametrize("n", BROKEN)
def test_mostly_equal_scores_refute_no_true_claim_too_often(n):
    """Five standard errors; coins that the ranks named refuted in 29 to 100 % of the audits."""
    assert max(refuted("(0, 0.001)-DP, epsilon 0", n, 2_000)) <= allowed(2_000, 5)


@pytest.mark.slow
@pytest.mark.parametrize("law", TIED)
def test_mostly_equal_scores_refute_no_true_claim_too_often_at_any_number(law):
    """Every number of scores from 5 to 200: 392 cells, so the largest has a p-value of its own."""
    sizes = range(5, 201)
    found = np.array([refuted(law, n, 4_000) for n in sizes])
    n, test = np.unravel_index(found.argmax(), found.shape)
    print(f"\n{law}: at most {found.max():.3f}, {('default', 'one look')[test]}, n {sizes[n]}")
    assert found.max() <= allowed(4_000, 3)
