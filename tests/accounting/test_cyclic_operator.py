import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiddenstate.accounting import cyclic_operator as operator
from hiddenstate.accounting.cyclic import CyclicDPSGD
from hiddenstate.dpsgd.cyclic import displaced
from hiddenstate.errors import InputError

# (step size, weak convexity, smoothness): reconstructed, unclipped, clipped, trivial
TABLE = [
    ((0.1, 0, 1), 1.000000000, 1.000000000, 1.012739367, 1.100000000),
    ((0.01, 0, 1), 1.000000000, 1.000000000, 1.001252349, 1.010000000),
    ((0.1, 0.1, 1), 1.010400461, 1.010000000, 1.017047083, 1.100000000),
    ((0.1, 0.01, 1), 1.001004446, 1.001000000, 1.013120844, 1.100000000),
    ((0.5, 1, 1), 1.500000000, 1.500000000, 1.500000000, 1.500000000),
    ((0.25, 1, 1), 1.274754878, 1.250000000, 1.250000000, 1.250000000),
    ((0.1, 1, 0), 1.140175425, 1.100000000, 1.100000000, 1.100000000),
    ((0.05, 0.5, 4), 1.026049598, 1.025000000, 1.037125958, 1.200000000),
    ((0.01, 0.2, 10), 1.002017573, 1.002000000, 1.013512406, 1.100000000),
]
CONSTANTS = (operator.reconstructed, operator.unclipped, operator.clipped, operator.trivial)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: str(row[0]))
def test_constants_match_the_printed_table(row):
    curvature, *expected = row
    assert [f"{constant(*curvature):.9f}" for constant in CONSTANTS] == [
        f"{value:.9f}" for value in expected
    ]


curvatures = st.tuples(st.floats(1e-6, 1), st.floats(0, 1), st.floats(0, 1)).map(
    # A step size at a fraction of its limit, then the two curvatures.
    lambda x: (x[0] / max(x[1] + x[2], 1e-3), x[1], x[2])
)


@given(curvatures)
def test_constants_are_ordered_and_never_shrink_with_curvature(curvature):
    step, m, smoothness = curvature
    base, clipped = operator.unclipped(*curvature), operator.clipped(*curvature)
    tolerance = 1 + 1e-14
    assert 1 <= base <= clipped * tolerance
    assert base <= operator.reconstructed(*curvature) * tolerance
    assert clipped <= operator.trivial(*curvature) * tolerance
    assert clipped <= operator.clipped(step, m * 0.9, smoothness) * (1 + step * m)
    assert operator.clipped(step * 0.9, m, smoothness) <= clipped * tolerance
    assert operator.clipped(step, m, smoothness * 0.9) <= clipped * tolerance


@given(curvatures)
def test_constants_round_up_by_a_few_units_in_the_last_place(curvature):
    with mpmath.workdps(50):
        step, m, smoothness = map(mpmath.mpf, curvature)
        exact = [1 + step * m]
        ratio = m / (2 * (smoothness + m)) if m else 0
        exact.append(mpmath.sqrt(1 + 2 * step * m * (1 + ratio)))
        spread = smoothness - m
        worst = spread * (spread + step * m * smoothness) / (4 - step * spread)
        if spread > 0 and worst >= m * m:
            a = 1 + step * m * smoothness / spread
            exact.append(mpmath.sqrt(a / (1 - step * spread / 4)))
        else:
            exact.append(1 + step * m)
    for constant, value in zip((*CONSTANTS[1::-1], operator.clipped), exact, strict=True):
        assert 0 <= constant(*curvature) / value - 1 < 5e-15


def firm_projections(directions):
    """Projections onto the lines along unit vectors of shape (n, 2): extreme clipping Jacobians."""
    return directions[:, :, None] * directions[:, None, :]


@pytest.mark.parametrize(
    "curvature, reference",
    [
        ((0.5, 0, 1), 1.069044),
        ((0.9, 0, 1), 1.135924),
        ((0.2, 0.1, 1), 1.034596),
        ((0.3, 0.25, 1), 1.079612),
        ((0.3, 0.6, 1), 1.180000),
        ((0.5, 1, 1), 1.499997),
    ],
)
def test_clipped_constant_is_the_supremum_over_plane_losses(curvature, reference):
    # Every Jacobian I - step P H in a fine grid: H with the extreme curvatures (or one of them
    # twice), P the projection that clipping tends to just above the clipping norm, or no clipping.
    step, m, smoothness = curvature
    angles = np.linspace(0, np.pi, 601)
    directions = np.stack((np.cos(angles), np.sin(angles)), axis=-1)
    projections = np.concatenate((firm_projections(directions), np.eye(2)[None]))
    largest = 0.0
    for first, second in [(smoothness, -m), (smoothness, smoothness), (-m, -m), (0, smoothness)]:
        hessian = np.diag([first, second]).astype(float)
        jacobians = np.eye(2) - step * projections @ hessian
        largest = max(largest, np.linalg.norm(jacobians, ord=2, axis=(1, 2)).max())
    constant = operator.clipped(*curvature)
    assert largest <= constant
    assert largest == pytest.approx(constant, abs=2e-5)
    assert constant == pytest.approx(reference, abs=4e-6)


def test_clipped_step_expands_on_the_convex_counterexample():
    # f(x) = (w.x)^2 / 2 + 1.0001 x_2, w = (1/2, sqrt(3)/2), clipping norm 1, step 1/2.
    w = np.array([0.5, math.sqrt(3) / 2])
    run = CyclicDPSGD(
        steps=1, steps_per_pass=1, batch_size=1, step_size=0.5, clipping_norm=1, noise_std=1
    )

    def gradients(batch, points):
        return ((points @ w)[:, None] * w + [0, 1.0001])[:, None, :]

    angles = np.linspace(0, np.pi, 20001)
    near = 1e-6 * np.stack((np.cos(angles), np.sin(angles)), axis=-1)
    moved = displaced(run, gradients, 0, near) - displaced(run, gradients, 0, np.zeros((1, 2)))
    expansion = (np.linalg.norm(moved, axis=1) / 1e-6).max()
    assert expansion == pytest.approx(1.068722, abs=5e-6)
    assert f"{operator.clipped(0.5, 0, 1):.6f}" == "1.069045"
    assert operator.reconstructed(0.5, 0, 1) == 1 < expansion <= operator.clipped(0.5, 0, 1)


def test_clipping_costs_from_three_times_the_weak_convexity():
    small = 1e-6
    assert operator.clipped(small, 1, 2.99) == pytest.approx(1 + small, rel=1e-12)
    assert operator.clipped(small, 1, 3.5) - 1 == pytest.approx(small * 4.5**2 / 20, rel=1e-4)


@pytest.mark.parametrize(
    "constant, arguments, message",
    [
        (operator.unclipped, (0, 0, 1), "step_size: got 0; expected a positive number"),
        (operator.unclipped, (0.1, -1, 1), "weak_convexity: got -1; expected a number >= 0"),
        (operator.trivial, (0.1, 0, math.inf), "smoothness: got inf; expected a number >= 0"),
        (operator.reconstructed, (1, 1, 1), "step_size: got 1; expected at most 1 / "),
        (operator.clipped, (0.6, 1, 1), "step_size: got 0.6; expected at most 1 / "),
    ],
)
def test_outside_its_domain_a_constant_names_the_parameter(constant, arguments, message):
    with pytest.raises(InputError, match="^" + message.replace("(", r"\(")):
        constant(*arguments)
