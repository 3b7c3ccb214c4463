"""Figures and tables of worst_case_init, drawn from its estimates."""

from functools import partial

import numpy as np
import pandas as pd

from hiddenstate.papers.worst_case_init.stated import stated

FACTORS = ["task", "case", "epochs", "records", "clipping_norm", "steps", "learning_rate"]


def audits(estimates: pd.DataFrame, figure: str, quantity: str, method: str) -> pd.DataFrame:
    """Mean, sd, maximum and number over the repeats of each audit that a figure shows."""
    rows = estimates[
        (estimates["figure"] == figure)
        & (estimates["quantity"] == quantity)
        & (estimates["method"] == method)
    ]
    groups = rows.groupby([*FACTORS, "epsilon", "models"], sort=False)["value"]
    table = groups.agg(mean="mean", sd=lambda values: values.std(ddof=1), maximum="max", n="size")
    return table.reset_index()


def ideal(estimates: pd.DataFrame, models: int | None = None) -> pd.DataFrame:
    """What audits (with that many models) find where everything leaks, by epsilon, as published."""
    rows = estimates[
        (estimates["quantity"] == "ideal_epsilon") & (estimates["method"] == "as published")
    ]
    if models is not None:
        rows = rows[rows["models"] == models]
    return rows.sort_values("epsilon")


_COLOURS = (0, 1, 2, 4, 5)


def _by_epsilon(ax, estimates: pd.DataFrame, figure: str, task: str, factor: str, label) -> None:
    """Empirical against theoretical epsilon, a series for each level of a factor."""
    from hiddenstate import plotting

    found = audits(estimates, figure, "epsilon", "as published")
    found = found[found["task"] == task]
    valid = audits(estimates, figure, "epsilon", "valid")
    epsilons = sorted(found["epsilon"].unique())
    places = pd.Series(range(len(epsilons)), index=epsilons)
    best = ideal(estimates, found["models"].max())
    for row in best[best["epsilon"].isin(epsilons)].itertuples():
        around = places[row.epsilon] + np.array([-0.42, 0.42])
        ax.fill_between(around, row.low, row.high, color="0.9", lw=0, zorder=0)
    for epsilon, place in places.items():
        ax.plot([place - 0.42, place + 0.42], [epsilon] * 2, **_THEORETICAL)
    levels = sorted(found[factor].unique())
    for j, level in enumerate(levels):
        color = plotting.PALETTE[_COLOURS[j % len(_COLOURS)]]
        shift = (j - (len(levels) - 1) / 2) * 0.72 / len(levels)
        part = found[found[factor] == level]
        ax.errorbar(
            places[part["epsilon"]] + shift, part["mean"], part["sd"].fillna(0), color=color,
            label=label(level), **_PUBLISHED,
        )  # fmt: skip
        bound = valid[(valid["task"] == task) & (valid[factor] == level)]
        aside = shift + 0.16 / len(levels)
        ax.plot(places[bound["epsilon"]] + aside, bound["mean"], color=color, **_VALID)
        values = stated(figure, task, "mean", **{factor: level})
        values = values[values["epsilon"].isin(epsilons)]
        ax.plot(places[values["epsilon"]] + shift, values["value"], zorder=5, **plotting.STATED)
    ax.set_xticks(places, [f"{epsilon:g}" for epsilon in epsilons])
    ax.set(xlabel="theoretical $\\varepsilon$", xlim=(-0.55, len(epsilons) - 0.45))
    ax.set_ylim(bottom=-0.03 * ax.get_ylim()[1])
    ax.legend(loc="best")


_PUBLISHED = {"fmt": "s", "ms": 4.5, "capsize": 2.5, "lw": 1.2}
_VALID = {"marker": "^", "ms": 4.5, "ls": "none", "alpha": 0.5}
_THEORETICAL = {"color": "0.5", "ls": "--", "lw": 1.2}


