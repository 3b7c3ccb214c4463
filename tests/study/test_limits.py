"""What a scale file accepts can run: limits that follow from several numbers, or from libraries."""

import copy
from pathlib import Path

import numpy as np
import pytest
import yaml

from hiddenstate import models, papers
from hiddenstate.errors import InputError
from hiddenstate.papers.gradient_crafting import limits as crafting
from hiddenstate.pipeline import held
from hiddenstate.pipeline.cells import Grid
from hiddenstate.pipeline.family import DRAWN, drawn, sampled
from hiddenstate.study import config

SCALE_FILES = Path(__file__).parents[2] / "workflow/config/scales"
SMOKE = yaml.safe_load((SCALE_FILES / "smoke.yaml").read_text())

STAGE = {"tasks.digits.pretraining": [{"weights": "README.md"}]}
"""Of weights that are no parameters, without sweeps over its epochs."""
README = STAGE | {
    **{f"figure{n}": [] for n in (2, 3, 4, 6)},
    **{"figure1": [{"task": "digits", "epochs": [0, 1], "epsilons": [4]}], "expected": []},
}


def many(key, number, section):
    """So many copies of a section that differ in a whole number."""
    return [section | {key: i + 1} for i in range(number)]


# Each was accepted, and failed in a job, a figure or a table.
REFUSED = [
    ("atlas", {"released.0.steps": 10**6, "runs": 10**4}, "released.0.steps: got 1,000,000;"),
    ("atlas", {"settings.0.title": "long " * 30}, "settings.0.title: got 'long long"),
    ("encoding_loss", {"settings.0": {"sampling_rate": 1e-6, "steps": 1}}, "settings.0.sampling"),
    ("encoding_loss", {"settings.0.steps": 10**5, "runs": 10**5}, "runs: got 100,000; expected"),
    ("shuffling", {"repeated_batches": 10**5, "epochs": [1, 10**5]}, "expected at most 10 with"),
    ("shuffling", {"networks.batches": 1, "networks.batch_size": 1}, "networks.batch_size: got 1;"),
    ("shuffling", {"delta": 0.9}, "batches: got 100; expected a record to be sampled"),
    ("estimators", {"scores": [10**8]}, "scores: got 100,000,000; expected at most 1e+06"),
    ("estimators", {"sequential.looks": [10**7]}, "sequential.looks"),
    ("estimators", {"leak.shift": 1e-300}, "leak.shift: got 1e-300"),
    ("estimators", {"leak.shift": 100}, "leak.shift: got 100.0; expected 0.01 to 19.0 for"),
    ("estimators", {"leak.delta": 0.5}, "leak.shift: got 2.0; expected 0.01 to 19.0 for the"),
    ("estimators", {"response.epsilon": 1e-300}, "response.epsilon: got 1e-300"),
    ("estimators", {"gaussian": [{"mu": 1e-9}]}, "gaussian.0.mu: got 1e-09; expected 0, or"),
    ("estimators", {"composed.sampling_rate": 1}, "composed.sampling_rate: got 1; expected less"),
    ("estimators", {"sequential.looks": [10, 10**6]}, "sequential.looks: got 1,000,000; expected"),
    ("estimators", {"ladder": [1, 20]}, "ladder: got 1; expected at least 2 models"),
    ("estimators", {"ladder": [10**7]}, "ladder: got 10000000"),
    ("cyclic_bounds", {"tightness.growths": [1e6]}, "tightness.growths: got 1,000,000.0; expected"),
    ("cyclic_bounds", {"tightness.steps_per_pass": 10**6}, "tightness.passes"),
    ("cyclic_bounds", {"sweeps.weak_convexity": [1.0, 2.0]}, "sweeps.weak_convexity"),
    ("cyclic_bounds", {"base.records": 10**8}, "base.records: got 100,000,000; expected at most"),
    ("cyclic_bounds", {"base.records": 10**6}, "base.records: got 1,000,000; expected at most 300"),
    ("cyclic_bounds", {"sweeps.passes": [1, 10**6]}, "sweeps.passes: got 1,000,000; expected at"),
    ("cyclic_bounds", {"base.records": 10**5}, "weak_convexities.3: got 1.0; expected less, as"),
    ("cyclic_bounds", {"delta": 0.99}, "delta: got 0.99; expected a smaller one, as base has"),
    ("cyclic_bounds", {"weak_convexities": [0.0]}, "weak_convexities: got [0.0]"),
    ("linear_heuristic", {"figure5.delta": 0.5}, "figure5.sampling_rates.0: got"),
    ("linear_heuristic", {"training.figure2.0.sampling_rate": 1e-6}, "training.figure2.0.sampling"),
    ("linear_heuristic", {"optimisers.delta": 0.9}, "optimisers.sampling_rate: got 0.01; expected"),
    ("linear_heuristic", {"quadratic.delta": 0.9}, "quadratic.sampling_rate: got 0.1; expected"),
    ("linear_heuristic", {"schedules.delta": 0.9}, "schedules.sampling_rate: got 0.1; expected"),
    ("linear_heuristic", {"history.sampling_rate": 1e-6}, "history.sampling_rate: got 1e-06"),
    ("linear_heuristic", {"history.noise_multiplier": 0.001}, "history.noise_multiplier"),
    ("linear_heuristic", {"figure1.delta": 1e-12}, "figure1.delta: got 1e-12; expected at least"),
    ("linear_heuristic", {"optimisers.steps": [100_000]}, "optimisers.steps: got 100,000"),
    ("linear_heuristic", {"table1.recalled_records": 4000}, "table1.recalled_records: got 4000"),
    ("linear_heuristic", {"table1.rows.0.standard": 1.0}, "table1.rows.0.standard: got 1.0"),
    ("linear_heuristic", {"table1.rows.0.standard": 6.4}, "table1.rows.0.standard: got 6.4"),
    ("linear_heuristic", {"table1.rows.0.standard": 100}, "table1.rows.0.standard: got 100"),
    ("linear_heuristic", {"table1.rows.0.heuristic": 0.01}, "table1.rows.0.heuristic: got 0.01"),
    ("linear_heuristic", {"table1.rows.0.heuristic": 19}, "table1.rows.0.heuristic: got 19"),
    ("linear_heuristic", {"table1.rows.0.batch": 1}, "table1.rows.0.batch: got 1; expected at"),
    ("linear_heuristic", {"table1.delta": 1e-9}, "table1.delta: got 1e-09; expected 1e-07 to"),
    ("linear_heuristic", {"training.delta": 1e-12}, "training.delta: got 1e-12; expected at least"),
    ("linear_heuristic", {"audits.delta": 1e-12}, "audits.delta: got 1e-12; expected at least"),
    ("linear_heuristic", {"figure1.noise_multiplier": 0.001}, "figure1.noise_multiplier: got"),
    ("linear_heuristic", {"optimisers.noise_multiplier": 0.001}, "optimisers.noise_multiplier"),
    ("encoding_loss", {"settings.0.steps": 10**6}, "settings.0.steps: got 1,000,000; expected"),
    (
        "encoding_loss",
        {"curves.0.noise_multiplier": 0.11, "curves.0.steps": 10**5},
        "curves.0.noise_multiplier: got 0.11; expected more",
    ),
    ("worst_case_init", {"ideal_audits": 20_001, "tasks.digits.models": 1000}, "ideal_audits: got"),
    ("worst_case_init", {"tasks.digits.pretraining.0.dataset": "mnist"}, "pretraining.0.model"),
    ("worst_case_init", README, ".0.weights: got 'README.md'"),
    ("worst_case_init", {"tasks.digits.label": 10}, "tasks.digits.label: got 10; expected one of"),
    ("worst_case_init", {"tasks.digits.canary": "README.md"}, "tasks.digits.canary"),
    ("worst_case_init", {"figure1.0.models": 1}, "figure1.0.models: got 1; expected at least 2"),
    ("gradient_crafting", {"single.epsilons": [24]}, "got 24.0; expected at most 20.4"),
    ("gradient_crafting", {"hidden.betas": [100], "hidden.steps": [400]}, "hidden.steps"),
    ("gradient_crafting", {"hidden.sampling_rates": [1e-12]}, "hidden.sampling_rates.0: got 1e-12"),
    ("gradient_crafting", {"hidden.mu": 1e-300}, "hidden.mu"),
    ("gradient_crafting", {"hidden.sampled_steps": [10**8]}, "hidden.sampled_steps"),
    ("gradient_crafting", {"hidden.betas": [], "hidden.sampling_rates": []}, "hidden.betas"),
    ("gradient_crafting", {"one_run.housing": [68], "housing.hidden_units": 1}, "one_run.housing"),
    ("gradient_crafting", {"housing.hidden_units": 3000}, "housing.hidden_units: got 3,000"),
    ("gradient_crafting", {"housing.sweeps.0.every": 10**8}, "housing.sweeps.0.every"),
    ("encoding_loss", {"epsilon_step": 0.001}, "epsilon_step: got 0.001; expected at least 0.005"),
    ("encoding_loss", {"runs": 10**5, "figure2_repeats": 201}, "runs: got 100,000; expected at"),
    ("shuffling", {"networks.ideal_audits": 10**4, "networks.models": 2001}, "ideal_audits: got"),
    ("linear_heuristic", {"history.runs": 25_000_001}, "history.runs: got 25,000,001; expected at"),
    ("linear_heuristic", {"audits.runs": 2_500_001}, "audits.runs: got 2,500,001; expected at"),
    ("linear_heuristic", {"audits.repeats": 1000, "audits.runs": 50_001}, "of 1,000 repeats"),
    ("linear_heuristic", {"training.ideal_audits": 10**5, "training.models": 501}, "ideal_audits"),
    ("cyclic_bounds", {"audit.runs": 10_000_001}, "audit.runs: got 10,000,001; expected at most"),
    ("cyclic_bounds", {"audit.passes": [1, 200]}, "audit.passes: got 200; expected fewer: 16,240"),
    ("cyclic_bounds", {"counterexamples.0.runs": 10**8}, "counterexamples.0.runs: got 100,000,000"),
    ("cyclic_bounds", {"audit.data.2.dimension": 10_000, "audit.runs": 10_001}, "10,000 numbers"),
    ("gradient_crafting", {"single.runs": 10**7, "single.repeats": 3}, "single.runs: got 10,000"),
    ("gradient_crafting", {"one_run.validity_audits": 66_667}, "one_run.validity_audits: got 66,"),
    (
        "gradient_crafting",
        {"one_run.networks.digits_cnn.null_draws": 66_667},
        "one_run.networks.digits_cnn.null_draws: got 66,667; expected at most 66,666.7",
    ),
    ("atlas", {"released": many("steps", 13, SMOKE["atlas"]["released"][0])}, "released: got 13"),
    ("encoding_loss", {"epsilons": [1 + i / 5 for i in range(11)]}, "epsilons: got 11 entries;"),
    ("estimators", {"ladder": [*range(2, 23)]}, "ladder: got 21 entries; expected at most 20"),
    ("shuffling", {"claims": [1 + i / 5 for i in range(13)]}, "claims: got 13 entries; expected"),
    ("cyclic_bounds", {"weak_convexities": [i / 100 for i in range(11)]}, "weak_convexities: got"),
    ("cyclic_bounds", {"sweeps.diameter": [0.1 * i for i in range(1, 52)]}, "sweeps.diameter: got"),
    ("linear_heuristic", {"figure5.epsilons": [1 + i for i in range(13)]}, "figure5.epsilons: got"),
    ("linear_heuristic", {"training.figure2.0.steps": [*range(1, 52)]}, "training.figure2.0.steps"),
    ("worst_case_init", {"figure1.0.records": [*range(2, 15)]}, "figure1: got 13 panels; expected"),
    ("worst_case_init", {"figure2.0.epsilons": [*range(1, 14)]}, "figure2: got 13 panels"),
    ("worst_case_init", {"figure4.0.clipping_norms": [*range(1, 12)]}, "figure4.0.clipping_norms"),
    ("gradient_crafting", {"one_run.epsilons": [*range(1, 14)]}, "one_run.epsilons: got 13"),
    (
        "gradient_crafting",
        {"networks.digits_convnet.sweeps.0.epsilons": [*range(1, 22)]},
        "networks.digits_convnet.sweeps.0.epsilons: got 21 entries; expected at most 20",
    ),
    (
        "gradient_crafting",
        {"housing.sweeps.0.adversaries": ["loss-based", "loss-based"]},
        "housing.sweeps.0.adversaries",
    ),
]  # fmt: skip


