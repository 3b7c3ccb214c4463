"""Simulated audits: gradient canary (Figure 3) and malicious data set (Figure 6)."""

from typing import Any

import pandas as pd

from hiddenstate.auditing.methods import PUBLISHED
from hiddenstate.papers.linear_heuristic.checks.shared import CLOSE, SAME
from hiddenstate.papers.linear_heuristic.estimates import curve, named
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.evidence import Within, average, mean
from hiddenstate.pipeline.family import Found, check, check_any, needed

FEW = 100
"""Steps below which a number of steps is "very small" on an axis from 1 to 1,000; ours."""


def audited(estimates: pd.DataFrame, attack: str, method: str) -> pd.DataFrame:
    """One row per audit: its value, the heuristic's and the standard epsilon."""
    parts = []
    for cell in named(estimates, f"{attack}_q"):
        rows = select(estimates, quantity="epsilon", cell=cell, method=method).set_index("x")
        baselines = {
            name: curve(estimates, cell.replace(attack, "audits"), name)
            for name in ("heuristic", "standard")
        }
        parts.append(rows[["value", "sampling_rate"]].assign(**baselines))
    return needed(pd.concat(parts).rename_axis("steps").reset_index())


def _at(row: Any) -> str:
    return f"sampling rate {row.sampling_rate:g}, {row.steps:g} steps"


def _shares(estimates: pd.DataFrame) -> pd.DataFrame:
    """Figure 3's estimates over the heuristic: the mean of independent audits, as ``share``."""
    rows = []
    for cell in named(estimates, "repeated_q"):
        heuristic = curve(estimates, cell, "heuristic")
        found = select(estimates, cell=cell, method=PUBLISHED)
        rows += [
            {"steps": steps, "sampling_rate": part["sampling_rate"].iloc[0]}
            | {"share": mean(part["value"] / heuristic[steps])}
            for steps, part in found.groupby("x")
        ]
    return needed(pd.DataFrame(rows))


@check
def figure3_close(estimates: pd.DataFrame) -> Found:
    """Figure 3: estimates close to the heuristic except at few steps."""
    rows = _shares(estimates)
    many = needed(rows[rows["steps"] >= FEW])
    reading = audited(estimates, "gradient", f"{PUBLISHED}, standard")
    other = (reading["value"] / reading["heuristic"])[reading["steps"] >= FEW]
    for row in many.itertuples():
        yield Within(
            f"estimate over heuristic, {_at(row)}", row.share, 1 - CLOSE, 1 + CLOSE, "a tenth"
        )
    return (
        f"Means of independent audits, from {FEW} steps on. With composition's curves in place of "
        f"the heuristic's one audit gives {other.min():.2f} to {other.max():.2f}."
    )


@check
def figure3_few_steps(estimates: pd.DataFrame) -> Found:
    """Figure 3: at few steps less is found, at both sampling rates."""
    rows = _shares(estimates)
    for rate, part in rows.groupby("sampling_rate"):
        few, many = (
            average(list(needed(part[where])["share"]))
            for where in (part["steps"] < FEW, part["steps"] >= FEW)
        )
        shown = (
            f"estimate over heuristic, fewer than {FEW} steps less others, sampling rate {rate:g}"
        )
        yield Within(shown, few - many, high=0.0, reason="looser")
    return "Means of independent audits and of the numbers of steps on either side."


@check
def figure3_below(estimates: pd.DataFrame) -> Found:
    """Figure 3: no estimate exceeds the heuristic."""
    rows = _shares(estimates)
    over = [
        f"{row.share.value:.3f} ({_at(row)})" for row in rows.itertuples() if row.share.value > 1
    ]
    for row in rows.itertuples():
        yield Within(f"estimate over heuristic, {_at(row)}", row.share, high=1.0)
    other = audited(estimates, "gradient", f"{PUBLISHED}, standard")
    above = int((other["value"] > other["heuristic"]).sum())
    return (
        f"Means of independent audits; {len(over)} of {len(rows)} are above"
        + (": " + ", ".join(over) if over else "")
        + f". With composition's curves {above} of {len(other)} single audits are above."
    )


def _exact_share(estimates: pd.DataFrame, method: str, of: str) -> list[tuple[str, float]]:
    """A computed epsilon over the heuristic or the standard one, of Figure 6's mechanisms."""
    found = []
    for cell in named(estimates, "audits_q"):
        ratio = curve(estimates, cell, method) / curve(estimates, cell, of)
        words = f"sampling rate {cell.removeprefix('audits_q')}"
        found += [(f"{words}, {n:g} steps", float(r)) for n, r in ratio[ratio.index >= 10].items()]
    needed(pd.Series([value for _, value in found], dtype=float))
    return found


def _matches_standard(estimates: pd.DataFrame, method: str, simulated: str) -> Found:
    """Figure 6: what the last iterate tells is the standard epsilon."""
    exact = _exact_share(estimates, method, "standard")
    audits = audited(estimates, simulated, PUBLISHED).query("steps >= 10")
    share = audits["value"] / audits["standard"]
    for at, v in exact:
        yield Within(f"epsilon over the standard one, {at}", v, 1 - CLOSE, 1 + SAME, "a tenth")
    return (
        "Epsilons of the last iterate without simulation; the simulated audits estimate "
        f"{share.min():.2f} to {share.max():.2f} of the standard epsilon."
    )


def _exceeds_heuristic(estimates: pd.DataFrame, method: str) -> Found:
    """Figure 6: the last iterate leaks more than the heuristic says."""
    exact = _exact_share(estimates, method, "heuristic")
    for at, value in exact:
        yield Within(f"epsilon over the heuristic, {at}", value, low=1.0)
    above = sum(value > 1 for _, value in exact)
    return (
        f"Above the heuristic in {above} of {len(exact)} mechanisms of 10 steps and more, "
        "without simulation."
    )


figure6_bits = check(_matches_standard, method="one bit a step", simulated="bits")
figure6_analog = check(_matches_standard, method="kept values", simulated="analog")
figure6_bits_exceed = check_any(_exceeds_heuristic, method="one bit a step")
figure6_analog_exceed = check(_exceeds_heuristic, method="kept values")
