import numpy as np
import pytest

from hiddenstate.accounting import tradeoff
from hiddenstate.accounting.tradeoff import TradeoffCurve


@pytest.fixture
def gaussian_curve():
    """Tabulate the trade-off function of mu-Gaussian differential privacy."""

    def tabulate(mu):
        fpr = np.concatenate(([0.0], np.logspace(-12, -2, 200), np.linspace(0.01, 1, 400)[1:]))
        return TradeoffCurve(fpr, np.append(tradeoff.gaussian(mu, fpr[:-1]), 0.0))

    return tabulate


@pytest.fixture
def exceeding():
    """Count audits whose bound claims more than the truth."""

    def count(rule, ins, outs, hypotheses, truth, level=0.05):
        upward = hypotheses.trivial == 0
        grid = hypotheses.grid
        if hasattr(rule, "contradicts"):
            # A bound is beyond the truth if and only if the next hypothesis is rejected.
            beyond = int(np.argmax(grid > truth if upward else grid < truth))
            return int(rule.contradicts(ins, outs, hypotheses, level, beyond).sum())
        values, _ = rule.bounds(ins, outs, hypotheses, level)
        return int((values > truth if upward else values < truth).sum())

    return count
