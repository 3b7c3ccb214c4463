"""A setting's bounds in words: the epsilon to report, and the saving by hiding."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from hiddenstate.accounting.bounds import HEURISTIC
from hiddenstate.accounting.setting import Setting
from hiddenstate.atlas.lower import GROWTH
from hiddenstate.rounding import shown

CURVED = ("cyclic, clipped", "clipped losses on a domain", "last step on a domain")
"""The bounds that hold for any losses of the assumed curvature, clipped."""

CONVEX = ("convex losses on a domain", "cyclic, clipping without effect", *CURVED)
"""The bounds that hold for linear losses too."""

WORST = {
    "history regulariser": "a regulariser that is never clipped, with parameters near {size},",
    "malicious data set": "an adversary who writes all other records",
}
"""What makes the last iterate leak so much, in words."""

NEARLY = 0.99
"""Counterexamples that leak this share of the worst are named with it."""

SAME = 1 - 1e-6
"""A bound that is above this share of another is no better."""


@dataclass(frozen=True)
class Answer:
    """Saving by hiding the iterates; every number is an epsilon."""

    proven: float
    """For any loss, all iterates released."""
    attained: float | None
    """What is known to leak where all iterates are released; None: all that is proven."""
    hidden: float | None
    """For any loss, the last iterate alone; None if nothing is proven."""
    linear: float | None
    """If every loss is linear; None if unknown."""
    linear_bound: tuple[str, float] | None
    """The least bound that linear losses have too, and its name; None if there is none."""
    worst: tuple[list[str], float] | None
    """What the worst losses that are known leak at least, and the names of those."""
    assumed: list[tuple[str, float, str]]
    """What is proven of the last iterate under each assumption: bound, epsilon, assumption."""
    curved: float | None
    """The same for any clipped losses of the assumed curvature; None if nothing is proven."""
    audited: tuple[str, float, int, int] | None
    """The most that a simulated audit proved, its name and its runs per world."""

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
        assumed = rows[(rows["group"] == "assumed") & (rows["kind"] == "upper")]
        assumed = assumed.drop_duplicates("assumption")
        covering = assumed[assumed["name"].isin(CONVEX)]
        curved = rows[rows["name"].isin(CURVED)]["value"].tolist()
        known = rows[rows["group"] == "counterexample"]
        near = known[known["value"] >= NEARLY * known["value"].max()]
        audits = rows[rows["group"] == "simulated"]
        last = audits.iloc[-1] if len(audits) else None
        return cls(
            proven=proven[0],
            attained=next(iter(values("shown")), None),
            hidden=next(iter(values("hidden")), None),
            linear=next(iter(values("assumed", name=HEURISTIC)), None),
            linear_bound=(
                (covering["name"].iloc[0], float(covering["value"].iloc[0]))
                if len(covering)
                else None
            ),
            worst=(near["name"].tolist(), float(near["value"].min())) if len(near) else None,
            assumed=list(
                zip(assumed["name"], assumed["value"], assumed["assumption"], strict=True)
            ),
            curved=next(iter(curved), None),
            audited=None
            if last is None
            else (last["name"], last["value"], int(last["runs"]), len(audits)),
        )

    @property
    def promised(self) -> float:
        """Sentences on any loss if the last iterate alone is released."""
        return self.proven if self.hidden is None else min(self.proven, self.hidden)

    def lines(self, setting: Setting) -> list[str]:
        """Sentences, the most important first."""
        if self.proven == 0:
            return ["Report epsilon = 0: delta covers all that the iterates tell."]
        found = [self._report(), *self._linear(setting), *self._worst(setting)]
        found += self._assumed(setting)
        if self.audited is not None and self.audited[1] > 0:
            name, value, runs, number = self.audited
            which, each = "A", ""
            if number > 1:
                which, each = f"The strongest of {number}", ", which each attack has of its own"
            found.append(
                f"{which} simulated attack{'s' * (number > 1)} on the last iterate ({name}, "
                f"{runs:,} models each with and without the canary) proves epsilon >= "
                f"{_low(value)} with 95 % confidence{each}."
            )
        return found

    def _report(self) -> str:
        if self.promised < self.proven * SAME:
            return (
                f"Report epsilon = {_up(self.promised)} if only the last iterate is released: it "
                f"holds for any clipped loss on this domain. If all iterates are seen it is "
                f"{_up(self.proven)}."
            )
        return (
            f"Report epsilon = {_up(self.proven)}. It holds for every loss, also if all iterates "
            "are seen."
        )

    def _linear(self, setting: Setting) -> list[str]:
        if self.linear is None:
            if self.linear_bound is None:
                return []
            name, value = self.linear_bound
            if value > self.promised * SAME:
                return ["For linear losses no smaller number is known here."]
            return [
                f'If every loss were linear, epsilon would be at most {_up(value)} ("{name}"). '
                "On a domain the exact number is not known."
            ]
        if self.proven - self.linear <= 2e-4 * self.proven:
            return ["If every loss were linear, hiding iterates would save nothing."]
        words = (
            f"If every loss were linear, epsilon would be {_near(self.linear)}. Audits of trained "
            "models usually find no more, but that is no guarantee."
        )
        most = _up(self.proven - self.linear)
        if setting.diameter is None and not setting.shuffled:
            saved = f"Hiding the iterates would then save {_near(self.proven - self.linear, 2)}."
            if setting.release_every is not None:
                saved = f"Hiding the others would then save {_near(self.proven - self.linear, 2)}."
        else:
            least = max(0.0, (self.attained or 0.0) - self.linear)
            saved = (
                f"Hiding the iterates would then save between {_low(least)} and {most}: "
                "no better bounds of what all iterates leak in a drawn order are known."
            )
        return [f"{words} {saved}"]

    def _worst(self, setting: Setting) -> list[str]:
        if self.worst is None:
            return []
        names, least = self.worst
        size = f"{GROWTH:g}^{setting.steps:,}"
        makers = " or ".join(WORST.get(name, f"the {name}").format(size=size) for name in names)
        start = "In the worst case hiding the iterates saves next to nothing"
        if least < NEARLY * self.promised:
            gap = _up(max(self.promised - least, 0.0), 2)
            start = f"In the worst case hiding the iterates saves at most {gap}"
        return [f"{start}: {makers} can make the last iterate leak {_low(least)}."]

    def _assumed(self, setting: Setting) -> list[str]:
        """Sentences on the last iterate of losses that meet an assumption."""
        helping = [one for one in self.assumed if one[1] < self.promised * SAME]
        by_value: dict[str, list[str]] = {}
        for name, value, _ in helping:
            by_value.setdefault(_up(value), []).append(f'"{name}"')
        found = [
            f"The last iterate alone leaks at most {value} if every loss is as the row "
            f"{' or '.join(names)} says."
            for value, names in by_value.items()
        ]
        others = [one for one in self.assumed if one not in helping]
        if others:
            other = "No other bound" if helping else "No bound"
            value, name = others[0][1], others[0][0]
            line = f"{other} of the last iterate is below {_up(self.promised)}."
            if _up(value) == _up(self.promised):
                line += f' The row "{name}" has the same number.'
            elif value < 10 * self.promised:
                line += f' The next one is {_up(value)} ("{name}").'
            found.append(line)
        steps = setting.break_even
        if self.assumed and steps is not None:
            found.append(
                f"From about {steps:,.0f} steps on a bound on this domain is below the standard "
                "epsilon, if no step moves two iterates apart. That holds for convex losses "
                "whose gradients clipping does not change. Other losses take more steps."
            )
        return found


def _up(value: float, digits: int = 3) -> str:
    return shown(value, "upper", digits)


def _low(value: float) -> str:
    return shown(value, "lower", 3)


def _near(value: float, digits: int = 3) -> str:
    return shown(value, "exact", digits)
