"""What the claims of worst_case_init measure, from its estimates.

An audit has independent repeats, whose scatter gives the errors. Of one repeat alone the published
epsilon has no error, and the separation of its scores has that of the models.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from hiddenstate.auditing.methods import PUBLISHED
from hiddenstate.auditing.summaries import separation_error
from hiddenstate.papers.worst_case_init.stated import (
    EPSILONS,
    PUBLIC_CODE,
    RECORDS,
    STATED,
    stated,
)
from hiddenstate.papers.worst_case_init.summaries import AUDIT, EPOCHS, ideal, lacking, planned
from hiddenstate.pipeline.estimates import plus_minus, select
from hiddenstate.pipeline.evidence import (
    Estimate,
    Evidence,
    Exact,
    Item,
    Stated,
    Test,
    Within,
    mean,
    rarely,
)
from hiddenstate.pipeline.family import Check, Lacking, check, needed
from hiddenstate.pipeline.verification import comparison_power

SIGNIFICANT = 7.01 - 4.96
"""The least difference in epsilon at 10 that the paper calls significant: CIFAR-10's by records."""
NOT_SIGNIFICANT = 7.41 - 6.48
"""The largest difference in epsilon at 10 that it calls not significant: MNIST's by records."""
TESTED = 10_000
"""Images of the test sets of MNIST and of CIFAR-10."""
NEARLY_TIGHT = 6.95
"""The least epsilon of 10 that the paper calls nearly tight: CIFAR-10 with 1,000 records."""


def _audits(
    estimates: pd.DataFrame, figure: str, quantity: str = "epsilon", **levels: Any
) -> list[tuple[pd.Series, pd.Series]]:
    """Every audit of a figure: what tells it apart, and a value for each of its repeats."""
    method = {"method": PUBLISHED} if quantity == "epsilon" else {}
    rows = select(estimates, figure=figure, quantity=quantity, **method, **levels)
    return [
        (part[AUDIT].iloc[0], part.set_index("repeat")["value"])
        for _, part in rows.groupby("cell", sort=False)
    ]


def _one(estimates: pd.DataFrame, figure: str, quantity: str = "epsilon", **levels: Any) -> Any:
    """The values of the only audit of these levels; its absence leaves a claim not judged."""
    found = _audits(estimates, figure, quantity, **levels)
    if len(found) != 1:
        raise Lacking
    return found[0][1]


def _separation(values: pd.Series, models: float) -> Estimate:
    """Mean separation of the worlds' scores, with the error that so many models leave."""
    errors = separation_error(values, models)
    error = np.sqrt((errors**2).mean() / len(values))
    return Estimate(float(values.mean()), float(error))


def _words(at: pd.Series, values: pd.Series) -> str:
    """Words such as "7.21 ± 0.52 (3 of 5 repeats)"."""
    few = lacking(pd.DataFrame([{"n": len(values), "planned": at["planned"]}]))
    return plus_minus(values.mean(), values.std()) + (few and f" ({few})")


def _whole(audits: list[tuple[pd.Series, pd.Series]]) -> list[tuple[pd.Series, pd.Series]]:
    """Audits with all the records that the paper's have."""

    def whole(at: pd.Series) -> bool:
        task = at["task"].removesuffix(PUBLIC_CODE)
        return bool(at["records"] == RECORDS.get(task, at["records"]))

    return [(at, values) for at, values in audits if whole(at)]


def _gap(estimates: pd.DataFrame, figure: str, epsilon: float) -> Iterator[tuple[str, Estimate]]:
    """(task, separation in the worst less that in the average case), with all records."""
    found = _whole(_audits(estimates, figure, "separation", epsilon=epsilon))
    for task in dict.fromkeys(at["task"] for at, _ in found):
        cases = {
            at["case"]: _separation(values, at["models"])
            for at, values in found
            if at["task"] == task
        }
        if {"worst", "average"} <= set(cases):
            yield task, cases["worst"] - cases["average"]


# --- sentences of the paper: directions and properties --------------------------------------------


