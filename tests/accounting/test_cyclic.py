import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf
from scipy.optimize import minimize

from hiddenstate.accounting import cyclic, cyclic_operator, divergence, shifts
from hiddenstate.accounting.cyclic import CyclicDPSGD
from hiddenstate.errors import InputError
from hiddenstate.streams import stream


def schedule(steps, steps_per_pass, batch_size, step_size, clipping_norm, noise_std, **other):
    return CyclicDPSGD(
        steps=steps,
        steps_per_pass=steps_per_pass,
        batch_size=batch_size,
        step_size=step_size,
        clipping_norm=clipping_norm,
        noise_std=noise_std,
        **other,
    )


def agrees(value, printed, digits=9):
    """Whether ``value`` rounds, up or down from a tie, to a number of that many digits."""
    printed = float(printed)
    unit = 10.0 ** (math.floor(math.log10(printed)) - digits + 1) if printed else 1e-9
    return abs(value - printed) <= 0.5 * unit + 1e-12 * printed


# --- oracle values --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lipschitz, expected, limit",
    [
        (1.00, "1 0.5 0.2 0.1 0.01 0.001", "0"),
        (1.01, "1 0.504975001 0.208038402 0.109190063 0.02282363 0.0197039506", "0.0197039506"),
        (1.10, "1 0.547511312 0.282450685 0.203855547 0.17355372 0.173553719", "0.173553719"),
    ],
)
def test_visible_fraction_matches_the_printed_table(lipschitz, expected, limit):
    values = shifts.visible_fraction(lipschitz, [1, 2, 5, 10, 100, 1000])
    for value, printed in zip(values, expected.split(), strict=True):
        assert agrees(value, printed)
    assert f"{1 - lipschitz**-2:.9g}" == f"{float(limit):.9g}"
    assert shifts.visible_fraction(lipschitz, 0) == 0


SCHEDULES = [
    (100, 100, 1, 0.1, 1, 0.1),
    (1000, 100, 10, 0.1, 1, 0.02),
    (1000, 10, 10, 0.1, 1, 0.02),
    (10000, 100, 32, 0.05, 1, 0.005),
    (105, 10, 4, 0.2, 2, 0.3),
]
# Theorem 4.5, worst position, sharp, composition, Theorem 4.3, epsilon(1e-5) basic and converted.
RHO = {
    1.00: """2.02 2 0.02 2 800 11.6649177 10.7901623
             0.55 0.545 0.05 5 60500 5.5827364 4.9949070
             5.5 5.45 5 50 60500 21.4149100 20.2588571
             0.390625 0.388671875 0.1953125 19.53125 2126953.12 4.6319628 4.1056519
             0.444444444 0.444444444 0.266666667 2.44444444 583.333333 4.9685381 4.4196656""",
    1.01: """2.04564726 2 0.0456472599 2 800 11.7516010 10.8736330
             0.61411815 0.602706335 0.11411815 5 60500 5.9321240 5.3232824
             5.95950313 5.9049081 5.45950313 50 60500 22.5258926 21.3450257
             0.641086523 0.636628782 0.445774023 19.53125 2126953.12 6.0746052 5.4574143
             0.464866806 0.464866806 0.28887534 2.44444444 583.333333 5.0917348 4.5348278""",
    1.10: """2.34710744 2 0.34710744 2 800 12.7436594 11.8301403
             1.3677686 1.28099174 0.8677686 5 60500 9.3042711 8.5246582
             10.6927774 10.5908496 10.1927774 50 60500 32.8833293 31.5118194
             3.58503359 3.55113638 3.38972109 19.53125 2126953.12 16.4340374 15.4046651
             0.675234549 0.675234549 0.515779146 2.44444444 583.333333 6.2515864 5.6241930""",
}


@pytest.mark.parametrize("lipschitz", RHO)
def test_rho_and_epsilon_match_the_printed_table(lipschitz):
    for row, line in zip(SCHEDULES, RHO[lipschitz].splitlines(), strict=True):
        run = schedule(*row)
        rho = cyclic.theorem_4_5(run, lipschitz)
        rhos = [
            rho,
            cyclic.worst_position(run, lipschitz),
            cyclic.sharp(run, lipschitz),
            cyclic.composition(run),
            cyclic.theorem_4_3(run),
        ]
        *printed, basic, converted = line.split()
        for value, expected in zip(rhos, printed, strict=True):
            assert agrees(value, expected)
        assert f"{rho + 2 * math.sqrt(rho * math.log(1e5)):.7f}" == basic
        assert f"{divergence.epsilon(rho, 1e-5):.7f}" == converted
        if lipschitz == 1:
            assert cyclic.equation_22(run) == rho


