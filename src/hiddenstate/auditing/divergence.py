"""Certified Rényi divergences from decisions on runs with and without the canary."""

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from hiddenstate.auditing.intervals import clopper_pearson_upper
from hiddenstate.errors import check_count, expect

Order = Literal[1, 2]
"""Order of a Rényi divergence; 1 is the Kullback-Leibler divergence."""


def bernoulli(p: float, q: float, order: Order) -> float:
    """Rényi divergence of order 1 or 2 of Bernoulli(p) from Bernoulli(q), in nats, rounded down.

    p: probability from 0 to 1. q: between 0 and 1.
    """
    expect(0 <= p <= 1, "p", p, "in [0, 1]")
    expect(0 < q < 1, "q", q, "in (0, 1)")
    expect(order in (1, 2), "order", order, "1 or 2")
    apart = p - q
    if order == 2:
        return math.log1p(apart / q * (apart / (1 - q))) * (1 - 1e-9)
    found = -_relative(p, q, -apart) - _relative(1 - p, 1 - q, apart)
    return max(0.0, found * (1 - 1e-9) - 2e-15 * abs(apart))  # for terms of this size cancel


def _relative(p: float, q: float, apart: float) -> float:
    """p log(q / p), where q = p + ``apart``: their own difference would have lost its digits."""
    if p == 0:
        return 0.0
    return p * (math.log1p(apart / p) if abs(apart) < p / 2 else math.log(q / p))


def certified(
    in_calls: ArrayLike,
    out_calls: ArrayLike,
    order: Order,
    *,
    failure_probability: float,
    certificates: int = 1,
) -> float:
    """Lower bound on the Rényi divergence of in-runs from out-runs, in nats (rounded down).

    in_calls, out_calls: whether each run was called "in", by a rule fixed before any run. The two
    rates are bounded by Clopper and Pearson, and a divergence is at least that of the calls (data
    processing); 0 if the calls prove none. certificates: how many pairs of samples are examined in
    all, among which a reader may choose the largest: all of them hold at once except for
    ``failure_probability``, for both orders, as each pair has its share (union bound).
    """
    expect(0 < failure_probability < 1, "failure_probability", failure_probability, "in (0, 1)")
    check_count("certificates", certificates)
    for name, calls in (("in_calls", in_calls), ("out_calls", out_calls)):
        masked = int(np.ma.count_masked(calls))
        expect(not masked, name, masked, "no masked calls")
    inside, outside = np.asarray(in_calls), np.asarray(out_calls)
    for name, calls in (("in_calls", inside), ("out_calls", outside)):
        expect(calls.ndim == 1 and calls.size > 0, name, calls.shape, "shape (runs,), runs >= 1")
        fine = calls.dtype.kind in "biuf" and bool(np.isin(calls, (0, 1)).all())
        expect(fine, name, calls[:5], "True or False for each run")
    inside, outside = inside.astype(bool), outside.astype(bool)
    # Each certificate needs two rates to be within their bounds.
    share = failure_probability / certificates / 2
    p = 1 - float(clopper_pearson_upper(np.sum(~inside), inside.size, share))
    q = float(clopper_pearson_upper(np.sum(outside), outside.size, share))
    return bernoulli(p, q, order) if p > q else 0.0
