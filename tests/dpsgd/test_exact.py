"""The exact divergences against closed forms and simulation, and every bound against them."""

from dataclasses import replace
from functools import partial

import mpmath
import numpy as np
import pytest
from scipy.stats import norm

from hiddenstate.accounting import cyclic, cyclic_operator, divergence, shifts
from hiddenstate.accounting.cyclic import CyclicDPSGD
from hiddenstate.dpsgd import exact
from hiddenstate.dpsgd.cyclic import last_iterates, project_ball
from hiddenstate.errors import InputError
from hiddenstate.streams import stream

ROUNDING = 1e-9
"""Relative error granted to the exact divergences (quadrature, linear systems)."""


def data(batches):
    """A one-dimensional data set from the records' derivatives, one list a batch."""
    return lambda batch, points: np.stack(
        [np.broadcast_to(f(points), points.shape) for f in batches[batch]], axis=1
    )


def random_run(rng, longest=40):
    """A schedule of random sizes that visits the swapped record, and random curvatures."""
    per_pass = int(rng.integers(1, 13))
    position = int(rng.integers(1, per_pass + 1))
    smoothness, weak_convexity = rng.choice([0.0, 1.0, rng.exponential()], size=2)
    largest = 1 / max(smoothness + weak_convexity, 0.2)
    return CyclicDPSGD(
        steps=position + int(rng.integers(0, longest)),
        steps_per_pass=per_pass,
        batch_size=int(rng.integers(1, 5)),
        step_size=float(largest * rng.choice([0.01, 0.1, rng.uniform(0.001, 1)])),
        clipping_norm=float(rng.exponential() + 0.1),
        noise_std=float(rng.exponential() + 0.1),
        weak_convexity=float(weak_convexity),
        smoothness=float(smoothness),
        position=position,
    )


def upper_bounds(run, lipschitz, *, convex):
    """Every bound that applies to a run whose steps are ``lipschitz``, by name."""
    bounds = {
        "sharp": cyclic.sharp(run, lipschitz),
        "quadratic programme": cyclic.quadratic_programme(run, lipschitz),
        "worst position": cyclic.worst_position(run, lipschitz),
        "Theorem 4.5": cyclic.theorem_4_5(run, lipschitz),
        "Theorem 4.3": cyclic.theorem_4_3(run),
        "Corollary C.3": cyclic.corollary_c3(run),
        "composition": cyclic.composition(run),
        "triangle inequality": cyclic.triangle_inequality(run),
    }
    if run.position == 1:
        bounds["Proposition 2.2(a)"] = cyclic.proposition_2_2a(run, lipschitz)
    if convex:
        bounds["equation 22"] = cyclic.equation_22(run)
        if run.batch_size == 1 and run.steps <= run.steps_per_pass:
            bounds["PABI"] = cyclic.pabi(run)
    return bounds


def reconstruction_bounds(run):
    """The bounds that use the paper's L, which is valid where clipping cannot turn a gradient."""
    lipschitz = cyclic_operator.reconstructed(*run.curvature)
    bounds = {"Theorem 4.5, paper's L": cyclic.theorem_4_5(run, lipschitz)}
    if lipschitz > 1 and run.steps_per_pass >= shifts.minimal_steps(lipschitz, 1.5):
        bounds["Corollary C.2"] = cyclic.corollary_c2(run, 1.5)
    return bounds


def symmetric(rng, dimension, low, high):
    """A random symmetric matrix with eigenvalues between ``low`` and ``high``, ends included."""
    values = rng.choice([low, high, rng.uniform(low, high)], size=dimension)
    basis, _ = np.linalg.qr(rng.standard_normal((dimension, dimension)))
    return (basis * values) @ basis.T


def clipping_jacobian(rng, dimension):
    """A random Jacobian of clipping: the identity, or a shrunk projection along a gradient."""
    if rng.random() < 0.3:
        return np.eye(dimension)
    u = rng.standard_normal(dimension)
    u /= np.linalg.norm(u)
    return rng.choice([1.0, rng.random()]) * (np.eye(dimension) - np.outer(u, u))


