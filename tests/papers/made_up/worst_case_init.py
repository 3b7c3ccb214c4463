"""Made-up estimates of worst_case_init, by check and outcome."""

from functools import partial

import numpy as np
import pandas as pd
from made_up import agreement, count, counts, once, repeats

from hiddenstate.papers.worst_case_init.stated import STATED
from hiddenstate.pipeline.estimates import select


def rows(figure, mean, sd=0.1, *, task="mnist", quantity="epsilon", method=None, n=5, **levels):
    """The repeats of an audit, with that mean and standard deviation."""
    levels = {
        "case": "worst", "epochs": 5, "records": 100, "clipping_norm": 1.0, "steps": 100,
        "learning_rate": 4.0, "epsilon": 10.0, "models": 100, "planned": 5,
    } | levels  # fmt: skip
    shared = {"figure": figure, "task": task, "cell": f"{task}-{sorted(levels.items())}"}
    shared |= {
        "quantity": quantity,
        "most": 2.0,
        "kind": "lower" if method == "valid" else "estimate",
    }
    shared |= {"method": method or ("as published" if quantity == "epsilon" else "mean")}
    return [
        shared | levels | {"repeat": i, "value": value}
        for i, value in enumerate(repeats(mean, sd, n))
    ]


def average(figure, mean, sd=0.1, **levels):
    return rows(figure, mean, sd, **{"case": "average", "epochs": 0} | levels)


def frame(*parts):
    return pd.DataFrame([row for part in parts for row in part])


def apart(figure, worst, other, **levels):
    """Separations of both cases, of as many repeats as the paper's.

    Of 100 models their error is about 0.17, and 6.48 and 3.41, as the paper has, are about 1.7 and
    1 apart.
    """
    levels = {"quantity": "separation", "records": 30_000} | levels
    return [*rows(figure, worst, 0.17, **levels), *average(figure, other, 0.17, **levels)]


def norms(*means, sd=0.01):
    """Mean norms by epochs; of each start they move together, but for a fifth of the deviation."""
    found = []
    for epochs, mean in enumerate(means):
        options = {"quantity": "gradient_norm", "epochs": epochs}
        case = rows if epochs else average
        found += case("figure2", mean, sd * (1 + 0.2 * (epochs % 2)), **options)
    return frame(found)


def pretraining_epsilon(before, after):
    return frame(average("figure2", before), rows("figure2", after))


def by_records(few, many, separations, task="mnist", sd=0.5, **many_levels):
    """Two numbers of records, with epsilons and separations."""
    parts = []
    for n, epsilon, separation in zip((100, 30_000), (few, many), separations, strict=True):
        levels = {"records": n, "task": task} | (many_levels if n > 100 else {})
        parts += [rows("figure3", epsilon, sd, **levels)]
        parts += [rows("figure3", separation, 0.17, quantity="separation", **levels)]
    return frame(*parts)


def clipping(tenth, one, ten, sd=0.3, quantity="epsilon"):
    return frame(
        *(
            rows("figure4", mean, sd, clipping_norm=c, quantity=quantity)
            for c, mean in ((0.1, tenth), (1.0, one), (10.0, ten))
        )
    )


def layer(at_one, at_ten, sd=0.2):
    return frame(
        rows("figure5", at_one, sd, epsilon=1.0), rows("figure5", at_ten, sd, epsilon=10.0)
    )


def factors(one, ten, sd=0.3):
    return frame(
        rows("figure7", one, sd, task="digits"),
        rows("figure7", ten, sd, task="digits", clipping_norm=10.0),
        rows("figure7", one, sd, task="digits", records=20),
    )


def perfect(off, deviation=0.3):
    """What perfect audits publish at the four epsilons, beside the paper's numbers.

    The printed means scatter about it as five audits do.
    """
    values = {1.0: 0.08, 2.0: 0.54, 4.0: 1.89, 10.0: 6.48}
    shared = {"quantity": "ideal_epsilon", "method": "as published", "models": 100, "audits": 2000}
    return pd.DataFrame(
        shared | {"epsilon": e, "value": once(v + off, deviation / 5**0.5), "deviation": deviation}
        for e, v in values.items()
    )