def test_divergences_match_the_printed_values():
    run = schedule(*SCHEDULES[1])
    values = [order * cyclic.theorem_4_5(run, 1.01) for order in (2, 8, 32)]
    assert [f"{value:.10g}" for value in values] == ["1.2282363", "4.912945199", "19.65178079"]


@pytest.mark.parametrize("diameter, theorem", [(0.05, "6.2128125"), (0.5, "344.53125")])
def test_bounds_on_a_bounded_domain_match_the_printed_values(diameter, theorem):
    run = schedule(*SCHEDULES[1], position=40)
    assert f"{cyclic.theorem_4_4(run, 1.01, diameter):.9g}" == theorem


@pytest.mark.parametrize(
    "lipschitz, excess", [(1 + 2**-52, 1e17), (1 + 2**-52, 3e15), (2.0, 1e300), (1.5, 1 + 2**-52)]
)
def test_minimal_steps_keep_the_digits_of_a_large_excess(lipschitz, excess):
    """At a large excess none was enough, which is never so."""
    with mp.workdps(400):
        exact = mp.log(mpf(excess) / (mpf(excess) - 1)) / (2 * mp.log(mpf(lipschitz)))
        assert shifts.minimal_steps(lipschitz, excess) == int(mp.ceil(exact))


@pytest.mark.parametrize("factor", [1e-150, 1e-9, 1e-3, 0.7, 1 - 2**-53])
def test_contracted_fractions_keep_the_digits_of_small_factors(factor):
    with mp.workdps(400):
        c = mpf(factor)
        exact = float((1 - c**2) * c**2 / (1 - c**2))
    assert shifts.contracted_fraction(factor, 1) == pytest.approx(exact, rel=1e-13)
    assert shifts.Stretches(factor).log == pytest.approx(math.log(factor), rel=1e-15)


@pytest.mark.parametrize(
    "step_size, m, smoothness, excess, steps, theta, tight, loose",
    [
        (0.1, 0.1, 1, 2.0, 34, "0.0405409971", "0.0409617097", "0.0418181818"),
        (0.01, 0.1, 1, 2.0, 332, "0.00417179993", "0.00417309262", "0.00418181818"),
        (0.1, 0.1, 1, 1.1, 116, "0.0225232037", "0.0225289403", "0.023"),
    ],
)
def test_corollary_c2_matches_the_printed_values(
    step_size, m, smoothness, excess, steps, theta, tight, loose
):
    lipschitz = cyclic_operator.reconstructed(step_size, m, smoothness)
    assert shifts.minimal_steps(lipschitz, excess) == steps
    assert f"{shifts.visible_fraction(lipschitz, steps):.9g}" == theta
    assert f"{excess * (1 - lipschitz**-2):.9g}" == tight
    run = schedule(3 * steps, steps, 1, step_size, 1, 1, weak_convexity=m, smoothness=smoothness)
    expected = run.displacement**2 / 2 * (1 + 3 * float(loose))
    assert cyclic.corollary_c2(run, excess) == pytest.approx(expected, rel=1e-9)
    assert cyclic.corollary_c2(run, excess) >= cyclic.theorem_4_5(run, lipschitz)
    with pytest.raises(InputError, match=f"steps_per_pass: got {steps - 1}; expected at least"):
        cyclic.corollary_c2(replace(run, steps_per_pass=steps - 1), excess)


@pytest.mark.parametrize(
    "m, reconstructed, unclipped, clipped",
    [
        (1, "1.5", "1.3677686", "1.3677686"),
        (0.3, "0.814109335", "0.787799648", "0.790130642"),
        (0.1, "0.617203285", "0.61411815", "0.672063106"),
        (0.01, "0.555132212", "0.555108791", "0.638915249"),
        (0.001, "0.550496816", "0.550496592", "0.636105404"),
        (0, "0.55", "0.55", "0.635798314"),
    ],
)
def test_approach_to_the_convex_bound_matches_the_printed_values(
    m, reconstructed, unclipped, clipped
):
    run = schedule(*SCHEDULES[1], weak_convexity=m, smoothness=1)
    for constant, expected in [
        (cyclic_operator.reconstructed, reconstructed),
        (cyclic_operator.unclipped, unclipped),
        (cyclic_operator.clipped, clipped),
    ]:
        assert f"{cyclic.theorem_4_5(run, constant(*run.curvature)):.9g}" == expected