def affine_instance(rng):
    """Exact rho of a random affine instance, and all bounds that apply to it."""
    run = random_run(rng)
    dimension = int(rng.integers(1, 4))
    low, high = -run.weak_convexity, run.smoothness
    clipping = dimension > 1 and rng.random() < 0.5
    if dimension == 1 and rng.random() < 0.3:
        hessians = np.full((run.steps_per_pass, 1, 1), rng.choice([low, high]))
    else:
        hessians = np.array(
            [symmetric(rng, dimension, low, high) for _ in range(run.steps_per_pass)]
        )
    if clipping:
        turned = [clipping_jacobian(rng, dimension) for _ in range(run.steps_per_pass)]
        hessians = np.array(turned) @ hessians
    maps = (np.eye(dimension) - run.step_size * hessians)[np.arange(run.steps) % run.steps_per_pass]
    shifts = np.zeros((run.steps, dimension))
    visits = shifts[run.position - 1 :: run.steps_per_pass]
    direction = rng.standard_normal((len(visits) if rng.random() < 0.5 else 1, dimension))
    visits[:] = run.displacement * direction / np.linalg.norm(direction, axis=1, keepdims=True)
    truth = exact.affine_gaussian(maps, shifts, run.noise_std)
    constant = cyclic_operator.clipped if clipping else cyclic_operator.unclipped
    bounds = upper_bounds(
        run, constant(*run.curvature), convex=run.weak_convexity == 0 and not clipping
    )
    if not clipping:
        bounds |= reconstruction_bounds(run)
    return truth, bounds


def derivative(rng, run):
    """A random derivative of a one-dimensional loss with the run's curvature bounds."""
    m, smoothness = run.weak_convexity, run.smoothness
    offset = rng.normal() * run.clipping_norm
    kind = rng.integers(3)
    if kind == 0:
        slope = rng.choice([-m, smoothness])
        return lambda x: slope * x + offset
    # The slope moves between its bounds along a wave a few noise standard deviations long.
    mean, half = (smoothness - m) / 2, (smoothness + m) / 2
    rate = rng.uniform(0.2, 1) / run.noise_std
    return lambda x: mean * x + half * np.sin(rate * x) / rate + offset


def line_instance(rng):
    """Exact rho (order 2, larger direction) on the line with clipping, and all bounds on it."""
    line, run, diameter = random_line(rng)
    truth = max(line.renyi(2.0), line.swapped().renyi(2.0)) / 2
    return truth, line_bounds(run, diameter)


def random_line(rng):
    """A random clipped instance on the line: its exact last iterates, run and domain."""
    run = replace(random_run(rng, longest=9), noise_std=float(rng.uniform(0.2, 0.6)))
    batches = [
        [derivative(rng, run) for _ in range(run.batch_size)] for _ in range(run.steps_per_pass)
    ]
    worlds = []
    for sign in (1, -1):
        swapped = [list(batch) for batch in batches]
        if rng.random() < 0.7:
            far = sign * (1 + rng.exponential()) * 2 * run.clipping_norm
            f = derivative(rng, run)
            swapped[run.position - 1][0] = lambda x, f=f, far=far: f(x) + far
        else:
            swapped[run.position - 1][0] = derivative(rng, run)
        worlds.append(data(swapped))
    diameter = float(rng.uniform(0.3, 3)) if rng.random() < 0.4 else None
    return exact.on_the_line(run, *worlds, diameter=diameter, nodes=8), run, diameter


def line_bounds(run, diameter):
    """Every bound on a clipped instance on the line."""
    lipschitz = cyclic_operator.unclipped(*run.curvature)
    bounds = upper_bounds(run, lipschitz, convex=run.weak_convexity == 0)
    bounds |= reconstruction_bounds(run)
    if diameter:
        bounds["best restart"] = cyclic.bounded_domain(run, lipschitz, diameter)
        bounds["Theorem 4.4"] = cyclic.theorem_4_4(run, lipschitz, diameter)
    return bounds


@pytest.mark.whole
@pytest.mark.parametrize("count", [12, pytest.param(400, marks=pytest.mark.slow)])
def test_every_bound_is_a_gaussian_guarantee(count):
    # The exact delta at 12 epsilons of random clipped instances, both directions, with and without
    # projection, against the curve of sqrt(2 rho)-Gaussian privacy of the least bound.
    closest = 0.0
    for index in range(count):
        line, run, diameter = random_line(stream(0, "test", "gaussian", index))
        least = min(line_bounds(run, diameter).values())
        mu = divergence.gaussian_mu(least)
        for epsilon in np.linspace(0, 3 * mu, 12):
            gaussian = norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(
                -mu / 2 - epsilon / mu
            )
            truth = line.delta(epsilon)
            assert truth <= gaussian * (1 + 1e-7) + 1e-12, (index, epsilon, truth, gaussian)
            closest = max(closest, truth / gaussian if gaussian > 1e-9 else 0)
    # The instances come close enough for a smaller mu to fail.
    assert closest > 0.9


