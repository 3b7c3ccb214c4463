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
from functools import cache, partial
from itertools import product

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
    Guesses,
    SequentialAudit,
    Split,
    Tabulated,
    UniformBand,
    composed,
    guess,
    one_run_p_value,
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
    rules = [Averaged(simulations=2_000), *RULES[1:]]
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


NUMBERS = range(5, 401)
"""Scores in each world, or canaries, of the study of files."""


def by_hand(n, rule, worlds, claims, claim, coins):
    """Which audits refute a true claim by a rule with a bound."""
    if isinstance(rule, Averaged):
        index = int(np.argmax(claims.grid >= claim))
        return replace(rule, coins=coins).contradicts(*worlds, claims, LEVEL, index)
    tossed = replace(rule, coins=coins) if isinstance(rule, Split) else rule
    return tossed.bounds(*worlds, claims, LEVEL)[0] >= max(claim, claims.step)


@cache
def looking(claims, claim, looks):
    return SequentialAudit(claims, claim, looks, simulations=4_000)


def in_turn(n, looks, worlds, claims, claim, coins):
    """Which audits a sequential audit refutes a true claim in, at any look."""
    audit = looking(claims, claim, looks(n))
    standings = tuple(-side for side in break_ties(*worlds, coins))
    statistic = next(iter(audit._statistics([standings], audit.sizes)))
    return (statistic > audit.critical).any(axis=1)


def one_look(n):
    return (n,)


def three_looks(n):
    return tuple(sorted({max(2, n // 4), max(2, n // 2), n}))


# name of a rule: how it refutes, and with what.
REFUTING = {rule.name: (by_hand, rule) for rule in RULES} | {
    "one look": (in_turn, one_look),
    "three looks": (in_turn, three_looks),
}
FILES = {
    "constant, mu 0.02": (constant, GaussianDP(), 0.02),
    "(0, 0.01)-DP, epsilon 0": (rarely(0.01), ApproxDP(0.01), 0.0),
    "(0, 0.01)-DP, epsilon 0.1": (rarely(0.01), ApproxDP(0.01), 0.1),
    "rounded Gaussian, mu 1": (lambda rng, shape: staircase(rng, shape, shape), GaussianDP(), 1.0),
}


def sorted_by_score(worlds):
    """A file in the order of its scores, each audit's own; no look may be taken into it."""
    return tuple(np.sort(world, axis=-1) for world in worlds)


def files_refuted(n, law, rule, order, audits, seed):
    """Share of audits of files in this order that refute a true claim by this rule."""
    draw, claims, claim = FILES[law]
    refuting, how = REFUTING[rule]
    worlds = draw(stream(seed, "files", law, n), (audits, n))
    worlds = sorted_by_score(worlds) if order == "sorted" else worlds
    return float(np.mean(refuting(n, how, worlds, claims, claim, seed * 1_000 + n)))


# name: scores of canaries in an audit of one training, and a true claim.
ONE_RUN = {
    "constant, epsilon 0": (lambda rng, coins: np.zeros(len(coins)), ApproxDP(0.0), 0.0),
    "constant, mu 0.02": (lambda rng, coins: np.zeros(len(coins)), GaussianDP(), 0.02),
    "(0, 0.01)-DP, epsilon 0": (
        lambda rng, coins: (rng.random(len(coins)) < 0.01) * (2.0 * coins - 1),
        ApproxDP(0.01),
        0.0,
    ),
    "rounded Gaussian, mu 1": (
        lambda rng, coins: np.round(rng.normal(size=len(coins)) + coins),
        GaussianDP(),
        1.0,
    ),
}


@cache
def guesses_refute(m, made, correct, law):
    _, claims, claim = ONE_RUN[law]
    return one_run_p_value(Guesses(m, made, correct), claims, claim) <= LEVEL


def one_run_refuted(m, law, share, order, audits, seed, *, shared=None):
    """Share of audits of one training, sorted by the canaries' worlds or not, that refute.

    shared: a seed of coins for all audits; each has its own.
    """
    draw = ONE_RUN[law][0]
    rng = stream(seed, "one-run files", law, m)
    refuted = 0
    for audit in range(audits):
        coins = rng.random(m) < 0.5
        coins = np.sort(coins) if order == "sorted" else coins
        made = max(1, round(share * m))
        own = audits * seed + audit if shared is None else shared
        found = guess(draw(rng, coins), coins, made, coins=own)
        refuted += guesses_refute(m, made, found.correct, law)
    return refuted / audits


def cells(n):
    """Every law, rule and order of the study at this number, as a function of audits and seed."""
    for law, rule, order in product(FILES, REFUTING, ("drawn", "sorted")):
        # Looks into a sorted file are not what a sequential audit assumes.
        if not (order == "sorted" and rule == "three looks"):
            yield (law, rule, order), partial(files_refuted, n, law, rule, order)
    for law, share in product(ONE_RUN, (1.0, 0.5, 0.2)):
        yield (
            (law, f"one run, {share:g} guessed", "sorted"),
            partial(one_run_refuted, n, law, share, "sorted"),
        )


def worst_of(numbers, audits=1_000, again=16_000):
    """Each cell's largest share, its number, and those that are above the level twice.

    A cell above the level by two standard errors is audited again, sixteen times as often.
    """
    worst, above = {}, []
    for n in numbers:
        for cell, share in cells(n):
            found = share(audits, 1)
            if found > allowed(audits, 2):
                found = share(again, 2)
                if found > allowed(again, 3):
                    above.append((*cell, n, found))
            worst[cell] = max(worst.get(cell, (0.0, 0)), (found, n))
    return worst, above


@pytest.mark.whole
def test_no_rule_refutes_true_claims_too_often_from_tied_or_sorted_files():
    """Numbers at which shared coins refuted in 89 to 100 % of the audits; every rule."""
    assert worst_of([5, 24, 119], audits=300, again=4_000)[1] == []


@pytest.mark.whole
def test_the_study_finds_coins_that_everybody_shares():
    """One order of the canaries for each number of them, as of a seed of 0."""
    law = "constant, epsilon 0"
    shared = [one_run_refuted(m, law, 1.0, "sorted", 200, 1, shared=0) for m in range(20, 40)]
    assert max(shared) > allowed(200, 3)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_no_rule_refutes_too_often_at_any_number(part):
    """5 to 400 scores in each world, or canaries: 82 cells at each of 396 numbers."""
    worst, above = worst_of(NUMBERS[part::4])
    rows = [[*cell, f"{100 * share:.1f} %", n] for cell, (share, n) in worst.items()]
    names = ["law and claim", "rule", "order", "largest share", "number"]
    print("\n" + pd.DataFrame(rows, columns=names).to_markdown(index=False))
    assert above == []


@pytest.mark.slow
@pytest.mark.parametrize("law", TIED)
def test_mostly_equal_scores_refute_no_true_claim_too_often_at_any_number(law):
    """Every number of scores from 5 to 200: 392 cells, so the largest has a p-value of its own."""
    sizes = range(5, 201)
    found = np.array([refuted(law, n, 4_000) for n in sizes])
    n, test = np.unravel_index(found.argmax(), found.shape)
    print(f"\n{law}: at most {found.max():.3f}, {('default', 'one look')[test]}, n {sizes[n]}")
    assert found.max() <= allowed(4_000, 3)