@check
def ordering(estimates: pd.DataFrame) -> Evidence:
    """With all records scores are further apart in the worst case, at epsilon 4 and 10."""
    items: list[Item] = []
    notes = []
    for epsilon in EPSILONS[2:]:
        for task, gap in _gap(estimates, "figure1", epsilon):
            what = f"separation in the worst less the average case, {task}, epsilon {epsilon:g}"
            items.append(Within(what, gap, low=0, reason="tighter"))
            both = {
                at["case"]: _words(at, values)
                for at, values in _whole(_audits(estimates, "figure1", task=task, epsilon=epsilon))
            }
            if {"worst", "average"} <= set(both):
                notes.append(
                    f"{task}, epsilon {epsilon:g}: {both['worst']} published in the worst case, "
                    f"{both['average']} in the average case"
                )
    if not items:
        raise Lacking
    return Evidence(items, "; ".join(notes) + ".")


@check
def pretraining(estimates: pd.DataFrame) -> Evidence:
    """The mean norm of clipped gradients falls from each epoch of pre-training to the next."""
    items: list[Item] = []
    notes = []
    for line in _by_epochs(_audits(estimates, "figure2", "gradient_norm", clipping_norm=1.0)):
        for (one, before), (other, after) in pairwise(line):
            what = f"change of the norm from epoch {one['epochs']:g} to {other['epochs']:g}"
            change = mean((after - before).dropna().tolist() or [np.nan])
            items.append(Within(what, change, high=0, reason="decreases"))
        norms = ", ".join(f"{values.mean():.2f}" for _, values in line)
        at = line[0][0]
        notes.append(f"{at['task']}, {at['records']:,.0f} records: {norms} after 0, 1, … epochs")
    if not items:
        raise Lacking
    return Evidence(items, "; ".join(notes) + ".")


def _by_epochs(audits: list[tuple[pd.Series, pd.Series]]) -> Iterator[list[Any]]:
    """Audits of the largest epsilon that differ in their epochs alone, at least two, by epochs."""
    shared = [name for name in AUDIT if name not in EPOCHS]
    lines: dict[tuple[Any, ...], list[tuple[pd.Series, pd.Series]]] = {}
    for at, values in audits:
        lines.setdefault(tuple(at[shared]), []).append((at, values))
    most = max((at["epsilon"] for at, _ in audits), default=0)
    for line in lines.values():
        if len(line) > 1 and line[0][0]["epsilon"] == most:
            yield sorted(line, key=lambda one: one[0]["epochs"])


@check
def pretraining_epsilon(estimates: pd.DataFrame) -> Evidence:
    """Epsilon is higher after the last epoch of pre-training than before the first."""
    items: list[Item] = []
    notes = []
    for line in _by_epochs(_audits(estimates, "figure2", clipping_norm=1.0)):
        (first, before), (last, after) = line[0], line[-1]
        what = f"epsilon after {last['epochs']:g} epochs less that without, {first['task']}"
        rise = mean(after.tolist()) - mean(before.tolist())
        items.append(Within(what, rise, low=0, reason="increases"))
        notes.append(
            f"{first['task']}, {first['records']:,.0f} records: {_words(first, before)} without, "
            f"{_words(last, after)} after {last['epochs']:g} epochs"
        )
    if not items:
        raise Lacking
    return Evidence(items, "; ".join(notes) + ".")


def _by_records(estimates: pd.DataFrame) -> Iterator[tuple[str, list[Any]]]:
    """(task, worst-case audits at epsilon 10 by records) where there are two numbers of records."""
    found = _audits(estimates, "figure3", epsilon=10.0, case="worst")
    for task in dict.fromkeys(at["task"] for at, _ in found):
        line = sorted(
            (one for one in found if one[0]["task"] == task), key=lambda one: one[0]["records"]
        )
        if len(line) > 1:
            yield task, line


def _listed(line: list[Any]) -> str:
    return ", ".join(f"{_words(at, values)} at n = {at['records']:,.0f}" for at, values in line)


