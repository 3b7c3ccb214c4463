"""DP-SGD whose intermediate iterates are released, by Rényi differential privacy.

Looser than privacy loss distributions at every setting, but what most published epsilons were
computed with, so they can be recognised. Source: Mironov, Talwar and Zhang 2019 (arXiv 1908.10530),
with the conversion to (epsilon, delta) of Canonne, Kamath and Steinke 2020 (Proposition 12).
"""

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hiddenstate.accounting import linear
from hiddenstate.errors import InputError


def epsilon(
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    delta: float,
    *,
    orders: Sequence[float] | None = None,
) -> float:
    """Upper bound on epsilon at ``delta`` by dp-accounting's RDP accountant (add/remove).

    orders: Rényi orders above 1; dp-accounting's own by default. Raises InputError on a value out
    of range and where no order bounds epsilon.
    """
    linear.check_mechanism(noise_multiplier, sampling_rate, steps)
    linear.check_delta(delta)
    if orders is not None and not (len(orders) and all(order > 1 for order in orders)):
        raise InputError(f"orders: got {list(orders)}; expected numbers above 1")
    # Imported here because it takes a second and most commands never account.
    from dp_accounting import dp_event
    from dp_accounting.rdp import rdp_privacy_accountant

    step: dp_event.DpEvent = dp_event.GaussianDpEvent(noise_multiplier)
    if sampling_rate < 1:
        step = dp_event.PoissonSampledDpEvent(sampling_rate, step)
    accountant = rdp_privacy_accountant.RdpAccountant(orders)
    with _quiet():
        accountant.compose(dp_event.SelfComposedDpEvent(step, int(steps)))
    value = float(accountant.get_epsilon(delta))
    if not math.isfinite(value):
        raise InputError(
            f"noise_multiplier: got {noise_multiplier}; expected more noise, as no order of "
            "Rényi differential privacy bounds epsilon here"
        )
    return value


@contextmanager
def _quiet() -> Iterator[None]:
    """No warnings of orders that do not converge: without them the bound is looser, yet valid."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
