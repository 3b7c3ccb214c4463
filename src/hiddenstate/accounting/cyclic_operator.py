"""How far one step of cyclic DP-SGD can push two iterates apart: its Lipschitz constant L.

The step is A(x) = x - step size * mean of the clipped gradients of a batch, and every loss f has
the curvature

    -(m/2) |x-y|^2 <= f(x) - f(y) - <grad f(y), x-y> <= (M/2) |x-y|^2

with weak convexity m >= 0 (m = 0: convex) and smoothness M >= 0. The privacy bounds of
``accounting.cyclic`` hold with any valid L >= 1 and improve as L falls. All constants are rounded
up. Averaging over a batch and a proximal step afterwards keep them valid.

Which constant applies is a matter of what clipping can do:

* ``unclipped``      clipping never acts, or cannot turn a gradient: every gradient norm is at most
                     the clipping norm, or the dimension is one, or every loss is
                     f(x) = l(<a, x>), with one output;
* ``clipped``        any other loss. Clipping a gradient turns differences of gradients, and in
                     two dimensions or more the step then expands even when every loss is convex;
* ``reconstructed``  what the paper states for both cases (equation 12, as Liang et al. have it);
                     above ``unclipped``, but not always above ``clipped``, so not always valid.
"""

import math

import numpy as np

from hiddenstate.errors import InputError, expect

_EPS = float(np.finfo(float).eps)


def unclipped(step_size: float, weak_convexity: float, smoothness: float) -> float:
    """Lipschitz constant of the step where clipping cannot turn a gradient (exact, rounded up).

    L = max(1 + step m, |1 - step M|), which is 1 + step m if step (M - m) <= 2.

    Proof: the step is the gradient step of a function with curvature between 1 - step M and
    1 + step m; clipping a scalar slope keeps its derivative between -m and M.
    """
    _check(step_size, weak_convexity, smoothness)
    if weak_convexity == 0 and step_size * smoothness <= 2:
        return 1.0
    return _up(max(1 + step_size * weak_convexity, abs(1 - step_size * smoothness)))


def clipped(step_size: float, weak_convexity: float, smoothness: float) -> float:
    """Lipschitz constant of the step for any clipped loss (exact in dimension >= 2, rounded up).

    With D = M - m and A = 1 + step m M / D it is sqrt(A / (1 - step D / 4)) if the worst gradient
    difference D sqrt(A / (4 - step D)) is at least m, and 1 + step m otherwise (for small steps:
    if M < 3 m). Convex losses, m = 0, give 1 / sqrt(1 - step M / 4) > 1.

    Proof: clipping is a projection, hence firmly nonexpansive, so a clipped gradient difference
    lies in the ball with the gradient difference g as its diameter, and
    |d - step Clip(g)| <= |d - step g/2| + step |g|/2; co-coercivity (the paper's Lemma 3.2) bounds
    <g, d> below by (|g|^2 - mM) / D, and the maximum over |g| is the constant. In the plane a
    gradient just above the clipping norm attains it.

    Raises an input error unless step (M + m) <= 1.
    """
    _check(step_size, weak_convexity, smoothness)
    _check_small(step_size, weak_convexity, smoothness)
    m, spread = weak_convexity, smoothness - weak_convexity
    # The squared worst gradient difference, written so that it is continuous at M = m.
    worst = spread * (spread + step_size * m * smoothness) / (4 - step_size * spread)
    if spread <= 0 or worst < m * m:
        return _up(1 + step_size * m)
    return _up(math.sqrt((1 + step_size * m * smoothness / spread) / (1 - step_size * spread / 4)))


def logistic(step_size: float, feature_norm: float, classes: int) -> float:
    """Lipschitz constant of the step on clipped logistic regression (rounded up).

    feature_norm: the largest norm of a record's features, with a 1 for a bias. The smoothness is
    half its square. Two classes are one output, f(x) = l(<a, x>): 1 if step M <= 2 (``unclipped``).
    More of them are not, and a clipped step then expands (``expanding_clip.SoftmaxPair``):
    ``clipped`` holds. Raises an input error where that has no constant.
    """
    expect(0 < feature_norm < math.inf, "feature_norm", feature_norm, "a positive number")
    expect(classes >= 2, "classes", classes, "a whole number >= 2")
    smoothness = feature_norm * feature_norm / 2  # a power would raise where it overflows
    return (unclipped if classes == 2 else clipped)(step_size, 0.0, smoothness)


