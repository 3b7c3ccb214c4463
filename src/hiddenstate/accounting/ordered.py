"""Linear losses in an order of batches: what is released is a weighted sum, bracketed.

A swapped record's gradient turns round, so what is released moves by 2 S, S being the sum of the
weights of the steps that visit the record, against noise of deviation sigma |w|
(``weighted.optimiser_weights``). In a fixed order that is a Gaussian mechanism, exactly. In an
order that is drawn S is drawn with it: delta is at most the mean of the deltas over the orders,
whatever the other records are, and at least what a threshold on the release tells where they are
silent. The two meet where all orders have the same S, as plain SGD has in whole passes.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from hiddenstate.accounting import arguments, divergence, gaussian
from hiddenstate.accounting.composition import Bracket
from hiddenstate.accounting.setting import Setting
from hiddenstate.errors import expect
from hiddenstate.rounding import counted

Floats = NDArray[np.float64]

CELLS = 1 << 12
"""Sums that an order drawn in each epoch is rounded to."""

MOST_SUMS = 1 << 20
"""Steps whose weights are added up on the grid."""

MOST_STEPS = 10**8
"""Beyond, the steps' weights would take gigabytes."""

MOST_RELEASED = 10**6
"""Steps, and batches of an epoch, where some iterates are released; more take minutes."""

MEANS = 300
"""Sums whose deltas are averaged."""

ROUNDED = 1e-9
"""Relative error of an exact epsilon."""
SURE = 1 - 1e-14
"""Room for rounding of a probability that another one, or delta, may be as large as."""