# Steps, steps per pass, position, step size, clipping norm, noise, diameter (0: none); then bounds
# on D_2: composition, Theorem 4.3, and for concave, nonconvex and convex losses in turn ``sharp``
# with the valid L, with the reconstructed L, and Theorem 4.5 with the latter.
LINE = """
 6 6 1 0.3 1.0 0.20 0    9.00000 216.000  3.83935  4.35574 13.35574   3.83935  3.99627 12.99627   1.50000  1.50000 10.50000
 9 3 1 0.3 0.5 0.20 0    6.75000  81.000  3.47608  3.74309  5.99309   3.47608  3.55645  5.80645   2.25000  2.25000  4.50000
12 4 2 0.5 1.0 0.40 0   18.75000 300.000 11.03280 11.70345 17.79557  11.03280 11.03280 17.08961   5.20833  5.20833 10.93750
12 3 3 0.3 1.0 0.25 0.4 23.04000 276.480 14.65876 15.34230 18.53641  14.65876 14.86452 17.89935  11.52000 11.52000 13.44000
14 3 1 0.3 1.0 0.25 1.0 28.80000 322.560 15.48375 16.55020 18.53641  15.48375 15.80481 17.89935  10.56000 10.56000 13.44000
"""  # noqa: E501
# Theorem 4.4 (with the reconstructed L) on the two bounded domains.
LINE_BOUNDED = {
    0.4: "21.21015 20.39969 16.00000",
    1.0: "62.62537 59.15921 40.96000",
}


@pytest.mark.parametrize("row", LINE.strip().splitlines())
def test_bounds_on_the_line_match_the_printed_values(row):
    steps, per_pass, position, *numbers, composition, theorem_4_3 = row.split()[:9]
    step_size, clipping_norm, noise_std, diameter = map(float, numbers)
    expected = iter(row.split()[9:])
    bounded = iter(LINE_BOUNDED.get(diameter, "").split())
    for m, smoothness in ((1, 0), (1, 1), (0, 1)):
        run = schedule(
            int(steps),
            int(per_pass),
            1,
            step_size,
            clipping_norm,
            noise_std,
            position=int(position),
            weak_convexity=m,
            smoothness=smoothness,
        )
        paper = cyclic_operator.reconstructed(*run.curvature)
        valid = cyclic_operator.unclipped(*run.curvature)
        for bound, lipschitz in [
            (cyclic.sharp, valid),
            (cyclic.sharp, paper),
            (cyclic.theorem_4_5, paper),
        ]:
            assert f"{2 * bound(run, lipschitz):.5f}" == next(expected)
        assert f"{2 * cyclic.composition(run):.5f}" == composition
        assert f"{2 * cyclic.theorem_4_3(run):.3f}" == theorem_4_3
        if diameter:
            assert f"{2 * cyclic.theorem_4_4(run, paper, diameter):.5f}" == next(bounded)


# --- numerics -------------------------------------------------------------------------------------


def exact_fraction(lipschitz, steps):
    if steps == 0:
        return mpmath.mpf(0)
    powers = mpmath.mpf(lipschitz) ** -2
    return (1 - powers) / (1 - powers**steps) if lipschitz > 1 else 1 / mpmath.mpf(steps)


@pytest.mark.parametrize("steps", [1, 2, 1000, 10**6])
@pytest.mark.parametrize("excess", [0, 2**-52, 1e-12, 1e-6, 1e-3, 0.1, 1, 1e3])
def test_visible_fraction_is_accurate_near_one_and_over_a_million_steps(excess, steps):
    lipschitz = 1 + excess
    with mpmath.workdps(60):
        exact = exact_fraction(lipschitz, steps)
        assert abs(shifts.visible_fraction(lipschitz, steps) / exact - 1) < 3e-15


@given(
    steps=st.integers(1, 10**6),
    steps_per_pass=st.integers(1, 10**5),
    position=st.integers(1, 10**5),
    excess=st.floats(0, 1) | st.floats(0, 1e-12),
)
def test_rho_rounds_up_by_less_than_1e_13(steps, steps_per_pass, position, excess):
    position = min(position, steps_per_pass)
    run = schedule(steps, steps_per_pass, 7, 0.03, 0.7, 0.11, position=position)
    lipschitz = 1 + excess
    with mpmath.workdps(60):
        scale = (2 * mpmath.mpf(0.03) * mpmath.mpf(0.7) / 7 / mpmath.mpf(0.11)) ** 2 / 2
        whole = exact_fraction(lipschitz, steps_per_pass)
        rest = exact_fraction(lipschitz, run.hidden_steps)
        bounds = [
            (cyclic.composition(run), run.visits),
            (cyclic.sharp(run, lipschitz), (run.visits - 1) * whole + rest if run.visits else 0),
            (cyclic.theorem_4_5(run, lipschitz), 1 + run.passes * whole),
        ]
        for rho, exact in bounds:
            if exact == 0:
                assert rho == 0
            else:
                assert 0 <= rho / (scale * exact) - 1 < 1e-13


