"""The grid's cells: which there are, what they are called, and what is refused."""

import copy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hiddenstate.errors import InputError
from hiddenstate.papers.worst_case_init import FAMILY, cells, costs
from hiddenstate.pipeline import scores
from hiddenstate.study import config

CACHED = Path(__file__).parents[3] / "results/cached/worst_case_init"


def test_cells_that_figures_share_appear_once_and_names_tell_cells_apart(scale_of):
    for scale in ("smoke", "laptop", "paper"):
        grid, _ = scale_of(scale)
        shown = cells.shown(grid).values()
        every = [cell for audits in shown for a in audits for cell in cells.cells_of(grid, a)]
        names = [cell.name for cell in cells.trained(grid)]
        assert len(names) == len(set(names)) < len(every)
        for kind in (every, [cells.start_of(cell) for cell in every], cells.ideal(grid)):
            named = {}
            for cell in kind:
                assert named.setdefault(cell.name, cell.parameters) == cell.parameters
            assert len({p.model_dump_json() for p in named.values()}) == len(named)


@pytest.mark.parametrize("factor", ["epsilons", "clipping_norms", "learning_rates"])
def test_values_that_differ_late_have_names_of_their_own(factor, make):
    grid = make({factor: [1.25, 1.2500000001]})
    assert len({cell.name for cell in cells.trained(grid)}) == 2
    if factor == "epsilons":
        assert len({cell.name for cell in cells.ideal(grid)}) == 2


def test_sweeps_combine_what_they_list_and_take_the_rest_from_the_task(make):
    grid = make({"epochs": [0, 2], "records": [20, 30], "epsilons": [1, 2], "repeats": 4})
    found = cells.trained(grid)
    assert len(found) == 8
    for cell in found:
        p, start = cell.parameters, cells.start_of(cell).parameters
        assert p.learning_rate == (8 if start.stages else 4)
        assert p.start == start
        assert (p.steps, p.models, p.planned) == (3, 2, 4)
        assert start.repeats == (0, 1, 2, 3)
    (plain,) = cells.trained(make({"records": None}))
    assert plain.parameters.records == 60
    assert plain.parameters.start.stages[-1].epochs == 2


