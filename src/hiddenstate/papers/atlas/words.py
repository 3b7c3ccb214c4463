"""What a setting's bounds answer: how much does hiding the iterates buy?"""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from hiddenstate.estimates import select
from hiddenstate.rounding import shown

GROUPS = {
    "proven": "upper bounds for any loss, all iterates released",
    "hidden": "upper bounds for any loss, the last iterate alone",
    "assumed": "under an assumption",
    "counterexample": "losses whose last iterate is known exactly: lower bounds",
    "simulated": "simulated audits: certified lower bounds",
    "trained": "trained audits, of the nearest settings at hand: certified lower bounds",
}
"""By group: what a table calls it."""


CURVED = ("cyclic, clipped", "full batch on a domain")
"""The bounds that hold for any losses of the assumed curvature."""

CONVEX = "convex, sampled"
"""The bound for convex losses that clipping never changes."""


@dataclass(frozen=True)
class Answer:
    """What hiding the iterates buys; every number an epsilon.

    proven: for any loss, all iterates released. hidden: for any loss, the last iterate alone; None
    if nothing is. linear: what remains if every loss is linear; None if unknown. least: what the
    known loss that leaks least leaves, and its name. worst: what the worst loss that is known
    leaves at least. curved: what is proven for any clipped losses of the assumed curvature, None if
    nothing is. convex: the same for convex losses that clipping never changes. audited: the most
    that a simulated audit certified.
    """

    proven: float
    hidden: float | None
    linear: float | None
    least: tuple[str, float] | None
    worst: float | None
    curved: float | None
    convex: float | None
    sampled: bool
    audited: float | None

    @classmethod
    def of(cls, rows: pd.DataFrame) -> "Answer":
        """The answer of a setting's rows, whose names are in the column ``name``."""

        def value(most: bool, **wanted: Any) -> float | None:
            values = select(rows, **wanted)["value"].dropna()
            return float(values.max() if most else values.min()) if len(values) else None

        least = value(False, group="proven")
        if least is None:
            raise ValueError("no bound holds for any loss")
        # Of the quadratic regularisers a row shows the worst: what it leaves the others leave less.
        known = rows[(rows["kind"] == "exact") | (rows["group"] == "counterexample")]
        known = known.dropna(subset="value").sort_values("value", kind="stable")
        return cls(
            proven=least,
            hidden=value(False, group="hidden"),
            least=(known["name"].iloc[0], float(known["value"].iloc[0])) if len(known) else None,
            linear=value(False, group="assumed", kind="exact"),
            worst=value(True, group="counterexample"),
            curved=value(False, name=list(CURVED)),
            convex=value(False, name=CONVEX),
            sampled="malicious data set" in set(rows["name"]),
            audited=value(True, group="simulated"),
        )

    @property
    def lines(self) -> list[str]:
        """The answer in plain words."""
        up = shown(self.proven, "upper")
        if self.proven == 0:
            return ["Hiding the iterates buys nothing: delta covers all that they tell."]
        found = [
            f"How much does hiding the iterates buy? If all are released, epsilon is at most {up}.",
            f"if every loss is linear: {self._linear()}",
            f"at worst: {self._worst(up)}",
            f"for all that can be proven: {self._provably(up)}",
        ]
        if self.audited is not None:
            found.append(
                f"seen: a simulated audit of the last iterate alone certifies "
                f"{shown(self.audited, 'lower')}."
            )
        return found

    def _linear(self) -> str:
        if self.linear is None:
            return "not known here."
        left = shown(self.linear, "exact")
        if self.proven - self.linear <= 2e-4 * self.proven:
            words = f"nothing, {left} remains."
        else:
            words = (
                f"{self.proven - self.linear:.3g}, {left} remains. Training often behaves so, and "
                "nothing guarantees it."
            )
        if self.least is not None and self.least[1] < self.linear * (1 - 1e-3):
            name, value = self.least
            words += f" At best known: {shown(value, 'upper')} remains ({name})."
        return words

    def _worst(self, up: str) -> str:
        if self.worst is None:
            return "not known here."
        gap = shown(max(self.proven - self.worst, 0.0), "upper", 2)
        also = ", or other records that an adversary wrote and every batch has," * self.sampled
        return (
            f"no more than {gap}: a regulariser that is not clipped and whose numbers grow without "
            f"end{also} is known to leak at least {shown(self.worst, 'lower')} of the {up}."
        )

    def _provably(self, up: str) -> str:
        promise = self.proven
        words = "nothing for any loss"
        if self.hidden is not None and self.hidden < self.proven:
            promise = self.hidden
            words = (
                f"{self.proven - promise:.3g} for any clipped loss on this domain, of which "
                f"{shown(promise, 'upper')} remains"
            )
        words += f". Promise {shown(promise, 'upper')}"
        for value, what in (
            (self.convex, "if losses are convex and clipping never changes a gradient"),
            (self.curved, "if no loss is more curved than assumed"),
        ):
            if value is not None and value < promise:
                left = shown(value, "upper")
                return f"{self.proven - value:.3g}, {what}: {left} remains; and {words}."
        if self.worst is not None:
            known = shown(self.worst, "lower")
            words += f"; no proof that allows such terms can promise less than {known}"
        return f"{words}."