def test_bounds_survive_tiny_scales_and_refuse_what_has_no_digits():
    tiny = schedule(1, 1, 1, 1e-165, 1.0, 1e-160)
    assert cyclic.sharp(tiny, 1.0) == pytest.approx(2e-10, rel=1e-12)
    assert cyclic.composition(tiny) >= 2e-10
    with pytest.raises(InputError, match=r"^noise_std: got 1.0; expected a displacement"):
        schedule(1, 1, 1, 1e-165, 1.0, 1.0)
    with pytest.raises(InputError, match=r"^noise_std: got 1e-300; expected a displacement"):
        schedule(1, 1, 1, 1.0, 1.0, 1e-300)
    with pytest.raises(InputError, match=r"^noise_std: got 1e-310; expected a displacement"):
        schedule(1, 1, 1, 1e-310, 1.0, 1e-310)
    # A shift too small for its square counts as more than it is, never as none.
    domain = schedule(3, 3, 1, 0.1, 1.0, 1.0)
    assert 0 < cyclic.bounded_domain(domain, 1.0, 1e-200) < 1e-270
    with pytest.raises(InputError, match=r"^diameter: got 1e\+200; expected at most"):
        cyclic.bounded_domain(domain, 1.0, 1e200)


# --- structure ------------------------------------------------------------------------------------


def test_visits_are_counted_as_a_walk_through_the_schedule_counts_them():
    for steps in range(1, 15):
        for steps_per_pass in range(1, 7):
            for position in range(1, steps_per_pass + 1):
                run = schedule(steps, steps_per_pass, 1, 1, 1, 1, position=position)
                visits = [
                    t for t in range(1, steps + 1) if (t - 1) % steps_per_pass + 1 == position
                ]
                assert run.visits == len(visits)
                assert run.hidden_steps == (steps - visits[-1] + 1 if visits else 0)
                assert run.passes == steps // steps_per_pass


runs = st.builds(
    lambda steps, steps_per_pass, batch, position: schedule(
        steps, steps_per_pass, batch, 0.1, 1.0, 0.3, position=min(position, steps_per_pass)
    ),
    st.integers(1, 200),
    st.integers(1, 60),
    st.integers(1, 20),
    st.integers(1, 60),
)
lipschitzes = st.just(1.0) | st.floats(1, 1.5)


@given(runs, lipschitzes)
def test_bounds_are_ordered_as_their_derivations_say(run, lipschitz):
    up = 1 + 1e-12
    sharp = cyclic.sharp(run, lipschitz)
    worst = cyclic.worst_position(run, lipschitz)
    assert sharp <= worst * up
    assert worst <= cyclic.theorem_4_5(run, lipschitz) * up
    assert cyclic.theorem_4_5(run, lipschitz) <= cyclic.corollary_c3(run) * up
    assert sharp <= cyclic.composition(run) * up
    assert cyclic.composition(run) <= cyclic.theorem_4_3(run) * up
    assert cyclic.composition(run) <= cyclic.triangle_inequality(run) * up
    assert sharp <= cyclic.sharp(run, lipschitz * 1.01) * up
    positions = [
        cyclic.sharp(replace(run, position=position), lipschitz)
        for position in range(1, run.steps_per_pass + 1)
    ]
    assert max(positions) == pytest.approx(worst, rel=1e-12)
    if run.position == 1:
        assert cyclic.proposition_2_2a(run, lipschitz) == pytest.approx(sharp, rel=1e-12)


def least_spending(injected, lipschitz):
    """Least sum of squares that spends the shifts, step by step (pool-adjacent-violators).

    With x_t = L^t a_t the constraints are those of an isotonic regression: partial sums of
    L^-2t x_t at most those of L^-t injected_t, and x may not fall.
    """
    blocks = []
    for t, shift in enumerate(injected):
        blocks.append([shift * lipschitz**-t, lipschitz ** (-2.0 * t)])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            shift_sum, weight = blocks.pop()
            blocks[-1][0] += shift_sum
            blocks[-1][1] += weight
    return sum(shift**2 / weight for shift, weight in blocks)