def changed(section, changes):
    """A copy of a section with values at dotted keys replaced."""
    section = copy.deepcopy(section)
    for key, value in changes.items():
        *path, last = (int(part) if part.isdigit() else part for part in key.split("."))
        place = section
        for part in path:
            place = place[part]
        place[last] = value
    return section


@pytest.fixture
def scale(tmp_path):
    """Write a scale file."""

    def write(name, content):
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    return write


@pytest.mark.parametrize(("name", "changes", "told"), REFUSED)
def test_what_no_job_could_do_is_refused_by_key_before_any_starts(scale, name, changes, told):
    path = scale("mine", {"seed": 1, name: changed(SMOKE[name], changes)})
    with pytest.raises(InputError) as refused:
        config.section(path, name)
    assert str(refused.value).startswith(f"{path}: {name}.") and told in str(refused.value)
    assert "expected" in str(refused.value)


@pytest.mark.parametrize("kind", DRAWN)
def test_lists_that_are_drawn_are_bounded_wherever_they_stand(kind):
    class Inner(Grid):
        values: tuple[int, ...]

    class Outer(Grid):
        parts: dict[str, Inner]
        absent: Inner | None = None

    def told(number):
        outer = Outer(parts={"a": Inner(values=(1,)), "b": Inner(values=tuple(range(number)))})
        return [*drawn(outer, **{kind: "parts absent.values parts.values"})]

    assert told(DRAWN[kind]) == []
    (words,) = told(DRAWN[kind] + 1)
    most = DRAWN[kind]
    assert words.startswith(f"parts.b.values: got {most + 1} entries; expected at most {most}, ")


