"""What a setting's bounds answer: how much does hiding the iterates buy?"""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from hiddenstate.accounting.setting import Setting
from hiddenstate.atlas.lower import GROWTH
from hiddenstate.rounding import shown

CURVED = ("cyclic, clipped", "clipped, sampled", "full batch on a domain")
"""The bounds that hold for any losses of the assumed curvature, clipped."""

NEEDS = {
    "history regulariser": "a regulariser that is not clipped and needs numbers near {size},",
    "malicious data set": "a data set whose other records an adversary wrote, all in every batch,",
}
"""What a counterexample needs, where a setting might not allow it."""

NEARLY = 0.99
"""Counterexamples that leak this share of the worst are named with it."""

SAME = 1 - 1e-6
"""A bound that is above this share of another buys nothing."""


@dataclass(frozen=True)
class Answer:
    """What hiding the iterates buys; every number an epsilon."""

    proven: float
    """For any loss, all iterates released."""
    hidden: float | None
    """For any loss, the last iterate alone; None if nothing is proven."""
    linear: float | None
    """What remains if every loss is linear; None if unknown."""
    least: tuple[str, float] | None
    """What the loss leaves that leaks least of those known exactly, and its name."""
    worst: tuple[list[str], float] | None
    """What the worst losses that are known leave at least, each of them, and their names."""
    assumed: list[tuple[str, float, str]]
    """What is proven of the last iterate under each assumption: bound, epsilon, assumption."""
    curved: float | None
    """The same for any clipped losses of the assumed curvature; None if nothing is proven."""
    audited: float | None
    """The most that a simulated audit certified."""

    @classmethod
    def of(cls, rows: pd.DataFrame) -> "Answer":
        """The answer of a setting's rows, whose names are in the column ``name``."""
        rows = rows.dropna(subset="value").sort_values("value", kind="stable")

        def values(group: str, **wanted: Any) -> list[float]:
            here = rows[rows["group"] == group]
            for column, value in wanted.items():
                here = here[here[column] == value]
            return here["value"].tolist()

        proven = values("proven")
        if not proven:
            raise ValueError("no bound holds for any loss")
        exact = rows[rows["kind"] == "exact"]
        assumed = rows[(rows["group"] == "assumed") & (rows["kind"] == "upper")]
        assumed = assumed.drop_duplicates("assumption")
        curved = rows[rows["name"].isin(CURVED)]["value"].tolist()
        known = rows[rows["group"] == "counterexample"]
        near = known[known["value"] >= NEARLY * known["value"].max()]
        return cls(
            proven=proven[0],
            hidden=next(iter(values("hidden")), None),
            linear=next(iter(values("assumed", kind="exact")), None),
            least=(exact["name"].iloc[0], float(exact["value"].iloc[0])) if len(exact) else None,
            worst=(near["name"].tolist(), float(near["value"].min())) if len(near) else None,
            assumed=list(
                zip(assumed["name"], assumed["value"], assumed["assumption"], strict=True)
            ),
            curved=next(iter(curved), None),
            audited=next(iter(reversed(values("simulated"))), None),
        )

    @property
    def promised(self) -> float:
        """The least that is proven for any loss."""
        return min(self.proven, self.proven if self.hidden is None else self.hidden)

    def lines(self, setting: Setting) -> list[str]:
        """The answer in plain words, for the setting that it is of."""
        up = shown(self.proven, "upper")
        if self.proven == 0:
            return ["Hiding the iterates buys nothing: delta covers all that they tell."]
        found = [
            f"How much does hiding the iterates buy? If all are released, epsilon is at most {up}.",
            f"if every loss is linear: {self._linear()}",
            f"at worst: {self._worst(up, setting)}",
            f"for all that can be proven: {self._provably()}",
        ]
        found += [f"under an assumption: {words}" for words in self._assumed(setting)]
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
            words += f" At best known: {shown(value)} remains ({name})."
        return words

    def _worst(self, up: str, setting: Setting) -> str:
        if self.worst is None:
            return "not known here."
        names, least = self.worst
        gap = shown(max(self.proven - least, 0.0), "upper", 2)
        size = f"{GROWTH:g}^{setting.steps:,}"
        terms = " or ".join(NEEDS.get(name, f"the {name}").format(size=size) for name in names)
        down = shown(least, "lower")
        return f"no more than {gap}: {terms} is known to leak at least {down} of the {up}."

    def _provably(self) -> str:
        promise = shown(self.promised, "upper")
        if self.promised < self.proven * SAME:
            return (
                f"{self.proven - self.promised:.3g} for any clipped loss on this domain. "
                f"Promise {promise}."
            )
        words = f"nothing for any loss. Promise {promise}"
        if self.worst is not None:
            known = shown(self.worst[1], "lower")
            words += f"; no proof that allows such terms can promise less than {known}"
        return f"{words}."

    def _assumed(self, setting: Setting) -> list[str]:
        """What is proven of the last iterate of losses of which more is known."""
        helping = [one for one in self.assumed if one[1] < self.promised * SAME]
        found = [
            f"{self.promised - value:.3g}, {shown(value, 'upper')} remains ({name}: {assumption})."
            for name, value, assumption in helping
        ]
        others = [one for one in self.assumed if one not in helping]
        if others:
            name, value, _ = others[0]
            other = " other" * bool(helping)
            word = "bound" if len(others) == 1 else "bounds"
            words = f"nothing by the{other} {word} on the last iterate"
            if value > self.promised / SAME:
                words += f", of which the least has {shown(value, 'upper')} ({name})"
            found.append(f"{words}.")
        steps = setting.break_even
        if self.assumed and steps is not None:
            found.append(
                "a domain of this diameter hides more than composition allows from about "
                f"{steps:,.0f} steps on if no step moves two iterates apart, as where losses are "
                "convex and clipping turns no gradient; clipped losses that are not convex take "
                "longer."
            )
        return found