def best_beginning(run, lipschitz, diameter):
    """Least rho over every first step of the analysis, each solved on its own."""
    injected = np.zeros(run.steps)
    injected[run.position - 1 :: run.steps_per_pass] = run.displacement
    found = [least_spending(injected, lipschitz)]
    for first in range(run.steps if diameter is not None else 0):
        shifted = injected[first:].copy()
        shifted[0] += lipschitz * diameter
        found.append(least_spending(shifted, lipschitz))
    return min(found) / (2 * run.noise_std**2)


short_runs = st.builds(
    lambda steps, steps_per_pass, batch, position: schedule(
        steps, steps_per_pass, batch, 0.1, 1.0, 0.3, position=min(position, steps_per_pass)
    ),
    st.integers(1, 50),
    st.integers(1, 15),
    st.integers(1, 20),
    st.integers(1, 15),
)


@given(short_runs, lipschitzes, st.floats(0, 1))
def test_bounded_domain_is_the_least_over_all_first_steps(run, lipschitz, diameter):
    # The programme without the steps that clipping alone bounds, which the next test is of.
    best = min(
        cyclic._Beginnings(run, lipschitz).least(diameter / run.noise_std)[0] / 2,
        cyclic.sharp(run, lipschitz),
    )
    brute = best_beginning(run, lipschitz, diameter)
    assert best == pytest.approx(brute, rel=2e-12, abs=1e-15)
    # A diameter of the least positive number costs no less than rounding up adds to nothing.
    assert cyclic.bounded_domain(run, lipschitz, diameter) <= best * (1 + 1e-11) + 1e-250
    assert best <= cyclic.sharp(run, lipschitz) * (1 + 1e-11)
    if run.visits:
        assert best <= cyclic.theorem_4_4(run, lipschitz, diameter) * (1 + 1e-11)


def by_clipping(run, diameter):
    """Least price of the last K steps, each of which adds 2 lambda C, by a general solver."""
    each = 2 * run.step_size * run.clipping_norm
    return min(
        least_spending(np.array([diameter + each] + [each] * (k - 1)), 1.0)
        for k in range(1, run.steps + 1)
    ) / (2 * run.noise_std**2)


@given(short_runs, st.floats(0, 5))
def test_clipping_and_a_domain_bound_any_loss(run, diameter):
    found = cyclic.clipped_domain(run, diameter)
    assert found == pytest.approx(by_clipping(run, diameter), rel=1e-10)
    assert found >= by_clipping(run, diameter) * (1 - 1e-13)
    assert cyclic.bounded_domain(run, 1e6, diameter) <= found * (1 + 1e-11)


def test_clipping_and_a_domain_at_the_reviewed_setting():
    """One step hides d + 2 lambda C: mu 0.8, where composition has epsilon 24.38 at 1e-5."""
    run = schedule(1000, 10, 1, 0.1, 1.0, 0.5, smoothness=1000.0)
    mu = divergence.gaussian_mu(cyclic.clipped_domain(run, 0.2))
    assert mu == pytest.approx(0.8, rel=1e-12)
    assert divergence.gaussian_mu(cyclic.bounded_domain(run, 101.0, 0.2)) <= 0.8 * (1 + 1e-9)


def mixed_spending(run, lipschitz, diameter, grid=400):
    """Least price over all beginnings with z = min(L R + s, R + 2 lambda C) by a dynamic programme.

    Over a grid of shifts that a step leaves, which only loses: every path on it is allowed.
    """
    each, signal = 2 * run.step_size * run.clipping_norm, run.displacement
    at = np.append(0.0, np.geomspace(signal / 50, diameter, grid))
    at[-1] = diameter
    price = np.where(at == diameter, 0.0, math.inf)  # least price to leave this shift
    start = np.where(at == 0, 0.0, math.inf)
    for t in range(1, run.steps + 1):
        visit = t >= run.position and (t - run.position) % run.steps_per_pass == 0
        before = np.minimum(price, start) if t == 1 else price
        z = np.minimum(lipschitz * at + signal * visit, at + each)
        spent = np.maximum(z[:, None] - at[None, :], 0.0)
        price = np.min(before[:, None] + spent**2, axis=0)
        price[-1] = 0.0  # the analysis may begin after any step
    return price[0] / (2 * run.noise_std**2)