@check
def records(estimates: pd.DataFrame) -> Evidence:
    """The smallest data set's scores are further apart than the largest's, at epsilon 10."""
    items: list[Item] = []
    notes = []
    for task, line in _by_records(estimates):
        few, many = (
            _separation(
                _one(estimates, "figure3", "separation", **at[["task", "records", "epsilon"]]),
                at["models"],
            )
            for at in (line[0][0], line[-1][0])
        )
        ends = f"{line[0][0]['records']:,.0f} less {line[-1][0]['records']:,.0f}"
        what = f"separation with {ends} records, {task}"
        items.append(Within(what, few - many, low=0, reason="tighter"))
        notes.append(f"{task}: {_listed(line)}")
    if not items:
        raise Lacking
    return Evidence(items, "; ".join(notes) + ".")


def _fewest_less_others(
    estimates: pd.DataFrame, task: str
) -> tuple[list[tuple[str, Estimate]], str]:
    """Published epsilon of the fewest records less that of each other number of them."""
    line = dict(_by_records(estimates)).get(task)
    if not line:
        raise Lacking
    few = mean(line[0][1].tolist())
    found = [
        (
            f"epsilon at n = {line[0][0]['records']:,.0f} less that at {at['records']:,.0f}",
            few - mean(values.tolist()),
        )
        for at, values in line[1:]
    ]
    return found, f"{_listed(line)}."


@check
def records_mnist(estimates: pd.DataFrame) -> Evidence:
    """On MNIST no number of records moves the published epsilon significantly, at 10."""
    found, note = _fewest_less_others(estimates, "mnist")
    reason = "the paper calls 0.93 not significant, and 2.05, of CIFAR-10, significant"
    return Evidence(
        [Within(what, one, -SIGNIFICANT, SIGNIFICANT, reason) for what, one in found], note
    )


@check
def records_cifar10(estimates: pd.DataFrame) -> Evidence:
    """On CIFAR-10 the fewest records' published epsilon is significantly above all records'."""
    found, note = _fewest_less_others(estimates, "cifar10")
    what, most = found[-1]
    reason = "the paper calls 0.93, of MNIST, not significant"
    return Evidence([Within(what, most, low=NOT_SIGNIFICANT, reason=reason)], note)


@check
def clipping(estimates: pd.DataFrame) -> Evidence:
    """At epsilon 10 the published epsilon is larger at C = 0.1 and 1 than at 10."""
    return _clipping(estimates, "epsilon", (0.1, 1.0), "tighter")


@check
def clipping_accuracy(estimates: pd.DataFrame) -> Evidence:
    """At epsilon 10 models are less accurate at C = 10 than at 1."""
    return _clipping(estimates, "accuracy", (1.0,), "poor")


def _clipping(
    estimates: pd.DataFrame, quantity: str, norms: tuple[float, ...], reason: str
) -> Evidence:
    """A quantity at small clipping norms less that at 10, for every number of records with both."""
    items: list[Item] = []
    notes = []
    found = _audits(estimates, "figure4", quantity, epsilon=10.0)
    for task, n in dict.fromkeys((at["task"], at["records"]) for at, _ in found):
        line = {
            at["clipping_norm"]: (at, values)
            for at, values in found
            if (at["task"], at["records"]) == (task, n) and len(values) > 1
        }
        if not {10.0, *norms} <= set(line):
            continue
        large = mean(line[10.0][1].tolist())
        items += [
            Within(
                f"{quantity} at C = {c:g} less that at 10, {task}, n = {n:,.0f}",
                mean(line[c][1].tolist()) - large,
                low=0,
                reason=reason,
            )
            for c in norms
        ]
        values = ", ".join(
            f"{values.mean():.3g} at C = {c:g}" for c, (_, values) in sorted(line.items())
        )
        notes.append(f"{task}, n = {n:,.0f}: {quantity} {values}")
    if not items:
        raise Lacking
    return Evidence(items, "; ".join(notes) + ".")