def contraction(step_size: float, strong_convexity: float, smoothness: float) -> float:
    """Lipschitz constant c of the step on strongly convex losses NEVER clipped (rounded up).

    c = max(1 - step kappa, |1 - step M|) for strong convexity kappa. Clipped gradients do not
    contract, whatever the dimension, so every gradient norm must be at most the clipping norm
    wherever iterates can be. Raises an input error unless 0 <= kappa <= M and c <= 1.
    """
    _check(step_size, 0.0, smoothness)
    expect(
        0 <= strong_convexity <= smoothness,
        "strong_convexity",
        strong_convexity,
        f"from 0 to smoothness = {smoothness:g}",
    )
    factor = max(1 - step_size * strong_convexity, abs(1 - step_size * smoothness))
    most = 2 / (smoothness or math.inf)
    expect(factor <= 1, "step_size", step_size, f"at most 2 / smoothness = {most:.6g}")
    # Added, not multiplied: 1 - step kappa has the rounding error of 1, however small it is.
    return min(1.0, max(factor, LEAST) + 8 * _EPS)


LEAST = 1e-9
"""The least Lipschitz constant that is told from 0, which a step of 1 / both curvatures has."""


def reconstructed(step_size: float, weak_convexity: float, smoothness: float) -> float:
    """The paper's Lipschitz constant, equation 12 (rounded up).

    Reconstructed by us, and confirmed by the public code of Liang et al. 2025 (arXiv 2502.17772),
    which draws the bound for comparison; another commit of it has sqrt(2) times this.

    L = sqrt(1 + 2 step m (1 + m / (2 (M + m)))). It is at least ``unclipped`` on its domain,
    step (M + m) <= 1, with equality at the end; an input error is raised outside. Where clipping
    is active in two dimensions or more it may lie below ``clipped`` and is then not valid.
    """
    _check(step_size, weak_convexity, smoothness)
    _check_small(step_size, weak_convexity, smoothness)
    if weak_convexity == 0:
        return 1.0
    m = weak_convexity
    return _up(math.sqrt(1 + 2 * step_size * m * (1 + m / (2 * (smoothness + m)))))


def trivial(step_size: float, weak_convexity: float, smoothness: float) -> float:
    """Lipschitz constant from the triangle inequality alone: 1 + step max(m, M) (rounded up)."""
    _check(step_size, weak_convexity, smoothness)
    return _up(1 + step_size * max(weak_convexity, smoothness))


def clipped_or_trivial(step_size: float, weak_convexity: float, smoothness: float) -> float:
    """``clipped``, or ``trivial`` where steps are too large for it."""
    try:
        return clipped(step_size, weak_convexity, smoothness)
    except InputError:
        return trivial(step_size, weak_convexity, smoothness)


def _check(step_size: float, weak_convexity: float, smoothness: float) -> None:
    expect(0 < step_size < math.inf, "step_size", step_size, "a positive number")
    expect(0 <= weak_convexity < math.inf, "weak_convexity", weak_convexity, "a number >= 0")
    expect(0 <= smoothness < math.inf, "smoothness", smoothness, "a number >= 0")


def _check_small(step_size: float, weak_convexity: float, smoothness: float) -> None:
    # The slack of a few units in the last place is covered by rounding up.
    expect(
        step_size * (smoothness + weak_convexity) <= 1 + 4 * _EPS,
        "step_size",
        step_size,
        f"at most 1 / (smoothness + weak_convexity) = "
        f"{1 / ((smoothness + weak_convexity) or math.inf):.6g}",
    )


def _up(value: float) -> float:
    """``value`` moved up by more than the rounding error of the few operations behind it."""
    return value * (1 + 8 * _EPS)