@pytest.mark.parametrize("lipschitz", [1.05, 1.3, 3.0])
@pytest.mark.parametrize("diameter", [0.5, 2.0, 6.0])
@pytest.mark.parametrize("steps_per_pass", [1, 4])
def test_turning_from_clipping_to_curvature_is_near_the_best(lipschitz, diameter, steps_per_pass):
    run = schedule(60, steps_per_pass, 5, 0.1, 1.0, 0.3)
    best = mixed_spending(run, lipschitz, diameter)
    found = cyclic.bounded_domain(run, lipschitz, diameter)
    assert 0.9 * best < found < 1.1 * best


def test_beginning_right_after_a_visit_beats_beginning_at_visits():
    # Beginning before a visit or with the last step alone gives 0.52 here.
    run = schedule(901, 100, 10, 0.1, 1.0, 0.02)
    assert cyclic.bounded_domain(run, 1.0, 0.02) == pytest.approx(0.5050505050505, rel=1e-11)


@given(short_runs, st.floats(0.01, 1), st.none() | st.floats(0, 1))
def test_contractions_are_the_least_over_all_first_steps(run, curvature, diameter):
    run = replace(run, smoothness=1.0)
    best = cyclic.strongly_convex(run, curvature, diameter)
    brute = best_beginning(run, 1 - run.step_size * curvature, diameter)
    assert best == pytest.approx(brute, rel=1e-10, abs=1e-15)
    assert best >= brute * (1 - 1e-13)


def test_full_batch_contraction_is_the_published_formula():
    # Bok, Su and Altschuler 2024: noisy gradient descent on strongly convex losses.
    for steps in (1, 2, 30, 500):
        run = schedule(steps, 1, 1, 0.5, 1.0, 0.7, smoothness=1.0)
        for kappa in (0.02, 0.4, 1.0):
            c = 1 - 0.5 * kappa
            published = (1 - c**steps) / (1 + c**steps) * (1 + c) / (1 - c) * (1 / 0.7) ** 2
            mu = divergence.gaussian_mu(cyclic.strongly_convex(run, kappa))
            assert mu**2 == pytest.approx(published, rel=1e-11)
            assert mu**2 >= published * (1 - 1e-14)


def test_convex_single_pass_is_privacy_amplification_by_iteration():
    for position in (1, 3, 10):
        run = schedule(10, 10, 1, 0.2, 1.5, 0.4, smoothness=2, position=position)
        # Feldman et al. 2018: 2 alpha C^2 / (sigma_g^2 (n + 1 - t)), noise on the gradient.
        gradient_noise = run.noise_std / run.step_size
        expected = 2 * run.clipping_norm**2 / (gradient_noise**2 * (10 + 1 - position))
        assert cyclic.pabi(run) == pytest.approx(expected, rel=1e-12)
        assert cyclic.pabi(run) == pytest.approx(cyclic.sharp(run, 1.0), rel=1e-12)


# --- the quadratic programme ----------------------------------------------------------------------


