import math

import numpy as np
import pytest
from scipy import optimize, stats

from hiddenstate.papers.gradient_crafting import summaries
from hiddenstate.streams import stream


def literal_epsilon(mu, delta):
    """Root of the Gaussian mechanism's delta, as printed (Balle and Wang 2018)."""
    if mu <= 0:
        return 0.0

    def excess(epsilon):
        a = stats.norm.cdf(-epsilon / mu + mu / 2)
        b = math.exp(epsilon + stats.norm.logcdf(-epsilon / mu - mu / 2))
        return a - b - delta

    return optimize.brentq(excess, 0, 100) if excess(0) > 0 else 0.0


def literal_estimate(inside, outside, delta):
    """The published estimate, threshold by threshold."""
    best = 0.0
    for threshold in np.unique(np.concatenate((inside, outside))):
        errors = []
        for count, n in (
            ((outside >= threshold).sum(), len(outside)),
            ((inside < threshold).sum(), len(inside)),
        ):
            errors.append(1.0 if count == n else stats.beta.ppf(0.975, count + 1, n - count))
        best = max(best, stats.norm.ppf(1 - errors[0]) - stats.norm.ppf(errors[1]))
    return literal_epsilon(best, delta)


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_an_audit_s_readings_are_the_literal_ones(mu):
    rng = stream(1, "audit", str(mu))
    inside, outside = rng.normal(mu, 1, 300), rng.normal(0, 1, 300)
    rows = {(r["quantity"], r["method"]): r for r in summaries.audit(inside, outside, 1e-5)}
    published = rows["epsilon", "as published"]
    assert published["kind"] == "estimate"
    assert published["value"] == pytest.approx(literal_estimate(inside, outside, 1e-5), abs=1e-4)
    assert rows["epsilon", "valid"]["kind"] == "lower"
    plug = rows["mu", "plug-in"]
    assert plug["low"] < mu < plug["high"] or abs(plug["value"] - mu) < 0.3
    assert rows["epsilon", "plug-in"]["value"] == pytest.approx(
        literal_epsilon(plug["value"], 1e-5), abs=1e-6
    )


def test_the_standard_error_of_the_separation_is_its_spread():
    rng = stream(2, "separation")
    found = [summaries.separation(rng.normal(2, 1, 400), rng.normal(0, 1, 400)) for _ in range(400)]
    values, errors = np.array(found).T
    # The standard deviation of 400 draws is known to 3.5 %.
    assert values.std() == pytest.approx(errors.mean(), rel=0.15)
    assert values.mean() == pytest.approx(2, abs=0.02)
