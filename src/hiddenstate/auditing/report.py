"""An audit of a user's own scores: verdict, bounds, intervals, and a picture."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray
from pyarrow import csv, parquet

from hiddenstate.accounting import gaussian, tradeoff
from hiddenstate.auditing import planning
from hiddenstate.auditing.audit import LowerBound, lower_bound
from hiddenstate.auditing.averaged import Averaged, tied
from hiddenstate.auditing.claim import Claim
from hiddenstate.auditing.curve import Coins, check, check_confidence, empirical_curve, worlds
from hiddenstate.auditing.hypotheses import ApproxDP, GaussianDP, Hypotheses, composed
from hiddenstate.auditing.methods import RULES, seeded
from hiddenstate.auditing.other_way import OtherWay, OtherWayWarning, other_way
from hiddenstate.auditing.reach import Reach, reach
from hiddenstate.auditing.rules import Fixed, Interval, Split, UniformBand
from hiddenstate.auditing.sequential import Decision, SequentialAudit
from hiddenstate.errors import InputError
from hiddenstate.files import line_of, require
from hiddenstate.pipeline.scores import claimed_origin
from hiddenstate.pipeline.scores import read as scores_of
from hiddenstate.rounding import shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORDS = pa.dictionary(pa.int32(), pa.string())
"""Type of a column of few words, each kept once."""

KEYS = ("repeat", "adversary", "canary", "step", "epoch")
"""Columns that a file has where it holds more than one audit."""

TWICE = {
    "canary": "expected a row for each",
    "run": "expected one score a run: scores of one run are not independent",
    "seed": "expected a seed of its own for each run: runs that share their randomness are not "
    "independent",
}
"""Reason that a value of the column may not stand twice."""

HARMLESS = ("", "unnamed: 0", "index", "note", "comment", "seconds", "time", "date", "host")
"""Other columns that a file may have: none of them says which rows are independent."""

PARQUET = (".parquet", ".pq")

DRAWN = 2_000
"""Points of a drawn curve in each direction; a figure shows no more."""


def read(
    path: str | Path, *, ignore: Sequence[str] = ()
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Read the scores with and without the canary, one row for each run, as ``rows`` reads them."""
    scores, inside = rows(path, ignore=ignore)
    return scores[inside], scores[~inside]


