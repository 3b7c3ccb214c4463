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
