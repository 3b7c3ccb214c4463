"""Tables of worst_case_init."""

import numpy as np
import pandas as pd

from hiddenstate.auditing.methods import PUBLISHED
from hiddenstate.papers.worst_case_init.grid import shows
from hiddenstate.papers.worst_case_init.stated import stated
from hiddenstate.papers.worst_case_init.summaries import (
    either,
    ideal,
    lacking,
    planned,
    summary,
    title,
)
from hiddenstate.pipeline.estimates import plus_minus, select, summarise
from hiddenstate.pipeline.family import table
from hiddenstate.rounding import shown

_ACCURACY = (
    "Test accuracy in percent of models trained on n records with clipping norm C. It is the mean "
    "over repeats and models, with and without the canary."
)


def _accuracies(estimates: pd.DataFrame, case: str) -> pd.DataFrame:
    """Accuracies by task, number of records and clipping norm; other norms are Figure 4's."""
    records = []
    for single, figure in (("table1", "figure1"), ("figure4_accuracies", "figure4")):
        source = either(estimates, single, figure, case=case)
        rows = summary(estimates, source, "accuracy", "mean", case=case)
        every = planned(estimates, source, case=case)
        every = every[(every["clipping_norm"] == 1) == (figure == "figure1")]
        for key, audits in every.groupby(["task", "records", "clipping_norm"], sort=False):
            task, n, norm = key
            record = {"task": title(task), "n": int(n), "C": f"{norm:g}"}
            few, many = int(audits["n"].min()), int(audits["n"].max())
            record["models a repeat"] = int(audits["models"].max())
            record["repeats"] = f"{few} to {many}" if few < many else many
            for row in select(rows, task=task, records=n, clipping_norm=norm).itertuples():
                same = {"case": case, "epsilon": row.epsilon, "records": n}
                value = stated(figure, task, "accuracy", **same)
                value = value[value["clipping_norm"].fillna(1.0) == norm]["value"]
                paper = f" (paper: {100 * value.iloc[0]:.1f})" if len(value) else ""
                record[f"epsilon = {row.epsilon:g}"] = f"{100 * row.mean:.1f}{paper}"
            if lacking(audits):
                record["from"] = lacking(audits)
            records.append(record)
    return pd.DataFrame(records).fillna("")


@table("Table 1: accuracy in the average case", _ACCURACY, when=shows("table1", "figure1"))
def table1(estimates: pd.DataFrame) -> pd.DataFrame:
    return _accuracies(estimates, "average")


@table("Accuracy in the worst case", _ACCURACY, when=shows("table1", "figure1"))
def accuracy(estimates: pd.DataFrame) -> pd.DataFrame:
    return _accuracies(estimates, "worst")


@table(
    "Every audit",
    "Empirical epsilon as published: mean ± standard deviation and maximum over the repeats. "
    "Beside it stand what a perfect audit publishes on average, and the valid 95 % bound. The "
    "same recipe with two-sided intervals is an interpretation made afterwards. Separation: "
    "difference of the mean scores over their standard deviation, and what it is at most if "
    "everything leaks.",
)
def audits(estimates: pd.DataFrame) -> pd.DataFrame:
    rows = estimates.drop_duplicates(["cell", "repeat", "quantity", "method"])
    figures = select(estimates, quantity="repeats").groupby("cell")["figure"].agg(list)
    found = summarise(rows, ["cell", "quantity", "method"])
    found = found.set_index(["cell", "quantity", "method"])
    most = select(rows, quantity="separation").groupby("cell")["most"].first()
    records = []
    for audit in select(rows, quantity="repeats").itertuples():
        if audit.models == 1:
            continue
        records.append(
            {
                "task": title(audit.task),
                "epochs": int(audit.epochs),
                "n": int(audit.records),
                "C": audit.clipping_norm,
                "epsilon": audit.epsilon,
                "repeats": f"{audit.value:g} of {audit.planned:g}",
                "figures": ", ".join(f.removeprefix("figure") for f in figures[audit.cell]),
            }
        )
        if audit.value == 0:
            continue
        of = found.loc[audit.cell]
        published, valid = of.loc["epsilon", PUBLISHED], of.loc["epsilon", "valid"]
        two_sided, separation = of.loc["epsilon", "two-sided"], of.loc["separation", "mean"]
        perfect = ideal(estimates, epsilon=audit.epsilon, models=audit.models)["value"].item()
        records[-1] |= {
            PUBLISHED: plus_minus(published["mean"], published["sd"]),
            "maximum": f"{published['maximum']:.2f}",
            "perfect audit": f"{perfect:.2f}",
            "two-sided": plus_minus(two_sided["mean"], two_sided["sd"]),
            "valid bound": plus_minus(valid["mean"], valid["sd"]),
            "largest valid": shown(valid["maximum"], "lower", decimals=2),
            "separation": plus_minus(separation["mean"], separation["sd"]),
            "at most": shown(most[audit.cell], "upper", decimals=2),
            "accuracy in %": f"{100 * of.loc[('accuracy', 'mean'), 'mean']:.1f}",
        }
    return pd.DataFrame(records).fillna("")


@table(
    "Expected audits, and the audits themselves",
    "Separation: distance of the mean scores with and without the canary in standard deviations. "
    "Expected: from pairs of models that share their noise and a pass back, mean over the "
    "repeats. Its two factors are the canary's clipped norm over C, and the cosine of its "
    "gradients with what the score sees. Their product with the most that the noise allows is the "
    "separation, in first order. The spread of the scores has two proven ends. The expected value "
    "takes the upper one; the other end is known from two pairs on. Observed: mean over the same "
    "repeats of trained audits, ± its standard error. z: the difference over both errors. An "
    "expected audit is no lower bound.",
    when=lambda grid: bool(grid.expected),
)
def expected_audits(estimates: pd.DataFrame) -> pd.DataFrame:
    rows = select(estimates, quantity="expected separation")
    told = select(estimates, quantity="expected against observed")
    by = ["task", "epochs", "records", "clipping_norm", "epsilon"]
    records = []
    for key, part in rows.groupby(by, sort=False):
        task, epochs, n, norm, epsilon = key
        beside = select(
            told, task=task, epochs=epochs, records=n, clipping_norm=norm, epsilon=epsilon
        )
        record = {
            "task": title(task),
            "epochs": int(epochs),
            "n": int(n),
            "C": norm,
            "epsilon": epsilon,
            "expected": f"{part['value'].mean():.2f}",
            "at the other end": f"{high:.2f}" if np.isfinite(high := part["high"].mean()) else "",
            "at most": shown(part["most"].iloc[0], "upper", decimals=2),
            "norm": f"{part['norm'].mean():.2f}",
            "cosine": f"{part['cosine'].mean():.2f}",
        }
        if len(beside):
            row = beside.loc[beside["repeats"].idxmax()]
            record["observed"] = plus_minus(row["observed"], row["observed_error"])
            record["repeats"] = int(row["repeats"])
            record["z"] = f"{row['value']:+.1f}"
        records.append(record)
    return pd.DataFrame(records).fillna("")