def printed(figure, task, instead=None, sd=0.2, quantity="mean", shown="", measured="epsilon"):
    """Audits of which the paper's are replications, with the paper's own levels.

    ``instead`` has another truth by printed number.
    """
    values = select(STATED, figure=figure, task=task, quantity=quantity)
    found = []
    for row in values.dropna(axis=1, how="all").to_dict("records"):
        target = row.pop("value")
        target = (instead or {}).get(target, target)
        for name in ("figure", "quantity", "task"):
            row.pop(name)
        case = rows if row.get("case", "worst") == "worst" else average
        # What is printed is the mean or the largest of five draws of the paper's own.
        theirs = repeats(0.0, sd)
        mean = target - (theirs.max() if quantity == "maximum" else theirs.mean())
        found += case(shown or figure, mean, sd, task=task, quantity=measured, **row)
    return frame(found)


def numbers(figure, task, rival, quantity, sd):
    """Printed numbers of something else than epsilon."""
    make = partial(printed, figure, task, quantity=quantity, measured=quantity, sd=sd)
    return {
        "agrees": make,
        "contradicts": partial(make, rival),
        "undecided": partial(make, sd=50 * sd),
    }


def by_steps(*values, rate=4.0, other=None, steps=(10, 100, 1000), task="cifar10", theirs=False):
    """Accuracies of single models by steps, and those of a learning rate of 10 or 2 beside.

    They scatter by their test images, and the paper's, which they are compared with, likewise.
    """
    both = 2 if theirs else 1
    lines = {rate: values} | (other or {})
    return frame(
        *(
            average("figure6", value, (both * value * (1 - value) / 10_000) ** 0.5, n=1,
                    quantity="accuracy", task=task, learning_rate=one, steps=n)
            for one, line in lines.items()
            for n, value in zip(steps, line, strict=True)
        )
    )  # fmt: skip


def accuracies(case, off, scatter=0.001, figure="figure1", **levels):
    """One model at each epsilon."""
    values = select(STATED, figure=figure, task="mnist", quantity="accuracy", case=case)
    make = rows if case == "worst" else average
    levels = {"quantity": "accuracy", "records": 30_000, "n": 1} | levels
    found = []
    for row, off_by in zip(values.to_dict("records"), repeats(off, scatter, 4), strict=True):
        found += make(figure, row["value"] + off_by, 0.0, epsilon=row["epsilon"], **levels)
    return frame(found).assign(repeats=np.nan)


clipped_accuracies = partial(accuracies, "worst", figure="figure4", clipping_norm=10.0)


def best_thresholds(middle, audits=2000):
    """Shares in tenths of the scores: of the middle six, and of the rest."""
    shares = [(1 - 6 * middle) / 4] * 2 + [middle] * 6 + [(1 - 6 * middle) / 4] * 2
    found = counts(shares, audits) / audits
    shared = {"quantity": "best threshold", "method": "as published", "models": 100}
    return pd.DataFrame(
        shared | {"epsilon": 10.0, "audits": audits, "x": (i + 1) / 10, "value": share}
        for i, share in enumerate(found)
    )


def live(shift, models=100):
    row = {"figure": "live", "quantity": "agreement", "models": models}
    # Of the two worlds' p-values the least, times their number.
    least = min(1.0, 2 * min(agreement(shift, models, 0.4) for _ in range(2)))
    return pd.DataFrame([row | {"task": "mnist", "records": 100, "epsilon": 10.0, "value": least}])


def bounds(share, audits):
    """One bound of each of so many audits, a share of them above the truth."""
    above = count(share, audits)
    values = [11.0] * above + [9.0] * (audits - above)
    return frame(
        *(
            rows("figure1", value, method="valid", n=1, steps=i + 1)
            for i, value in enumerate(values)
        )
    )