def rows(
    path: str | Path, *, one_run: bool = False, ignore: Sequence[str] = ()
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Scores of a file with the columns ``world`` and ``score``, and which of them are "in".

    Parquet (.parquet, .pq), or text separated by commas, semicolons or tabs. Raises InputError
    naming the file and the row of what is no score, and where the rows are of several audits
    (``KEYS``), of one run twice (a column ``run``) or of one seed twice (``seed``): a bound takes
    scores to be independent. So it takes their number to be fixed in advance: the scores of a
    campaign that stopped at an earlier look are refused with what they say. Any other column, such
    as ``fold`` or ``model``, may say that rows share a run, and is refused unless it stands in
    ``HARMLESS`` or ``ignore``. one_run: the rows are canaries of one training, each of which stands
    once, with one seed.
    """
    path = require(path, "scores with the columns world ('in' or 'out') and score")
    is_parquet = path.suffix.lower() in PARQUET
    if stopped := _stopped(path) if is_parquet else None:
        raise InputError(f"{path}: {stopped}")
    try:
        table = _parquet(path, ignore) if is_parquet else _text(path, ignore)
    except (pa.ArrowException, ValueError, OSError) as error:
        # An input error is a value error too, and says already what is wrong.
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: not a readable table ({error})") from error
    if not table.num_rows:
        raise InputError(f"{path}: has no rows; expected scores")
    # Canaries of one training are of one run, which has one seed.
    keys = [key for key in KEYS if key != "canary"] + ["run", "seed"] if one_run else KEYS
    _refuse_several(path, table, keys)
    codes = _worlds(path, table)
    for name in ("canary",) if one_run else ("run", "seed"):
        if name in table.column_names:
            _refuse_twice(path, table, name, codes)
    return _numbers(path, table["score"]), codes == 0


def _refuse_several(path: Path, table: pa.Table, keys: Sequence[str]) -> None:
    """Refuse a file of several audits, which differ in a column of ``keys``."""
    for name in (key for key in keys if key in table.column_names):
        if len(found := table[name].unique().to_pylist()) > 1:
            some = ", ".join(map(str, found[:6])) + (", ..." if len(found) > 6 else "")
            raise InputError(
                f"{path}: {name}: got {len(found)} values ({some}); expected one audit; keep the "
                "rows of one"
            )


def _where(path: Path, row: int) -> str:
    """The line of a row of text, or the number of another file's row; ``row`` counts from 0."""
    if path.suffix.lower() in PARQUET:
        return f"{path}: row {row + 1}"
    return f"{path}: line {line_of(path, row)}"


def _worlds(path: Path, table: pa.Table) -> NDArray[np.int64]:
    """World of each row, 0 for "in" and 1 for "out"."""
    world = table["world"]
    if not pa.types.is_dictionary(world.type):
        world = world.cast(pa.string()).dictionary_encode()
    encoded = world.combine_chunks()
    words = [str(word).strip() for word in encoded.dictionary.to_pylist()]
    # The last code is that of rows without a word.
    codes = np.array([("in", "out").index(w) if w in ("in", "out") else -1 for w in words] + [-1])
    worlds = codes[encoded.indices.fill_null(len(words)).to_numpy(zero_copy_only=False)]
    if (worlds < 0).any():
        row = int(np.argmax(worlds < 0))
        raise InputError(
            f"{_where(path, row)}: world: got {_shown(table['world'][row])}; expected 'in' or 'out'"
        )
    return worlds


def _refuse_twice(path: Path, table: pa.Table, name: str, worlds: NDArray[np.int64]) -> None:
    """Refuse a second row of a run, of a seed, or of a canary."""
    column = table[name].to_pandas()
    # Either data set may count its runs from 0.
    told = pd.DataFrame({"world": worlds, name: column}) if name == "run" else column
    again = told.duplicated().to_numpy()
    # Rows without a seed do not share one.
    if name == "seed":
        again = again & column.notna().to_numpy()
    if again.any():
        row = int(np.argmax(again))
        where = f" of world {table['world'][row]}" if name == "run" else ""
        raise InputError(
            f"{_where(path, row)}: {name} {column[row]}{where} stands twice; {TWICE[name]}"
        )


def _shown(value: pa.Scalar) -> str:
    return "nothing" if value.as_py() is None else f"{value.as_py()!r:.80}"


def _numbers(path: Path, column: pa.ChunkedArray) -> NDArray[np.float64]:
    """The scores as numbers; the first that is none is refused with its row."""
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        # Integers beyond 2^53 are rounded to the nearest number, which may make them equal.
        scores = column.cast(pa.float64(), safe=False).to_numpy()
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind):
        # Other than numbers become NaN here, which is refused with its row.
        scores = pd.to_numeric(column.to_pandas(), errors="coerce").to_numpy(float)
    else:
        raise InputError(f"{path}: score: got values of type {kind}; expected numbers")
    bad = ~np.isfinite(scores)
    if bad.any():
        row = int(np.argmax(bad))
        more = f" ({int(bad.sum())} such rows)" if bad.sum() > 1 else ""
        got = _shown(column[row])
        point = " with a decimal point" if "," in got else ""
        raise InputError(
            f"{_where(path, row)}: score: got {got}; expected a finite number{point}{more}"
        )
    return scores


def _kept(path: Path) -> dict[str, Any]:
    """Settings that a campaign wrote beside its scores; empty for any other file."""
    try:
        return claimed_origin(path)
    except InputError:
        return {}


def coins(path: str | Path) -> int | None:
    """Seed of the coins that a campaign drew for its scores, None of any other file."""
    path = Path(path)
    kept = _kept(path).get("coins") if path.suffix.lower() in PARQUET else None
    return None if kept is None else int(kept)


