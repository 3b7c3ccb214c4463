"""An audit of a user's own scores: a table of bounds, and a picture of where they come from."""

from pathlib import Path

import numpy as np
import pandas as pd

from hiddenstate.accounting import tradeoff
from hiddenstate.auditing.audit import Bound, lower_bound
from hiddenstate.auditing.averaged import Averaged
from hiddenstate.auditing.curve import check_confidence, empirical_curve
from hiddenstate.auditing.hypotheses import ApproxDP, GaussianDP, Hypotheses
from hiddenstate.auditing.rules import AsPublished, Bonferroni, Split, UniformBand
from hiddenstate.errors import InputError
from hiddenstate.files import require

RULES = (Averaged(), UniformBand(), Split(), Bonferroni(), AsPublished())


def read(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """In- and out-scores of a CSV or Parquet file with the columns ``world`` and ``score``."""
    path = require(path, "scores with the columns world ('in' or 'out') and score")
    try:
        frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except (ValueError, OSError) as error:
        raise InputError(f"{path}: not a readable table ({error})") from error
    for column in ("world", "score"):
        if column not in frame:
            raise InputError(
                f"{path}: has the columns {', '.join(map(str, frame.columns))}; expected {column!r}"
            )
    if "repeat" in frame and frame["repeat"].nunique() > 1:
        raise InputError(
            f"{path}: holds {frame['repeat'].nunique()} repeats; expected one audit, "
            "so keep the rows of one"
        )
    worlds = frame["world"].astype(str).str.strip()
    unknown = sorted(set(worlds) - {"in", "out"})
    if unknown:
        raise InputError(f"{path}: world: got {unknown[0]!r}; expected 'in' or 'out'")
    scores = pd.to_numeric(frame["score"], errors="coerce")
    # What is no number becomes NaN here and is refused, with its place, by the audit.
    return scores[worlds == "in"].to_numpy(float), scores[worlds == "out"].to_numpy(float)


def bounds(in_scores, out_scores, delta: float, confidence: float) -> pd.DataFrame:
    """Bounds on epsilon at ``delta`` and on mu by every rule that needs no choice in advance.

    Columns: parameter, method, value, direction, confidence, valid, threshold.
    """
    hypotheses: list[Hypotheses] = [ApproxDP(delta), GaussianDP()]
    found: list[Bound] = [
        lower_bound(in_scores, out_scores, hypotheses, rule, confidence=confidence)
        for hypotheses in hypotheses
        for rule in RULES
    ]
    return pd.DataFrame([vars(bound) for bound in found])


def draw(in_scores, out_scores, delta: float, confidence: float):
    """The empirical curve, its uniform band, and the curves that the default bounds reject."""
    from hiddenstate import plotting

    curve = empirical_curve(in_scores, out_scores)
    level = 1 - check_confidence(confidence)
    band = UniformBand()
    figure, (ax,) = plotting.panels(1, height=3.9)
    plotting.diagonal(ax)
    ax.plot(
        curve.fpr,
        curve.fnr,
        color=plotting.OBSERVED,
        lw=1.6,
        drawstyle="steps-post",
        label=f"observed, {curve.n_in:,} in and {curve.n_out:,} out",
    )
    ax.plot(
        band.upper(curve.false_positives, curve.n_out, level / 2),
        band.upper(curve.false_negatives, curve.n_in, level / 2),
        color=plotting.OBSERVED,
        lw=0.9,
        ls=":",
        label=f"uniform band, {100 * confidence:g} %",
    )
    rates = np.concatenate((np.logspace(-6, -2, 100), np.linspace(0.01, 1, 300)))
    epsilon = lower_bound(in_scores, out_scores, ApproxDP(delta), confidence=confidence).value
    mu = lower_bound(in_scores, out_scores, GaussianDP(), confidence=confidence).value
    hypotheses = ApproxDP(delta)
    ax.plot(
        rates,
        hypotheses.fnr(int(np.searchsorted(hypotheses.grid, epsilon)), rates),
        color=plotting.VALID,
        lw=1.2,
        ls="--",
        label=f"$\\varepsilon \\geq$ {epsilon:.3f} at $\\delta$ = {delta:g}",
    )
    ax.plot(
        rates,
        tradeoff.gaussian(mu, rates),
        color=plotting.OTHER,
        lw=1.2,
        ls="--",
        label=f"$\\mu \\geq$ {mu:.3f}",
    )
    ax.set(xlabel="false-positive rate", ylabel="false-negative rate", xlim=(0, 1), ylim=(0, 1))
    plotting.legend_below(figure, ax, columns=1)
    return figure
