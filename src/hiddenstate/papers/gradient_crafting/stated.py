"""Reference values of gradient_crafting: the paper prints none, its figures are all there is.

These were derived from the paper's description and computed independently of this package, in
extended precision or by simulation (``tests/crafted_reference.py``), and are
printed to the digits that stand here.
"""

DELTA = 1e-5

NOISE_MULTIPLIERS = {
    1.0: 58.986, 4.0: 17.095, 8.0: 9.490, 10.0: 7.904, 12.0: 6.825, 24.0: 3.999
}  # fmt: skip
"""By epsilon, for 250 insertions."""

GAUSSIAN_MU = {1.0: 0.2681, 4.0: 0.9249, 8.0: 1.6660, 10.0: 2.0004, 12.0: 2.3167, 24.0: 3.9534}
"""By epsilon."""

IDLE: dict[int, dict[float, tuple[float, float, float]]] = {
    1: {
        1.0: (1.0000, 0.874, 0.116), 4.0: (4.0000, 3.854, 0.163), 8.0: (8.0000, 7.828, 0.221),
        10.0: (10.0000, 9.806, 0.247), 12.0: (12.0000, 11.775, 0.267),
        24.0: (24.0000, 23.429, 0.491),
    },
    5: {
        1.0: (0.4150, 0.299, 0.102), 4.0: (1.6139, 1.481, 0.128), 8.0: (3.1233, 2.980, 0.148),
        10.0: (3.8496, 3.704, 0.158), 12.0: (4.5607, 4.412, 0.172), 24.0: (8.5974, 8.417, 0.223),
    },
    25: {
        1.0: (0.1727, 0.078, 0.085), 4.0: (0.6662, 0.544, 0.109), 8.0: (1.2706, 1.139, 0.119),
        10.0: (1.5554, 1.423, 0.126), 12.0: (1.8309, 1.698, 0.132), 24.0: (3.3420, 3.199, 0.155),
    },
}  # fmt: skip
"""By insertion period and epsilon: the exact epsilon of an unused coordinate, mean and deviation of
the published estimate over ``IDLE_AUDITS`` simulated audits with 5,000 models per data set. A
mean's standard error is its deviation over the square root of their number."""

IDLE_AUDITS = 10_000

RATIOS: dict[float, dict[int, float]] = {
    0.5: {1: 0.330, 2: 0.499, 4: 0.749, 8: 0.942, 16: 0.998, 32: 1.000},
    1.0: {1: 0.479, 2: 0.726, 4: 0.931, 8: 0.997, 16: 1.000, 32: 1.000},
    2.0: {1: 0.697, 2: 0.915, 4: 0.995, 8: 1.000, 16: 1.000, 32: 1.000},
    4.0: {1: 0.892, 2: 0.991, 4: 1.000, 8: 1.000, 16: 1.000, 32: 1.000},
    8.0: {1: 0.984, 2: 1.000, 4: 1.000, 8: 1.000, 16: 1.000, 32: 1.000},
    10.0: {1: 0.994, 2: 1.000, 4: 1.000, 8: 1.000, 16: 1.000, 32: 1.000},
    12.0: {1: 0.998, 2: 1.000, 4: 1.000, 8: 1.000, 16: 1.000, 32: 1.000},
}
"""Section 6 after 25 steps, by epsilon and batch size: the Gaussian-DP reading over epsilon."""

EVOLUTION: dict[int, dict[int, float]] = {
    1: {1: 4.00, 2: 3.712, 3: 3.629, 5: 3.583, 10: 3.569, 15: 3.569, 25: 3.569},
    2: {1: 4.00, 2: 3.968, 3: 3.965, 25: 3.965},
    0: {1: 4.00, 2: 2.694, 3: 2.145, 5: 1.614, 10: 1.101, 15: 0.881, 25: 0.666},
}
"""The Gaussian-DP reading at epsilon 4, by batch size (0: flat) and step."""

AUDITED: dict[float, dict[int, tuple[float, float]]] = {
    1.0: {1: (0.284, 0.089), 2: (0.488, 0.093), 4: (0.673, 0.098), 8: (0.733, 0.097)},
    2.0: {1: (1.121, 0.104), 2: (1.536, 0.109), 4: (1.689, 0.108), 8: (1.700, 0.108)},
    4.0: {1: (3.226, 0.124), 2: (3.614, 0.128), 4: (3.649, 0.126), 8: (3.644, 0.127)},
    8.0: {1: (7.419, 0.156), 2: (7.547, 0.162), 4: (7.555, 0.160)},
}
"""Mean and deviation of the published estimate with 5,000 runs per data set, by
``LANDSCAPE_AUDITS`` simulated audits, by epsilon and batch size."""

LANDSCAPE_AUDITS = 4_000

EXACT = {0.5: 0.145, 1.0: 0.280, 2.0: 0.536, 4.0: 1.016, 8.0: 1.911, 12.0: 2.76}
"""Exact epsilon of the midpoint landscape after 25 steps with large batches, by epsilon."""

ONE_BIT = {0.5: 0.113, 1.0: 0.214, 2.0: 0.401, 4.0: 0.745, 8.0: 1.371, 12.0: 1.961}
"""Exact epsilon of the one bit whether a normal score lies above the midpoint, by epsilon:
log((p - delta) / (1 - p)) with p = Phi(mu / 2). The last iterate falls to it as steps are added."""

EXACT_AT_BEST: dict[float, dict[int, float]] = {
    4.0: {1: 0.493, 2: 0.847, 4: 1.000},
    1.0: {1: 0.281, 2: 0.391, 4: 0.617, 8: 0.967, 16: 1.000},
}
"""The same over epsilon with the threshold at h*, by epsilon and batch size."""