def solved_numerically(run, lipschitz, initial_shift):
    """Minimum of the shift-reduction programme by a general solver, as rho."""
    steps = run.steps
    injected = np.zeros(steps)
    injected[run.position - 1 :: run.steps_per_pass] = run.displacement
    injected[0] += lipschitz * initial_shift
    decay = lipschitz ** np.subtract.outer(np.arange(steps), np.arange(steps))
    decay = np.tril(decay)
    scale = decay[-1] @ injected
    if scale == 0:
        return 0.0
    left, right = decay / scale, decay @ injected / scale
    found = minimize(
        lambda a: a @ a,
        injected,  # each shift spent at once
        jac=lambda a: 2 * a,
        bounds=[(0, None)] * steps,
        constraints=[
            {"type": "ineq", "fun": lambda a: (right - left @ a)[:-1], "jac": lambda a: -left[:-1]},
            {
                "type": "eq",
                "fun": lambda a: right[-1] - left[-1] @ a,
                "jac": lambda a: -left[-1],
            },
        ],
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert found.success, found.message
    return found.fun / (2 * run.noise_std**2)


@pytest.mark.parametrize("count", [12, pytest.param(150, marks=pytest.mark.slow)])
def test_quadratic_programme_agrees_with_a_general_solver(count):
    rng = stream(0, "test", "quadratic-programme")
    for _ in range(count):
        steps, per_pass = int(rng.integers(2, 13)), int(rng.integers(1, 6))
        run = schedule(
            steps, per_pass, 1, 0.5, 1.0, 1.0, position=int(rng.integers(1, per_pass + 1))
        )
        lipschitz = float(rng.choice([1.0, 1 + rng.exponential(0.2)]))
        shift = float(rng.choice([0.0, rng.exponential(2.0)]))
        numeric = solved_numerically(run, lipschitz, shift)
        assert cyclic.quadratic_programme(run, lipschitz, shift) == pytest.approx(
            numeric, rel=1e-6, abs=1e-9
        )


@given(runs, lipschitzes)
def test_starting_afresh_each_visit_is_optimal_without_an_initial_shift(run, lipschitz):
    sharp = cyclic.sharp(run, lipschitz)
    assert cyclic.quadratic_programme(run, lipschitz) == pytest.approx(sharp, rel=1e-11)
    # Proved per instance, without pooling: a spending and a dual bound of one value.
    paid, needed = cyclic.residual_certificate(run, lipschitz)
    assert paid == pytest.approx(sharp, rel=1e-11)
    assert needed == pytest.approx(sharp, rel=1e-11)


@given(runs, lipschitzes, st.floats(0, 5))
def test_an_initial_shift_is_hidden_no_worse_than_by_the_proposition(run, lipschitz, shift):
    run = replace(run, position=1)
    optimum = cyclic.quadratic_programme(run, lipschitz, shift)
    assert optimum <= cyclic.proposition_2_2a(run, lipschitz, shift) * (1 + 1e-12)
    assert optimum >= cyclic.sharp(run, lipschitz) * (1 - 1e-12)


def test_a_large_initial_shift_is_spread_over_several_passes():
    run = schedule(40, 4, 1, 0.5, 1.0, 1.0)
    # Nine injections of 1 and one of 6 over 40 steps, spent evenly, against 4 steps for the 6.
    assert cyclic.quadratic_programme(run, 1.0, 5.0) == pytest.approx(15**2 / 40 / 2)
    assert cyclic.proposition_2_2a(run, 1.0, 5.0) == pytest.approx((6**2 / 4 + 9 / 4) / 2)


# --- domains --------------------------------------------------------------------------------------

RUN = schedule(20, 10, 2, 0.1, 1.0, 0.5, smoothness=1)


@pytest.mark.parametrize(
    "bound",
    [
        cyclic.sharp,
        cyclic.worst_position,
        cyclic.theorem_4_5,
        cyclic.quadratic_programme,
        cyclic.proposition_2_2a,
        cyclic.residual_certificate,
        lambda run, lipschitz: cyclic.theorem_4_4(run, lipschitz, 1.0),
        lambda run, lipschitz: cyclic.bounded_domain(run, lipschitz, 1.0),
    ],
)
def test_a_constant_below_what_the_curvature_reaches_is_refused(bound):
    run = replace(RUN, weak_convexity=1.0)
    for wrong in (1.0, 1.1 * (1 - 1e-12)):
        with pytest.raises(InputError, match=r"^lipschitz: got .* expected a number >= 1.1"):
            bound(run, wrong)
    # The same constant rounded otherwise is accepted, and counted as the larger one.
    assert bound(run, 1.1) == bound(run, cyclic_operator.unclipped(*run.curvature))
    with pytest.raises(InputError, match=r"^lipschitz: got 1.0; expected a number >= 2"):
        bound(replace(RUN, step_size=3.0), 1.0)  # |1 - step M| = 2


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: replace(RUN, steps=0), "steps: got 0; expected a whole number >= 1"),
        (lambda: replace(RUN, batch_size=1.5), "batch_size: got 1.5; expected a whole number"),
        (lambda: replace(RUN, noise_std=0.0), "noise_std: got 0.0; expected a number > 0"),
        (lambda: replace(RUN, step_size=math.nan), "step_size: got nan; expected a number > 0"),
        (lambda: replace(RUN, weak_convexity=-1), "weak_convexity: got -1; expected a number >= 0"),
        (lambda: replace(RUN, position=11), "position: got 11; expected at most steps_per_pass"),
        (lambda: shifts.visible_fraction(0.9, 3), "lipschitz: got 0.9; expected a number >= 1"),
        (lambda: shifts.visible_fraction(1.1, [1, -1]), "steps: got -1.0; expected numbers >= 0"),
        (lambda: cyclic.sharp(RUN, 0.5), "lipschitz: got 0.5; expected a number >= 1"),
        (lambda: cyclic.strongly_convex(RUN, 1.1), "strong_convexity: got 1.1; expected from 0 to"),
        (
            lambda: cyclic.strongly_convex(replace(RUN, step_size=3.0), 0.5),
            "step_size: got 3.0; expected at most 2 / smoothness",
        ),
        (
            lambda: cyclic.strongly_convex(replace(RUN, weak_convexity=0.1), 0.5),
            "weak_convexity: got 0.1; expected 0",
        ),
        (
            lambda: divergence.gaussian_epsilon(1.0, 1.0),
            "delta: got 1.0; expected a number between",
        ),
        (lambda: cyclic.theorem_4_4(RUN, 1.0, -1.0), "diameter: got -1.0; expected a number >= 0"),
        (
            lambda: cyclic.proposition_2_2a(replace(RUN, position=2), 1.0),
            "position: got 2; expected 1",
        ),
        (lambda: cyclic.proposition_2_2b(RUN, -1.0), "residual: got -1.0; expected a number >= 0"),
        (
            lambda: cyclic.equation_22(replace(RUN, weak_convexity=0.1)),
            "weak_convexity: got 0.1; expected 0",
        ),
        (
            lambda: cyclic.equation_22(replace(RUN, step_size=3.0)),
            "step_size: got 3.0; expected at",
        ),
        (lambda: cyclic.pabi(RUN), "batch_size: got 2; expected 1"),
        (
            lambda: cyclic.pabi(replace(RUN, batch_size=1)),
            "steps: got 20; expected at most steps_per_pass = 10",
        ),
        (lambda: cyclic.corollary_c2(RUN, 2.0), "weak_convexity: got 0.0; expected a number > 0"),
        (lambda: shifts.minimal_steps(1.1, 1.0), "excess: got 1.0; expected a number > 1"),
    ],
)
def test_outside_its_domain_a_function_names_the_parameter(call, message):
    with pytest.raises(InputError, match="^" + message):
        call()


