"""Privacy families: one number of privacy, one trade-off function for each of its values.

A family is a nested sequence of claims "the trade-off function of (out, in) is nowhere below
f_theta", ordered from the most private to the least. An audit rejects claims from the most private
end on; the last claim it rejects is its bound. All curves are for the null hypothesis "out": the
false-positive rate is the share of out-scores called in, the false-negative rate the share of
in-scores called out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from hiddenstate.accounting import tradeoff
from hiddenstate.accounting.tradeoff import TradeoffCurve
from hiddenstate.errors import InputError

RESOLUTION = 1e-6
"""Bounds on a continuous parameter are rounded down to a multiple of this."""


class Family(Protocol):
    """What a bound needs to know of a privacy family.

    ``parameter`` is the word a table shows. ``grid``, shape (n,), are the parameter values an
    audit can report, from the most private to the least; ``trivial`` is what it reports when it
    rejects none of them.
    """

    parameter: str
    trivial: float

    @property
    def grid(self) -> NDArray[np.float64]:
        """Parameter values, from the most private to the least."""

    def fnr(self, index: int, fpr: ArrayLike) -> NDArray[np.float64]:
        """Smallest false-negative rate that the claim ``grid[index]`` allows at each FPR."""

    def violated(self, fpr: ArrayLike, fnr: ArrayLike) -> NDArray[np.float64]:
        """Lower bound: least private claim that a test with these errors contradicts.

        Broadcasts; ``trivial`` where it contradicts none.
        """


@dataclass(frozen=True)
class GaussianDP:
    """mu-Gaussian differential privacy: f_mu(FPR) = Phi(Phi^-1(1 - FPR) - mu).

    Source: Dong, Roth and Su 2022, definition 4.
    """

    limit: float = 20.0
    step: float = 0.001
    parameter = "mu"
    trivial = 0.0

    @property
    def grid(self) -> NDArray[np.float64]:
        """mu from 0 to ``limit`` in steps of ``step``."""
        return np.round(np.arange(round(self.limit / self.step) + 1) * self.step, 9)

    def fnr(self, index: int, fpr: ArrayLike) -> NDArray[np.float64]:
        """Exact trade-off function at ``grid[index]``."""
        return tradeoff.gaussian(index * self.step, fpr)

    def violated(self, fpr: ArrayLike, fnr: ArrayLike) -> NDArray[np.float64]:
        """Lower bound on mu: Phi^-1(1 - FNR) - Phi^-1(FPR), rounded down, at least 0."""
        with np.errstate(invalid="ignore"):
            mu = -ndtri(fnr) - ndtri(fpr)
        return _round_down(mu)


@dataclass(frozen=True)
class ApproxDP:
    """(epsilon, delta)-differential privacy at a fixed delta.

    f(FPR) = max(0, 1 - delta - e^epsilon FPR, e^-epsilon (1 - delta - FPR)).
    Source: Wasserman and Zhou 2010; Kairouz, Oh and Viswanath 2015, Theorem 2.1.
    """

    delta: float
    limit: float = 20.0
    step: float = 0.001
    parameter = "epsilon"
    trivial = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.delta < 1:
            raise InputError(f"delta: got {self.delta}; expected a probability inside (0, 1)")

    @property
    def grid(self) -> NDArray[np.float64]:
        """Epsilon from 0 to ``limit`` in steps of ``step``."""
        return np.round(np.arange(round(self.limit / self.step) + 1) * self.step, 9)

    def fnr(self, index: int, fpr: ArrayLike) -> NDArray[np.float64]:
        """Exact trade-off function at ``grid[index]``."""
        growth = np.exp(index * self.step)
        room = 1 - self.delta
        fpr = np.asarray(fpr, dtype=float)
        return np.maximum(0, np.maximum(room - growth * fpr, (room - fpr) / growth))

    def violated(self, fpr: ArrayLike, fnr: ArrayLike) -> NDArray[np.float64]:
        """Lower bound on epsilon from the two lines above, rounded down, at least 0."""
        fpr, fnr = np.asarray(fpr, dtype=float), np.asarray(fnr, dtype=float)
        room = 1 - self.delta
        with np.errstate(divide="ignore", invalid="ignore"):
            steep = np.log(np.maximum(room - fnr, 0)) - np.log(fpr)
            flat = np.log(np.maximum(room - fpr, 0)) - np.log(fnr)
        return _round_down(np.fmax(steep, flat))


@dataclass(frozen=True, eq=False)
class Tabulated:
    """A mechanism's own trade-off functions, one for each value of its parameter.

    parameter: what ``values`` are, such as "epsilon" or "noise multiplier". values: shape (n,),
    from the most private to the least: ascending if larger leaks more (the audit then bounds the
    parameter from below; so is a single value), descending if larger leaks less (then from above).
    curves: n lower
    bounds on the trade-off functions, as ``hiddenstate.accounting.pld.tradeoff_curve`` makes them.
    null: the null hypothesis those curves are for. An audit reports only values of the table, on
    the safe side: a finer table is a tighter bound.

    Source: the PLD-matched estimator of Nasr et al. 2023, section 5.
    """

    parameter: str
    values: ArrayLike
    curves: Sequence[TradeoffCurve]
    null: Literal["out", "in", "either"] = "out"

    def __post_init__(self) -> None:
        values = np.asarray(self.values, dtype=float)
        if len(values) != len(self.curves) or len(values) == 0:
            raise ValueError(f"{len(values)} values for {len(self.curves)} curves")
        steps = np.diff(values)
        if not (np.all(steps > 0) or np.all(steps < 0)):
            raise ValueError("values must be strictly monotone")
        if self.null == "in":
            object.__setattr__(self, "curves", tuple(c.inverse() for c in self.curves))
        object.__setattr__(self, "values", values)
        rates = np.linspace(0, 1, 201)
        table = np.array([curve(rates) for curve in self.curves])
        # Curves of the same mechanism carry rounding noise of their accountant, no more.
        if np.any(np.diff(table, axis=0) > 1e-3):
            raise ValueError("curves must run from the most private to the least")

    @property
    def grid(self) -> NDArray[np.float64]:
        """The values of the table."""
        return self.values

    @property
    def trivial(self) -> float:
        """0 where larger leaks more, infinity where larger leaks less."""
        descending = len(self.values) > 1 and self.values[0] > self.values[-1]
        return np.inf if descending else 0.0

    def fnr(self, index: int, fpr: ArrayLike) -> NDArray[np.float64]:
        """Lower bound on the trade-off function of ``values[index]``."""
        return self.curves[index](fpr)

    def violated(self, fpr: ArrayLike, fnr: ArrayLike) -> NDArray[np.float64]:
        """Last value of the table such that it and all before it are contradicted."""
        fpr, fnr = np.broadcast_arrays(np.asarray(fpr, dtype=float), np.asarray(fnr, dtype=float))
        rejected = np.zeros(fpr.shape, dtype=int)
        # From the private end on, and only with the points that are still beyond the curve.
        alive = np.arange(fpr.size)
        x, y = fpr.ravel(), fnr.ravel()
        for index in range(len(self.values)):
            alive = alive[y[alive] < self.curves[index](x[alive])]
            if alive.size == 0:
                break
            rejected.flat[alive] = index + 1
        return np.concatenate(([self.trivial], self.values))[rejected]


def composed(
    noise_multipliers: ArrayLike,
    sampling_rate: float,
    steps: int,
    *,
    null: Literal["out", "in", "either"] = "out",
) -> Tabulated:
    """Trade-off functions of subsampled and composed DP-SGD, one for each noise multiplier.

    noise_multipliers: shape (n,), descending. All iterates are released, so a bound on the noise
    multiplier speaks of any of them, and of the last one. An audit bounds it from above.
    """
    from hiddenstate.accounting import pld

    curves = [
        pld.tradeoff_curve(sigma, sampling_rate, steps, null=null, lines=401, interval=5e-3)
        for sigma in np.asarray(noise_multipliers, dtype=float)
    ]
    return Tabulated("noise multiplier", noise_multipliers, curves)


def _round_down(value: ArrayLike) -> NDArray[np.float64]:
    """Largest multiple of the resolution below value, at least 0; 0 where value is undefined."""
    value = np.where(np.isnan(value), 0.0, value)
    return np.maximum(np.floor(value / RESOLUTION - 1e-3) * RESOLUTION, 0.0)