def test_an_audit_is_one_cell_or_one_for_each_repeat(make, in_parts):
    whole = make({"repeats": 3, "epochs": [0, 2]})
    together, apart = cells.trained(whole), cells.trained(in_parts(whole))
    assert [cell.name for cell in apart] == [
        f"{cell.name}_repeat{i}" for cell in together for i in range(3)
    ]
    assert {cells.start_of(cell).name for cell in together} == {"random_pre0_3x", "random_pre2_3x"}
    assert {cells.start_of(cell).name for cell in apart} == {
        f"random_pre{epochs}_repeat{i}" for epochs in (0, 2) for i in range(3)
    }
    for i, cell in enumerate(apart):
        whole_audit = together[i // 3].parameters
        assert cell.parameters.start.repeats == (i % 3,)
        # But for the repeats they are the audit, so the random streams have the same names.
        start = cell.parameters.start.model_copy(update={"repeats": (0, 1, 2)})
        assert cell.parameters.model_copy(update={"start": start}) == whole_audit
        assert cell.parameters.name == together[i // 3].name
    assert cells.ideal(whole) == cells.ideal(in_parts(whole))


def test_repeats_share_the_work_that_one_cell_has(make, in_parts):
    (work, *_), whole = FAMILY.works, make({"repeats": 3})
    (one,), parts = cells.trained(whole), cells.trained(in_parts(whole))
    assert work.size(one) == (2, 3)
    assert [work.size(cell) for cell in parts] == [(2, 1)] * 3
    assert sum(map(work.cost, parts)) == pytest.approx(work.cost(one))


def test_an_audit_may_have_the_first_of_its_repeats_alone(make, in_parts):
    """Their cells are those of the whole; an audit in two figures has the most that one asks."""
    whole = cells.trained(in_parts(make({"repeats": 4})))
    part = in_parts(make({"repeats": 4, "first": 2}))
    assert cells.trained(part) == whole[:2]
    (audit,) = cells.shown(part)["figure1"]
    assert audit.planned == 4 and audit.start.repeats == (0, 1)
    more = part.figure1[0].model_copy(update={"first": 3})
    both = part.model_copy(update={"figure3": [more]})
    assert cells.trained(both) == whole[:3]
    for audits in cells.shown(both).values():
        assert [audit.start.repeats for audit in audits] == [(0, 1, 2)]


def test_the_first_sweep_that_has_an_expected_audit_decides_its_pairs(make):
    one = {"task": "random", "epsilons": [10], "records": [20], "repeats": 3}
    sweeps = [one | {"first": 1, "pairs": 2}, one | {"pass_back": 5}]
    content = make().model_dump() | {"expected": sweeps}
    found = cells.expected(type(make()).model_validate(content))
    assert [cell.name[-7:] for cell in found] == ["repeat0", "repeat1", "repeat2"]
    told = [(cell.parameters.pairs, cell.parameters.pass_back) for cell in found]
    assert told == [(2, None), (1, 5), (1, 5)]


def test_the_data_sets_of_stages_count_as_read(cell_of, stage):
    def read(cell):
        work = FAMILY.works[0]
        assert work.data(cell) == work.start.data(cells.start_of(cell))
        return work.data(cell)

    stages = [stage | {"dataset": "coarse"}, stage]
    assert read(cell_of(pretraining=stages)) == ["coarse", "random"]
    # Without pre-training a whole model needs no other data; a last layer needs its backbone's.
    assert read(cell_of({"epochs": [0]}, pretraining=stages)) == ["random"]
    last = cell_of({"epochs": [0]}, pretraining=stages, trains="last layer")
    assert read(last) == ["coarse", "random"]


def refusal(path) -> str:
    with pytest.raises(InputError) as caught:
        config.section(path, cells.NAME)
    return str(caught.value)


def test_a_sweep_of_an_unknown_task_is_refused(edited):
    message = refusal(edited(lambda section: section["figure4"][0].update(task="digit")))
    assert "edited.yaml: worst_case_init" in message
    assert "figure4.0.task: got 'digit'; expected one of digits, digits_last_layer" in message
    assert len(message) < 300  # and not the whole section


@pytest.mark.parametrize(
    "key, value, bound",
    [
        ("epochs", -1, "greater than or equal to 0"),
        ("records", 1, "greater than or equal to 2"),
        ("clipping_norms", 0.0, "greater than or equal to 0.000000001"),
        ("epsilons", -2.0, "greater than or equal to 0.001"),
        ("steps", 0, "greater than or equal to 1"),
        ("learning_rates", 0.0, "greater than or equal to 0.000000001"),
    ],
)
def test_numbers_of_a_sweep_that_mean_nothing_are_refused(edited, key, value, bound):
    message = refusal(edited(lambda section: section["figure1"][0].update({key: [value]})))
    assert f"edited.yaml: worst_case_init.figure1.0.{key}.0: got {value!r}; " in message
    assert bound in message


def test_figure_2_by_learning_rates_is_refused(edited):
    """Its panels show epochs alone."""
    message = refusal(edited(lambda section: section["figure2"][0].update(learning_rates=[4, 8])))
    assert "figure2.0.learning_rates: got 4 and 8; expected one" in message


def test_figure_2_may_have_a_rate_for_each_panel(edited):
    def rates(section):
        (sweep,) = section["figure2"]
        section["figure2"] = [
            copy.deepcopy(sweep) | {"epsilons": [epsilon], "learning_rates": [rate]}
            for epsilon, rate in ((2, 4), (10, 8))
        ]

    _, grid, _ = config.section(edited(rates), cells.NAME)
    assert len(grid.figure2) == 2


def test_more_records_than_are_private_are_refused_with_the_scale_file(edited):
    message = refusal(edited(lambda section: section["figure3"][0].update(records=[20, 720])))
    expected = "figure3.0.records: got 720; expected at most 719, the private records of digits"
    assert expected in message


def test_a_target_that_is_neither_known_nor_a_file_is_refused_with_the_scale_file(edited):
    message = refusal(edited(lambda section: section["tasks"]["digits"].update(canary="blnk")))
    assert "tasks.digits.canary: got 'blnk'; expected blank, mis" in message


def test_a_target_from_a_file_is_part_of_the_cell(tmp_path, cell_of):
    file = tmp_path / "target.npy"
    np.save(file, np.zeros((1, 8, 8)))
    before = cell_of(canary=str(file))
    assert cell_of(canary=str(file)) == before
    np.save(file, np.ones((1, 8, 8)))
    assert cell_of(canary=str(file)).parameters.canary != before.parameters.canary


def test_the_figures_shown_are_those_that_have_cells(make, scale_of):
    def shown(grid):
        every = FAMILY.figures | FAMILY.tables
        return {name for name, thing in every.items() if thing.when(grid)}

    assert shown(scale_of("smoke")[0]) == {*FAMILY.figures, *FAMILY.tables}
    assert shown(make(figure="figure3")) == {"figure3", "audits"}
    assert shown(make(figure="figure1")) == {"figure1", "table1", "accuracy", "audits"}


def test_more_work_costs_more(cell_of):
    work = FAMILY.works[0]
    plain = work.cost(cell_of())
    for more in ({"records": [40]}, {"steps": [50]}, {"models": 30}, {"repeats": 3}):
        assert work.cost(cell_of(more)) > plain
    assert work.cost(cell_of(trains="last layer")) < plain
    start = work.start
    one, more = (cells.start_of(cell_of({"epochs": [epochs]})) for epochs in (1, 3))
    assert start.cost(more) == pytest.approx(3 * start.cost(one)) and start.cost(one) > 0


def test_a_stage_of_pre_training_costs_what_its_own_records_do(cell_of):
    """A half of digits, all of CIFAR-100, and features of the user's own as those of CIFAR-10."""
    start = cells.start_of(cell_of({"epochs": [1]})).parameters
    stage = start.stages[-1]
    stages = [
        {"dataset": dataset, "half": half}
        for dataset, half in (
            *(("digits", True), ("mnist", True), ("cifar100", False), ("raw:cifar10", True)),
            ("features:own.npz", True),
        )
    ]
    found = [
        costs.start_cost(start.model_copy(update={"stages": (stage.model_copy(update=changes),)}))
        for changes in stages
    ]
    expected = np.array([719, 30_000, 50_000, 25_000, 25_000]) / 719
    np.testing.assert_allclose(np.array(found) / found[0], expected)


@pytest.mark.whole
def test_the_cost_of_a_cell_is_near_the_seconds_that_cached_cells_took(scale_of):
    for name, job in FAMILY.jobs(scale_of("laptop")[0])["train"].items():
        # The others were trained beside other work, and say nothing of what training takes.
        if job.cell.parameters.name in DIGESTS:
            seconds = scores.read(CACHED / f"{name}.parquet")[1]["wall_seconds"]
            assert 0.4 < job.cost / seconds < 2.5


def test_a_perfect_audit_is_asked_for_each_epsilon_and_number_of_models(make):
    grid = make({"epsilons": [1, 4], "clipping_norms": [1, 10]})
    found = [(c.parameters.epsilon, c.parameters.models) for c in cells.ideal(grid)]
    assert found == [(1, 2), (4, 2)]
    assert cells.ideal(make({"models": 1})) == []


DIGESTS = {
    "mnist_pre5_n1000_C1_T100_lr4_eps10_5x100":
        "b9eaf52d02a792f25357bdb1d8617c19221d2ffed01b1f0cb55c6861d16f1179",
    "mnist_pre5_n1000_C1_T100_lr4_eps1_5x100":
        "73ddaabd18fec40613afed17f10798eeb14eb039ca1f20727993fdf68126dace",
    "mnist_pre5_n1000_C1_T100_lr4_eps2_5x100":
        "7b92cbf0bc83adc4db4b66e5552d23899563e56c2fe9bf39b94bf8bfa0550e4f",
    "mnist_pre5_n1000_C1_T100_lr4_eps4_5x100":
        "3f240e1da2678c22846b0e4b3589ec9b9fc7ac267223a7d5d28f9fa0925b0572",
    "mnist_pre5_n100_C1_T100_lr4_eps10_5x100":
        "195cc5fa00eba886e9d214163dafda54ccde67cf9525eeb75f1e8a32d72bdd4d",
    "mnist_pre5_n100_C1_T100_lr4_eps1_5x100":
        "30209e12ebc9aab4bd6df4d7bd4d69facd7f8a840149708b942141ca7f05571d",
    "mnist_pre5_n100_C1_T100_lr4_eps2_5x100":
        "78f60081a8d610a9462d3d5ab3fd4d14342dfb3373518397143e62442176a3c8",
    "mnist_pre5_n100_C1_T100_lr4_eps4_5x100":
        "4516a9a5069fc710ebf1685981105d65d46a2103b878dee1739fd401b72a07ee",
    "mnist_raw_pre5_n1000_C1_T100_lr4_eps10_5x100":
        "68496a6d43719d4ea30e1504910c04cac0f706f79ca56cddb07d1f33e4835889",
}  # fmt: skip
"""Scores of audits that were trained as one cell, all repeats together."""


@pytest.mark.parametrize("scale", ["laptop", "mnist-raw"])
def test_cached_repeats_are_the_audits_that_were_trained_as_one_cell(scale_of, scale):
    grid, seed = scale_of(scale)
    found = {}
    for name, job in FAMILY.jobs(grid)["train"].items():
        if job.cell.parameters.name not in DIGESTS:
            continue
        part = scores.check(CACHED / f"{name}.parquet", job.identity, seed)
        assert set(part["repeat"]) == set(job.cell.parameters.start.repeats)
        origin = scores.read(CACHED / f"{name}.parquet")[1]
        assert origin["split_from"] == DIGESTS[job.cell.parameters.name]
        found.setdefault(job.cell.parameters.name, []).append(part)
    for audit, parts in found.items():
        assert len(parts) == 5
        assert scores.digest(pd.concat(parts, ignore_index=True)) == DIGESTS[audit]
    assert set(found) == {name for name in DIGESTS if ("raw" in name) == (scale == "mnist-raw")}


@pytest.mark.whole
def test_at_laptop_scale_all_of_mnist_is_cached_but_the_live_audit(scale_of):
    grid, seed = scale_of("laptop")
    lacking = set()
    for name, job in FAMILY.jobs(grid)["train"].items():
        p = job.cell.parameters
        if getattr(p, "audit", p).task == "mnist":
            if (CACHED / f"{name}.parquet").exists():
                scores.check(CACHED / f"{name}.parquet", job.identity, seed)
            else:
                lacking.add(name)
    (live,) = cells.shown(grid)["live"]
    assert lacking == {cell.name for cell in cells.cells_of(grid, live)}
    assert live.models == 100 and live.epsilon == 10 and live.start.epochs == 5


@pytest.mark.parametrize(
    ("task", "key", "value", "expected"),
    [
        ("mnist", "steps", 99, 100),
        ("mnist", "model", "mnist_linear", "mnist_cnn"),
        ("cifar10", "canary", "mislabelled", "blank"),
        ("cifar10_last_layer", "steps", 26, 25),
        ("mnist_code", "dataset", "raw:mnist", "mnist"),
    ],
)
def test_a_task_of_the_paper_s_name_is_the_paper_s(scale_of, task, key, value, expected):
    """Or its audits would be judged against numbers of another task."""
    grid, _ = scale_of("paper")
    content = grid.model_dump()
    assert type(grid).model_validate(content) == grid
    content["tasks"][task][key] = value
    said = f"tasks.{task}.{key}: got {value}; expected {expected}, the paper's"
    with pytest.raises(ValueError, match=said):
        type(grid).model_validate(content)
    content["tasks"]["mine"] = content["tasks"].pop(task)
    for sweeps in content.values():
        for sweep in sweeps if isinstance(sweeps, list) else ():
            sweep["task"] = "mine" if sweep["task"] == task else sweep["task"]
    assert "mine" in type(grid).model_validate(content).tasks
