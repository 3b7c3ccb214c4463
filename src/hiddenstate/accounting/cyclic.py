"""Cyclic DP-SGD whose last iterate alone is released: upper bounds on its Rényi divergence.

The mechanism is Algorithm 1 of Kong and Ribero (arXiv:2407.05237): batches are visited in a fixed
cyclic order, and the step is

    x <- prox_h(x - step_size * mean of the clipped gradients + N(0, noise_std^2 I)),

so the noise is added to the displacement, not to the gradient, and h is convex. Neighbouring data
sets differ in one record, which is swapped. Every bound is a number ``rho``, rounded up, that says
two things, the second of which implies the first (proofs: docs/cyclic-bounds.md):

* the Rényi divergence of every order alpha > 1, in nats, in both directions, is at most alpha rho:
  D_alpha(last iterate || neighbour's last iterate) <= alpha * rho;
* the last iterate is sqrt(2 rho)-Gaussian differentially private: telling the data sets apart is
  at least as hard as telling N(0, 1) from N(sqrt(2 rho), 1).

``divergence.epsilon`` converts by the first, as the paper does, and ``divergence.gaussian_epsilon``
by the second, which is never larger and, for the bounds that are attained (``sharp``), exact.

The bounds that use a Lipschitz constant L of the step hold for every valid one; see
``accounting.cyclic_operator`` for which is. A constant below what the run's own curvature makes
possible without any clipping (``cyclic_operator.unclipped``) is refused. The paper's displayed
formulas are lost to us: a docstring says "our reconstruction" where form or constant were inferred,
and "derived" where the bound is proved from scratch and holds whatever the paper's constant was.
"""

import math
import sys
from dataclasses import dataclass

import numpy as np

from hiddenstate.accounting import cyclic_operator, domain
from hiddenstate.accounting.arguments import in_doubles
from hiddenstate.accounting.shifts import (
    LARGEST,
    LEAST,
    Stretches,
    minimal_steps,
    squared,
    visible,
)
from hiddenstate.errors import check_double, expect


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
            check_double(name, value)
            whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
            expect(whole and value >= 1, name, value, "a whole number >= 1")
        for name in ("step_size", "clipping_norm", "noise_std"):
            expect(0 < getattr(self, name) < math.inf, name, getattr(self, name), "a number > 0")
        for name in ("weak_convexity", "smoothness"):
            expect(0 <= getattr(self, name) < math.inf, name, getattr(self, name), "a number >= 0")
        numbers = "step_size", "clipping_norm", "noise_std", "weak_convexity", "smoothness"
        in_doubles(self, *numbers)
        expect(
            self.position <= self.steps_per_pass,
            "position",
            self.position,
            f"at most steps_per_pass = {self.steps_per_pass}",
        )
        representable = LEAST <= self.signal <= LARGEST and self.displacement >= sys.float_info.min
        expect(
            representable,
            "noise_std",
            self.noise_std,
            f"a displacement 2 step_size clipping_norm / batch_size, here {self.displacement:g}, "
            f"between 1e-140 and 1e140 times it and no less than {sys.float_info.min:g}",
        )

    @property
    def passes(self) -> int:
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
    def signal(self) -> float:
        """The displacement in noise standard deviations, s / sigma."""
        return self.displacement / self.noise_std

    @property
    def curvature(self) -> tuple[float, float, float]:
        """Step size, weak convexity and smoothness: the arguments of a Lipschitz constant."""
        return self.step_size, self.weak_convexity, self.smoothness


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
    lipschitz = _valid(run, lipschitz)
    first = squared(lipschitz * _in_noise("initial_shift", initial_shift, run) + run.signal)
    if run.passes == 0:
        return _rho(first * visible(lipschitz, run.steps))
    rest = run.steps - run.passes * run.steps_per_pass
    whole = visible(lipschitz, run.steps_per_pass)
    later = run.signal**2 * ((run.passes - 1) * whole + visible(lipschitz, rest))
    return _rho(first * whole + later)


def proposition_2_2b(run: CyclicDPSGD, residual: float, initial_shift: float = 0.0) -> float:
    """Upper bound on rho of noisy steps with |A(x) - A(y)| <= |x - y| + residual.

    rho = [(tau + zeta + s)^2 + (T - 1) (zeta + s)^2] / 2 sigma^2 for residual zeta and initial
    shift tau: each step's noise hides the whole shift. Derived; the form of the paper's
    Proposition 2.2(b), equation 8, is our reconstruction.
    """
    each = _in_noise("residual", residual, run) + run.signal
    first = _in_noise("initial_shift", initial_shift, run) + each
    return _rho(squared(first) + (run.steps - 1) * squared(each))


