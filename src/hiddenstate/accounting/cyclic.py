"""Cyclic DP-SGD whose last iterate alone is released: upper bounds on its Rényi divergence.

The mechanism is Algorithm 1 of Kong and Ribero (arXiv:2407.05237): batches are visited in a fixed
cyclic order, and the step is

    x <- prox_h(x - step_size * mean of the clipped gradients + N(0, noise_std^2 I)),

so the noise is added to the displacement, not to the gradient, and h is convex. Neighbouring data
sets differ in one record, which is swapped. Every bound is a number ``rho`` that bounds the Rényi
divergence of every order alpha > 1, in nats, in both directions:

    D_alpha(last iterate || neighbour's last iterate) <= alpha * rho,

rounded up. The bounds that use a Lipschitz constant L of the step hold for every valid one; see
``accounting.cyclic_operator`` for which is. The paper's displayed formulas are lost to us: a
docstring says "our reconstruction" where form or constant were inferred, and "derived" where the
bound is proved from scratch and holds whatever the paper's constant was.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hiddenstate.accounting import cyclic_operator
from hiddenstate.accounting.cyclic_operator import expect


@dataclass(frozen=True, kw_only=True)
class CyclicDPSGD:
    """Cyclic DP-SGD, its losses' curvature, and where in the pass the swapped record sits."""

    steps: int
    """Steps T in all."""
    steps_per_pass: int
    """Steps ell in a pass over the data: records / batch size."""
    batch_size: int
    """Records b in a batch."""
    step_size: float
    """Step size lambda."""
    clipping_norm: float
    """Clipping norm C of a record's gradient."""
    noise_std: float
    """Standard deviation sigma of the noise on the displacement, per coordinate."""
    weak_convexity: float = 0.0
    """Weak convexity m of every loss; 0 means convex."""
    smoothness: float = 0.0
    """Smoothness (upper curvature) M of every loss."""
    position: int = 1
    """First step t*, from 1 to ``steps_per_pass``, whose batch holds the swapped record."""

    def __post_init__(self) -> None:
        for name in ("steps", "steps_per_pass", "batch_size", "position"):
            value = getattr(self, name)
            whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
            expect(whole and value >= 1, name, value, "a whole number >= 1")
        for name in ("step_size", "clipping_norm", "noise_std"):
            expect(0 < getattr(self, name) < math.inf, name, getattr(self, name), "a number > 0")
        for name in ("weak_convexity", "smoothness"):
            expect(0 <= getattr(self, name) < math.inf, name, getattr(self, name), "a number >= 0")
        expect(
            self.position <= self.steps_per_pass,
            "position",
            self.position,
            f"at most steps_per_pass = {self.steps_per_pass}",
        )

    @property
    def passes(self) -> int:
        """Whole passes E."""
        return self.steps // self.steps_per_pass

    @property
    def visits(self) -> int:
        """Steps V whose batch holds the swapped record."""
        return max(0, (self.steps - self.position) // self.steps_per_pass + 1)

    @property
    def hidden_steps(self) -> int:
        """Steps r from the last visit to the end, the visit's own included; 0 without a visit."""
        return (self.steps - self.position) % self.steps_per_pass + 1 if self.visits else 0

    @property
    def displacement(self) -> float:
        """Largest distance s = 2 lambda C / b between the two worlds' steps at a visit."""
        return 2 * self.step_size * self.clipping_norm / self.batch_size

    @property
    def curvature(self) -> tuple[float, float, float]:
        """Step size, weak convexity and smoothness: the arguments of a Lipschitz constant."""
        return self.step_size, self.weak_convexity, self.smoothness


# --- what remains of a shift ----------------------------------------------------------------------


def visible_fraction(lipschitz: float, steps: ArrayLike) -> NDArray[np.float64]:
    """Fraction theta_L(s) of a squared shift that s noisy steps cannot hide (exact, broadcast).

    theta_L(s) = (1 - L^-2) / (1 - L^-2s); theta_1(s) = 1/s; theta_L(0) = 0. It is 1 at s = 1,
    falls with s to 1 - L^-2 and rises with L. Accurate to a few units in the last place for every
    L >= 1 and any number of steps. Source: the paper's equation 6 (derived).
    """
    _check_lipschitz(lipschitz)
    steps = np.asarray(steps, dtype=float)
    expect(bool(np.all(steps >= 0)), "steps", float(steps.min(initial=0.0)), "numbers >= 0")
    rate = 2 * math.log1p(lipschitz - 1)
    positive = np.maximum(steps, 1)
    theta = np.expm1(-rate) / np.expm1(-rate * positive) if rate > 0 else 1 / positive
    return np.where(steps > 0, theta, 0.0)


def minimal_steps(lipschitz: float, excess: float) -> int:
    """Fewest steps s from which theta_L(s) <= excess * (1 - L^-2), for excess xi > 1 and L > 1.

    Source: the paper's Lemma C.1: s >= ln(xi / (xi - 1)) / (2 ln L).
    """
    expect(1 < lipschitz < math.inf, "lipschitz", lipschitz, "a number > 1")
    expect(1 < excess < math.inf, "excess", excess, "a number > 1")
    return math.ceil(math.log(excess / (excess - 1)) / (2 * math.log1p(lipschitz - 1)))


# --- general sequences of noisy Lipschitz steps ---------------------------------------------------


def proposition_2_2a(run: CyclicDPSGD, lipschitz: float, initial_shift: float = 0.0) -> float:
    """Upper bound on rho of noisy L-Lipschitz steps that differ once a pass, from its first step.

    With shift tau >= 0 between the starting points, s the displacement and E whole passes,

        rho = [(L tau + s)^2 theta(ell) + s^2 ((E - 1) theta(ell) + theta(T - E ell))] / 2 sigma^2,

    and (L tau + s)^2 theta(T) / 2 sigma^2 before the first pass ends. Raises an input error unless
    the swapped record has position 1. Source: the paper's Proposition 2.2(a), equation 7 (derived
    from its proof: Lemma A.3(a) for each pass, added up).
    """
    expect(run.position == 1, "position", run.position, "1, as the proposition is stated")
    _check_shift("initial_shift", initial_shift)
    s, theta = run.displacement, lambda steps: float(visible_fraction(lipschitz, steps))
    first = (lipschitz * initial_shift + s) ** 2
    if run.passes == 0:
        return _rho(first * theta(run.steps), run)
    rest = run.steps - run.passes * run.steps_per_pass
    later = s**2 * ((run.passes - 1) * theta(run.steps_per_pass) + theta(rest))
    return _rho(first * theta(run.steps_per_pass) + later, run)


def proposition_2_2b(run: CyclicDPSGD, residual: float, initial_shift: float = 0.0) -> float:
    """Upper bound on rho of noisy steps with |A(x) - A(y)| <= |x - y| + residual.

    rho = [(tau + zeta + s)^2 + (T - 1) (zeta + s)^2] / 2 sigma^2 for residual zeta and initial
    shift tau: each step's noise hides the whole shift. Derived; the form of the paper's
    Proposition 2.2(b), equation 8, is our reconstruction.
    """
    _check_shift("residual", residual)
    _check_shift("initial_shift", initial_shift)
    each = residual + run.displacement
    return _rho((initial_shift + each) ** 2 + (run.steps - 1) * each**2, run)


def quadratic_programme(run: CyclicDPSGD, lipschitz: float, initial_shift: float = 0.0) -> float:
    """Least rho that shift reduction can prove with this L (exact optimum, rounded up).

    Shift reduction spends a_t >= 0 of the shift R_t = L R_(t-1) + injected_t - a_t >= 0 on the
    noise of step t, at a price of a_t^2 / 2 sigma^2, and must end at R_T = 0; the visits inject
    the displacement. The paper solves this for one pass (appendix B). Over the whole horizon the
    optimum starts afresh at some visits; between them it is the one-pass solution, so it is found
    by pooling neighbouring stretches while the later one would spend less (pool-adjacent-violators,
    linear time). Without an initial shift no stretches pool and the result is ``sharp``.
    """
    _check_lipschitz(lipschitz)
    _check_shift("initial_shift", initial_shift)
    first = min(run.position - 1, run.steps)
    stretches = [(lipschitz * initial_shift, first)] if initial_shift and first else []
    for visit in range(run.visits):
        carried = lipschitz * initial_shift if visit == first == 0 else 0.0
        last = visit == run.visits - 1
        length = run.hidden_steps if last else run.steps_per_pass
        stretches.append((carried + run.displacement, length))
    log_l = math.log1p(lipschitz - 1)
    # A stretch of n steps that must hide a shift c, counted at its first step, spends
    # c theta(n) L^(1-t) at its step t. Optimal spending never falls by more than a factor L a step.
    pool: list[tuple[float, int, float]] = []
    for shift, length in stretches:
        theta = float(visible_fraction(lipschitz, length))
        while pool and pool[-1][0] * pool[-1][2] * math.exp(-log_l * pool[-1][1]) > shift * theta:
            earlier, steps, _ = pool.pop()
            shift = earlier + shift * math.exp(-log_l * steps)
            length += steps
            theta = float(visible_fraction(lipschitz, length))
        pool.append((shift, length, theta))
    return _rho(math.fsum(shift**2 * theta for shift, _, theta in pool), run)


# --- bounds for cyclic DP-SGD ---------------------------------------------------------------------


def composition(run: CyclicDPSGD) -> float:
    """Upper bound on rho when all iterates are released: V Gaussian mechanisms composed.

    rho = V * 2 (lambda C / (b sigma))^2. It needs no assumption on the losses.
    """
    return _rho(run.visits * run.displacement**2, run)


def triangle_inequality(run: CyclicDPSGD) -> float:
    """Upper bound on rho from the last step's noise alone: 2 T^2 (lambda C / sigma)^2.

    Two runs are never further apart than 2 lambda C T, since every step is clipped. The paper's
    "naive bound" (our reconstruction of the constant).
    """
    return _rho((2 * run.step_size * run.clipping_norm * run.steps) ** 2, run)


def theorem_4_3(run: CyclicDPSGD) -> float:
    """Upper bound on rho without any curvature: 2 T (lambda C / sigma)^2 (1 + 1/b)^2.

    Proposition 2.2(b) with residual 2 lambda C, which clipping grants every loss. The order in T,
    lambda, C and sigma is the paper's Theorem 4.3, equation 18; the constant is our
    reconstruction. ``composition`` is never larger.
    """
    return proposition_2_2b(run, 2 * run.step_size * run.clipping_norm)


def theorem_4_4(run: CyclicDPSGD, lipschitz: float, diameter: float) -> float:
    """Upper bound on rho when the domain of h has this diameter: (L d + s)^2 / 2 sigma^2.

    Proposition 2.2(a) restarted before the last step, taken as a visit; no number of steps makes
    it grow. Derived; the form of the paper's Theorem 4.4, equation 20, is our reconstruction.
    """
    _check_lipschitz(lipschitz)
    _check_shift("diameter", diameter)
    return _rho((lipschitz * diameter + run.displacement) ** 2, run)


def bounded_domain(run: CyclicDPSGD, lipschitz: float, diameter: float) -> float:
    """Upper bound on rho for a domain of this diameter: best restart (derived, below Theorem 4.4).

    Two iterates are never further apart than the diameter d, so the analysis may begin anywhere
    with the shift d: before the visit that is followed by j more, at
    [(L d + s)^2 theta + s^2 (later passes)] / 2 sigma^2, or after the last visit, at
    (L d)^2 theta(r - 1) / 2 sigma^2. Beginning at the start with no shift is ``sharp``.
    """
    _check_shift("diameter", diameter)
    s, shifted = run.displacement, lipschitz * diameter
    if run.visits == 0:
        return sharp(run, lipschitz)
    last = float(visible_fraction(lipschitz, run.hidden_steps))
    whole = float(visible_fraction(lipschitz, run.steps_per_pass))
    restarts = [sharp(run, lipschitz), _rho((shifted + s) ** 2 * last, run)]
    if run.visits > 1:
        # Each further visit adds the same amount, so the restart with one later visit is the best
        # of those with any.
        restarts.append(_rho((shifted + s) ** 2 * whole + s**2 * last, run))
    if run.hidden_steps > 1:
        after = float(visible_fraction(lipschitz, run.hidden_steps - 1))
        restarts.append(_rho(shifted**2 * after, run))
    return min(restarts)


def sharp(run: CyclicDPSGD, lipschitz: float) -> float:
    """Upper bound on rho by the swapped record's own visits (derived; the paper's Prop. A.4).

    rho = s^2 [(V - 1) theta(ell) + theta(r)] / 2 sigma^2. It is the least that shift reduction can
    prove (``quadratic_programme``), never above ``composition``, and attained by affine losses:
    for one visit at every L, and for L = 1 at every number of visits.
    """
    if run.visits == 0:
        _check_lipschitz(lipschitz)
        return 0.0
    later, last = visible_fraction(lipschitz, [run.steps_per_pass, run.hidden_steps])
    return _rho(run.displacement**2 * ((run.visits - 1) * later + last), run)


def worst_position(run: CyclicDPSGD, lipschitz: float) -> float:
    """Upper bound on rho for every position of the swapped record: the largest ``sharp`` (derived).

    rho = s^2 [1 + floor((T - 1) / ell) theta(ell)] / 2 sigma^2, reached by a last visit at the
    last step.
    """
    theta = float(visible_fraction(lipschitz, run.steps_per_pass))
    return _rho(run.displacement**2 * (1 + (run.steps - 1) // run.steps_per_pass * theta), run)


def theorem_4_5(run: CyclicDPSGD, lipschitz: float) -> float:
    """Upper bound on rho that is linear in the passes: 2 (lambda C / (b sigma))^2 [1 + E theta].

    theta = theta_L(ell), for any position. Derived (at least ``worst_position``); the bracket of
    the paper's Theorem 4.5, equation 21, is our reconstruction.
    """
    theta = float(visible_fraction(lipschitz, run.steps_per_pass))
    return _rho(run.displacement**2 * (1 + run.passes * theta), run)


def equation_22(run: CyclicDPSGD) -> float:
    """The paper's convex bound: 2 (lambda C / (b sigma))^2 [1 + E / ell] (our reconstruction).

    An upper bound where clipping cannot turn a gradient (see ``cyclic_operator.unclipped``); the
    paper states it for every convex loss, where its proof does not hold. Raises an input error
    unless m = 0 and step M <= 2.
    """
    _check_convex(run)
    return theorem_4_5(run, 1.0)


def corollary_c2(run: CyclicDPSGD, excess: float) -> float:
    """Upper bound on rho for long passes: 2 (lambda C / (b sigma))^2 [1 + 2 xi E lambda m (...)].

    (...) = 1 + m / (2 (M + m)), from theta <= xi (1 - L^-2) <= xi (L^2 - 1) with the paper's
    L (``cyclic_operator.reconstructed``), so it is valid where that is. Raises an input error
    unless excess xi > 1 and m > 0 and the pass has ``minimal_steps(L, xi)`` steps. Constants: our
    reconstruction of the paper's Corollary C.2.
    """
    expect(run.weak_convexity > 0, "weak_convexity", run.weak_convexity, "a number > 0")
    needed = minimal_steps(cyclic_operator.reconstructed(*run.curvature), excess)
    expect(
        run.steps_per_pass >= needed,
        "steps_per_pass",
        run.steps_per_pass,
        f"at least {needed} for excess {excess:g}",
    )
    m, smoothness = run.weak_convexity, run.smoothness
    growth = 2 * run.step_size * m * (1 + m / (2 * (smoothness + m)))
    return _rho(run.displacement**2 * (1 + excess * run.passes * growth), run)


def corollary_c3(run: CyclicDPSGD) -> float:
    """Upper bound on rho free of the curvature: 2 (lambda C / (b sigma))^2 (1 + E).

    Theorem 4.5 with theta <= 1; our reconstruction of the paper's Corollary C.3. ``composition``
    is never larger.
    """
    return _rho(run.displacement**2 * (1 + run.passes), run)


def corollary_c3_step_size(run: CyclicDPSGD, order: float, divergence: float) -> float:
    """Largest step size at which Corollary C.3 bounds the divergence of that order (rounded down).

    step = (b sigma / C) sqrt(divergence / (2 order (1 + E))); the run's own step size plays no
    part. Our reconstruction of the paper's Corollary C.3.
    """
    expect(1 < order < math.inf, "order", order, "a number > 1")
    expect(0 < divergence < math.inf, "divergence", divergence, "a number > 0")
    scale = run.batch_size * run.noise_std / run.clipping_norm
    return scale * math.sqrt(divergence / (2 * order * (1 + run.passes))) / _UP


def pabi(run: CyclicDPSGD) -> float:
    """Upper bound on rho by privacy amplification by iteration: 2 (lambda C / sigma)^2 / (T+1-t*).

    One pass over convex losses, one record a batch. Source: Feldman, Mironov, Talwar and Thakurta
    2018, Theorem 23, with Lipschitz losses in place of clipping; as for ``equation_22``, clipping
    must not turn gradients. Raises an input error outside that domain.
    """
    _check_convex(run)
    expect(run.batch_size == 1, "batch_size", run.batch_size, "1")
    expect(
        run.steps <= run.steps_per_pass,
        "steps",
        run.steps,
        f"at most steps_per_pass = {run.steps_per_pass}: a single pass",
    )
    if run.position > run.steps:
        return 0.0
    return _rho(run.displacement**2 / (run.steps + 1 - run.position), run)


def epsilon(rho: float, delta: float) -> float:
    """Upper bound on epsilon at ``delta`` of a mechanism with D_alpha <= alpha rho for all alpha.

    dp-accounting converts the guarantee of one order; the order is chosen by a search, and every
    order gives a valid epsilon.
    """
    # Imported here because it takes seconds and most commands never account.
    from dp_accounting.rdp import rdp_privacy_accountant
    from scipy.optimize import minimize_scalar

    expect(0 <= rho < math.inf, "rho", rho, "a number >= 0")
    expect(0 < delta < 1, "delta", delta, "a number between 0 and 1")
    if rho == 0:
        return 0.0

    def converted(log_order: float) -> float:
        order = 1 + math.exp(log_order)
        return float(rdp_privacy_accountant.compute_epsilon([order], [order * rho], delta)[0])

    # The best order is near the optimum of rho alpha + ln(1/delta) / (alpha - 1). dp-accounting
    # converts no order below 1.01.
    centre = 0.5 * math.log(-math.log(delta) / rho)
    low = max(centre - 3, math.log(0.0101))
    high = max(centre + 1, low + 1)
    found = minimize_scalar(
        converted, bounds=(low, high), method="bounded", options={"xatol": 1e-7}
    )
    return max(0.0, float(found.fun))


_UP = 1 + 64 * float(np.finfo(float).eps)
"""Factor above the rounding error of every closed form here (checked against mpmath)."""


def _rho(squared_shift: float, run: CyclicDPSGD) -> float:
    """Rho of a Gaussian shift of this squared length, rounded up."""
    return float(squared_shift / (2 * run.noise_std**2)) * _UP


def _check_lipschitz(lipschitz: float) -> None:
    expect(1 <= lipschitz < math.inf, "lipschitz", lipschitz, "a number >= 1")


def _check_shift(name: str, value: float) -> None:
    expect(0 <= value < math.inf, name, value, "a number >= 0")


def _check_convex(run: CyclicDPSGD) -> None:
    expect(run.weak_convexity == 0, "weak_convexity", run.weak_convexity, "0: convex losses")
    expect(
        run.step_size * run.smoothness <= 2,
        "step_size",
        run.step_size,
        f"at most 2 / smoothness = {2 / (run.smoothness or math.inf):.6g}",
    )
