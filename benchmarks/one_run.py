"""Median lower bounds on epsilon from one training with many canaries, by what is assumed.

    python benchmarks/one_run.py                        # idle coordinates, epsilon 24
    python benchmarks/one_run.py --housing 60           # the housing network too, trained here

Scores of idle coordinates are independent and normal, the accountant's mu apart. A canary in the
housing network has one of its least moved coordinates, and what it is read by ends where no noise
and no canary would have left it. ``above`` is the share of audits that claim more than the truth.
"""

import argparse

import pandas as pd

from hiddenstate.accounting import gaussian
from hiddenstate.auditing import one_canary_ceiling
from hiddenstate.papers.gradient_crafting import cells, one_run, training
from hiddenstate.papers.gradient_crafting.summaries import ALONE
from hiddenstate.pipeline.cells import Cell

DELTA = 1e-5


def idle(epsilon: float, canaries: int, audits: int) -> pd.DataFrame:
    """Bounds from simulated models."""
    asked = cells.OneRunAudits(epsilon=epsilon, delta=DELTA, canaries=canaries, audits=audits)
    return one_run.idle(Cell(f"one_run_{canaries}", asked), 0).assign(network="idle coordinates")


def housing(epsilon: float, canaries: list[int], audits: int) -> pd.DataFrame:
    """Bounds from trained housing networks."""
    network = cells.HousingAudit(
        epsilon=epsilon, delta=DELTA, every=1, start="fresh", insertions=250, batch_size=400,
        learning_rate=0.1, clipping_norm=1.0, hidden_units=6, adversaries=(), rank="absolute",
        models=1, repeat=0,
    )  # fmt: skip
    asked = cells.OneRunHousing(
        epsilon=epsilon, delta=DELTA, canaries=tuple(canaries), audits=audits, null_draws=200,
        network=network,
    )  # fmt: skip
    return training.one_run(Cell("one_run", asked), 0).assign(network="housing")


def table(found: pd.DataFrame, epsilon: float) -> pd.DataFrame:
    """Medians and shares above the truth; beside each canary alone what no valid bound exceeds."""
    found = found.assign(epsilon=gaussian.epsilon_below(found["mu"], DELTA))
    keys = ["network", "canaries", "hypothesis", "rule"]
    by = found.groupby(keys, sort=False)["epsilon"]
    rows = by.agg(median="median", above=lambda values: (values > epsilon).mean()).reset_index()
    mu = gaussian.mu(epsilon, DELTA)
    ceilings = {
        m: gaussian.epsilon(one_canary_ceiling(mu, m), DELTA) for m in set(rows["canaries"])
    }
    alone = rows["hypothesis"].eq(ALONE) & rows["network"].ne("housing")
    return rows.assign(ceiling=rows["canaries"].map(ceilings).where(alone))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilon", type=float, default=24.0)
    parser.add_argument("--canaries", type=int, nargs="+", default=[68, 1000])
    parser.add_argument("--audits", type=int, default=1000)
    parser.add_argument("--housing", type=int, default=0, metavar="AUDITS")
    options = parser.parse_args()
    parts = [idle(options.epsilon, m, options.audits) for m in options.canaries]
    if options.housing:
        parts.append(housing(options.epsilon, [10, 30, 68], options.housing))
    rows = table(pd.concat(parts), options.epsilon)
    print(rows.to_string(index=False, float_format="{:.2f}".format, na_rep="-"))


if __name__ == "__main__":
    main()
