"""Table of campaigns: which canary and which score find which mistake, and what it suggests.

``examples/opacus_bugs.py`` puts mistakes that people make into the same training with Opacus,
audits each with ``hiddenstate.campaign.kit`` and writes ``canaries.csv``, which
``hiddenstate suggest-canary`` and the documentation read.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from hiddenstate.auditing.intervals import clopper_pearson_upper
from hiddenstate.errors import expect
from hiddenstate.files import atomic

NONE, NONE_VIRTUAL = "none", "none-virtual"
"""Where nothing is suspected: trainings that are right."""


@dataclass(frozen=True)
class Campaign:
    """A mistake that was audited, by campaigns of other seeds each.

    bug: function of ``examples/opacus_bugs.py``. suspicion: name of the mistake, ``NONE`` or
    ``NONE_VIRTUAL`` for a right training. norm: of the canary's gradient before clipping, in
    clipping norms C. spread: over all parameter tensors, or in the first. pairs: in signed pairs of
    coordinates, or in one. score: of ``kit.SCORES``. records: of the training. campaigns, times:
    how many there were, and how many refuted the claim. models: largest number with and without
    the canary each, of those that refuted it, or of all if none did.
    """

    bug: str
    suspicion: str
    mistake: str
    norm: float
    spread: bool
    pairs: bool
    score: str
    records: int
    campaigns: int
    times: int
    models: int

    @property
    def found(self) -> bool:
        """True if most campaigns refuted the claim."""
        return 2 * self.times > self.campaigns

    @property
    def power(self) -> float:
        """Lower bound (95 %) on the probability to find it with so many models."""
        missed = clopper_pearson_upper(self.campaigns - self.times, self.campaigns, 0.05)
        return float(1 - missed)

    @property
    def right(self) -> bool:
        """True if nothing is wrong with the training."""
        return self.suspicion in (NONE, NONE_VIRTUAL)

    @property
    def canary(self) -> str:
        where = "all layers" if self.spread else "the first layer"
        how = "signed pairs" if self.pairs else "one coordinate"
        return f"norm {self.norm:g} C, {where}, {how}"

    @property
    def gradient(self) -> str:
        return f"kit.Dirac(norm={self.norm:g}, spread={self.spread}, pairs={self.pairs})"

    @property
    def verdict(self) -> str:
        verdict = "found" if self.found else "not found"
        return f"{verdict} by {self.models} ({self.times} of {self.campaigns})"


def write(path: str | Path, rows: Sequence[Campaign]) -> None:
    """The table as CSV."""
    import pandas as pd

    with atomic(path) as temporary:
        pd.DataFrame([asdict(row) for row in rows]).to_csv(temporary, index=False)


def read(path: str | Path) -> tuple[Campaign, ...]:
    """Read the table that ``write`` wrote."""
    import pandas as pd

    return tuple(Campaign(**row) for row in pd.read_csv(path).to_dict("records"))


@cache
def campaigns() -> tuple[Campaign, ...]:
    """The table that ships with the package."""
    with resources.as_file(resources.files(__package__) / "canaries.csv") as path:
        return read(path)


def suspicions() -> dict[str, str]:
    """Names of the mistakes, and the mistakes in words."""
    return {row.suspicion: row.mistake for row in campaigns() if not row.right}


def unfound() -> dict[str, str]:
    """Mistakes that nothing in the table finds."""
    return {
        name: mistake
        for name, mistake in suspicions().items()
        if not any(row.found for row in suggestions(name))
    }


def suggestions(suspicion: str) -> list[Campaign]:
    """Campaigns on this mistake, what found it with fewest models first; InputError for others."""
    expect(suspicion in suspicions(), "suspicion", suspicion, f"one of {', '.join(suspicions())}")
    rows = [row for row in campaigns() if row.suspicion == suspicion]
    return sorted(rows, key=lambda row: (not row.found, row.models))


def markdown(rows: Sequence[Campaign]) -> str:
    """The table of the documentation."""
    lines = [
        "| suspicion | mistake | canary | score | models per data set (campaigns that found it) |",
        "|---|---|---|---|---|",
    ]
    for before, row in zip([None, *rows], rows, strict=False):
        same = before is not None and before.mistake == row.mistake
        name, mistake = ("", "the same") if same else (row.suspicion, row.mistake)
        lines.append(f"| {name} | {mistake} | {row.canary} | {row.score} | {row.verdict} |")
    return "\n".join(lines)