@pytest.mark.parametrize("position", [1, 4, 10])
def test_convex_limits_are_those_of_exact_divergences(position):
    # An independent side for formulas that agree by construction: the divergence of affine losses
    # of curvature -m in one pass tends to privacy amplification by iteration, and the bound by
    # visits is within the same distance of it.
    run = CyclicDPSGD(
        steps=10, steps_per_pass=10, batch_size=1, step_size=0.2, clipping_norm=1.5, noise_std=0.4,
        position=position,
    )  # fmt: skip
    for m in (0.0, 1e-9, 1e-6, 1e-3):
        slopes = np.full(10, 1 + 0.2 * m)
        slopes[:position] = 0  # noise before the visit is forgotten
        truth = exact.scalar_affine(slopes, run)
        weakly = replace(run, weak_convexity=m)
        bound = cyclic.sharp(weakly, cyclic_operator.unclipped(*weakly.curvature))
        assert bound == pytest.approx(truth, rel=1e-12)
        assert truth == pytest.approx(cyclic.pabi(run), rel=10 * m + 1e-12)
    # Over several passes equation 22 exceeds the exact divergence of the worst record by one visit
    # shared among the steps of a pass.
    run = replace(run, steps=50, position=1)
    truth = exact.scalar_affine(np.ones(50), run)
    shared = run.signal**2 / 2 / 10
    assert truth == pytest.approx(5 * shared, rel=1e-12)
    assert cyclic.equation_22(run) == pytest.approx(truth + 10 * shared, rel=1e-12)


def test_a_smaller_mu_is_no_guarantee():
    run = CyclicDPSGD(
        steps=6, steps_per_pass=3, batch_size=1, step_size=0.5, clipping_norm=1.0, noise_std=0.5
    )
    worlds = [data([[lambda x, s=s: 0 * x + s], [np.zeros_like], [np.zeros_like]]) for s in (3, -3)]
    line = exact.on_the_line(run, *worlds)
    mu = divergence.gaussian_mu(cyclic.sharp(run, 1.0))
    for share, holds in ((1.0, True), (0.999, False)):
        m = share * mu
        gaussian = norm.cdf(m / 2 - 1 / m) - np.exp(1) * norm.cdf(-m / 2 - 1 / m)
        assert bool(line.delta(1.0) <= gaussian * (1 + 1e-9)) is holds


@pytest.mark.whole
@pytest.mark.parametrize(
    "instance, count",
    [
        (affine_instance, 1_000),
        (line_instance, 40),
        pytest.param(line_instance, 100, marks=pytest.mark.slow),
        pytest.param(affine_instance, 20_000, marks=pytest.mark.slow),
        pytest.param(line_instance, 2_000, marks=pytest.mark.slow),
    ],
)
def test_no_bound_is_below_the_exact_divergence(instance, count):
    name = instance.__name__
    positive, applied = 0, set()
    for index in range(count):
        truth, bounds = instance(stream(0, "test", name, index))
        below = {k: v for k, v in bounds.items() if v < truth * (1 - ROUNDING) - 1e-12}
        assert not below, f"{name} {index}: exact {truth}, below it {below}"
        positive += truth > 1e-6
        applied |= set(bounds)
    # The instances are not trivially private, and exercise every bound.
    assert positive > 0.7 * count
    everything = {"PABI", "Corollary C.2", "equation 22", "Proposition 2.2(a)", "Theorem 4.3"}
    everything |= {"best restart", "Theorem 4.4"} if instance is line_instance else set()
    assert everything <= applied


def test_a_wrong_constant_is_caught():
    # The check above has power: with L = 1 for weakly convex losses, or an expanding clipped step,
    # affine instances do break the bound.
    run = CyclicDPSGD(
        steps=60, steps_per_pass=60, batch_size=1, step_size=0.1, clipping_norm=1, noise_std=1
    )
    assert exact.scalar_affine(np.full(60, 1.01), run) > 1.5 * cyclic.sharp(run, 1.0)