def outcomes(figure, task, rival, quantity="mean", shown=""):
    """Printed numbers: as printed, one of them at its rival, and audits that scatter too much."""
    make = partial(printed, figure, task, quantity=quantity, shown=shown)
    return {
        "agrees": make,
        "contradicts": partial(make, rival),
        "undecided": partial(make, sd=5.0),
    }


DECISIVE = {"figure6_accuracy"}
"""Its error is that of the test images, whatever was trained, and small beside the rival."""

CASES = {
    "ordering": {
        "agrees": lambda: frame(apart("figure1", 1.7, 1.0)),
        "contradicts": lambda: frame(apart("figure1", 1.0, 1.7)),
        "undecided": lambda: frame(apart("figure1", 1.3, 1.1, n=1)),
    },
    "pretraining": {
        "agrees": partial(norms, 1.0, 0.8, 0.6),
        "contradicts": partial(norms, 1.0, 1.2, 0.6),
        "undecided": partial(norms, 1.0, 0.99, 0.6, sd=0.3),
    },
    "pretraining_epsilon": {
        "agrees": partial(pretraining_epsilon, 3, 6),
        "contradicts": partial(pretraining_epsilon, 6, 3),
        "undecided": partial(pretraining_epsilon, 6, 6.05),
    },
    "few_models": {
        "agrees": partial(perfect, 0.0),
        "contradicts": partial(perfect, 0.9),
        "undecided": partial(perfect, 0.0, deviation=3.0),
    },
    "thresholds": {
        "agrees": partial(best_thresholds, 0.1),
        "contradicts": partial(best_thresholds, 0.125),
        "undecided": partial(best_thresholds, 0.1, audits=20),
    },
    "accuracy_95": {
        "agrees": partial(accuracies, "average", 0.02),
        "contradicts": partial(accuracies, "average", -0.02),
        "undecided": partial(accuracies, "average", -0.003),
    },
    "records": {
        "agrees": partial(by_records, 9, 6, (2.0, 1.0)),
        "contradicts": partial(by_records, 6, 9, (1.0, 2.0)),
        "undecided": partial(by_records, 9, 8.5, (2.0, 1.9)),
    },
    "records_mnist": {
        "agrees": partial(by_records, 8, 8.1, (2.0, 2.0)),
        "contradicts": partial(by_records, 9, 5, (2.0, 1.0)),
        "undecided": partial(by_records, 9, 5, (2.0, 1.0), n=1),
    },
    "clipping": {
        "agrees": partial(clipping, 9, 9, 6),
        "contradicts": partial(clipping, 9, 6, 9),
        "undecided": partial(clipping, 9, 9, 8.9),
    },
    "clipping_accuracy": {
        "agrees": partial(clipping, 0.97, 0.97, 0.92, sd=0.002, quantity="accuracy"),
        "contradicts": partial(clipping, 0.97, 0.92, 0.97, sd=0.002, quantity="accuracy"),
        "undecided": partial(clipping, 0.97, 0.97, 0.969, sd=0.002, quantity="accuracy"),
    },
    "last_layer": {
        "agrees": partial(layer, 0.3, 9),
        "contradicts": partial(layer, 0.3, 5),
        "undecided": partial(layer, 0.3, 7),
    },
    "last_layer_gap": {
        "agrees": lambda: frame(
            apart("figure1", 1.7, 1.0), apart("figure5", 2.0, 2.0, task="digits")
        ),
        "contradicts": lambda: frame(
            apart("figure1", 2.0, 2.0), apart("figure5", 1.7, 1.0, task="digits")
        ),
        "undecided": lambda: frame(
            apart("figure1", 2.0, 1.7, n=1), apart("figure5", 2.0, 1.9, n=1, task="digits")
        ),
    },
    "last_layer_factors": {
        "agrees": partial(factors, 9, 8.9),
        "contradicts": partial(factors, 9, 3),
        "undecided": partial(factors, 9, 7.2),
    },
    "table1_mnist": {
        "agrees": partial(accuracies, "average", -0.001),
        "contradicts": partial(accuracies, "average", -0.01),
        "undecided": partial(accuracies, "average", 0.0, scatter=0.02),
    },
    "accuracy_worst_mnist": {
        "agrees": partial(accuracies, "worst", 0.001),
        "contradicts": partial(accuracies, "worst", 0.01),
        "undecided": partial(accuracies, "worst", 0.0, scatter=0.02),
    },
    # The nearest rivals are those that the checks name.
    "figure1_mnist": outcomes("figure1", "mnist", {1.89: 0.61}),
    "figure1_cifar10": outcomes("figure1", "cifar10", {1.43: 0.20}),
    "figure2": outcomes("figure2", "mnist", {3.41: 6.48}),
    "figure3_mnist": outcomes("figure3", "mnist", {7.41: 10.0}),
    "figure3_cifar10": outcomes("figure3", "cifar10", {7.01: 10.0}),
    "figure5": outcomes("figure5", "cifar10_last_layer", {9.33: 8.30}),
    "last_layer_introduction": outcomes(
        "introduction", "cifar10_last_layer", {8.30: 9.33}, shown="figure5"
    ),
    "maxima_mnist": outcomes("figure1", "mnist", {8.28: 3.41}, "maximum"),
    "maxima_cifar10": outcomes("figure1", "cifar10", {6.70: 0.69}, "maximum"),
    "maxima_last_layer": outcomes("figure5", "cifar10_last_layer", {9.94: 8.30}, "maximum"),
    "figure2_norms": numbers("figure2", "mnist", {0.51: 1.0}, "gradient_norm", 0.02),
    "accuracy_cifar10": numbers("figure1", "cifar10", {0.512: 0.46}, "accuracy", 0.004),
    "accuracy_clipping": {
        "agrees": partial(clipped_accuracies, 0.001),
        "contradicts": partial(clipped_accuracies, 0.03),
        "undecided": partial(clipped_accuracies, 0.0, scatter=0.05),
    },
    "accuracy_last_layer": numbers(
        "figure5", "cifar10_last_layer", {0.931: 0.913}, "accuracy", 0.002
    ),
    "accuracy_steps": {
        "agrees": partial(by_steps, 0.3, 0.5, 0.65),
        "contradicts": partial(by_steps, 0.3, 0.5, 0.47),
        "undecided": partial(by_steps, 0.3, 0.5, 0.503),
    },
    "learning_rate_10": {
        "agrees": partial(by_steps, 0.3, 0.5, 0.65, other={10.0: (0.2, 0.3, 0.4)}),
        "contradicts": partial(by_steps, 0.3, 0.5, 0.65, other={10.0: (0.2, 0.3, 0.68)}),
        "undecided": partial(by_steps, 0.3, 0.5, 0.65, other={10.0: (0.2, 0.3, 0.65)}),
    },
    "figure6_accuracy": {
        "agrees": partial(by_steps, 0.3, 0.5, 0.654, other={2.0: (0.3, 0.5, 0.673)}, theirs=True),
        "contradicts": partial(by_steps, 0.3, 0.5, 0.654, other={2.0: (0.3, 0.5, 0.536)}),
    },
    "records_cifar10": {
        "agrees": partial(by_records, 7.01, 4.96, (2.0, 1.0), task="cifar10", sd=0.3),
        "contradicts": partial(by_records, 5.0, 5.2, (2.0, 2.0), task="cifar10"),
        "undecided": partial(by_records, 7.01, 4.96, (2.0, 1.0), n=1, task="cifar10"),
    },
    "few_records": {
        "agrees": lambda: frame(average("figure1", 2.1, quantity="separation")),
        "contradicts": lambda: frame(average("figure1", 1.2, quantity="separation")),
        "undecided": lambda: frame(average("figure1", 1.82, quantity="separation")),
    },
    "live": {
        "agrees": partial(live, 0),
        "contradicts": partial(live, 1),
        "undecided": partial(live, 0, models=8),
    },
    "valid": {
        "agrees": partial(bounds, 0.05, 160),
        "contradicts": partial(bounds, 0.15, 160),
        "undecided": partial(bounds, 0.05, 20),
    },
}
