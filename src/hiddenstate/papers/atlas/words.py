"""What a setting's bounds answer: how much does hiding the iterates buy?"""

from dataclasses import dataclass

import pandas as pd

from hiddenstate.estimates import select
from hiddenstate.rounding import shown

GROUPS = {
    "proven": "upper bounds for any loss",
    "assumed": "under an assumption",
    "counterexample": "losses whose last iterate is known exactly: lower bounds",
    "simulated": "simulated audits: certified lower bounds",
    "trained": "trained audits, of the nearest settings at hand: certified lower bounds",
}
"""By group: what a table calls it."""


CURVED = "cyclic, clipped"
"""The bound that holds for any losses of the assumed curvature."""


@dataclass(frozen=True)
class Answer:
    """What hiding the iterates buys; every number an epsilon.

    proven: for any loss. linear: what remains if every loss is linear; None if unknown. worst: what
    the worst loss that is known leaves at least. curved: what is proven for any clipped losses of
    the assumed curvature, None if nothing is. audited: the most that a simulated audit certified.
    """

    proven: float
    linear: float | None
    worst: float | None
    curved: float | None
    audited: float | None

    @classmethod
    def of(cls, rows: pd.DataFrame) -> "Answer":
        """The answer of a setting's rows, whose names are in the column ``name``."""

        def value(most: bool, **wanted: str) -> float | None:
            values = select(rows, **wanted)["value"].dropna()
            return float(values.max() if most else values.min()) if len(values) else None

        least = value(False, group="proven")
        if least is None:
            raise ValueError("no bound holds for any loss")
        return cls(
            proven=least,
            linear=value(False, group="assumed", kind="exact"),
            worst=value(True, group="counterexample"),
            curved=value(False, name=CURVED),
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
            f"at best: {self._best()}",
            f"at worst: {self._worst(up)}",
            f"for all that can be proven: {self._provably(up)}",
        ]
        if self.audited is not None:
            found.append(
                f"seen: a simulated audit of the last iterate alone certifies "
                f"{shown(self.audited, 'lower')}."
            )
        return found

    def _best(self) -> str:
        if self.linear is None:
            return "not known here."
        left = shown(self.linear, "exact")
        if self.proven - self.linear <= 2e-4 * self.proven:
            return f"nothing, even if every loss is linear: {left} remains."
        return (
            f"{self.proven - self.linear:.3g}, if every loss is linear: {left} remains. "
            "Training often behaves so, and nothing guarantees it."
        )

    def _worst(self, up: str) -> str:
        if self.worst is None:
            return "not known here."
        gap = shown(max(self.proven - self.worst, 0.0), "upper", 2)
        return (
            f"no more than {gap}: losses with a regulariser are known that leak at least "
            f"{shown(self.worst, 'lower')} of the {up}."
        )

    def _provably(self, up: str) -> str:
        words = f"nothing for any loss. Promise {up}"
        if self.curved is not None and self.curved < self.proven:
            curved = shown(self.curved, "upper")
            return (
                f"{self.proven - self.curved:.3g}, if no loss is more curved than assumed: "
                f"{curved} remains; and {words}."
            )
        if self.worst is not None:
            known = shown(self.worst, "lower")
            words += f"; no proof that allows any loss can promise less than {known}"
        return f"{words}."