def quadratic_programme(run: CyclicDPSGD, lipschitz: float, initial_shift: float = 0.0) -> float:
    """Least rho that shift reduction can prove with this L (exact optimum, rounded up).

    Shift reduction spends a_t >= 0 of the shift R_t = L R_(t-1) + injected_t - a_t >= 0 on the
    noise of step t, at a price of a_t^2 / 2 sigma^2, and must end at R_T = 0; the visits inject
    the displacement. The paper solves this for one pass (appendix B). Over the whole horizon the
    optimum starts afresh at some visits; between them it is the one-pass solution, so it is found
    by pooling neighbouring stretches while the later one would spend less (pool-adjacent-violators,
    linear time). Without an initial shift no stretches pool and the result is ``sharp``.
    """
    lipschitz = _valid(run, lipschitz)
    shift = lipschitz * _in_noise("initial_shift", initial_shift, run)
    stretches = Stretches(lipschitz)
    for length in _visited_backwards(run):
        stretches.prepend(run.signal, length)
    before = min(run.position - 1, run.steps)
    return _rho(stretches.spent(shift, before), _UP_POOLED)


def residual_certificate(run: CyclicDPSGD, lipschitz: float) -> tuple[float, float]:
    """Rho that the paper's residuals pay, and rho that any residuals must pay at least.

    The first is the price of the residuals of equation 24, a_i = s theta(n) L^(1-i) at step i of
    the n steps that begin with a visit, spent step by step. The second is a dual bound: with
    R_t >= 0 the shift that is left after step t,

        sum_t a_t^2 >= sum_t 2 y_t injected_t - y_t^2   for every y >= 0 with L y_(t+1) >= y_t,

    at y = the paper's residuals. Equal values prove the residuals optimal for every number of
    passes, by a recursion that shares nothing with ``sharp`` or ``quadratic_programme``. Neither
    is rounded. Raises an arithmetic error if the residuals do not end at R_T = 0 or y is not
    allowed, up to rounding.
    """
    lipschitz = _valid(run, lipschitz)
    injected, paid = np.zeros(run.steps), np.zeros(run.steps)
    for first in range(run.position - 1, run.steps, run.steps_per_pass):
        injected[first] = run.signal
        powers = lipschitz ** -np.arange(min(run.steps_per_pass, run.steps - first), dtype=float)
        spent = run.signal * powers / (powers @ powers)
        paid[first : first + len(powers)] = spent
        # What is left of the shift after each step, over the growth since the visit.
        left = 1 - np.cumsum(powers * spent) / run.signal
        if left.min() < -1e-12 or left[-1] > 1e-12:
            raise ArithmeticError(f"the shift is not spent to the end: {left[-1]:g} of it is left")
    if np.any(lipschitz * paid[1:] < paid[:-1] * (1 - 1e-12)):
        raise ArithmeticError("the residuals are no dual solution")
    primal = float(paid @ paid) / 2
    return primal, float(paid @ injected) - primal


# --- bounds for cyclic DP-SGD ---------------------------------------------------------------------


def composition(run: CyclicDPSGD) -> float:
    """Upper bound on rho when all iterates are released: V Gaussian mechanisms composed.

    rho = V * 2 (lambda C / (b sigma))^2. It needs no assumption on the losses.
    """
    return _rho(run.visits * run.signal**2)


