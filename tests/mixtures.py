"""dp-accounting's privacy loss distributions of Gaussian mixtures, in a fraction of its time."""

from unittest import mock

import numpy as np
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, MixtureGaussianPrivacyLoss

_BY_DP_ACCOUNTING = MixtureGaussianPrivacyLoss._inverse_privacy_losses_with_range


def mixture(sigma, counts, weights, **options):
    """Of one step, as ``from_mixture_gaussian_mechanism`` makes it, with the same numbers."""
    with mock.patch.object(
        MixtureGaussianPrivacyLoss, "_inverse_privacy_losses_with_range", _inverses
    ):
        return privacy_loss_distribution.from_mixture_gaussian_mechanism(
            sigma, counts, weights, **options
        )


def _inverses(self, losses, bounds, precision=1e-6):
    """Its binary search at all losses at once: a call in Python for each took nearly all time."""
    if len(losses) == 1:
        return _BY_DP_ACCOUNTING(self, losses, bounds, precision)
    sign = -1.0 if self.adjacency_type == AdjacencyType.ADD else 1.0
    constants, sensitivities = self._precompute_privacy_loss_constants, self.sensitivities
    low, high = (np.full(len(losses), bound) for bound in bounds)
    open_ = np.flatnonzero(high - low > precision)
    while open_.size:
        middle = (low[open_] + high[open_]) / 2
        exponents = sensitivities[:, None] * middle / self._variance
        found = sign * np.logaddexp.reduce(constants[:, None] - sign * exponents)
        beyond = losses[open_] < found
        low[open_[beyond]], high[open_[~beyond]] = middle[beyond], middle[~beyond]
        open_ = open_[high[open_] - low[open_] > precision]
    return np.floor(high / precision) * precision