@check
def last_layer(estimates: pd.DataFrame) -> Evidence:
    """Worst-case audits of a last layer are nearly tight at epsilon 10, and tighter than at 1."""
    found = {
        at["epsilon"]: (at, values) for at, values in _audits(estimates, "figure5", case="worst")
    }
    if not {1.0, 10.0} <= set(found):
        raise Lacking
    shares = {e: mean((values / e).tolist()) for e, (_, values) in found.items()}
    return Evidence(
        [
            Within(
                "epsilon found at 10",
                mean(found[10.0][1].tolist()),
                low=NEARLY_TIGHT,
                reason="the least that the paper calls nearly tight",
            ),
            Within(
                "share of epsilon found at 10 less that at 1",
                shares[10.0] - shares[1.0],
                low=0,
                reason="increasingly so for larger epsilon",
            ),
        ],
        "Found " + ", ".join(f"{_words(*found[e])} of {e:g}" for e in sorted(found)) + ".",
    )


@check
def last_layer_gap(estimates: pd.DataFrame) -> Evidence:
    """At epsilon 10 initial parameters matter less for a last layer than for whole models."""
    layer = dict(_gap(estimates, "figure5", 10.0))
    whole = dict(_gap(estimates, "figure1", 10.0))
    if not (layer and whole):
        raise Lacking
    return Evidence(
        [
            Within(
                f"gap of separations between the cases, {one} less {other}",
                gap - larger,
                high=0,
                reason="not as significantly",
            )
            for one, gap in layer.items()
            for other, larger in whole.items()
        ],
        "Separation in the worst less the average case: "
        + ", ".join(f"{task} {gap.value:.2f}" for task, gap in (layer | whole).items())
        + ".",
    )


@check
def last_layer_factors(estimates: pd.DataFrame) -> Evidence:
    """Neither clipping norm nor number of records changes a last layer's epsilon significantly."""
    found = _audits(estimates, "figure7", epsilon=10.0)
    base = [(at, values) for at, values in found if at["clipping_norm"] == 1]
    if len(found) < 2 or not base:
        raise Lacking
    # The sweep over clipping norms tells which number of records the others are compared with.
    swept = {at["records"] for at, _ in found if at["clipping_norm"] != 1}
    reference = next((one for one in base if one[0]["records"] in swept), base[0])
    items = [
        Within(
            f"epsilon at C = {at['clipping_norm']:g}, n = {at['records']:,.0f} less that at "
            f"C = 1, n = {reference[0]['records']:,.0f}",
            mean(values.tolist()) - mean(reference[1].tolist()),
            -SIGNIFICANT,
            SIGNIFICANT,
            reason="the least difference that the paper calls significant is 2.05, of CIFAR-10",
        )
        for at, values in found
        if at is not reference[0]
    ]
    words = "; ".join(
        f"C = {at['clipping_norm']:g}, n = {at['records']:,.0f}: {_words(at, values)}"
        for at, values in found
    )
    return Evidence(items, words + ".")


@check
def few_models(estimates: pd.DataFrame) -> Evidence:
    """The paper's epsilons below 10 are what perfect audits of as many models publish."""
    rows = needed(ideal(estimates, models=100)).set_index("epsilon")
    values = stated("figure1", "mnist", "mean", case="worst").set_index("epsilon")["value"]
    items: list[Item] = []
    for epsilon in EPSILONS[:-1]:
        if epsilon not in rows.index:
            raise Lacking
        at = rows.loc[epsilon]
        found = Estimate(at["value"], at["deviation"] / np.sqrt(at["audits"]))
        # The paper's mean of five; had it no other reason to be small, it would scatter as these.
        printed = Estimate(values[epsilon], at["deviation"] / np.sqrt(5))
        # Where audits may find all there is, something else keeps the paper's from it.
        what = f"what perfect audits publish at epsilon {epsilon:g}"
        items.append(Stated(what, found, printed, rounding=0.005, rival=epsilon))
    found_words = ", ".join(f"{rows.loc[e, 'value']:.2f} of {e:g}" for e in EPSILONS[:-1])
    return Evidence(items, f"Perfect audits of 100 models per world publish {found_words}.")