def triangle_inequality(run: CyclicDPSGD) -> float:
    """Upper bound on rho from the last step's noise alone: 2 T^2 (lambda C / sigma)^2.

    Two runs are never further apart than 2 lambda C T, since every step is clipped. The paper's
    "naive bound" (our reconstruction of the constant).
    """
    return _rho(squared(run.batch_size * run.steps * run.signal))


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
    it grow. Derived; the form of the paper's Theorem 4.4, equation 20, was reconstructed by us and
    is confirmed by the public code of Liang et al. 2025 (arXiv 2502.17772).
    """
    lipschitz = _valid(run, lipschitz)
    return _rho(squared(lipschitz * _in_noise("diameter", diameter, run) + run.signal))


def bounded_domain(run: CyclicDPSGD, lipschitz: float, diameter: float) -> float:
    """Upper bound on rho by shift reduction on a domain of this diameter (rounded up).

    Two iterates are never further apart than the diameter d, so the analysis may begin before any
    step with the shift d, or at the start with none. A step takes a shift R to at most L R + s, and
    by clipping to at most R + 2 lambda C. With the first alone the programme of
    ``quadratic_programme`` is solved exactly for each beginning, and the least is taken. Only the
    steps right after a visit need be tried: beginning a step earlier, up to the visit before, never
    costs more. With both, steps of the second kind bring the shift down to an R from which the
    first goes on: the best of ``_TURNS`` values of R is taken, R = 0 (``clipped_domain``) and R = d
    (no such step) among them. Derived (proof: docs/cyclic-bounds.md); at most ``theorem_4_4``,
    ``sharp`` and ``clipped_domain``.
    """
    lipschitz = _valid(run, lipschitz)
    shift = _in_noise("diameter", diameter, run)
    found = [_Beginnings(run, lipschitz).least(shift)[0], 2 * sharp(run, lipschitz)]
    found.append(2 * clipped_domain(run, diameter))
    # With L = 1 the first kind of step is never worse, as R + s is at most R + 2 lambda C.
    if lipschitz > 1:
        for turn in np.geomspace(1e-6, 1, _TURNS) * shift:
            price, steps = _Beginnings(run, lipschitz).least(float(turn))
            if run.steps > steps:
                found.append(price + _by_clipping(run, shift - turn, run.steps - steps))
    return _rho(min(found), _UP_POOLED)


def clipped_domain(run: CyclicDPSGD, diameter: float) -> float:
    """Upper bound on rho of any clipped losses on a domain of this diameter (rounded up).

    The last K steps enlarge the diameter d by at most 2 lambda C each and hide it evenly:
    rho = (d + 2 K lambda C)^2 / (2 K sigma^2), least near K = d / 2 lambda C, where it is
    4 d lambda C / sigma^2. It needs clipping and the projection, and nothing of the losses. Derived
    (Theorem 1 of docs/cyclic-bounds.md with L = 1 and s_t = 2 lambda C).
    """
    return _rho(_by_clipping(run, _in_noise("diameter", diameter, run), run.steps))


def holder_domain(run: CyclicDPSGD, exponent: float, diameter: float) -> float:
    """Upper bound on rho of clipped losses with Hölder gradients on a domain (rounded up).

    |grad f(x) - grad f(y)| <= H |x - y|^p for every loss f, H the run's smoothness and p the
    exponent from 0 to 1. A step takes a distance R to at most R + lambda min(H R^p, 2 C), a visit
    to s more. The best of ``domain.spendings``, which need not be the least: valid at any position
    with as many visits that is earlier. Derived (docs/cyclic-bounds.md, section 6); source of the
    idea: Chien and Li 2024.
    """
    expect(0 <= exponent <= 1, "holder", exponent, "a number from 0 to 1")
    unit = run.noise_std
    # Distances are in units u of the noise: lambda H (u R)^p / u.
    constant = run.step_size * run.smoothness * unit ** (exponent - 1)
    growth, most = domain.holder(constant, exponent), run.signal * run.batch_size
    found = math.inf
    for _, spent in domain.spendings(
        lambda distance: np.minimum(growth(distance), distance + most),
        _in_noise("diameter", diameter, run),
        run.steps,
    ):
        # The last visit is hidden_steps before the end, and the others a pass before each other.
        since = max(run.hidden_steps, 1) - 1
        visits = spent[::-1][since :: run.steps_per_pass][: run.visits]
        # A visit hides s more than its step: (a + s)^2 - a^2 = s (2 a + s).
        extra = run.signal * (2 * float(visits.sum()) + len(visits) * run.signal)
        found = min(found, float(spent @ spent) + extra)
    return _rho(found, _UP_POOLED)


def _by_clipping(run: CyclicDPSGD, shift: float, most: int) -> float:
    """Squared price of a shift that at most so many steps hide, each of which clips."""
    each = run.signal * run.batch_size
    # The price is convex in k and least at shift / each, so a neighbouring integer is best.
    best = min(max(shift / each, 1.0), float(most))
    return min(
        squared(shift + k * each) / k for k in {math.floor(best), min(math.ceil(best), most)}
    )


def strongly_convex(
    run: CyclicDPSGD, strong_convexity: float, diameter: float | None = None
) -> float:
    """Least rho that shift reduction proves where every step contracts, by a factor c < 1.

    For losses that are strongly convex and whose gradients clipping NEVER changes (each norm is at
    most the clipping norm; a clipped gradient contracts nothing), c is
    ``cyclic_operator.contraction``. ``diameter``: that of the domain, None if unbounded. With one
    step a pass it is s^2 / 2 sigma^2 * (1 + c) / (1 - c) * (1 - c^T) / (1 + c^T), the
    bound of Bok, Su and Altschuler 2024 for strongly convex noisy gradient descent; with a domain,
    their constrained case. Raises an input error unless the run's weak convexity is 0.
    """
    expect(run.weak_convexity == 0, "weak_convexity", run.weak_convexity, "0: convex losses")
    factor = cyclic_operator.contraction(run.step_size, strong_convexity, run.smoothness)
    return _contracting(run, factor, diameter)


def _contracting(run: CyclicDPSGD, factor: float, diameter: float | None) -> float:
    """Least rho over all beginnings, for steps with a Lipschitz constant of at most 1."""
    stretches = Stretches(factor)
    found = []
    since = run.hidden_steps - 1  # steps between a visit and the stretches
    for length in _visited_backwards(run):
        # After the last step there is no noise left to hide a diameter.
        if diameter is not None and (since or stretches.pools):
            shift = factor * _in_noise("diameter", diameter, run)
            found.append(stretches.spent(shift, since))
        stretches.prepend(run.signal, length)
        since = run.steps_per_pass - 1
    return _rho(min([*found, stretches.spent(0.0, 0)]), _UP_POOLED)


def sharp(run: CyclicDPSGD, lipschitz: float) -> float:
    """Upper bound on rho by the swapped record's own visits (derived; the paper's Prop. A.4).

    rho = s^2 [(V - 1) theta(ell) + theta(r)] / 2 sigma^2. It is the least that shift reduction can
    prove (``quadratic_programme``), never above ``composition``, and attained by affine losses for
    every L and every number of visits where the curvature permits the slopes of
    ``swapped_record.tightest_slopes`` (first record of the pass).
    """
    lipschitz = _valid(run, lipschitz)
    if run.visits == 0:
        return 0.0
    whole, last = (visible(lipschitz, steps) for steps in (run.steps_per_pass, run.hidden_steps))
    return _rho(run.signal**2 * ((run.visits - 1) * whole + last))


def worst_position(run: CyclicDPSGD, lipschitz: float) -> float:
    """Upper bound on rho for every position of the swapped record: the largest ``sharp`` (derived).

    rho = s^2 [1 + floor((T - 1) / ell) theta(ell)] / 2 sigma^2, reached by a last visit at the
    last step.
    """
    theta = visible(_valid(run, lipschitz), run.steps_per_pass)
    return _rho(run.signal**2 * (1 + (run.steps - 1) // run.steps_per_pass * theta))


def theorem_4_5(run: CyclicDPSGD, lipschitz: float) -> float:
    """Upper bound on rho that is linear in the passes: 2 (lambda C / (b sigma))^2 [1 + E theta].

    theta = theta_L(ell), for any position. Derived (at least ``worst_position``); the bracket of
    the paper's Theorem 4.5, equation 21, is our reconstruction.
    """
    theta = visible(_valid(run, lipschitz), run.steps_per_pass)
    return _rho(run.signal**2 * (1 + run.passes * theta))


def equation_22(run: CyclicDPSGD) -> float:
    """The paper's convex bound: 2 (lambda C / (b sigma))^2 [1 + E / ell] (our reconstruction).

    An upper bound where clipping cannot turn a gradient (see ``cyclic_operator.unclipped``).
    Clipped convex losses in the plane exceed it, by factors of up to 19 in docs/cyclic-bounds.md
    (``adversaries.expanding_clip``); later versions of the paper exclude clipping. Raises an input
    error unless m = 0 and step M <= 2.
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
    return _rho(run.signal**2 * (1 + excess * run.passes * growth))