def test_records_beyond_memory_are_refused_without_being_made(scale):
    section = copy.deepcopy(SMOKE["cyclic_bounds"])
    (one,) = [each for each in section["audit"]["data"] if "dimension" in each]
    one["dimension"], one["base"]["records"] = 10_000, 10**8
    path = scale("mine", {"seed": 1, "cyclic_bounds": section})
    with pytest.raises(InputError, match=r"base.records: got 100000000; expected at most 1e8"):
        config.section(path, "cyclic_bounds")


@pytest.mark.parametrize("name", papers.names())
def test_the_limits_leave_every_scale_that_is_shipped(name):
    for path in SCALE_FILES.glob("*.yaml"):
        grid = getattr(config.read(path), name, None)
        assert grid is None or not [*papers.load(name).limits(grid)]


def test_a_rate_is_refused_where_delta_covers_all_that_is_sampled():
    assert not [*sampled("q", 1e-3, 10, 9.9e-3)]
    (told,) = sampled("q", 1e-3, 10, 9.97e-3)
    assert told.startswith("q: got 0.001; expected a record to be sampled in 10 steps")
    assert not [*sampled("q", 1.0, 1, 0.999)]


def test_the_parameters_that_canaries_are_counted_against_are_the_models():
    for name, count in crafting.PARAMETERS.items():
        assert count == models.parameter_count(models.build(name, 10))
        more = models.parameter_count(models.build(name, 11)) - count
        assert more == held.WIDTHS[name] + 1
    assert set(crafting.PARAMETERS) == set(models.MODELS)