PRINTED = [
    # step m, steps per pass, passes, position; exact in units of displacement^2 / 2 sigma^2, then
    # over sharp, Theorem 4.5, composition and Theorem 4.3 (step clipping norm 1, noise 1, b = 1).
    "0 10 1 1 0.1000000 1.000000 0.090909 0.100000 0.0025",
    "0 10 10 1 1.0000000 1.000000 0.500000 0.100000 0.0025",
    "0 10 10 10 1.0000000 0.526316 0.500000 0.100000 0.0025",
    "0.01 10 1 1 0.1091901 1.000000 0.098441 0.109190 0.00273",
    "0.01 10 10 1 1.0107512 0.925681 0.483174 0.101075 0.00253",
    "0.01 100 1 1 0.0228236 1.000000 0.022314 0.022824 5.71e-05",
    "0.01 100 10 1 0.0495944 0.217294 0.040379 0.004959 1.24e-05",
    "0.1 10 1 1 0.2038555 1.000000 0.169336 0.203856 0.0051",
    "0.1 10 10 1 0.4596088 0.225458 0.151259 0.045961 0.00115",
    "0.1 10 10 10 0.0826647 0.029162 0.027205 0.008266 0.000207",
]


@pytest.mark.parametrize("row", PRINTED)
def test_tightness_matches_the_printed_table(row):
    growth, per_pass, passes, position, *expected = row.split()
    run = CyclicDPSGD(
        steps=int(per_pass) * int(passes),
        steps_per_pass=int(per_pass),
        batch_size=1,
        step_size=1.0,
        clipping_norm=1.0,
        noise_std=1.0,
        position=int(position),
        weak_convexity=float(growth),
    )
    lipschitz = cyclic_operator.unclipped(*run.curvature)
    truth = exact.scalar_affine(np.full(run.steps, 1 + float(growth)), run)
    matrices = np.full((run.steps, 1, 1), 1 + float(growth))
    shifts = np.zeros((run.steps, 1))
    shifts[run.position - 1 :: run.steps_per_pass] = run.displacement
    assert exact.affine_gaussian(matrices, shifts, 1.0) == pytest.approx(truth, rel=1e-10)
    assert f"{truth / (run.displacement**2 / 2):.7f}" == expected[0]
    assert f"{truth / cyclic.sharp(run, lipschitz):.6f}" == expected[1]
    assert f"{truth / cyclic.theorem_4_5(run, lipschitz):.6f}" == expected[2]
    assert f"{truth / cyclic.composition(run):.6f}" == expected[3]
    assert f"{truth / cyclic.theorem_4_3(run):.3g}" == f"{float(expected[4]):.3g}"


def test_scalar_divergence_survives_growth_beyond_floating_point():
    # Expanding by 1.1 for 20,000 steps: the passes' contributions are a geometric series.
    run = CyclicDPSGD(
        steps=20_000, steps_per_pass=100, batch_size=1, step_size=1, clipping_norm=1, noise_std=1
    )
    truth = exact.scalar_affine(np.full(run.steps, 1.1), run)
    unit = run.displacement**2 / 2
    with mpmath.workdps(40):
        growth = mpmath.mpf(1.1)
        limit = (1 - growth**-2) / (1 - growth**-100) ** 2
    assert truth / unit == pytest.approx(float(limit), rel=1e-11)
    assert exact.scalar_affine(np.zeros(run.steps), run) == 0


@pytest.mark.parametrize("later", [0.1, -0.1, 0.0])
def test_scalar_divergence_survives_contraction_after_growth_beyond_floating_point(later):
    run = CyclicDPSGD(
        steps=760, steps_per_pass=100, batch_size=1, step_size=1.0, clipping_norm=0.5, noise_std=1.0
    )
    slopes = [10.0] * 350 + [later] * 410
    with mpmath.workdps(1000):
        mean, variance = mpmath.mpf(0), mpmath.mpf(0)
        for t, slope in enumerate(slopes):
            mean = slope * mean + (1 if t % 100 == 0 else 0)
            variance = mpmath.mpf(slope) ** 2 * variance + 1
        expected = float(mean**2 / variance / 2)
    assert exact.scalar_affine(slopes, run) == pytest.approx(expected, rel=1e-12)