def _stopped(path: Path) -> str | None:
    """Note on the scores of a campaign that ended before its last planned look; else None."""
    told = _kept(path).get("verdict")
    if told is None or (models := _kept(path)["cell"]["models"]) == told["planned"]:
        return None
    return (
        f"scores of a campaign that stopped after {models} of {told['planned']} planned models per "
        f"data set, {told['decision']}: {told['claim']}, p-value at most "
        f"{shown(told['p_value'], 'upper', 2)}. That verdict holds at any stop. A bound from these "
        "scores does not hold, because it takes their number as fixed in advance"
    )


def _parquet(path: Path, ignore: Sequence[str]) -> pa.Table:
    names = parquet.read_schema(path).names
    return parquet.read_table(path, columns=_wanted(path, names, ignore), read_dictionary=["world"])


def _text(path: Path, ignore: Sequence[str]) -> pa.Table:
    # Spreadsheets may write a byte order mark before the header.
    with path.open(encoding="utf-8-sig") as lines:
        above, header = next(filter(lambda line: line[1].strip(), enumerate(lines)), (0, ""))
    header = header.strip()
    if not header:
        raise InputError(f"{path}: not a readable table (it is empty)")
    delimiter = max(",;\t", key=header.count)
    # Names may have spaces or quotes around them, so the reader is given them without.
    names = [name.strip().strip('"') for name in header.split(delimiter)]
    odd: list[csv.InvalidRow] = []

    def skipped(row: csv.InvalidRow) -> str:
        odd.append(row)
        return "skip"

    table = csv.read_csv(
        path,
        # Several threads would not count the rows.
        read_options=csv.ReadOptions(column_names=names, skip_rows=above + 1, use_threads=False),
        parse_options=csv.ParseOptions(delimiter=delimiter, invalid_row_handler=skipped),
        convert_options=csv.ConvertOptions(
            include_columns=_wanted(path, names, ignore),
            column_types={"world": WORDS},
            null_values=[""],
            strings_can_be_null=True,
        ),
    )
    if odd:
        # Lines that were skipped are counted, blank ones are not.
        row = odd[0]
        raise InputError(
            f"{_where(path, row.number - above - 2)}: fields: got {row.actual_columns} "
            f"({row.text:.80}); expected {row.expected_columns} separated by {delimiter!r}, "
            "as in the header, and decimal points"
        )
    return table


def _wanted(path: Path, names: list[str], ignore: Sequence[str]) -> list[str]:
    for column in ("world", "score"):
        if column not in names:
            raise InputError(f"{path}: has the columns {', '.join(names)}; expected {column!r}")
    wanted = [name for name in ("world", "score", "run", "seed", *KEYS) if name in names]
    for name in wanted:
        if names.count(name) > 1:
            raise InputError(f"{path}: has {names.count(name)} columns {name!r}; expected one")
    for name in ignore:
        if name not in names or name in ("world", "score"):
            others = ", ".join(n for n in names if n not in ("world", "score"))
            raise InputError(
                f"{path}: --ignore: got {name}; expected one of {others or 'no other'}"
            )
    wanted = [name for name in wanted if name not in ignore]
    for name in names:
        known = name in wanted or name in ignore or name.lower() in HARMLESS
        # pandas keeps the index of a table under such a name.
        if not known and not name.startswith("__index_level_"):
            raise InputError(
                f"{path}: column {name!r} may say that rows share a run, such as folds or "
                f"checkpoints; keep one row for each independent run, then give --ignore {name}"
            )
    return wanted