@check
def thresholds(estimates: pd.DataFrame) -> Evidence:
    """In perfect audits the best threshold is anywhere among the scores, equally often."""
    from scipy import stats

    rows = needed(select(estimates, quantity="best threshold", method=PUBLISHED, models=100))
    groups = list(rows.groupby("epsilon"))
    items: list[Item] = []
    notes = []
    for epsilon, part in groups:
        shares = part.sort_values("x")["value"].to_numpy()
        audits = part["audits"].iloc[0]
        evenly = 1 / len(shares)
        distance = audits * float(((shares - evenly) ** 2 / evenly).sum())
        freedom = len(shares) - 1
        # A middle half that is twice as likely as the rest.
        away = audits * len(shares) * (evenly / 3) ** 2 / evenly
        critical = stats.chi2.isf(0.05 / len(groups), freedom)
        items.append(
            Test(
                f"best thresholds in tenths of the scores, epsilon {epsilon:g}",
                float(stats.chi2.sf(distance, freedom)),
                float(stats.ncx2.sf(critical, freedom, away)),
                "a middle half that is twice as likely as the rest",
            )
        )
        middle = shares[len(shares) // 4 : -(len(shares) // 4)].sum()
        notes.append(f"{middle:.0%} at epsilon {epsilon:g}")
    inner = len(shares) - 2 * (len(shares) // 4)
    return Evidence(
        items, f"In the middle {inner / len(shares):.0%} of the scores: {', '.join(notes)}."
    )


# --- printed numbers ------------------------------------------------------------------------------


def _printed(
    estimates: pd.DataFrame,
    figure: str,
    task: str,
    rivals: dict[tuple[str, float], float],
    quantity: str = "mean",
    printed: str = "",
    measured: str = "epsilon",
) -> Evidence:
    """Every number that the paper prints for a figure and task, where several repeats are there.

    ``printed`` is where it stands, if not beside the figure; ``measured`` what it is a number of.

    The paper prints no deviations here. Its mean of five has the error of five of our repeats.
    ``rivals`` has, by case and epsilon, the nearest number that the paper tells one from.
    """
    values = select(STATED, figure=printed or figure, task=task, quantity=quantity)
    values = values.drop(columns=["figure", "quantity"]).dropna(axis=1, how="all")
    factors = [name for name in values if name != "value"]
    varies = [name for name in factors if name not in ("task", "epsilon", "clipping_norm")]
    items: list[Item] = []
    what = "" if measured == "epsilon" else f"{measured.replace('_', ' ')} at "
    for at, found in _audits(estimates, figure, measured):
        same = values[np.logical_and.reduce([values[name] == at[name] for name in factors])]
        if same.empty or len(found) < 2:
            continue
        number, sd = same["value"].iloc[0], found.std()
        levels = ", ".join(
            f"{name} {at[name]}" if name == "case" else f"{name} {at[name]:,.0f}" for name in varies
        )
        # One deviation for both sides: the paper prints none, and its repeats are as ours. Of five
        # normal values the largest has 0.67 of one value's deviation.
        if quantity == "maximum":
            ours, errors = float(found.max()), (0.67, 0.67)
        else:
            ours, errors = float(found.mean()), (len(found) ** -0.5, 5**-0.5)
        items.append(
            Stated(
                f"{what}epsilon {at['epsilon']:g}, {levels}",
                Estimate(ours, float(np.hypot(*errors)) * sd, len(found) - 1),
                Exact(number),
                rounding=0.0005 if measured == "accuracy" else 0.005,
                rival=rivals.get((at["case"], at["epsilon"])),
                digits=3 if measured == "accuracy" else 2,
            )
        )
    if not items:
        raise Lacking
    words = "maxima" if quantity == "maximum" else "means"
    how = ", as published" if measured == "epsilon" else ""
    return Evidence(items, f"The {words} of {task} over the repeats{how}.")


def _rivals(
    figure: str, task: str, *cases: str, quantity: str = "mean", least: float = 4.0
) -> dict[tuple[str, float], float]:
    """Each case's rival is the other case's number, where the paper tells the two apart."""
    found: dict[tuple[str, float], float] = {}
    for case, other in zip(cases, reversed(cases), strict=True):
        values = stated(figure, task, quantity, case=other).set_index("epsilon")["value"]
        # Below 4 the paper itself calls the cases indistinguishable for want of models.
        found |= {(case, e): v for e, v in values.items() if e >= least}
    return found


def _figure1(task: str) -> Check:
    @check
    def measure(estimates: pd.DataFrame) -> Evidence:
        return _printed(estimates, "figure1", task, _rivals("figure1", task, "worst", "average"))

    return measure


figure1_mnist = _figure1("mnist")
figure1_cifar10 = _figure1("cifar10")


@check
def figure2(estimates: pd.DataFrame) -> Evidence:
    """The ends of Figure 2, with all records."""
    return _printed(estimates, "figure2", "mnist", {("average", 10.0): 6.48, ("worst", 10.0): 3.41})


@check
def figure3_mnist(estimates: pd.DataFrame) -> Evidence:
    """MNIST's values of Figure 3, which the paper calls nearly tight: the rival is all of 10."""
    return _printed(estimates, "figure3", "mnist", {("worst", 10.0): 10.0})


@check
def figure3_cifar10(estimates: pd.DataFrame) -> Evidence:
    """CIFAR-10's values of Figure 3; the rival is all of 10."""
    return _printed(estimates, "figure3", "cifar10", {("worst", 10.0): 10.0})


@check
def figure5(estimates: pd.DataFrame) -> Evidence:
    """The last layer's values of Figure 5; rivals are those of the introduction."""
    return _printed(
        estimates, "figure5", "cifar10_last_layer", {("worst", 10.0): 8.30, ("average", 10.0): 7.69}
    )


@check
def last_layer_introduction(estimates: pd.DataFrame) -> Evidence:
    """The introduction's values at epsilon 10; rivals are those of section 5.3."""
    rivals = {("worst", 10.0): 9.33, ("average", 10.0): 9.19}
    task = "cifar10_last_layer"
    return _printed(estimates, "figure5", task, rivals, printed="introduction")


@check
def maxima_mnist(estimates: pd.DataFrame) -> Evidence:
    """The largest of five epsilons, for MNIST in the worst case."""
    return _printed(estimates, "figure1", "mnist", {("worst", 10.0): 3.41}, "maximum")


@check
def maxima_cifar10(estimates: pd.DataFrame) -> Evidence:
    """The largest of five epsilons, for CIFAR-10 in the worst case."""
    return _printed(estimates, "figure1", "cifar10", {("worst", 10.0): 0.69}, "maximum")


@check
def maxima_last_layer(estimates: pd.DataFrame) -> Evidence:
    """The largest of five epsilons of a last layer."""
    return _printed(estimates, "figure5", "cifar10_last_layer", {("worst", 10.0): 8.30}, "maximum")


@check
def figure2_norms(estimates: pd.DataFrame) -> Evidence:
    """The mean norm of all records' clipped gradients without and after pre-training."""
    rivals = {("average", 10.0): 0.51, ("worst", 10.0): 1.00}
    norm = "gradient_norm"
    return _printed(estimates, "figure2", "mnist", rivals, norm, measured=norm)


@check
def accuracy_cifar10(estimates: pd.DataFrame) -> Evidence:
    """CIFAR-10's accuracies of Table 1; the first two are told apart, the rest are near."""
    rivals = {("average", 1.0): 0.512, ("average", 2.0): 0.460}
    return _printed(estimates, "figure1", "cifar10", rivals, "accuracy", measured="accuracy")


@check
def accuracy_clipping(estimates: pd.DataFrame) -> Evidence:
    """Accuracies at a clipping norm of 10; rivals are those at 1."""
    values = stated("figure1", "mnist", "accuracy", case="worst").set_index("epsilon")["value"]
    rivals = {("worst", float(e)): float(v) for e, v in values.items()}
    return _printed(estimates, "figure4", "mnist", rivals, "accuracy", measured="accuracy")


@check
def accuracy_last_layer(estimates: pd.DataFrame) -> Evidence:
    """Accuracies of last layers in both cases; the rival of each is the other."""
    task = "cifar10_last_layer"
    rivals = _rivals("figure5", task, "worst", "average", quantity="accuracy", least=0)
    return _printed(estimates, "figure5", task, rivals, "accuracy", measured="accuracy")


def _by_steps(estimates: pd.DataFrame) -> pd.DataFrame:
    """Figure 6: the accuracy of a model of each task, learning rate and number of steps.

    Of one model it has the error of its test images.
    """
    found = [
        {**at[["task", "learning_rate", "steps"]], "accuracy": float(values.mean())}
        for at, values in _audits(estimates, "figure6", "accuracy")
    ]
    rows = needed(pd.DataFrame(found)).sort_values("steps")
    accuracies = [
        Estimate(one, float(np.sqrt(one * (1 - one) / TESTED))) for one in rows["accuracy"]
    ]
    return rows.assign(accuracy=accuracies)


@check
def accuracy_steps(estimates: pd.DataFrame) -> Evidence:
    """With learning rates of 2 and 4 accuracy rises from each number of steps to the next."""
    rows = select(_by_steps(estimates), learning_rate=[2.0, 4.0])
    items = [
        Within(
            f"accuracy with {after.steps:g} less that with {before.steps:g} steps, {task}, "
            f"learning rate {rate:g}",
            after.accuracy - before.accuracy,
            low=0,
            reason="increase",
        )
        for (task, rate), line in rows.groupby(["task", "learning_rate"])
        for before, after in pairwise(line.itertuples())
    ]
    if not items:
        raise Lacking
    return Evidence(items, "One model each, with the error of its test images.")


@check
def learning_rate_10(estimates: pd.DataFrame) -> Evidence:
    """With the most steps a learning rate of 10 gives less accurate models than 4."""
    rows = _by_steps(estimates)
    items = []
    for task, part in rows.groupby("task"):
        last = part[part["steps"] == part["steps"].max()].set_index("learning_rate")["accuracy"]
        if {4.0, 10.0} <= set(last.index):
            what = f"accuracy with learning rate 10 less that with 4, {task}"
            items.append(Within(what, last[10.0] - last[4.0], high=0, reason="poor"))
    if not items:
        raise Lacking
    return Evidence(items, "One model each, with the error of its test images.")


@check
def figure6_accuracy(estimates: pd.DataFrame) -> Evidence:
    """CIFAR-10's accuracies after 1,000 steps; the rival is that of the audited models."""
    rows = _by_steps(estimates).set_index(["task", "steps", "learning_rate"])["accuracy"]
    audited = float(stated("figure1", "cifar10", "accuracy", epsilon=10.0)["value"].iloc[0])
    items = []
    for row in select(STATED, figure="figure6", quantity="accuracy").itertuples():
        if (row.task, row.steps, row.learning_rate) not in rows.index:
            raise Lacking
        found = rows[row.task, row.steps, row.learning_rate]
        # The paper's is of one model, too.
        printed = Estimate(row.value, found.error)
        what = f"accuracy after {row.steps:,.0f} steps, learning rate {row.learning_rate:g}"
        items.append(Stated(what, found, printed, 0.0005, audited, digits=3))
    return Evidence(items, "One model each, with the error of its test images on both sides.")


@check
def table1_mnist(estimates: pd.DataFrame) -> Evidence:
    """Accuracies of models of all records in the average case, over Table 1's four epsilons."""
    return _accuracies(estimates, "average", "worst")


@check
def accuracy_worst_mnist(estimates: pd.DataFrame) -> Evidence:
    """Accuracies of models of all records in the worst case, at the four epsilons."""
    return _accuracies(estimates, "worst", "average")


def _accuracies(estimates: pd.DataFrame, case: str, other: str) -> Evidence:
    """The mean over the four epsilons, with the error by which single models scatter about it."""
    found, printed = _single_models(estimates, case)
    rival = stated("figure1", "mnist", "accuracy", case=other)["value"]
    off = mean([found[e] - printed[e] for e in printed.index])
    both = Estimate(100 * (printed.mean() + off.value), 100 * off.error, off.freedom)
    listed = ", ".join(
        f"{100 * found[e]:.1f} (paper: {100 * printed[e]:.1f})" for e in printed.index
    )
    return Evidence(
        [
            Stated(
                f"mean accuracy in %, {case} case",
                both,
                Estimate(100 * printed.mean(), 0.0),
                rounding=0.05,
                rival=100 * rival.mean(),
            )
        ],
        f"At epsilon 1, 2, 4 and 10: {listed} %.",
    )


@check
def accuracy_95(estimates: pd.DataFrame) -> Evidence:
    """The least accurate of the models of all records, in the average case."""
    found, printed = _single_models(estimates, "average")
    off = mean([found[e] - printed[e] for e in printed.index])
    # One model has the deviation by which the four scatter about the printed values.
    sd = off.error * np.sqrt(len(printed))
    least = min(found, key=lambda epsilon: found[epsilon])
    accuracy = Estimate(100 * found[least], 100 * sd, off.freedom)
    what = f"accuracy in %, average case, epsilon {least:g}"
    return Evidence(
        [Within(what, accuracy, low=95, reason="95 % for all")],
        f"The least accurate of {len(found)} models, one at each epsilon.",
    )


def _single_models(estimates: pd.DataFrame, case: str) -> tuple[dict[float, float], pd.Series]:
    """Accuracies of models of all records of MNIST by epsilon, ours and the printed ones."""
    figure = "table1" if len(planned(estimates, "table1")) else "figure1"
    found = {
        at["epsilon"]: float(values.mean())
        for at, values in _whole(_audits(estimates, figure, "accuracy", task="mnist", case=case))
    }
    printed = stated("figure1", "mnist", "accuracy", case=case).set_index("epsilon")["value"]
    if set(printed.index) - set(found):
        raise Lacking
    return found, printed


# --- our own statements ---------------------------------------------------------------------------


@check
def few_records(estimates: pd.DataFrame) -> Evidence:
    """With 100 records of MNIST the average case is as far apart as the accountant allows."""
    items: list[Item] = []
    for at, values in _audits(
        estimates, "figure1", "separation", task="mnist", records=100, case="average", epsilon=10.0
    ):
        rows = select(estimates, figure="figure1", quantity="separation", epsilon=at["epsilon"])
        most = rows["most"].iloc[0]
        items.append(
            Within(
                "separation in the average case over the most that the accountant allows",
                mean((values / most).tolist()),
                low=0.9,
                reason="nine tenths, a limit of ours",
            )
        )
        note = f"Separation {plus_minus(values.mean(), values.std())}, at most {most:.2f}."
    if not items:
        raise Lacking
    return Evidence(items, note)


@check
def live(estimates: pd.DataFrame) -> Evidence:
    """An audit trained beside the cached ones has scores like theirs."""
    rows = needed(select(estimates, figure="live", quantity="agreement"))
    items: list[Item] = []
    for _, row in rows.iterrows():
        power = comparison_power(int(row["models"]), shift=1.0, level=0.05 / len(rows))
        what = f"{row['task']}, n = {row['records']:,.0f}, epsilon {row['epsilon']:g}"
        items.append(Test(what, row["value"], power, "a shift of one standard deviation"))
    return Evidence(
        items,
        "Kolmogorov-Smirnov tests of the two worlds, other noise, same records and initial "
        "parameters.",
    )


@check
def valid(estimates: pd.DataFrame) -> Evidence:
    """No more of the valid bounds exceed the theoretical epsilon than 95 % confidence allows."""
    rows = needed(
        select(estimates, quantity="epsilon", kind="lower").drop_duplicates(["cell", "repeat"])
    )
    above = int((rows["value"] > rows["epsilon"]).sum())
    return Evidence(
        [rarely("bounds above the theoretical epsilon", above, len(rows), 0.05, 0.12)],
        "At tight audits 5 % are expected.",
    )
