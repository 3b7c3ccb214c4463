"""The empirical trade-off curve: error counts of every threshold test, from one sort."""

import secrets
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hiddenstate.accounting.tradeoff import TradeoffCurve
from hiddenstate.errors import InputError, is_whole
from hiddenstate.rounding import counted

if TYPE_CHECKING:
    import pandas as pd


Coins: TypeAlias = "int | Literal['against'] | None"
"""How chance decides where scores are tied, or which half they fall in: by the seed of a stream;
"against": ties count against the audit; None: by a seed that is drawn when one is needed, from the
operating system, and returned with the result. A seed that everybody shares would not do: it always
meets the same order of the scores, such as that of a sorted file."""


def drawn(coins: Coins) -> "int | Literal['against']":
    """The coins, by a new seed where none is given."""
    return "against" if coins == "against" else seed(coins)


def seed(coins: int | None) -> int:
    """The seed, or a new one."""
    if coins is None:
        return secrets.randbits(32)
    if not is_whole(coins) or coins < 0:
        raise InputError(
            f"coins: got {coins!r}; expected a whole number >= 0, 'against', or None for a new seed"
        )
    return int(coins)


@dataclass(frozen=True, eq=False)
class EmpiricalCurve:
    """Exact error counts of the tests "in" if score >= threshold, at all thresholds.

    threshold, false_positives, false_negatives: shape (..., n_out + n_in + 1); leading axes are
    independent audits. The thresholds are the scores themselves, ascending, and infinity, so the
    curve runs from (FPR, FNR) = (1, 0) to (0, 1). Tied scores repeat a threshold and its counts:
    no test can tell them apart, so none of the entries is a test that nobody could run.
    """

    threshold: NDArray[np.float64]
    false_positives: NDArray[np.int64]
    false_negatives: NDArray[np.int64]
    n_out: int
    n_in: int

    @property
    def fpr(self) -> NDArray[np.float64]:
        """Empirical false-positive rates: share of the out-scores called in (an estimate)."""
        return self.false_positives / self.n_out

    @property
    def fnr(self) -> NDArray[np.float64]:
        """Empirical false-negative rates: share of the in-scores called out (an estimate)."""
        return self.false_negatives / self.n_in

    def swapped(self) -> "EmpiricalCurve":
        """The curve with the data sets exchanged, (D', D): null "in", scores negated.

        Its tests call "out" what lies *below* each threshold of this curve, so the two kinds of
        error change places and nothing else changes.
        """
        return EmpiricalCurve(
            -self.threshold[..., ::-1],
            self.false_negatives[..., ::-1],
            self.false_positives[..., ::-1],
            self.n_in,
            self.n_out,
        )

    def tradeoff(self) -> TradeoffCurve:
        """The least false-negative rate at each false-positive rate 0, 1 / n_out, ..., 1.

        Of one audit: no leading axes. An estimate, as the rates are.
        """
        least = np.ones(self.n_out + 1)
        np.minimum.at(least, self.false_positives, self.fnr)
        # Allowing more false positives never hurts: this fills rates that no threshold attains.
        rates = np.linspace(0, 1, self.n_out + 1)
        return TradeoffCurve(rates, np.minimum.accumulate(least))