def corollary_c3(run: CyclicDPSGD) -> float:
    """Upper bound on rho free of the curvature: 2 (lambda C / (b sigma))^2 (1 + E).

    Theorem 4.5 with theta <= 1; our reconstruction of the paper's Corollary C.3. ``composition``
    is never larger.
    """
    return _rho(run.signal**2 * (1 + run.passes))


def pabi(run: CyclicDPSGD) -> float:
    """Upper bound on rho by privacy amplification by iteration: 2 (lambda C / sigma)^2 / (T+1-t*).

    One pass over convex losses, one record a batch. Source: Feldman, Mironov, Talwar and Thakurta
    2018, Theorem 23, with Lipschitz losses in place of clipping; as for ``equation_22``, clipping
    must not turn gradients. ``sharp`` at L = 1 is the same there. Raises an input error outside
    that domain.
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
    return _rho(run.signal**2 / (run.steps + 1 - run.position))


# --- beginnings on a bounded domain ---------------------------------------------------------------

MOST_VISITS = 10_000_000
"""Visits that are gone through one by one, which takes a minute."""

_TURNS = 65
"""Shifts at which the analysis of a bounded domain may turn from one kind of step to the other."""


class _Beginnings:
    """Prices of a shift that the analysis begins with right after a visit, for L >= 1.

    After the beginning come ell - 1 steps and k visits, k = 0, 1, ...: k - 1 stretches of ell steps
    and a last one of r. The shift is pooled with the first stretches until its payments no longer
    fall by more than a factor L a step. How many that takes does not depend on k, but for the last
    stretch, and every further visit costs s^2 theta(ell): so no more of them need be tried.
    """

    def __init__(self, run: CyclicDPSGD, lipschitz: float) -> None:
        self.run, self.lipschitz = run, lipschitz

    def least(self, shift: float) -> tuple[float, int]:
        """Least squared price over all beginnings, and how many steps it is spent on."""
        run, lipschitz = self.run, self.lipschitz
        whole, last = run.steps_per_pass, run.hidden_steps
        if run.visits == 0:
            return 0.0, 0
        log, each = math.log1p(lipschitz - 1), run.signal
        theta_last, theta_whole = visible(lipschitz, last), visible(lipschitz, whole)

        def price(pooled: float, steps: int) -> float:
            return squared(pooled) * visible(lipschitz, steps)

        def levelled(pooled: float, steps: int, theta: float) -> bool:
            """True if payments fall by less than a factor L from this pool to the next."""
            if steps == 0:
                return False
            ends = pooled * visible(lipschitz, steps) * math.exp((1 - steps) * log)
            return ends < lipschitz * each * theta

        pooled, steps = lipschitz * shift, whole - 1
        found = math.inf, 0
        # After a visit in the last step nothing is left to begin with.
        if last > 1:
            found = price(pooled, last - 1), last - 1
        # To begin with fewer visits is as valid.
        for _ in range(1, min(run.visits, MOST_VISITS)):
            # All stretches but the last are pooled with the shift.
            if levelled(pooled, steps, theta_last):
                found = min(found, (price(pooled, steps) + each**2 * theta_last, steps + last))
            else:
                joined = pooled + each * math.exp(-steps * log)
                found = min(found, (price(joined, steps + last), steps + last))
            if levelled(pooled, steps, theta_whole):
                break
            pooled += each * math.exp(-steps * log)
            steps += whole
        return found


# --- pooling --------------------------------------------------------------------------------------


def _visited_backwards(run: CyclicDPSGD) -> list[int]:
    """Steps from each visit to the next one or the end, its own included, the last visit first."""
    most = f"at most {MOST_VISITS:,} of them to visit the record, here {run.visits:,}"
    expect(run.visits <= MOST_VISITS, "steps", run.steps, most)
    return [run.hidden_steps] + [run.steps_per_pass] * (run.visits - 1) if run.visits else []


# --- rounding and domains -------------------------------------------------------------------------

_UP = 1 + 64 * float(np.finfo(float).eps)
"""Factor above the rounding error of every closed form here (checked against mpmath)."""

_UP_POOLED = 1 + 1e-12
"""Factor above the rounding error of a sum over pools (checked against mpmath)."""


def _rho(squared_signal: float, up: float = _UP) -> float:
    """Rho of a Gaussian shift of this squared length in noise standard deviations, rounded up."""
    rho = squared_signal / 2 * up
    expect(rho < math.inf, "steps", "a bound beyond floating point", "a smaller shift or fewer")
    return rho


def _valid(run: CyclicDPSGD, lipschitz: float) -> float:
    """The constant, refused below what the run's curvature makes possible; at least that."""
    least = cyclic_operator.unclipped(*run.curvature)
    # A few units in the last place below is the same number, rounded otherwise.
    near = least * (1 - 16 * float(np.finfo(float).eps))
    why = "" if least == 1 else ", which the run's curvature reaches (cyclic_operator.unclipped)"
    expect(near <= lipschitz < math.inf, "lipschitz", lipschitz, f"a number >= {least:.17g}{why}")
    return max(float(lipschitz), least)


def _in_noise(name: str, value: float, run: CyclicDPSGD) -> float:
    expect(0 <= value < math.inf, name, value, "a number >= 0")
    signal = value / run.noise_std
    expect(signal <= LARGEST, name, value, f"at most 1e140 times noise_std = {run.noise_std:g}")
    # Rounded up to where its square keeps all digits.
    return max(signal, LEAST) if value else 0.0


def _check_convex(run: CyclicDPSGD) -> None:
    expect(run.weak_convexity == 0, "weak_convexity", run.weak_convexity, "0: convex losses")
    expect(
        run.step_size * run.smoothness <= 2,
        "step_size",
        run.step_size,
        f"at most 2 / smoothness = {2 / (run.smoothness or math.inf):.6g}",
    )