def test_a_stage_may_be_given_as_weights_that_a_file_has(tmp_path, monkeypatch, scale):
    monkeypatch.chdir(tmp_path)
    np.savez("weights.npz", bias=np.zeros(3))
    section = changed(
        SMOKE["worst_case_init"], {"tasks.digits.pretraining": [{"weights": "weights.npz"}]}
    )
    told = "pretraining.0.weights"
    try:
        config.section(scale("mine", {"seed": 1, "worst_case_init": section}), "worst_case_init")
    except InputError as other:  # of what else the section asks for
        assert told not in str(other)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Data of the user's own: features of three classes in 21 + 20 records, and folders of two."""
    monkeypatch.setenv("HIDDENSTATE_DATA", str(tmp_path))
    for name, classes, width in (("own", 3, 4), ("wide", 3, 5), ("one", 1, 4)):
        parts = {}
        for part, records in (("public", 21), ("private", 20), ("test", 6)):
            parts[f"{part}_x"] = np.ones((records, width), np.float32)
            parts[f"{part}_y"] = np.arange(records) % classes
        np.savez(tmp_path / f"{name}.npz", **parts)
    for kind in "ab":
        (tmp_path / "images/train" / kind).mkdir(parents=True)
        for i in range(3):
            (tmp_path / "images/train" / kind / f"{i}.png").touch()
    for name, record in (("four", np.ones(4)), ("five", np.ones(5)), ("inf", np.full(4, np.inf))):
        np.save(tmp_path / f"{name}.npy", record)
    monkeypatch.chdir(tmp_path)


def of_own(scale, **changes):
    """Path of a scale file with one task on data of the user's own."""
    stage = {"dataset": "features:own.npz", "epochs": 1, "batch_size": 8, "learning_rate": 0.1}
    task = {
        **{"dataset": "features:own.npz", "trains": "last layer", "label": 2, "private": 20},
        **{"steps": 1, "learning_rate": {"average": 1, "worst": 1}, "models": 2},
        "pretraining": [stage],
    }
    section = {
        **{"shows": "mine", "delta": 1e-5, "repeats": 1, "ideal_audits": 100},
        **{"tasks": {"mine": changed(task, changes)}},
        "figure1": [{"task": "mine", "epochs": [0, 1], "epsilons": [4]}],
    }
    return scale("mine", {"seed": 1, "worst_case_init": section})


