"""Reference values of gradient_crafting: the paper prints none, its figures are all there is.

These were derived from the paper's description and computed independently of this package, in
extended precision or by simulation, and are printed to the digits that stand here.
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
        1.0: (1.000, 0.80, 0.15), 4.0: (4.000, 3.75, 0.17), 8.0: (8.000, 7.69, 0.23),
        10.0: (10.00, 9.65, 0.25), 12.0: (12.00, 11.59, 0.26), 24.0: (24.00, 22.99, 0.48),
    },
    5: {
        1.0: (0.415, 0.23, 0.12), 4.0: (1.614, 1.40, 0.16), 8.0: (3.123, 2.89, 0.16),
        10.0: (3.850, 3.60, 0.17), 12.0: (4.561, 4.29, 0.17), 24.0: (8.597, 8.27, 0.24),
    },
    25: {
        1.0: (0.173, 0.05, 0.06), 4.0: (0.666, 0.47, 0.13), 8.0: (1.271, 1.07, 0.16),
        10.0: (1.555, 1.34, 0.16), 12.0: (1.831, 1.62, 0.17), 24.0: (3.342, 3.10, 0.16),
    },
}  # fmt: skip
"""By insertion period and epsilon: the exact epsilon of an idle coordinate, and mean and deviation
of the published estimate with 5,000 models per world."""

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
    1.0: {1: (0.17, 0.13), 2: (0.35, 0.13), 4: (0.53, 0.13), 8: (0.59, 0.13)},
    2.0: {1: (0.96, 0.16), 2: (1.37, 0.16), 4: (1.52, 0.16), 8: (1.53, 0.16)},
    4.0: {1: (3.05, 0.18), 2: (3.42, 0.18), 4: (3.45, 0.18), 8: (3.45, 0.18)},
    8.0: {1: (7.17, 0.25), 2: (7.30, 0.25), 4: (7.30, 0.25)},
}
"""Mean and deviation of the published estimate with 5,000 runs, by epsilon and batch size."""

EXACT = {0.5: 0.145, 1.0: 0.280, 2.0: 0.536, 4.0: 1.016, 8.0: 1.911, 12.0: 2.76}
"""Exact epsilon of the midpoint landscape after 25 steps with large batches, by epsilon."""

EXACT_AT_BEST: dict[float, dict[int, float]] = {
    4.0: {1: 0.493, 2: 0.847, 4: 1.000},
    1.0: {1: 0.281, 2: 0.391, 4: 0.617, 8: 0.967, 16: 1.000},
}
"""The same over epsilon with the threshold at h*, by epsilon and batch size."""