def bounds(
    in_scores: ArrayLike,
    out_scores: ArrayLike,
    delta: float,
    confidence: float,
    coins: Coins = None,
    area: float | None = None,
    threshold: float | None = None,
) -> pd.DataFrame:
    """Bounds on epsilon at ``delta`` and on mu by every rule that needs no choice in advance.

    Columns: parameter, method, value, direction, confidence, valid, threshold, coins, default.
    "epsilon of mu-GDP" is what the default's mu means at ``delta``: a bound if the mechanism is
    Gaussian, or judged as if it were. coins, area: as of ``Averaged``. threshold: chosen before the
    scores were seen; adds ``Fixed`` with each of its intervals.
    """
    into, out = check(in_scores, out_scores)
    every: list[Hypotheses] = [ApproxDP(delta), GaussianDP()]
    # Half of fewer than four scores is less than the two that a world must have.
    fits = [r for r in RULES if not isinstance(r, Split) or min(len(into), len(out)) >= 4]
    rules = [averaged(coins, area) if isinstance(r, Averaged) else seeded(r, coins) for r in fits]
    if threshold is not None:
        kinds: tuple[Interval, ...] = ("clopper-pearson", "jeffreys", "joint-beta")
        rules += [Fixed(threshold, kind) for kind in kinds]
    with told_by_the_verdict():
        found: list[LowerBound] = [
            lower_bound(into, out, hypotheses, rule, confidence=confidence)
            for hypotheses in every
            for rule in rules
        ]
    table = pd.DataFrame([asdict(bound) for bound in found])
    table["default"] = table["method"] == Averaged.name
    if delta > 0:
        through = table[table["default"] & (table["parameter"] == "mu")].copy()
        through["parameter"] = "epsilon of mu-GDP"
        through["value"] = through["value"].map(lambda mu: epsilon_of(mu, delta))
        table = pd.concat([table, through], ignore_index=True)
    return table


def averaged(coins: Coins, area: float | None) -> Averaged:
    """The default rule with these coins, and this share of the level for the area."""
    return Averaged(coins=coins) if area is None else Averaged(coins=coins, area=area)