def worlds(
    rows: "pd.DataFrame", column: str = "score"
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Scores of the rows with the canary, and of those without it, each in their order."""
    into, out = (
        rows.loc[rows["world"] == world, column].to_numpy(float) for world in ("in", "out")
    )
    return into, out


def empirical_curve(in_scores: ArrayLike, out_scores: ArrayLike) -> EmpiricalCurve:
    """Exact error counts at all thresholds, by one sort of all scores.

    in_scores: shape (..., n_in), larger speaks for "in". out_scores: shape (..., n_out).
    Raises InputError for scores that are not finite, or fewer than two of either kind.
    """
    in_scores, out_scores = check(in_scores, out_scores)
    n_out, n_in = out_scores.shape[-1], in_scores.shape[-1]
    pooled = np.concatenate((out_scores, in_scores), axis=-1)
    order = np.argsort(pooled, axis=-1)
    threshold = np.take_along_axis(pooled, order, axis=-1)
    # Counts strictly below each position; ties take the counts at the first of their group.
    below_in = np.cumsum(order >= n_out, axis=-1, dtype=np.int64)
    below_in = np.concatenate((np.zeros_like(below_in[..., :1]), below_in), axis=-1)
    position = np.arange(n_out + n_in + 1)
    first = np.concatenate(
        (
            np.ones_like(threshold[..., :1], dtype=bool),
            threshold[..., 1:] > threshold[..., :-1],
            np.ones_like(threshold[..., :1], dtype=bool),
        ),
        axis=-1,
    )
    group = np.maximum.accumulate(np.where(first, position, 0), axis=-1)
    false_negatives = np.take_along_axis(below_in, group, axis=-1)
    return EmpiricalCurve(
        np.concatenate((threshold, np.full_like(threshold[..., :1], np.inf)), axis=-1),
        n_out - (group - false_negatives),
        false_negatives,
        n_out,
        n_in,
    )


def check(
    in_scores: ArrayLike, out_scores: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Both kinds of scores as arrays of numbers, or an InputError that says what is wrong."""
    into, out = check_scores("in_scores", in_scores), check_scores("out_scores", out_scores)
    if into.ndim == out.ndim == 1:
        refuse_mixed(np.concatenate((into, out)))
    return into, out


def check_one(
    in_scores: ArrayLike, out_scores: ArrayLike, least: int = 2
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """``check`` of one audit, shapes (n_in,) and (n_out,)."""
    into = one_audit("in_scores", in_scores, least)
    out = one_audit("out_scores", out_scores, least)
    refuse_mixed(np.concatenate((into, out)))
    return into, out


def one_audit(name: str, scores: ArrayLike, least: int = 2) -> NDArray[np.float64]:
    """``check_scores`` of one audit, shape (n,)."""
    array = check_scores(name, scores, least)
    if array.ndim != 1:
        raise InputError(f"{name}: got shape {array.shape}; expected one audit, shape (n,)")
    return array


PRECISIONS = {"float32": (24, 0.0), "float16": (11, 0.05)}
"""Significant bits of narrower numbers, and the share of scores that must be such a number twice:
by chance, a score in 2^29 of float64 has 24 bits, and one in 2^13 of float32 has 11."""


def refuse_mixed(scores: NDArray[np.float64]) -> None:
    """Refuse scores in which one number stands in two precisions: its bits tell them apart."""
    most = max(bits for bits, _ in PRECISIONS.values())
    if not np.any((_rounded(scores, most) == scores) & (scores != np.rint(scores))):
        return  # none is a narrower number, and this is fast
    values, inverse = np.unique(scores, return_inverse=True)
    rows = np.bincount(inverse)
    for kind, (bits, least) in PRECISIONS.items():
        narrow = _rounded(values, bits)
        # Whole and short numbers, such as 0.5, have one form in every precision.
        long = (_rounded(values, bits - 4) != values) & (values != np.rint(values))
        wide = (narrow != values) & np.isin(narrow, values[long])
        twice = rows[wide].sum() + rows[np.isin(values, narrow[wide])].sum()
        if wide.any() and twice >= least * len(scores):
            one = values[wide][0]
            raise InputError(
                f"scores: {float(one)!r} and {float(narrow[wide][0])!r} are one number in float64 "
                f"and in {kind}, and a score's type must not show the canary; expected one type: "
                "convert all scores in the same way, or round them to the digits that mean "
                "something"
            )


def _rounded(values: NDArray[np.float64], bits: int) -> NDArray[np.float64]:
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.rint(np.ldexp(mantissa, bits)), exponent - bits)


def check_scores(name: str, scores: ArrayLike, least: int = 2) -> NDArray[np.float64]:
    """The scores of one data set as an array of at least so many numbers, or an InputError."""
    try:
        given = np.asanyarray(scores)
        # Text, times and complex numbers would be turned into floats.
        objects = given.dtype.kind == "O" and not all(isinstance(x, Real) for x in given.flat)
        if objects or given.dtype.kind not in "biufO":
            raise TypeError
        array = np.asarray(given, dtype=float)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name}: expected numbers, got {scores!r:.80}") from error
    # ``asarray`` drops the mask and keeps the numbers under it.
    if np.ma.is_masked(given):
        raise InputError(
            f"{name}: {np.ma.count_masked(given)} of {counted(given.size, 'score')} masked; "
            "expected scores without a mask"
        )
    if array.ndim == 0 or array.shape[-1] < least:
        got = 1 if array.ndim == 0 else array.shape[-1]
        raise InputError(
            f"{name}: got {counted(got, 'score')}; expected at least {least} in each data set"
        )
    bad = ~np.isfinite(array)
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        raise InputError(
            f"{name}: {int(bad.sum())} of {counted(array.size, 'score')} not finite, the first is "
            f"{array[where]} at index {where if len(where) > 1 else where[0]}; "
            "expected finite numbers"
        )
    return array


def check_confidence(confidence: float) -> float:
    """The confidence as a float inside (0.5, 1), or an InputError."""
    real = isinstance(confidence, Real)
    if not real or not 0.5 < confidence < 1:
        raise InputError(f"confidence: got {confidence!r}; expected a number in (0.5, 1)")
    return float(confidence)
