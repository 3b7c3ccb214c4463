"""Values that the paper states of its audits, by the names of tasks in the scale files.

The text gives the last layer's average and worst case at epsilon 10 as 9.19 and 9.33 in section
5.3, and as 7.69 and 8.30 in its introduction; figures show section 5.3's.
"""

import pandas as pd

from hiddenstate.pipeline.estimates import select

LAST_LAYER = "cifar10_last_layer"
PUBLIC_CODE = "_code"
"""The end of the names of tasks as the paper's public code has them."""
_SHARED = ("figure", "task", "case", "quantity", "epsilon", "value", "records")
RECORDS = {"mnist": 30_000, "cifar10": 25_000, LAST_LAYER: 25_000}
"""The records of an audit, unless Figure 3 or 7 says otherwise."""
MODELS = {"mnist": 100, "cifar10": 100, LAST_LAYER: 500}
"""Models with the canary, and as many without, of an audit."""
EPSILONS = (1.0, 2.0, 4.0, 10.0)
TASKS: dict[str, dict[str, object]] = {
    "mnist": {
        "dataset": "mnist", "model": "mnist_cnn", "trains": "all layers", "canary": "blank",
        "private": 30_000, "steps": 100, "learning_rate": {"average": 4.0, "worst": 4.0},
    },
    "cifar10": {
        "dataset": "cifar10", "model": "cifar_cnn", "trains": "all layers", "canary": "blank",
        "private": 25_000, "steps": 200, "learning_rate": {"average": 2.0, "worst": 1.0},
    },
    LAST_LAYER: {
        "trains": "last layer", "canary": "clip_backdoor",
        "private": 25_000, "steps": 25, "learning_rate": {"average": 10.0, "worst": 10.0},
    },
}  # fmt: skip
"""What the text says of its tasks: a task of such a name is judged against the numbers below."""


def parameters(task: str) -> dict[str, object]:
    """Parameters that a task of that name has; for the public code, those shared with the text."""
    if task in TASKS:
        return TASKS[task]
    own = ("steps", "learning_rate") if task.endswith(PUBLIC_CODE) else ()
    shared = TASKS.get(task.removesuffix(PUBLIC_CODE), {})
    return {name: value for name, value in shared.items() if name not in own}


def _by_epsilon(
    figure: str, task: str, case: str, quantity: str, values: tuple[float, ...]
) -> list[dict[str, object]]:
    shared = {"figure": figure, "task": task, "case": case, "quantity": quantity}
    return [
        shared | {"epsilon": epsilon, "value": value, "records": RECORDS[task]}
        for epsilon, value in zip(EPSILONS, values, strict=False)
    ]


def _at_ten(
    figure: str, task: str, factor: str, quantity: str, values: dict[float, float]
) -> list[dict[str, object]]:
    shared = {"figure": figure, "task": task, "quantity": quantity, "epsilon": 10.0}
    shared |= {"records": RECORDS[task]} | ({"clipping_norm": 1.0} if factor == "epochs" else {})
    return [
        # Without epochs of pre-training it is the average case.
        shared | {"case": "worst" if level else "average", factor: level, "value": value}
        for level, value in values.items()
    ]


PRIOR = {"mnist": 2.0, "cifar10": 1.6}
"""What it prints of prior audits at epsilon 8, "approximately"."""
STATED = pd.DataFrame(
    _by_epsilon("figure1", "mnist", "worst", "mean", (0.08, 0.54, 1.89, 6.48))
    + _by_epsilon("figure1", "mnist", "worst", "maximum", (0.27, 1.48, 3.23, 8.28))
    + _by_epsilon("figure1", "mnist", "average", "mean", (0.00, 0.06, 0.61, 3.41))
    + _by_epsilon("figure1", "cifar10", "worst", "mean", (0.00, 0.18, 1.43, 4.96))
    + _by_epsilon("figure1", "cifar10", "worst", "maximum", (0.00, 0.54, 2.33, 6.70))
    + _by_epsilon("figure1", "cifar10", "average", "mean", (0.07, 0.02, 0.20, 0.69))
    + _by_epsilon("figure1", "mnist", "average", "accuracy", (0.954, 0.957, 0.959, 0.959))
    + _by_epsilon("figure1", "mnist", "worst", "accuracy", (0.972, 0.974, 0.975, 0.975))
    + _by_epsilon("figure1", "cifar10", "average", "accuracy", (0.460, 0.512, 0.522, 0.536))
    + [
        row | {"clipping_norm": 10.0}
        for row in _by_epsilon(
            "figure4", "mnist", "worst", "accuracy", (0.856, 0.931, 0.950, 0.961)
        )
    ]
    + _at_ten("figure2", "mnist", "epochs", "mean", {0: 3.41, 5: 6.48})
    + _at_ten("figure2", "mnist", "epochs", "gradient_norm", {0: 1.00, 5: 0.51})
    + _at_ten("figure3", "mnist", "records", "mean", {100: 7.41, 1000: 7.21, 30000: 6.48})
    + _at_ten("figure3", "cifar10", "records", "mean", {100: 7.01, 1000: 6.95, 25000: 4.96})
    + _by_epsilon("figure5", LAST_LAYER, "worst", "mean", (0.67, 1.62, 3.64, 9.33))
    + _by_epsilon("figure5", LAST_LAYER, "worst", "maximum", (1.37, 2.10, 4.28, 9.94))
    # The text prints deviations of the audits at epsilon 1, 2 and 4.
    + _by_epsilon("figure5", LAST_LAYER, "worst", "deviation", (0.40, 0.36, 0.38))
    + [
        {"figure": "figure5", "task": LAST_LAYER, "case": "average"}
        | {"quantity": "mean", "epsilon": 10.0, "value": 9.19, "records": RECORDS[LAST_LAYER]}
    ]
    + [
        {"figure": "introduction", "task": LAST_LAYER, "case": case, "quantity": "mean"}
        | {"epsilon": 10.0, "value": value, "records": RECORDS[LAST_LAYER]}
        for case, value in (("average", 7.69), ("worst", 8.30))
    ]
    + _by_epsilon("figure5", LAST_LAYER, "worst", "accuracy", (0.931, 0.932, 0.933, 0.932))
    + _by_epsilon("figure5", LAST_LAYER, "average", "accuracy", (0.913, 0.914, 0.914, 0.915))
    + [
        {"figure": "figure6", "task": "cifar10", "case": "average", "quantity": "accuracy"}
        | {"epsilon": 10.0, "steps": 1000, "learning_rate": rate, "value": value}
        | {"records": RECORDS["cifar10"]}
        for rate, value in ((2.0, 0.673), (4.0, 0.654))
    ],
    columns=[*_SHARED, "epochs", "clipping_norm", "steps", "learning_rate"],
)
"""Means over five repeats unless ``quantity`` says otherwise; accuracies as shares."""


def stated(figure: str, task: str, quantity: str, **levels: object) -> pd.DataFrame:
    """The rows for a figure and task, in either reading; none if it is not a task of the paper."""
    task = task.removesuffix(PUBLIC_CODE)
    return select(STATED, figure=figure, task=task, quantity=quantity, **levels)