@contextmanager
def told_by_the_verdict() -> Iterator[None]:
    """No warning of scores that point the other way, where a verdict or an exit status says it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OtherWayWarning)
        yield


def epsilon_of(mu: float, delta: float) -> float:
    """Epsilon at ``delta`` of mu-Gaussian differential privacy, rounded down to six digits."""
    return float(np.floor(gaussian.epsilon(mu, delta) * 1e6) / 1e6)


@dataclass(frozen=True)
class Judgement:
    """Outcome of a test: do the scores refute a claim?

    claim: in words. parameter, tested: the hypothesis tested, which the claim implies. p_value:
    valid upper bound; refuted if it is at most 1 - confidence. coins: as of ``LowerBound``.
    decision: "refuted", "consistent", or "other way": not refuted, by scores that point the other
    way. bound: what the scores show of the claim's parameter. reach: what so many scores would
    have shown, where the claim is not refuted.
    """

    claim: str
    parameter: str
    tested: float
    confidence: float
    p_value: float
    refuted: bool
    coins: int | None
    decision: Decision
    other_way: OtherWay | None
    bound: LowerBound
    reach: Reach | None

    def __str__(self) -> str:
        told = verdict_in_words(self.claim, self.decision, self.p_value)
        if self.decision != "other way":
            told += f"\n{bound_in_words(self.bound)}." + (f" {self.reach}." if self.reach else "")
        return told


def judge(
    in_scores: ArrayLike,
    out_scores: ArrayLike,
    claim: Claim,
    *,
    confidence: float = 0.95,
    coins: Coins = None,
    area: float | None = None,
) -> Judgement:
    """Test a claim by the default rule.

    in_scores, out_scores: shapes (n_in,), (n_out,). A true claim is refuted with probability
    1 - confidence at most. coins, area: as of ``Averaged``.
    """
    into, out = check(in_scores, out_scores)
    level = 1 - check_confidence(confidence)
    rule = averaged(coins, area).tossed(into, out)
    p_value = float(rule.p_values(into, out, claim.hypotheses, level, claim.index))
    found = other_way(into, out, rule.coins) if p_value > level else None
    would = None
    if p_value > level:
        size = len(into), len(out)
        test = SequentialAudit(claim.hypotheses, claim.value, [size], confidence, rule.area)
        would = reach(claim, test)
    return Judgement(
        claim=claim.words,
        parameter=claim.hypotheses.parameter,
        tested=float(claim.hypotheses.grid[claim.index]),
        confidence=confidence,
        p_value=p_value,
        refuted=p_value <= level,
        coins=rule.coins if rule.coins != "against" and tied(into, out) else None,
        decision="refuted" if p_value <= level else "other way" if found else "consistent",
        other_way=found,
        bound=bound(into, out, claim, rule, confidence),
        reach=would,
    )


SIGMAS = (4, 3, 2.5, 2, 1.75, 1.5, 1.35, 1.2, 1.1, 1.05, 1)
"""Noise multipliers that a bound may report, over the claimed one."""


def bound(
    in_scores: NDArray, out_scores: NDArray, claim: Claim, rule: Averaged, confidence: float
) -> LowerBound:
    """Lower bound on the claimed parameter from these scores, by the default rule.

    Of a noise multiplier, an upper bound among ``SIGMAS`` times the claimed one.
    """
    hypotheses = claim.hypotheses
    if claim.mechanism is not None:
        hypotheses = composed(claim.value * np.array(SIGMAS), *claim.mechanism)
    with told_by_the_verdict():
        return lower_bound(in_scores, out_scores, hypotheses, rule, confidence=confidence)


def campaign_bounds(path: Path, claim: Claim, confidence: float) -> dict[str, LowerBound]:
    """Lower bounds on the claim's parameter from a campaign's scores, by name ("" of one alone).

    Valid where the number of models was fixed in advance: of one look, or where all looks were
    taken. Each of several scores has its share of the level, so that all hold together.
    """
    frame, origin = scores_of(path)
    parts = (
        dict(list(frame.groupby("adversary", sort=False))) if "adversary" in frame else {"": frame}
    )
    rule = averaged(origin.get("coins"), None)
    share = 1 - (1 - confidence) / len(parts)
    return {
        str(name): replace(bound(*worlds(part), claim, rule, share), confidence=confidence)
        for name, part in parts.items()
    }


def verdict_in_words(claim: str, decision: Decision, p_value: float, judged: str = "scores") -> str:
    """The verdict on a claim; ``judged`` names what it is consistent with."""
    verdict = {
        "refuted": "REFUTED",
        "consistent": f"consistent with the {judged}",
        "other way": "no verdict, since the scores point the other way",
    }[decision]
    return f"{claim}: {verdict}, p-value at most {shown(p_value, 'upper', 2)}"


READ = {"likelihood": "all iterates", "last iterate": "the last iterate"}
"""What scores of the kit read, where that is the question."""


def bounds_in_words(bounds: Mapping[str, LowerBound]) -> str:
    """A sentence for the bounds of a campaign's scores."""
    if len(bounds) == 1:
        return bound_in_words(next(iter(bounds.values())))
    sure = {f"{100 * found.confidence:g} %" for found in bounds.values()}
    parts = [f"{READ.get(name, repr(name))}: {_bound(found)}" for name, found in bounds.items()]
    return f"With {', '.join(sure)} confidence for all together: {'; '.join(parts)}"


def bound_in_words(bound: LowerBound) -> str:
    """A sentence for a bound, which says so if the scores give none."""
    return f"With {100 * bound.confidence:g} % confidence: {_bound(bound)}"


def _bound(bound: LowerBound) -> str:
    if bound.value == (np.inf if bound.direction == "upper" else 0):
        return f"no bound on {bound.parameter}"
    if bound.direction == "upper":
        return f"{bound.parameter} <= {shown(bound.value, 'upper', 3)}"
    return f"{bound.parameter} >= {shown(bound.value, 'lower', decimals=3)}"