def test_epsilons_whose_exponentials_are_no_doubles_are_refused():
    run = CyclicDPSGD(
        steps=1, steps_per_pass=1, batch_size=1, step_size=1.0, clipping_norm=1.0, noise_std=0.05
    )
    up, down = (lambda batch, x, s=sign: np.full((len(x), 1, 1), s) for sign in (1.0, -1.0))
    law = exact.on_the_line(run, up, down)
    with pytest.raises(InputError, match="delta: got 1e-05"):
        law.epsilon(1e-5)
    for epsilon in (701.0, np.inf, np.nan):
        with pytest.raises(InputError, match="epsilon: got"):
            law.delta(epsilon)


@pytest.mark.parametrize("diameter", [None, 14.0])
def test_a_divergence_that_no_double_decides_is_refused(diameter):
    # Two normal laws, 2 apart, of deviation sigma: D = order * 2 / sigma^2.
    def law(sigma):
        run = CyclicDPSGD(
            steps=1, steps_per_pass=1, batch_size=1, step_size=1.0, clipping_norm=1.0,
            noise_std=sigma,
        )  # fmt: skip
        up, down = (lambda batch, x, s=s: np.full((len(x), 1, 1), s) for s in (1.0, -1.0))
        return exact.on_the_line(run, up, down, diameter=diameter)

    # Their largest term is 2 * order - 1 from the middle, and the points reach 1 + 12 * sigma; at
    # 14, the atoms at the ends have masses beyond.
    assert law(0.3).renyi(1.5) == pytest.approx(1.5 * 2 / 0.3**2, rel=1e-9)
    for sigma, order in ((0.3, 2.5), (0.3, 1e308), (0.01, 1.5), (0.001, 2)):
        with pytest.raises(InputError, match=r"order: got .*; expected a lower one"):
            law(sigma).renyi(order)
    if diameter is None:
        with pytest.raises(InputError, match=r"order: got 100; expected a lower one"):
            law(0.3).renyi(100)
    else:  # one of the atoms decides
        masses = (7 - np.array([1, -1])) / 0.3
        one, other = norm.logsf(masses)
        assert law(0.3).renyi(100) == pytest.approx((100 * one - 99 * other) / 99, rel=1e-9)


@pytest.mark.parametrize(
    ("maps", "shift", "noise", "message"),
    [
        (1.0, 1e200, 1.0, "rho: got inf; expected a double"),
        (1e200, 1.0, 1.0, "rho: got nan; expected a double"),
        (np.nan, 1.0, 1.0, "rho: got nan; expected a double"),
        (1.0, 1.0, 1e-200, "noise_std: got 1e-200; expected a number whose square is a double"),
        (1.0, 1.0, 0.0, "noise_std: got 0.0"),
        (1.0, 1.0, 1e200, "noise_std: got 1e"),
    ],
)
def test_affine_divergences_that_are_no_doubles_are_refused(maps, shift, noise, message):
    with pytest.raises(InputError, match=message):
        exact.affine_gaussian(maps * np.eye(2)[None].repeat(3, 0), np.full((3, 2), shift), noise)


def test_affine_divergence_keeps_its_digits_when_directions_grow_apart():
    # Three coupled directions that grow by 1.6, stay and shrink, over 60 steps: growth of 10^12.
    rng = stream(0, "test", "affine-digits")
    maps = np.array([np.eye(3) - symmetric(rng, 3, -0.6, 0.5) for _ in range(60)])
    shifts = rng.standard_normal((60, 3))
    with mpmath.workdps(80):
        difference, covariance = mpmath.zeros(3, 1), mpmath.zeros(3)
        for matrix, shift in zip(maps, shifts, strict=True):
            matrix = mpmath.matrix(matrix)
            difference = matrix * difference + mpmath.matrix(shift)
            covariance = matrix * covariance * matrix.T + mpmath.eye(3)
        solved = mpmath.lu_solve(covariance, difference)
        truth = sum(difference[i] * solved[i] for i in range(3)) / 2
        assert exact.affine_gaussian(maps, shifts, 1.0) == pytest.approx(float(truth), rel=1e-10)


@pytest.mark.parametrize("lipschitz", [1.0, 1.001, 1.05, 1.5])
@pytest.mark.parametrize("steps", [1, 7, 50])
def test_sharp_is_attained_by_a_first_record_in_one_pass(lipschitz, steps):
    run = CyclicDPSGD(
        steps=steps, steps_per_pass=steps, batch_size=3, step_size=1, clipping_norm=2, noise_std=0.7
    )
    truth = exact.scalar_affine(np.full(steps, lipschitz), run)
    assert cyclic.sharp(run, lipschitz) == pytest.approx(truth, rel=1e-12)