def epsilon(setting: Setting, delta: float) -> Bracket:
    """Bracket on epsilon of what is released of linear losses at the record that shows most.

    Raises an input error for batches that are sampled, and for too many steps.
    """
    if setting.release_every is not None:
        return _released(setting, setting.release_every, delta)
    arguments.check_steps(setting.steps, MOST_STEPS)
    weights = setting.weights if setting.changed else np.ones(setting.steps)
    noise = setting.noise_multiplier * float(np.linalg.norm(weights))
    whole = setting.steps_per_pass
    folded = np.zeros((-(-len(weights) // whole), whole))
    folded.ravel()[: len(weights)] = weights
    sums = folded.sum(axis=0)
    if not setting.shuffled:
        return _exact(2 * float(sums.max()) / noise, delta)
    shares, out = _shares(setting), setting.sitting_out
    if out:
        # A record that sits out is in a batch of weight 0.
        folded = np.column_stack((folded, np.zeros(len(folded))))
        shares = np.append(shares * (1 - out), out)
    if np.ptp(folded, axis=1).max() == 0 or (not setting.redrawn and np.ptp(sums) == 0):
        return _exact(2 * float(sums.mean()) / noise, delta)
    if not setting.redrawn:
        return Bracket(_least(sums, shares, noise, delta), _most(sums, shares, noise, delta))
    expect(len(weights) <= MOST_SUMS, "steps", len(weights), f"at most {MOST_SUMS:,}")
    lower = _least(*_drawn(folded, shares, up=False), noise, delta)
    upper = _most(*_drawn(folded, shares, up=True), noise, delta)
    largest = _exact(2 * float(folded.max(axis=1).sum()) / noise, delta)
    return Bracket(lower, max(lower, min(upper, largest.upper)))


def _released(setting: Setting, every: int, delta: float) -> Bracket:
    """Where every so manieth iterate is released, and the last.

    Each shows the weighted sum of the steps since the one before: independent Gaussian mechanisms.
    """
    whole, steps = setting.steps_per_pass, setting.steps
    arguments.check_steps(steps, MOST_RELEASED)
    words = f"a size of at most {MOST_RELEASED:,} batches an epoch where some iterates are released"
    expect(whole <= MOST_RELEASED, "batch_size", setting.batch_size, words)
    starts = np.arange(0, steps, every)
    lengths = np.diff(np.append(starts, steps))
    if setting.redrawn:
        fine = steps % whole == 0 and (every % whole == 0 or whole % every == 0)
        words = (
            f"a divisor or a multiple of the {counted(whole, 'batch')} of an epoch, in whole epochs"
        )
        expect(fine, "release_every", every, words)
    # Visits between two releases to the first batch, the second and so on.
    visited = np.arange(steps)
    visited = visited // every * whole + visited % whole
    visited, visits = np.unique(visited, return_counts=True)
    shown = (2 * visits / setting.noise_multiplier) ** 2 / lengths[visited // whole]
    squares = np.bincount(visited % whole, weights=shown, minlength=whole)
    if not setting.shuffled or np.ptp(squares) <= 1e-12 * squares.max():
        exact = _exact(math.sqrt(squares.max()), delta)
        # At most, where the record may sit out, or what is released shows no place of its own.
        hidden = setting.sitting_out or (setting.shuffled and every % whole != 0)
        return exact._replace(lower=0.0) if hidden else exact
    upper = divergence.averaged_epsilon(squares / 2, _shares(setting), delta)
    return Bracket(0.0, upper)


def _exact(mu: float, delta: float) -> Bracket:
    return Bracket(*gaussian.bracket(mu, delta, share=ROUNDED))


def _shares(setting: Setting) -> Floats:
    """Probability of each position in an epoch, shape (steps of a pass,)."""
    size, records = setting.batch_size, setting.records
    assert size is not None and records is not None
    ends = np.minimum(np.arange(1, setting.steps_per_pass + 1) * size, records)
    return np.diff(ends, prepend=0.0) / ends[-1]


def _drawn(folded: Floats, shares: Floats, *, up: bool) -> tuple[Floats, Floats]:
    """Sums of a weight an epoch, each drawn with the shares, and their probabilities."""
    expect(len(folded) < CELLS // 2, "epochs", len(folded), f"fewer than {CELLS // 2:,}")
    top = float(folded.max(axis=1).sum())
    # Each epoch may round up by a cell, so as many cells stay free at the end.
    h = top / (CELLS - 1 - len(folded))
    # Larger sums show more: up for an upper bound. The factor covers the division's rounding.
    points = (np.ceil if up else np.floor)(folded / h * (1 + (1e-12 if up else -1e-12)))
    masses = np.zeros(CELLS)
    masses[0] = 1.0
    for row in points.astype(int):
        before, masses = masses, np.zeros(CELLS)
        for point, share in zip(*_merged(row, shares), strict=True):
            masses[point:] += share * before[: CELLS - point]
    kept = np.flatnonzero(masses)
    sums: Floats = np.multiply(h, kept)
    return sums, masses[kept] / masses[kept].sum()


def _merged(points: NDArray[np.int64], shares: Floats) -> tuple[list[int], list[float]]:
    values, places = np.unique(points, return_inverse=True)
    return values.tolist(), np.bincount(places, weights=shares).tolist()


def _most(sums: Floats, shares: Floats, noise: float, delta: float) -> float:
    """Upper bound: the mean of the deltas, of sums rounded up to a few."""
    order = np.argsort(sums)
    sums, shares = sums[order], shares[order]
    edges = np.linspace(sums[0], sums[-1], MEANS + 1)[1:]
    edges[-1] = sums[-1]
    bins = np.searchsorted(edges, sums)
    masses = np.bincount(bins, weights=shares, minlength=MEANS)
    some = masses > 0
    mus = 2 * edges[some] / noise * (1 + 1e-12)
    return divergence.averaged_epsilon(mus**2 / 2, masses[some] / masses[some].sum(), delta)


def _least(sums: Floats, shares: Floats, noise: float, delta: float) -> float:
    """Lower bound: the best threshold on the release, others silent (rounded down)."""
    reach = float(sums.max()) / noise + 10
    best, centre, width = 0.0, 0.0, reach
    # Any threshold gives a valid bound.
    for _ in range(3):
        grid = centre + np.linspace(-width, width, 401)
        there = ndtr(sums / noise - grid[:, None]) @ shares * SURE
        gone = ndtr(-sums / noise - grid[:, None]) @ shares
        # Rarer outputs have too few digits.
        telling = (there > delta) & (gone > 1e-290)
        if not telling.any():
            return best
        shown = np.full(len(grid), -math.inf)
        shown[telling] = np.log((there[telling] - delta) / gone[telling])
        best = max(best, float(shown.max()))
        # Two steps of the grid on either side of the best.
        centre, width = float(grid[int(np.argmax(shown))]), width / 100
    return max(0.0, best * (1 - ROUNDED))
