"""The page of a campaign: one HTML file that shows its verdict and needs no network."""

import base64
import io
from collections.abc import Mapping
from importlib.resources import files as resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import numpy as np
import pandas as pd

import hiddenstate
from hiddenstate.auditing.audit import LowerBound
from hiddenstate.auditing.claim import Claim
from hiddenstate.auditing.curve import empirical_curve, worlds
from hiddenstate.auditing.reach import Reach
from hiddenstate.auditing.report import bounds_in_words
from hiddenstate.auditing.sequential import SequentialAudit
from hiddenstate.campaign.campaign import Outcome
from hiddenstate.files import atomic
from hiddenstate.pipeline import scores
from hiddenstate.rounding import shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write(
    out: Path,
    outcome: Outcome,
    claim: Claim,
    test: SequentialAudit,
    *,
    command: str,
    checked: Mapping[str, Any] | None = None,
    bounds: Mapping[str, LowerBound] | None = None,
    would: Reach | None = None,
) -> Path:
    """Write the page of a finished campaign to ``out`` and return its path.

    command: how to repeat it. checked: the fields of a ``Checked``, None if nothing was checked.
    bounds: what each score shows. would: what the campaign would have found.
    """
    from hiddenstate import plotting

    frame, origin = scores.read(outcome.scores)
    groups = list(frame.groupby("adversary", sort=False)) if "adversary" in frame else [("", frame)]
    pictures = []
    for name, rows in groups:
        with plotting.style():
            picture = _png(draw(rows, claim))
        of = f"Score {name!r}. " if name else ""
        caption = (
            f"{of}Left: error rates of every threshold on the score, and the claimed curve. A "
            "threshold below that curve, by more than chance, refutes the claim. Right: scores "
            "with the canary (in) and without it (out)."
        )
        pictures.append({"png": picture, "caption": caption})
    verdict, told = outcome.verdict, checked or {}
    worlds = told.get("seen") or {"in": {}, "out": {}}
    seen = [
        (name, worlds["in"].get(name, "not seen"), worlds["out"].get(name, "not seen"))
        for name in worlds["in"] | worlds["out"]
    ]
    looks = ", ".join(str(into) for into, _ in test.sizes)
    training = origin["cell"]["training"]
    page = _template().render(
        decision="no verdict" if verdict.other_way else verdict.decision,
        alarming=verdict.decision != "consistent",
        claim=claim.words,
        words=words(outcome, claim, test.confidence, bounds, would),
        notes=told.get("notes") or [],
        training=training.get("script") or training.get("function") or training["command"],
        pictures=pictures,
        facts={
            "Claim": claim.words,
            "Models": f"{outcome.models} per data set, of {test.sizes[-1][0]} planned",
            "Looks": looks,
            "p-value": f"at most {shown(verdict.p_value, 'upper', 2)}, valid at any stop",
            "Lower bound": bounds_in_words(bounds)
            if bounds
            else "none, because the scores point the other way"
            if verdict.other_way
            else "none, because the audit stopped early",
            "Tried again": "; ".join(outcome.crashes) or "nothing",
        },
        checked=checked is not None,
        inside=told.get("inside"),
        seen=seen,
        command=command,
        origin={
            "Seed": origin["seed"],
            "Coins": origin["coins"],
            "Package": f"hiddenstate {origin['hiddenstate']}, commit {origin['commit']}",
            "Digest of the scores": origin["digest"],
            "Digests of the code": ", ".join(
                f"{name} {digest}" for name, digest in _digests(training["files"])
            ),
        },
    )
    with atomic(out) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return out


def words(
    outcome: Outcome,
    claim: Claim,
    confidence: float,
    bounds: Mapping[str, LowerBound] | None,
    would: Reach | None,
) -> str:
    """The verdict in words."""
    models = (
        f"The scores separate {outcome.models} models with the canary from {outcome.models} without"
    )
    if outcome.verdict.decision == "refuted":
        return (
            f"{models} better than {claim.words} allows. An audit of a true claim says so with "
            f"probability {100 * (1 - confidence):g} % at most."
        )
    if outcome.verdict.other_way:
        return f"The audit can judge nothing of {claim.words}: {outcome.verdict.other_way}."
    told = (
        f"{models} no better than {claim.words} allows. Another score or more models may do better."
    )
    parts = (bounds_in_words(bounds) if bounds else None, would)
    return told + "".join(f" {part}." for part in parts if part)


def draw(rows: pd.DataFrame, claim: Claim) -> "Figure":
    """Errors of every threshold beside the claimed curve, and both worlds' scores."""
    from hiddenstate import plotting

    into, out = worlds(rows)
    curve = empirical_curve(into, out)
    figure, (left, right) = plotting.panels(2, height=3.2)
    plotting.diagonal(left)
    left.plot(
        curve.fpr, curve.fnr, drawstyle="steps-post", color=plotting.OBSERVED, label="observed"
    )
    rates = np.linspace(0, 1, 401)
    allowed = claim.hypotheses.fnr(claim.index, rates)
    left.plot(rates, allowed, color="black", ls="--", lw=1.2, label="claimed, at least")
    left.set(xlabel="false-positive rate", ylabel="false-negative rate", xlim=(0, 1), ylim=(0, 1))
    left.legend()
    edges = np.histogram_bin_edges(np.concatenate((into, out)), bins="fd" if np.ptp(out) else 10)
    # Bins of that rule may be thousands where one score is far from the others.
    if len(edges) > 60:
        edges = np.linspace(edges[0], edges[-1], 61)
    for world, values, color in (("in", into, plotting.VALID), ("out", out, plotting.OTHER)):
        right.hist(values, edges, histtype="stepfilled", alpha=0.45, color=color, label=world)
    right.set(xlabel="score", ylabel="models")
    right.legend()
    return figure


def _png(figure: "Figure") -> str:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=150)
    return base64.b64encode(content.getvalue()).decode()


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    place = resources(hiddenstate).joinpath("campaign.html")
    return environment.from_string(place.read_text(encoding="utf-8"))


def _digests(files: Mapping[str, Any]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name, value in files.items():
        found += [(name, value)] if isinstance(value, str) else _digests(value)
    return found