@pytest.mark.parametrize("passes", [1, 3, 20])
def test_sharp_is_attained_by_linear_losses_in_any_number_of_passes(passes):
    run = CyclicDPSGD(
        steps=5 * passes, steps_per_pass=5, batch_size=3, step_size=1, clipping_norm=2, noise_std=1
    )
    truth = exact.scalar_affine(np.ones(run.steps), run)
    assert cyclic.sharp(run, 1.0) == pytest.approx(truth, rel=1e-12)


# --- the quadrature -------------------------------------------------------------------------------


def linear_instance(slope=0.0, steps=9):
    run = CyclicDPSGD(
        steps=steps, steps_per_pass=3, batch_size=2, step_size=0.3, clipping_norm=50.0,
        noise_std=0.25, position=2,
    )  # fmt: skip
    batches = [[lambda x: slope * x + 0.3, lambda x: 0.2 + 0 * x] for _ in range(3)]
    present, absent = [list(b) for b in batches], [list(b) for b in batches]
    present[1][1], absent[1][1] = lambda x: 0 * x + 1.0, lambda x: 0 * x - 1.0
    slopes = np.full(steps, 1 - 0.3 * slope / 2)
    return run, data(present), data(absent), slopes


@pytest.mark.whole
@pytest.mark.parametrize("slope", [0.0, 1.5, -1.0])
@pytest.mark.parametrize("order", [1.5, 2.0, 8.0])
def test_quadrature_agrees_with_the_closed_form_for_affine_steps(slope, order):
    run, present, absent, slopes = linear_instance(slope)
    line = exact.on_the_line(run, present, absent)
    # Nothing is clipped; the worlds' steps differ by 2 step / batch size.
    truth = exact.scalar_affine(slopes, replace(run, clipping_norm=1.0))
    assert line.renyi(order) == pytest.approx(order * truth, rel=1e-10)
    assert line.present.sum() == pytest.approx(1, abs=1e-12)
    mu = np.sqrt(2 * truth)
    for epsilon in (0.5, 2.0):
        delta = norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        assert line.delta(epsilon) == pytest.approx(delta, abs=1e-12, rel=1e-8)
    assert line.epsilon(delta) == pytest.approx(epsilon, rel=1e-8)


def clipped_instance():
    run = CyclicDPSGD(
        steps=8, steps_per_pass=3, batch_size=1, step_size=0.4, clipping_norm=1.0, noise_std=0.3,
        position=2,
    )  # fmt: skip
    batches = [[lambda x: 2 * np.sin(2 * x)], [lambda x: x], [lambda x: 0.4 - x]]
    present, absent = [list(b) for b in batches], [list(b) for b in batches]
    present[1], absent[1] = [lambda x: x + 2], [lambda x: x - 3]
    return run, data(present), data(absent)


@pytest.mark.parametrize("diameter", [None, 1.5])
def test_quadrature_has_converged_with_clipping_active(diameter):
    coarse, fine = (
        exact.on_the_line(*clipped_instance(), start=0.2, diameter=diameter, nodes=nodes).renyi(2.0)
        for nodes in (8, 16)
    )
    assert coarse == pytest.approx(fine, rel=1e-9)


@pytest.mark.parametrize("diameter", [None, 1.5])
def test_delta_agrees_with_a_fine_grid_though_the_test_has_a_kink(diameter):
    # The reference has its own densities, on a uniform grid of 1,500 intervals: an error of the
    # trapezoidal rule at a kink is below its spacing squared times the density's slope.
    run, *worlds = clipped_instance()
    run = replace(run, steps=4)
    line = exact.on_the_line(run, *worlds, start=0.2, diameter=diameter, nodes=8)
    end = 1e9 if diameter is None else diameter / 2
    grid = np.linspace(max(-4.0, -end), min(4.0, end), 1501)
    width = np.full(1501, grid[1] - grid[0])
    width[[0, -1]] /= 2
    masses = []
    for world in worlds:
        points, mass = np.array([0.2]), np.ones(1)
        for t in range(run.steps):
            step = np.clip(world(t % 3, points[:, None])[:, 0, 0], -1, 1)
            centres = points - run.step_size * step
            density = sum(
                norm.pdf(grid[:, None], centres[i : i + 500], run.noise_std) @ mass[i : i + 500]
                for i in range(0, len(centres), 500)
            )
            low = norm.cdf((-end - centres) / run.noise_std) @ mass
            high = norm.sf((end - centres) / run.noise_std) @ mass
            points = np.concatenate((grid, [-end, end]))
            mass = np.concatenate((density * width, [low, high]))
        masses.append(mass)
    for epsilon in (0.3, 1.0, 3.0):
        factor = np.exp(epsilon)
        reference = max(np.maximum(p - factor * q, 0).sum() for p, q in (masses, masses[::-1]))
        assert line.delta(epsilon) == pytest.approx(reference, abs=1e-4)
    # A coarser quadrature says the same, which it did not while it ran across the kink.
    coarse = exact.on_the_line(run, *worlds, start=0.2, diameter=diameter, nodes=6)
    assert coarse.delta(1.0) == pytest.approx(line.delta(1.0), abs=1e-9)
    assert coarse.epsilon(1e-5) == pytest.approx(line.epsilon(1e-5), abs=1e-7)