def draw(
    in_scores: ArrayLike,
    out_scores: ArrayLike,
    delta: float,
    confidence: float,
    coins: Coins = None,
    area: float | None = None,
) -> "Figure":
    """The empirical curve, its uniform band, and the curves that the default bounds reject."""
    from hiddenstate import plotting

    curve = empirical_curve(in_scores, out_scores)
    level = 1 - check_confidence(confidence)
    band = UniformBand()
    figure, (ax,) = plotting.panels(1, height=3.9)
    plotting.diagonal(ax)
    # One point for each step of the diagonal that a figure can show.
    places = np.floor((curve.fpr - curve.fnr) * DRAWN)
    drawn = np.unique(np.append(np.flatnonzero(np.diff(places)), [0, len(places) - 1]))
    own = {
        "color": plotting.OBSERVED,
        "label": f"observed, {curve.n_in:,} in and {curve.n_out:,} out",
    }
    ax.plot(curve.fpr[drawn], curve.fnr[drawn], lw=1.6, drawstyle="steps-post", **own)
    fpr = band.upper(curve.false_positives[drawn], curve.n_out, level / 2)
    fnr = band.upper(curve.false_negatives[drawn], curve.n_in, level / 2)
    own["label"] = f"uniform band, {100 * confidence:g} %"
    ax.plot(fpr, fnr, lw=0.9, ls=":", **own)
    rates = np.concatenate((np.logspace(-6, -2, 100), np.linspace(0.01, 1, 300)))
    audit = (in_scores, out_scores), averaged(coins, area)
    with told_by_the_verdict():
        epsilon, mu = (
            lower_bound(*audit[0], claims, audit[1], confidence=confidence).value
            for claims in (ApproxDP(delta), GaussianDP())
        )
    claims = ApproxDP(delta)
    rejected = claims.fnr(int(np.searchsorted(claims.grid, epsilon)), rates)
    at_delta = f" at $\\delta$ = {delta:g}"
    for name, value, fnr, color, more in (
        ("varepsilon", epsilon, rejected, plotting.VALID, at_delta),
        ("mu", mu, tradeoff.gaussian(mu, rates), plotting.OTHER, ""),
    ):
        label = f"$\\{name} \\geq$ {shown(value, 'lower', decimals=3)}{more}"
        ax.plot(rates, fnr, color=color, lw=1.2, ls="--", label=label)
    ax.set(xlabel="false-positive rate", ylabel="false-negative rate", xlim=(0, 1), ylim=(0, 1))
    plotting.legend_below(figure, ax, columns=1)
    return figure


def draw_plan(
    claims: Sequence[Claim], truth: Claim, delta: float | None, confidence: float
) -> "Figure":
    """Median bound against the number of models, judged by the hypotheses of each claim.

    truth: the curve that the scores attain. With ``delta``, what speaks of mu becomes an epsilon.
    """
    from hiddenstate import plotting

    def value(claim: Claim, of: float) -> float:
        epsilon = delta is not None and claim.hypotheses.parameter == "mu"
        return epsilon_of(of, delta) if epsilon and delta is not None else of

    models = [2**k for k in range(3, 15)]
    figure, (ax,) = plotting.panels(1, height=3.4)
    for claim, color in zip(claims, (plotting.OTHER, plotting.VALID), strict=False):
        found = [
            planning.median_bound(
                claim.hypotheses, truth.hypotheses, truth.value, n, confidence=confidence
            )
            for n in models
        ]
        drawn = [value(claim, bound) for bound in found]
        ax.plot(models, drawn, color=color, marker="o", ms=3, label=f"judged as: {claim.words}")
    ax.axhline(value(truth, truth.value), color=plotting.UPPER, ls="--", lw=1, label="true value")
    ax.axhline(value(claims[-1], claims[-1].value), color="black", ls=":", lw=1, label="claim")
    parameter = claims[0].hypotheses.parameter
    ax.set(xscale="log", xlabel="models per data set", ylabel=f"median bound on {parameter}")
    plotting.legend_below(figure, ax, columns=2)
    return figure
