"""How much a grid judges, and if its parameters are the paper's: by its content alone."""

import copy
import json
from pathlib import Path

import pandas as pd
import pytest
import yaml
from command_line import CLAIMS, run

from hiddenstate import papers
from hiddenstate.pipeline import estimates
from hiddenstate.study import config, levels
from hiddenstate.study.levels import SCALES, Level

SCALE_FILES = Path(__file__).parents[2] / "workflow/config/scales"


def grid(name, path):
    return config.section(path, name)[1]


@pytest.fixture
def scale(tmp_path):
    """Write a scale file beside copies of those of the release."""
    for path in SCALE_FILES.glob("*.yaml"):
        (tmp_path / path.name).write_text(path.read_text())

    def write(name, content):
        path = tmp_path / f"{name}.yaml"
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return path

    return write


def test_the_levels_of_a_release_are_those_of_its_scale_files():
    shipped = json.loads(Path(levels.__file__).with_name("levels.json").read_text())
    assert shipped == levels.reference(SCALE_FILES), (
        "run: hiddenstate schema --levels workflow/config/scales >src/hiddenstate/study/levels.json"
    )


@pytest.mark.parametrize("name", papers.names())
@pytest.mark.parametrize("base", SCALES)
def test_neither_the_name_nor_the_base_of_a_scale_says_what_it_is(scale, name, base):
    released = levels.of(name, grid(name, SCALE_FILES / f"{base}.yaml"))
    assert released.own is not None and SCALES.index(released.own) >= SCALES.index(base)
    other = scale("mine", f"extends: {base}\nseed: 7\nonly: [{name}]\n{name}: {{shows: it}}\n")
    assert levels.of(name, grid(name, other)) == released
    section = grid(name, SCALE_FILES / f"{base}.yaml").model_dump(mode="json", exclude_none=True)
    for taken in set(SCALES) - {base}:
        assert levels.of(name, grid(name, scale(taken, {"seed": 1, name: section}))) == released


def leaves(value, path=()):
    """Every number of a section, by the keys that lead to it."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        if isinstance(inner, dict | list):
            yield from leaves(inner, (*path, key))
        elif isinstance(inner, int | float) and not isinstance(inner, bool):
            yield (*path, key)


@pytest.mark.parametrize("name", papers.names())
def test_one_other_number_is_no_longer_the_paper_s(monkeypatch, name):
    # Counts of cells decide the size alone, and cost more than all else.
    monkeypatch.setattr(levels, "counts", lambda *_: {})
    section = yaml.safe_load((SCALE_FILES / "laptop.yaml").read_text())[name]
    changed = 0
    for path in leaves(section):
        other = copy.deepcopy(section)
        place = other
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = place[path[-1]] * 2 or 1
        try:
            found = levels.of(name, papers.load(name).grid.model_validate(other))
        except ValueError:
            continue  # a rate above one, or the same cell twice, for example
        assert found.own is None, path
        changed += 1
    assert changed >= 2


def test_a_scale_with_hardly_less_judges_as_much_and_one_with_far_less_does_not(scale):
    for factor, size in ((0.9, "paper"), (0.5, "paper"), (0.4, "smoke"), (0.04, "smoke")):
        content = yaml.safe_load((SCALE_FILES / "laptop.yaml").read_text())
        section = content["encoding_loss"] | {"runs": int(5000 * factor)}
        path = scale("mine", {"seed": 1, "encoding_loss": section})
        assert levels.of("encoding_loss", grid("encoding_loss", path)) == Level(size, None)


def test_one_cell_of_full_size_does_not_speak_for_the_others(scale):
    """Sweeps of 20 models beside one of laptop's size had laptop's level."""
    content = yaml.safe_load((SCALE_FILES / "laptop.yaml").read_text())
    training = content["linear_heuristic"]["training"]
    for panel in training["figure2"][1:]:
        panel["models"] = 20
    path = scale("mine", {"seed": 1, "linear_heuristic": content["linear_heuristic"]})
    assert levels.of("linear_heuristic", grid("linear_heuristic", path)) == Level("smoke", None)


@pytest.mark.parametrize(
    ("name", "keys", "few"),
    [
        ("gradient_crafting", ("expected", "starts"), 2),
        ("gradient_crafting", ("expected", "housing_starts"), 20),
        ("linear_heuristic", ("expected", 0, "starts"), 2),
    ],
)
def test_fewer_starts_orders_or_canaries_judge_less(scale, name, keys, few):
    """Only runs, models, repeats and audits were counted."""
    content = yaml.safe_load((SCALE_FILES / "laptop.yaml").read_text())
    place = content[name]
    for key in keys[:-1]:
        place = place[key]
    assert keys[-1] in place
    place[keys[-1]] = few
    path = scale("mine", {"seed": 1, name: content[name]})
    assert levels.of(name, grid(name, path)) == Level("smoke", None)


def test_a_family_that_no_release_had_judges_its_claims_and_never_the_paper_s_own(monkeypatch):
    laptop = grid("atlas", SCALE_FILES / "laptop.yaml")
    monkeypatch.setattr(levels, "_released", dict)
    assert levels.of("atlas", laptop) == Level("paper", None)


@pytest.mark.whole
@pytest.mark.parametrize("name", papers.names())
def test_a_copy_of_smoke_is_judged_as_smoke_is(capsys, scale, tmp_path, name):
    mine = scale("mine", f"extends: smoke\nonly: [{name}]\n")
    found = {}
    for path in (SCALE_FILES / "smoke.yaml", mine):
        _, section, seed = config.section(path, name)
        rows = pd.DataFrame([{"quantity": "nothing", "kind": "exact", "value": 1.0}])
        estimates.write(tmp_path / "e.csv", rows, config.grid_name(path, name, section, seed))
        command = ("claims", name, "--config", path, "--claims", CLAIMS / f"{name}.yaml")
        out = ("--estimates", tmp_path / "e.csv", "--out", tmp_path)
        assert run(capsys, *command, *out)[0] == 0
        read = pd.read_csv(tmp_path / "claims.csv", keep_default_na=False)
        found[path] = read[["id", "verdict", "parameters"]]
        assert not (read["parameters"] == "paper").any()
    pd.testing.assert_frame_equal(*found.values())


def test_the_published_run_is_known_by_its_content_and_root_seed():
    files = [SCALE_FILES / f"{scale}.yaml" for scale in ("laptop", "smoke", "cifar10-jpeg")]
    laptop, smoke, jpeg = (config.section(path, "worst_case_init") for path in files)
    assert levels.published("worst_case_init", *laptop[1:])
    for _, section, seed in (smoke, jpeg, (None, laptop[1], laptop[2] + 1)):
        assert not levels.published("worst_case_init", section, seed)
