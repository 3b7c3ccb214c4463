"""Checks of printed numbers alone: as printed, and with numbers that are a little wrong."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hiddenstate.accounting import gaussian
from hiddenstate.auditing.replication import AUDITS, Law
from hiddenstate.papers import load
from hiddenstate.papers.worst_case_init import stated
from hiddenstate.papers.worst_case_init.checks import arithmetic
from hiddenstate.papers.worst_case_init.stated import LAST_LAYER
from hiddenstate.pipeline.evidence import CONFIDENCE, Estimate, Evidence, Exact, Outcome, Within
from hiddenstate.study import claims

CLAIMS = Path(__file__).parents[3] / "workflow/config/claims/worst_case_init.yaml"
CHECKS = load("worst_case_init").checks
IDEAL = pd.DataFrame(
    [{"quantity": "ideal_epsilon", "method": "as published", "epsilon": 10.0, "delta": 1e-5}]
)
PRINTED = {
    "factor_of_three": Outcome.AGREES,
    "maxima_within": Outcome.AGREES,
    "last_layer_twice": Outcome.CONTRADICTS,
    "outside_deviations": Outcome.AGREES,
    "plausible": Outcome.AGREES,
}
OTHERWISE = {
    # What is printed, and what would turn it.
    "factor_of_three": ({"figure": "figure1", "task": "mnist", "case": "worst"}, 6.48, 7.01),
    "maxima_within": ({"figure": "figure5", "quantity": "maximum"}, 1.37, 1.41),
    "outside_deviations": ({"figure": "figure1", "task": "cifar10"}, 4.96, 1.2),
    "plausible": ({"figure": "figure5", "quantity": "maximum"}, 9.94, 12.5),
}


def printed_instead(monkeypatch, levels, printed, other):
    rows = stated.select(stated.STATED, value=printed, **levels)
    assert len(rows) == 1
    changed = stated.STATED.copy()
    changed.loc[rows.index, "value"] = other
    for module in (stated, arithmetic):
        monkeypatch.setattr(module, "STATED", changed)


@pytest.mark.parametrize("name", PRINTED)
def test_printed_numbers_come_out_as_they_are(name):
    assert CHECKS[name].measure(IDEAL).outcome == PRINTED[name]


@pytest.mark.parametrize("name", OTHERWISE)
def test_a_number_that_is_a_little_wrong_turns_the_check(monkeypatch, name):
    printed_instead(monkeypatch, *OTHERWISE[name])
    assert CHECKS[name].measure(IDEAL).outcome == Outcome.CONTRADICTS


def rival_of(check):
    (claim,) = (one for one in claims.read(CLAIMS) if one.check == check)
    (rival,) = (rival for reading in claim.readings for rival in reading.rivals)
    return rival


def test_factors_of_shares_are_not_all_three_as_the_claim_s_rival_says():
    factors = [(6.48 / 10) / (2.0 / 8), (4.96 / 10) / (1.6 / 8)]
    items = [Within("factor", Exact(factor), 2.5, 3.5) for factor in factors]
    assert Evidence(items).outcome == rival_of("factor_of_three").verdict == Outcome.CONTRADICTS
    assert "{:.2f} and {:.2f}".format(*factors) in rival_of("factor_of_three").choice


def test_the_ranges_of_mnist_overlap_at_epsilon_4_as_the_claim_s_rival_says():
    law = arithmetic._law(IDEAL, "mnist", 4.0)
    deviations = [law.audits[law.nearest(mean)].std(ddof=1) for mean in (1.89, 0.61)]
    gap = Estimate(1.89 - 0.61 - sum(deviations), math.hypot(*deviations) / math.sqrt(2 * AUDITS))
    outcome = Within("gap of the ranges", gap, low=0).judge(CONFIDENCE).outcome
    rival = rival_of("outside_deviations")
    assert rival.verdict == outcome == Outcome.CONTRADICTS
    words = "1.89 - {:.2f} against 0.61 + {:.2f}".format(*deviations)
    assert words in rival.choice and "overlap" in rival.choice


def test_one_number_that_is_printed_twice_alike_agrees(monkeypatch):
    for printed, other in ((8.30, 9.33), (7.69, 9.19)):
        levels = {"figure": "introduction", "task": LAST_LAYER}
        printed_instead(monkeypatch, levels, printed, other)
    assert CHECKS["last_layer_twice"].measure(IDEAL).outcome == Outcome.AGREES


def test_perfect_audits_publish_what_audits_at_the_largest_separation_do():
    law = Law(100, 1e-5, gaussian.mu(4.0, 1e-5))
    for statistic in ("mean", "maximum"):
        there = law.several(5, statistic, 3)[-1]
        assert np.allclose(law.perfect(5, statistic), there)