def test_theorem_4_4_is_what_liang_et_al_draw():
    """Their Figure 1: alpha (D K + 2 eta C / b)^2 / 2 sigma^2 eta^2, K^2 = 1 + 2.5 eta."""
    run = CyclicDPSGD(
        steps=4, steps_per_pass=4, batch_size=2, step_size=0.2, clipping_norm=2.0,
        noise_std=0.2 * 4.0, weak_convexity=1.0, smoothness=1.0,
    )  # fmt: skip
    drawn = 1.1 / (2 * 4.0**2 * 0.2**2) * (math.sqrt(1.5) + 0.4) ** 2
    rho = cyclic.theorem_4_4(run, cyclic_operator.reconstructed(0.2, 1.0, 1.0), 1.0)
    assert 1.1 * rho == pytest.approx(drawn, rel=1e-12)


def test_bounds_beyond_floating_point_are_refused():
    """Powers raised OverflowError."""
    run = schedule(100, 10, 1, 0.1, 1.0, 1.0)
    for bound in (
        lambda: cyclic.theorem_4_4(run, 1e100, 1e100),
        lambda: cyclic.quadratic_programme(run, 1e100, 1e100),
        lambda: cyclic.proposition_2_2a(run, 1e100, 1e100),
    ):
        with pytest.raises(InputError, match=r"^steps: got 'a bound beyond floating point'"):
            bound()
    with pytest.raises(InputError, match=r"^smoothness: got inf"):
        cyclic_operator.logistic(0.1, 1e200, 2)
    # From the start on 10 visits of 0.2 each are all there is, however large the domain.
    assert cyclic.bounded_domain(run, 1e100, 1e100) == pytest.approx(10 * 0.2**2 / 2, rel=1e-9)


def test_visits_beyond_memory_are_refused_or_left_out(monkeypatch):
    """Lists were as long as the visits."""
    run = schedule(10**12, 1, 1, 0.1, 1.0, 1.0, smoothness=1.0)
    for bound in (
        lambda: cyclic.strongly_convex(run, 0.5),
        lambda: cyclic.quadratic_programme(run, 1.0),
    ):
        with pytest.raises(InputError, match=r"^steps: got 1000000000000; expected at most"):
            bound()
    # The best beginning is d / s = 50 visits before the end.
    monkeypatch.setattr(cyclic, "MOST_VISITS", 100)
    exact = 4 * 10 * 0.2 / 2
    assert cyclic.bounded_domain(run, 1.0, 10.0) == pytest.approx(exact, rel=1e-9)
    monkeypatch.setattr(cyclic, "MOST_VISITS", 10)
    assert cyclic.bounded_domain(run, 1.0, 10.0) >= exact
