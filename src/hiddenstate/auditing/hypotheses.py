"""Hypotheses on privacy: one number, and one trade-off function for each of its values.

Each hypothesis claims "the trade-off function of (out, in) is nowhere below f_theta"; they are
ordered from the most private to the least, and each implies all after it. An audit rejects them
from the most private end on; the last one it rejects is its bound. All curves are for the null
hypothesis "out": the false-positive rate is the share of out-scores called in, the false-negative
rate the share of in-scores called out.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from hiddenstate.accounting import tradeoff
from hiddenstate.accounting.tradeoff import TradeoffCurve
from hiddenstate.errors import InputError

RESOLUTION = 1e-6
"""Bounds on a continuous parameter are rounded down to a multiple of this."""

INTERVAL = 5e-3
"""Largest spacing of the privacy losses of composed curves."""

LINES = (401, 8_001)
"""Supporting lines of composed curves on either side of 0: few, and enough for little noise."""


class Disordered(InputError):
    """Curves that do not run from the most private to the least."""


class Hypotheses(Protocol):
    """Ordered set of hypotheses, as a bound needs it.

    ``grid``, shape (n,), are the parameter values an audit can report, from the most private to
    the least.
    """

    @property
    def parameter(self) -> str:
        """The word a table shows."""

    @property
    def trivial(self) -> float:
        """Bound of an audit that rejects none: 0, or infinity if larger parameters leak less."""

    @property
    def grid(self) -> NDArray[np.float64]:
        """Parameter values, from the most private to the least."""

    def fnr(self, index: int, fpr: ArrayLike) -> NDArray[np.float64]:
        """Smallest false-negative rate that the hypothesis ``grid[index]`` allows at each FPR."""

    def violated(self, fpr: ArrayLike, fnr: ArrayLike) -> NDArray[np.float64]:
        """Lower bound: least private hypothesis that a test with these errors contradicts.

        Broadcasts; ``trivial`` where it contradicts none.
        """

    def __hash__(self) -> int:
        """Critical values are kept by what they were computed for."""


def claimed(hypotheses: Hypotheses, value: float) -> int:
    """Index of the most private hypothesis that a claim of ``value`` implies.

    Whoever claims a value between two of the grid claims the less private one as well, so what
    rejects that one rejects the claim. Raises InputError beyond the least private hypothesis.
    """
    value = number(hypotheses.parameter, value)
    grid = hypotheses.grid
    upward = hypotheses.trivial == 0
    # A claimed value of the grid is not to fall beside it by rounding.
    implied = grid >= value - 1e-12 if upward else grid <= value + 1e-12
    if not implied.any() or value < 0:
        end = f"at most {grid[-1]:g}" if upward else f"at least {grid[-1]:g}"
        raise InputError(
            f"{hypotheses.parameter}: got {value:g}; expected a value of at least 0 and {end}"
        )
    return int(np.argmax(implied))


def number(name: str, value: Any) -> float:
    """The value as one finite number, or an InputError."""
    try:
        found = np.asarray(value)
        if found.shape != () or found.dtype.kind not in "iuf" or not np.isfinite(found):
            raise TypeError
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: got {value!r:.80}; expected one finite number") from error
    return float(found)


def _grid(hypotheses: "GaussianDP | ApproxDP") -> None:
    """Check and convert what spans the grid of a continuous parameter."""
    for name in ("limit", "step"):
        object.__setattr__(hypotheses, name, number(name, getattr(hypotheses, name)))
    if hypotheses.step > 0 and hypotheses.limit / hypotheses.step > 1e8:
        raise InputError(
            f"step: got {hypotheses.step:g}; expected at most 1e8 of them up to the limit, "
            f"{hypotheses.limit:g}"
        )
    if not 0 < hypotheses.step <= hypotheses.limit:
        raise InputError(
            f"step: got {hypotheses.step:g}; expected more than 0 and at most the limit, "
            f"{hypotheses.limit:g}"
        )


@dataclass(frozen=True)
class GaussianDP:
    """mu-Gaussian differential privacy: f_mu(FPR) = Phi(Phi^-1(1 - FPR) - mu).

    Source: Dong, Roth and Su 2022, definition 4.
    """

    limit: float = 20.0
    step: float = 0.001
    parameter = "mu"
    trivial = 0.0

    def __post_init__(self) -> None:
        _grid(self)

    @property
    def grid(self) -> NDArray[np.float64]:
        return np.round(np.arange(round(self.limit / self.step) + 1) * self.step, 9)

    def fnr(self, index: int, fpr: ArrayLike) -> NDArray[np.float64]:
        return tradeoff.gaussian(index * self.step, fpr)

    def violated(self, fpr: ArrayLike, fnr: ArrayLike) -> NDArray[np.float64]:
        """Lower bound on mu: Phi^-1(1 - FNR) - Phi^-1(FPR), rounded down, at least 0."""
        with np.errstate(invalid="ignore"):
            # A rate of 0 beside one of 1 gives nan, which contradicts nothing.
            mu = -ndtri(fnr) - ndtri(fpr)
        return _round_down(mu)


@dataclass(frozen=True)
class ApproxDP:
    """(epsilon, delta)-differential privacy at a fixed delta; delta 0 is pure DP.

    f(FPR) = max(0, 1 - delta - e^epsilon FPR, e^-epsilon (1 - delta - FPR)).
    Source: Wasserman and Zhou 2010; Kairouz, Oh and Viswanath 2015, Theorem 2.1.
    """

    delta: float
    limit: float = 20.0
    step: float = 0.001
    parameter = "epsilon"
    trivial = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "delta", number("delta", self.delta))
        if not 0 <= self.delta < 1:
            raise InputError(f"delta: got {self.delta}; expected a probability in [0, 1)")
        _grid(self)
        if self.limit > 700:
            raise InputError(f"limit: got {self.limit:g}; expected at most 700, for e^epsilon")

    @property
    def grid(self) -> NDArray[np.float64]:
        return np.round(np.arange(round(self.limit / self.step) + 1) * self.step, 9)

    def fnr(self, index: int, fpr: ArrayLike) -> NDArray[np.float64]:
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
        # Where one line gives nan, log 0 - log 0, the other decides.
        return _round_down(np.fmax(steep, flat))


@dataclass(frozen=True, eq=False)
class Tabulated:
    """A mechanism's own trade-off functions, one for each value of its parameter.

    parameter: what ``values`` are, such as "epsilon" or "noise multiplier". values: shape (n,),
    from the most private to the least. curves: n lower bounds on the trade-off functions, as
    ``hiddenstate.accounting.pld.tradeoff_curve`` makes them. null: the null hypothesis those
    curves are for; "in" are inverted. direction: how an audit bounds the parameter, from below
    ("lower", larger leaks more) or from above ("upper", larger leaks less); the order of the
    values says it where there are several, and a single value is "lower" unless told otherwise.
    An audit reports only values of the table, on the safe side: a finer table is a tighter bound.

    Source: the PLD-matched estimator of Nasr et al. 2023, section 5.
    """

    parameter: str
    values: NDArray[np.float64]
    curves: Sequence[TradeoffCurve]
    null: Literal["out", "in", "either"] = "out"
    direction: Literal["lower", "upper"] | None = None

    def __post_init__(self) -> None:
        try:
            values = np.atleast_1d(np.asarray(self.values, dtype=float))
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"values: got {self.values!r:.80}; expected numbers") from error
        if values.ndim != 1 or len(values) != len(self.curves) or len(values) == 0:
            raise InputError(f"values: got {values.size} values for {len(self.curves)} curves")
        steps = np.diff(values)
        if not np.isfinite(values).all() or not (np.all(steps > 0) or np.all(steps < 0)):
            raise InputError(f"values: got {values}; expected finite, strictly monotone ones")
        tradeoff.check_null(self.null)
        if self.direction not in (None, "lower", "upper"):
            raise InputError(f"direction: got {self.direction!r}; expected 'lower' or 'upper'")
        ordered = "upper" if len(steps) and steps[0] < 0 else "lower"
        if len(steps) and self.direction not in (None, ordered):
            raise InputError(
                f"values: {'ascend' if ordered == 'lower' else 'descend'}, for a parameter that is "
                f"bounded from {'above' if ordered == 'lower' else 'below'}; "
                "expected the most private value first"
            )
        object.__setattr__(self, "direction", self.direction or ordered)
        curves = [c.inverse() for c in self.curves] if self.null == "in" else self.curves
        object.__setattr__(self, "curves", tuple(curves))
        object.__setattr__(self, "values", values)
        # Along the diagonal, where steep curves are as well-behaved as flat ones. Curves of one
        # mechanism carry rounding noise of their accountant, no more.
        differences = np.linspace(-1, 1, 401)
        totals = np.array([curve.total(differences) for curve in self.curves])
        if np.any(np.diff(totals, axis=0) > 1e-3):
            worst = int(np.argmax(np.diff(totals, axis=0).max(axis=1)))
            raise Disordered(
                f"curves: that of {values[worst + 1]:g} is more private than that of "
                f"{values[worst]:g}; expected them from the most private to the least"
            )

    @property
    def grid(self) -> NDArray[np.float64]:
        return self.values

    @property
    def trivial(self) -> float:
        return np.inf if self.direction == "upper" else 0.0

    def fnr(self, index: int, fpr: ArrayLike) -> NDArray[np.float64]:
        """Lower bound on the trade-off function of ``values[index]``."""
        return self.curves[index](fpr)

    def violated(self, fpr: ArrayLike, fnr: ArrayLike) -> NDArray[np.float64]:
        """Last value of the table such that it and all before it are contradicted."""
        fpr, fnr = np.broadcast_arrays(np.asarray(fpr, dtype=float), np.asarray(fnr, dtype=float))
        rejected = np.full(fpr.size, len(self.values))
        # From the private end on, and only with the points that are still beyond the curve.
        x, y, alive = fpr.ravel(), fnr.ravel(), np.arange(fpr.size)
        for index, curve in enumerate(self.curves):
            beyond = y < curve(x)
            if not beyond.all():
                rejected[alive[~beyond]] = index
                x, y, alive = x[beyond], y[beyond], alive[beyond]
        return np.concatenate(([self.trivial], self.values))[rejected].reshape(fpr.shape)


def composed(
    noise_multipliers: ArrayLike,
    sampling_rate: float,
    steps: int,
    *,
    null: Literal["out", "in", "either"] = "out",
) -> Tabulated:
    """Trade-off functions of subsampled and composed DP-SGD, one for each noise multiplier.

    noise_multipliers: shape (n,), descending. null: the null hypothesis that the accountant's
    curves are computed for; those of "out" and "in" are two bounds on one trade-off function, one
    read from each axis, and "either" the symmetric one below both. All iterates are released, so a
    bound on the noise multiplier speaks of any of them, and of the last one. An audit bounds it
    from above.
    """
    sigmas = np.atleast_1d(np.asarray(noise_multipliers, dtype=float))
    # Little noise spreads the supporting lines over large losses, too thinly to keep the order.
    *fewer, most = LINES
    for lines in fewer:
        with suppress(Disordered):
            return _composed(sigmas, sampling_rate, steps, null, lines)
    return _composed(sigmas, sampling_rate, steps, null, most)


def _composed(
    sigmas: NDArray[np.float64],
    sampling_rate: float,
    steps: int,
    null: Literal["out", "in", "either"],
    lines: int,
) -> Tabulated:
    from hiddenstate.accounting import pld

    def curve(sigma: float) -> TradeoffCurve:
        # Coarser than the accountant's, for there are many, but where a step loses too little.
        interval = pld.fine_interval(sigma, sampling_rate, steps, most=INTERVAL)
        return pld.tradeoff_curve(
            sigma, sampling_rate, steps, null=null, lines=lines, interval=interval
        )

    curves = [curve(sigma) for sigma in sigmas]
    return Tabulated("noise multiplier", sigmas, curves, null, "upper")


def _round_down(value: ArrayLike) -> NDArray[np.float64]:
    """Largest multiple of the resolution below value, at least 0; 0 where value is undefined."""
    value = np.where(np.isnan(value), 0.0, value)
    # A thousandth of the resolution is far above the rounding error of the value.
    return np.maximum(np.floor(value / RESOLUTION - 1e-3) * RESOLUTION, 0.0)