def _explain(figure, *, states: bool) -> None:
    """One legend below for what all panels share."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    from hiddenstate import plotting

    handles = [
        Line2D([], [], **_THEORETICAL, label="theoretical (upper bound)"),
        Line2D([], [], marker="s", ms=4.5, color="0.35", label="as published: mean ± sd"),
        Line2D([], [], color="0.35", **_VALID, label="valid 95 % bound: mean"),
        Patch(color="0.9", label="90 % of perfect audits"),
    ]
    if states:
        handles.append(Line2D([], [], **plotting.STATED, label="stated by the paper"))
    columns = 3 if figure.get_figwidth() > 6 else 2
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)


def _panels(estimates: pd.DataFrame, figure: str, factor: str, label):
    """One panel a task."""
    from hiddenstate import plotting

    rows = estimates[estimates["figure"] == figure]
    tasks = list(rows["task"].unique())
    drawn, axes = plotting.panels(len(tasks), height=4.1)
    if len(tasks) == 1:
        drawn.set_size_inches(5.2, 4.2)
    for ax, task in zip(axes, tasks, strict=True):
        _by_epsilon(ax, estimates, figure, task, factor, label)
        models = int(rows.loc[rows["task"] == task, "models"].max())
        ax.set_title(f"{_title(task)}, {models} models a world")
    axes[0].set_ylabel("empirical $\\varepsilon$")
    states = any(len(stated(figure, task, "mean")) for task in tasks)
    _explain(drawn, states=states)
    return drawn


def _title(task: str) -> str:
    return task.replace("_", " ")


draw_figure1 = partial(_panels, figure="figure1", factor="case", label="{} case".format)
draw_figure3 = partial(_panels, figure="figure3", factor="records", label="n = {:,.0f}".format)
draw_figure4 = partial(_panels, figure="figure4", factor="clipping_norm", label="C = {:g}".format)
draw_figure5 = partial(_panels, figure="figure5", factor="case", label="{} case".format)


def draw_figure2(estimates: pd.DataFrame):
    """Empirical epsilon and mean clipped gradient norm against epochs of pre-training."""
    from hiddenstate import plotting

    found = audits(estimates, "figure2", "epsilon", "as published").sort_values("epochs")
    valid = audits(estimates, "figure2", "epsilon", "valid").sort_values("epochs")
    norms = audits(estimates, "figure2", "gradient_norm", "mean").sort_values("epochs")
    task, epsilon = found["task"].iloc[0], found["epsilon"].iloc[0]
    best = ideal(estimates, found["models"].max()).set_index("epsilon").loc[epsilon]
    figure, (ax,) = plotting.panels(1)
    figure.set_size_inches(5.2, 4.2)
    ax.axhspan(best["low"], best["high"], color="0.9", lw=0, zorder=0)
    ax.axhline(epsilon, **_THEORETICAL)
    epochs = found["epochs"]
    ax.errorbar(epochs, found["mean"], found["sd"].fillna(0), color=plotting.OBSERVED, **_PUBLISHED)
    ax.plot(epochs, found["mean"], color=plotting.OBSERVED, lw=1)
    ax.plot(valid["epochs"] + 0.12, valid["mean"], color=plotting.OBSERVED, **_VALID)
    right = ax.twinx()
    right.grid(False)
    right.errorbar(
        norms["epochs"], norms["mean"], norms["sd"].fillna(0), fmt="D:", ms=4, capsize=2.5, lw=1.2,
        color=plotting.PUBLISHED,
    )  # fmt: skip
    for axis, quantity in ((ax, "mean"), (right, "gradient_norm")):
        values = stated("figure2", task, quantity)
        axis.plot(values["epochs"], values["value"], zorder=5, **plotting.STATED)
    ax.set(xlabel="epochs of pre-training", ylim=(0, 1.08 * epsilon))
    ax.set_ylabel("empirical $\\varepsilon$ (squares, triangles)", color=plotting.OBSERVED)
    highest = max(1.0, norms["mean"].max())
    right.set_ylim(0, 1.08 * highest)
    right.set_ylabel("mean norm of clipped gradients (diamonds)", color=plotting.PUBLISHED)
    ax.set_title(f"{_title(task)}, theoretical $\\varepsilon$ = {epsilon:g}")
    _explain(figure, states=len(stated("figure2", task, "mean")) > 0)
    return figure


def draw_figure6(estimates: pd.DataFrame):
    """Test accuracy against steps, a line for each learning rate."""
    from hiddenstate import plotting

    rows = audits(estimates, "figure6", "accuracy", "mean").sort_values("steps")
    task, epsilon = rows["task"].iloc[0], rows["epsilon"].iloc[0]
    figure, (ax,) = plotting.panels(1, height=3.7)
    figure.set_size_inches(4.6, 3.8)
    for j, (rate, line) in enumerate(rows.groupby("learning_rate")):
        color = plotting.PALETTE[_COLOURS[j % len(_COLOURS)]]
        ax.plot(
            line["steps"], 100 * line["mean"], "s-", color=color, ms=4, lw=1.2,
            label=f"learning rate {rate:g}",
        )  # fmt: skip
    values = stated("figure6", task, "accuracy")
    if len(values):
        label = {"label": "stated by the paper", "zorder": 5}
        ax.plot(values["steps"], 100 * values["value"], **label, **plotting.STATED)
    ax.set_xscale("log")
    ax.set(
        xlabel="steps",
        ylabel="test accuracy in %",
        title=f"{_title(task)}, average case, theoretical $\\varepsilon$ = {epsilon:g}",
    )
    plotting.legend_below(figure, ax, columns=2)
    return figure


def draw_figure7(estimates: pd.DataFrame):
    """Last layer: by clipping norm, and by number of records."""
    from hiddenstate import plotting

    rows = estimates[estimates["figure"] == "figure7"]
    task = rows["task"].iloc[0]
    figure, axes = plotting.panels(2, height=4.4, sharey=True)
    for ax, factor, fixed, label in (
        (axes[0], "clipping_norm", "records", "C = {:g}".format),
        (axes[1], "records", "clipping_norm", "n = {:,.0f}".format),
    ):
        # What varies here, at the other factor's most common level.
        other = rows[fixed].mode().iloc[0]
        shown = estimates[(estimates["figure"] != "figure7") | (estimates[fixed] == other)]
        _by_epsilon(ax, shown, "figure7", task, factor, label)
        words = {"records": f"n = {other:,.0f}", "clipping_norm": f"C = {other:g}"}
        ax.set_title(f"{_title(task)}, {words[fixed]}")
    axes[0].set_ylabel("empirical $\\varepsilon$")
    _explain(figure, states=False)
    return figure


def tabulate_table1(estimates: pd.DataFrame) -> pd.DataFrame:
    """Test accuracy in the average case, by epsilon."""
    return _accuracies(estimates, "average")


def tabulate_accuracy(estimates: pd.DataFrame) -> pd.DataFrame:
    """Test accuracy in the worst case, by epsilon."""
    return _accuracies(estimates, "worst")


def _accuracies(estimates: pd.DataFrame, case: str) -> pd.DataFrame:
    rows = audits(estimates, "figure1", "accuracy", "mean")
    rows = rows[rows["case"] == case]
    records = []
    for task, part in rows.groupby("task", sort=False):
        record = {"task": _title(task)}
        for row in part.itertuples():
            value = stated("figure1", task, "accuracy", case=case, epsilon=row.epsilon)["value"]
            paper = f" (paper: {100 * value.iloc[0]:.1f})" if len(value) else ""
            record[f"epsilon = {row.epsilon:g}"] = f"{100 * row.mean:.1f}{paper}"
        records.append(record)
    return pd.DataFrame(records)


def tabulate_audits(estimates: pd.DataFrame) -> pd.DataFrame:
    """Every audit once: what was published, what is valid, and what a perfect audit finds."""
    keys = [*FACTORS, "epsilon", "models"]
    best = ideal(estimates)[["epsilon", "models", "value"]].rename(columns={"value": "ideal"})
    tables = []
    for figure in estimates["figure"].dropna().unique():
        published = audits(estimates, figure, "epsilon", "as published")
        if len(published) == 0:
            continue
        for quantity, method in (
            ("epsilon", "two-sided"),
            ("epsilon", "valid"),
            ("separation", "mean"),
            ("accuracy", "mean"),
        ):
            other = audits(estimates, figure, quantity, method)
            name = method if quantity == "epsilon" else quantity
            published = published.merge(other, on=keys, suffixes=("", f"_{name}"))
        tables.append(published.merge(best, on=["epsilon", "models"]).assign(figure=figure))
    table = pd.concat(tables)
    shown = table.groupby(keys, sort=False)["figure"].agg(
        lambda figures: ", ".join(name.removeprefix("figure") for name in figures)
    )
    table = table.drop_duplicates(keys).drop(columns="figure")
    table = table.merge(shown.rename("figures").reset_index(), on=keys)
    rows = estimates[estimates["quantity"] == "separation"]
    most = table["epsilon"].map(rows.groupby("epsilon")["most"].first())
    two = "{:.2f}".format

    def pm(name: str) -> pd.Series:
        return table[f"mean{name}"].map(two) + " ± " + table[f"sd{name}"].map(two)

    return pd.DataFrame(
        {
            "task": table["task"].map(_title),
            "epochs": table["epochs"].astype(int),
            "n": table["records"].astype(int),
            "C": table["clipping_norm"],
            "epsilon": table["epsilon"],
            "as published": pm(""),
            "maximum": table["maximum"].map(two),
            "perfect audit": table["ideal"].map(two),
            "two-sided": pm("_two-sided"),
            "valid bound": pm("_valid"),
            "largest valid": table["maximum_valid"].map(two),
            "separation": pm("_separation"),
            "at most": most.map(two),
            "accuracy in %": (100 * table["mean_accuracy"]).map("{:.1f}".format),
            "figures": table["figures"],
        }
    )