IMAGES = {
    **{"dataset": "folder:images", "model": "cifar_cnn", "trains": "all layers", "private": 3},
    **{"pretraining.0.dataset": "folder:images", "pretraining.0.batch_size": 3},
}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"label": 3}, "label: got 3; expected one of the 3 classes"),
        (IMAGES, "label: got 2; expected one of"),
        ({"private": 21}, "private: got 21; expected 20"),
        ({"pretraining.0.batch_size": 22}, "pretraining.0.batch_size: got 22; expected at most 21"),
        ({"pretraining.0.dataset": "features:wide.npz"}, "pretraining.0.dataset: got"),
        ({"trains": "all layers"}, "trains: got 'all layers'; expected last layer"),
        ({"canary": "five.npy"}, "got a record of shape (5,); expected (4,)"),
        ({"canary": "inf.npy"}, "canary: got 'inf.npy'"),
        ({"canary": "own.npz"}, "canary: got 'own.npz'"),
        ({"dataset": "features:one.npz", "canary": "mislabelled"}, "canary: got 'mislabelled'"),
        ({**IMAGES, "label": 1, "private": 4}, "private: got 4; expected 3"),
    ],
)
def test_a_task_fits_data_of_the_user_s_own(own, scale, changes, told):
    with pytest.raises(InputError) as refused:
        config.read(of_own(scale, **changes))
    assert "worst_case_init.tasks.mine." in str(refused.value) and told in str(refused.value)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"canary": "four.npy"},
        {"canary": "mislabelled", "label": 9},
        {"pretraining.0.batch_size": 21},
        {"pretraining.0.half": False, "pretraining.0.batch_size": 41},
        {"dataset": "features:absent.npz", "label": 1000},
        {**IMAGES, "label": 1},
    ],
)
def test_a_task_that_fits_its_data_is_taken(own, scale, changes):
    config.read(of_own(scale, **changes))


def test_the_widths_that_canaries_are_compared_with_are_the_models():
    for name, width in held.WIDTHS.items():
        assert models.build(name)[-1].in_features == width
    assert set(held.WIDTHS) == set(models.MODELS)


ALONE = {"dataset": "folder:images", "model": "cifar_cnn"}
FEATURES = {"dataset": "features:own.npz", "model": "features"}


def within(place, changes):
    return {f"{place}.{key}": value for key, value in changes.items()}


@pytest.mark.parametrize(
    ("name", "changes", "told"),
    [
        ("linear_heuristic", within("training", FEATURES | {"records": 1000}), "training.model"),
        (
            "linear_heuristic",
            within("training", ALONE | {"records": 1000}),
            "training.records: got",
        ),
        (
            "linear_heuristic",
            {"expected.0.network": {**SMOKE["linear_heuristic"]["training"], **ALONE}},
            "expected.0.network.records: got",
        ),
        (
            "gradient_crafting",
            within("networks.digits_convnet", ALONE | {"batch_size": 7}),
            "networks.digits_convnet.batch_size: got 7; expected at most 6",
        ),
        (
            "gradient_crafting",
            within("networks.digits_convnet", FEATURES),
            "networks.digits_convnet.model: got 'features'",
        ),
        (
            "gradient_crafting",
            within("one_run.networks.digits_cnn", ALONE | {"batch_size": 4}),
            "one_run.networks.digits_cnn.batch_size: got 4; expected at most 3",
        ),
        (
            "gradient_crafting",
            within("one_run.networks.digits_cnn", ALONE | {"batch_size": 3, "canaries": [549_539]}),
            "one_run.networks.digits_cnn.canaries: got 549,539; expected at most 549,538",
        ),
    ],
)
def test_a_network_fits_data_of_the_user_s_own(own, scale, name, changes, told):
    section = copy.deepcopy(SMOKE[name])
    if "expected.0.network" in changes:
        network = changes["expected.0.network"]
        fields = ("dataset", "model", "records", "figure4")
        changes = {"expected.0.network": {key: network[key] for key in fields}}
    with pytest.raises(InputError) as refused:
        config.section(scale("mine", {"seed": 1, name: changed(section, changes)}), name)
    assert f"{name}.{told}" in str(refused.value)