@pytest.mark.parametrize("diameter", [None, 1.5])
def test_quadrature_agrees_with_simulated_runs(diameter):
    # Means of waves of the last iterate, quadrature against 40,000 runs a world: 48 means within
    # 5.5 standard errors, which a right simulation leaves with probability below 2e-6. An error of
    # 0.03 in the mean of a wave is seen with power > 0.99; between the worlds it is ten times that.
    run, *worlds = clipped_instance()
    line = exact.on_the_line(run, *worlds, start=0.2, diameter=diameter)
    prox = None if diameter is None else lambda points: project_ball(points, diameter)
    waves = [partial(wave, rate) for rate in (0.5, 1, 2, 4, 8, 16) for wave in (sine, cosine)]
    masses = (line.present, line.absent)
    apart = [abs((masses[0] - masses[1]) @ wave(line.points)) for wave in waves]
    assert max(apart) > 0.3
    for name, gradients, mass in zip(("present", "absent"), worlds, masses, strict=True):
        points = last_iterates(run, gradients, [0.2], 40_000, seed=0, name=(name,), prox=prox)[:, 0]
        for wave in waves:
            values = wave(points)
            error = values.std(ddof=1) / np.sqrt(len(values))
            assert abs(values.mean() - mass @ wave(line.points)) < 5.5 * error


def sine(rate, x):
    return np.sin(rate * x)


def cosine(rate, x):
    return np.cos(rate * x)


def test_bad_arguments_are_named():
    run, present, absent = clipped_instance()
    with pytest.raises(InputError, match=r"start: got 2.0; expected a point within the domain"):
        exact.on_the_line(run, present, absent, start=2.0, diameter=1.0)
    with pytest.raises(InputError, match=r"order: got 1.0; expected a number > 1"):
        exact.on_the_line(run, present, absent).renyi(1.0)
    with pytest.raises(InputError, match=r"maps: got .* expected an array of shape"):
        exact.affine_gaussian(np.ones(3), np.ones(3), 1.0)
    with pytest.raises(InputError, match=r"slopes: got .* expected shape"):
        exact.scalar_affine(np.ones(3), run)
    for slope in (np.nan, np.inf):
        with pytest.raises(InputError, match=r"slopes: got .* expected finite numbers"):
            exact.scalar_affine(np.full(run.steps, slope), run)
    for diameter in (0.0, np.inf, np.nan):
        with pytest.raises(InputError, match=r"diameter: got .* expected None or a number > 0"):
            exact.on_the_line(run, present, absent, diameter=diameter)


@pytest.mark.parametrize("apart", [0.0, 0.3])
def test_masses_out_of_reach_are_those_whose_density_rounds_to_zero(apart):
    """The density is summed over the masses near each point alone."""
    rng = np.random.default_rng(0)
    at = np.sort(rng.uniform(-90, 90, 300))
    centres = [c := rng.uniform(-90, 90, 200), c + apart]
    masses = rng.dirichlet(np.ones(200), 2).T
    with np.errstate(under="ignore"):
        whole = [norm.pdf(at[:, None], c, 1.0) @ masses[:, w] for w, c in enumerate(centres)]
    found = exact._density(at, centres, masses, 1.0)
    np.testing.assert_allclose(found, np.transpose(whole), rtol=1e-12)
    assert (found[at > at.max() - 1] > 0).all()
