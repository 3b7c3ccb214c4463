"""What a scale file asks for that cannot run is refused by file, key, value and reason."""

import copy
import functools
from pathlib import Path

import pytest
import torch
import yaml

from hiddenstate import models
from hiddenstate.datasets import data
from hiddenstate.errors import InputError
from hiddenstate.pipeline import runnable
from hiddenstate.study import config

SCALES = Path(__file__).parents[2] / "workflow/config/scales"


def test_the_models_are_those_that_can_be_built_and_take_such_records():
    assert set(runnable.MODELS) == {*models.MODELS, "features"}
    for name, build in models.MODELS.items():
        shape = runnable.MODELS[name]
        with torch.no_grad():
            assert build().eval()(torch.zeros(2, *shape)).ndim == 2


@pytest.mark.whole
def test_the_data_sets_are_those_that_can_be_loaded_and_have_such_records():
    assert set(runnable.DATA) == set(data.NAMES)
    for name in ("digits", "housing", "mnist"):  # the others do not come with the package
        train = data.splits(name).train
        assert (train.x.shape[1:], len(train)) == runnable.DATA[name]


BROKEN = [
    ("linear_heuristic", ("training", "model"), "lenet", "expected one of mnist_cnn"),
    ("linear_heuristic", ("training", "model"), "mnist_cnn", "takes records of 1x28x28"),
    ("linear_heuristic", ("training", "model"), "fcnn", "takes records of 8"),
    ("linear_heuristic", ("training", "dataset"), "svhn", "expected one of digits"),
    ("linear_heuristic", ("training", "dataset"), "raw:svhn", "expected one of digits"),
    ("linear_heuristic", ("training", "dataset"), "folder:", "folder:<path>"),
    ("linear_heuristic", ("training", "records"), 1439, "expected at most 1438"),
    ("linear_heuristic", ("training", "table1", 0, "batch"), 1439, "at most 1438 records"),
    ("shuffling", ("networks", "model"), "mnist_linear", "takes records of 1x28x28"),
    ("shuffling", ("networks", "batch_size"), 300, "at most 1438 records"),
    ("shuffling", ("networks", "model"), "cifar_cnn", "takes records of 3x32x32"),
    ("worst_case_init", ("tasks", "digits", "private"), 720, "expected 719, half of digits"),
    ("worst_case_init", ("tasks", "digits", "pretraining", 0, "dataset"), "x", "expected one of"),
    ("worst_case_init", ("tasks", "digits", "pretraining", 0, "batch_size"), 720, "at most 719"),
    (
        "gradient_crafting",
        ("networks", "digits_convnet", "model"),
        "x",
        "expected one of mnist_cnn",
    ),
    ("gradient_crafting", ("networks", "digits_convnet", "batch_size"), 1439, "at most 1438"),
    ("gradient_crafting", ("one_run", "networks", "digits_cnn", "dataset"), "x", "expected one of"),
    ("gradient_crafting", ("housing", "batch_size"), 16_513, "at most 16512 records"),
    *(
        (name, ("shows",), words, reason)
        for name in ("atlas", "cyclic_bounds", "encoding_loss", "estimators")
        for words, reason in (
            ("two\nlines", "on one line"),
            ("a \u0007 bell", "can be printed"),
            ("costs $5 and 6", "a formula between two $"),
            (r"$\\nosuchthing$", "a formula between two $"),
            ("\u4e2d\u6587", "which lacks '\u4e2d'"),
        )
    ),
    ("cyclic_bounds", ("base", "batch_size"), 3, "base.batch_size: got 3; expected a divisor"),
    ("cyclic_bounds", ("base", "step_size"), 30.0, "at most 1 / (smoothness + weak_convexity) = 1"),
    (
        "cyclic_bounds",
        ("audit", "data", 0, "base", "batch_size"),
        3,
        "audit.data.0.base.batch_size",
    ),
    ("cyclic_bounds", ("counterexamples", 2, "expansions"), 23, "expected a multiple of four"),
    ("cyclic_bounds", ("counterexamples", 0, "batch_size"), 2, "expected 1, in a single pass"),
    ("cyclic_bounds", ("counterexamples",), [], "at least 1"),
    ("atlas", ("settings", 0, "title"), "$\\frac{1}$", "a formula between two $"),
    ("atlas", ("settings", 1, "setting", "batch_size"), 1001, ""),
]


@functools.cache
def smoke():
    return yaml.safe_load((SCALES / "smoke.yaml").read_text())


@pytest.mark.parametrize(("family", "keys", "value", "reason"), BROKEN)
def test_what_cannot_run_is_refused_by_name(tmp_path, family, keys, value, reason):
    section = copy.deepcopy(smoke()[family])
    place = section
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"seed": 1, family: section}))
    with pytest.raises(InputError) as refused:
        family_, grid, _ = config.section(path, family)
        family_.jobs(grid)
    message = str(refused.value)
    assert message.startswith(f"{path}: {family}."), message
    assert f"{keys[-1]}: got {value!r}"[:12] in message, message
    assert reason in message


def test_a_section_with_nothing_to_compute_is_refused(tmp_path):
    section = {key: smoke()["worst_case_init"][key] for key in ("shows", "delta", "repeats")}
    section |= {key: smoke()["worst_case_init"][key] for key in ("ideal_audits", "tasks")}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"seed": 1, "worst_case_init": section}))
    with pytest.raises(InputError, match="worst_case_init: has nothing to compute; expected"):
        config.section(path, "worst_case_init")


@pytest.mark.parametrize(("key", "value"), [("batch_size", 3), ("position", 1000)])
def test_each_value_of_a_sweep_is_tried(tmp_path, key, value):
    section = copy.deepcopy(smoke()["cyclic_bounds"])
    section["sweeps"][key] = [1, value]
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"seed": 1, "cyclic_bounds": section}))
    with pytest.raises(InputError, match=rf"cyclic_bounds\.sweeps\.{key}: got {value}; expected"):
        config.section(path, "cyclic_bounds")


@pytest.mark.parametrize(
    "words", ["n in {100, 1000}", r"$\sigma = 2$, \u03b5 \u2264 4", "100 % of {x}", "\u00e9t\u00e9"]
)
def test_what_can_be_drawn_is_taken(words):
    assert runnable.undrawable(words) == ""


@pytest.mark.parametrize("only", ["[[a]]", "[{a: 1}]", "[1]", "atlas", "[]", "{atlas: 1}"])
def test_a_list_of_families_is_a_list_of_names(tmp_path, only):
    (tmp_path / "smoke.yaml").write_text((SCALES / "smoke.yaml").read_text())
    path = tmp_path / "mine.yaml"
    path.write_text(f"extends: smoke\nonly: {only}\n")
    with pytest.raises(InputError, match=r"mine.yaml: only: got .*; expected a"):
        config.read(path)
