import json
from pathlib import Path

import pytest
import yaml

from hiddenstate import config, papers
from hiddenstate.errors import InputError

ROOT = Path(__file__).parents[1]
SCALES = sorted((ROOT / "workflow/config/scales").glob("*.yaml"))


@pytest.mark.parametrize("path", SCALES, ids=lambda path: path.stem)
def test_every_shipped_scale_is_valid(path):
    assert config.read(path).seed >= 0


def test_the_shipped_schema_is_the_one_the_code_checks():
    shipped = json.loads((ROOT / "workflow/config/scale.schema.json").read_text())
    assert shipped == config.schema(), "run: hiddenstate schema > workflow/config/scale.schema.json"


def test_the_schema_is_closed_and_describes_every_key():
    schema = config.schema()
    for model in [schema, *schema["$defs"].values()]:
        if model.get("type") != "object":
            continue
        assert model["additionalProperties"] is False, model["title"]
        for name, entry in model["properties"].items():
            assert "description" in entry or "$ref" in entry, (model["title"], name)


def change(tmp_path, *path, value):
    content = yaml.safe_load((ROOT / "workflow/config/scales/laptop.yaml").read_text())
    node = content
    for part in path[:-1]:
        node = node[part]
    node[path[-1]] = value
    changed = tmp_path / "changed.yaml"
    changed.write_text(yaml.safe_dump(content))
    return changed


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (("encoding_loss", "curves", 0, "noise_multiplier"), -1.0, "greater than 0.1"),
        (("encoding_loss", "settings", 1, "sampling_rate"), 1.5, "less than or equal to 1"),
        (("encoding_loss", "settings", 0, "steps"), 0, "greater than or equal to 1"),
        (("encoding_loss", "delta"), 2.0, "less than 1"),
        (("encoding_loss", "runs"), "many", "valid integer"),
        (("encoding_loss", "rnus"), 5, "not a known key; expected one of shows, delta"),
        (("encoding_loss", "curves", 0, "sigma"), 5, "not a known key"),
        (("sead",), 5, "not a known key; expected one of seed"),
        (("seed",), -5, "greater than or equal to 0"),
    ],
)
def test_bad_values_are_told_with_file_key_value_and_expectation(tmp_path, path, value, expected):
    changed = change(tmp_path, *path, value=value)
    with pytest.raises(InputError) as caught:
        config.read(changed)
    message = str(caught.value)
    assert "changed.yaml" in message
    assert ".".join(map(str, path)) in message
    assert expected in message
    if "known key" not in expected:
        assert repr(value) in message


def test_a_missing_key_is_named(tmp_path):
    path = tmp_path / "short.yaml"
    path.write_text("seed: 1\nencoding_loss: {}\n")
    with pytest.raises(InputError, match=r"encoding_loss\.delta: is missing"):
        config.read(path)


def test_a_scale_may_leave_families_out_but_not_all(tmp_path):
    path = tmp_path / "part.yaml"
    content = yaml.safe_load((ROOT / "workflow/config/scales/laptop.yaml").read_text())
    path.write_text(yaml.safe_dump({k: content[k] for k in ("seed", "encoding_loss")}))
    assert config.families(config.read(path)) == ["encoding_loss"]
    path.write_text("seed: 1\n")
    with pytest.raises(InputError, match=r"expected a section for one of .*encoding_loss"):
        config.read(path)


@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
def test_the_scales_of_everything_leave_no_family_out(scale):
    found = config.read(ROOT / f"workflow/config/scales/{scale}.yaml")
    assert config.families(found) == papers.names()


def test_an_unknown_key_below_a_key_of_the_users_own_is_named(tmp_path):
    path = change(tmp_path, "worst_case_init", "tasks", "digits", "step", value=5)
    with pytest.raises(InputError, match=r"tasks\.digits\.step: is not a known key.* steps"):
        config.read(path)


@pytest.mark.parametrize("text", ["a: [1", "- 1\n", "", "\tx"])
def test_what_is_no_mapping_is_refused(tmp_path, text):
    path = tmp_path / "odd.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"odd\.yaml"):
        config.read(path)


def scale(directory, name, text):
    (directory / f"{name}.yaml").write_text(text)
    return directory / f"{name}.yaml"


def test_a_scale_that_extends_another_says_only_what_differs(tmp_path):
    scale(tmp_path, "base", "seed: 1\na: {b: 1, c: [1, 2], d: {e: 5}}\nf: 7\n")
    path = scale(tmp_path, "more", "extends: base\na: {c: [3], d: {g: 6}}\nf: null\n")
    assert config._content(path) == {"seed": 1, "a": {"b": 1, "c": [3], "d": {"e": 5, "g": 6}}}


@pytest.mark.parametrize("scale", ["paper"])
def test_the_paper_scale_says_only_what_differs_from_the_laptop(scale):
    own = yaml.safe_load((ROOT / f"workflow/config/scales/{scale}.yaml").read_text())
    base = yaml.safe_load((ROOT / f"workflow/config/scales/{own['extends']}.yaml").read_text())

    def repeated(above, below, place=""):
        for key in above.keys() & below.keys():
            if isinstance(above[key], dict) and isinstance(below[key], dict):
                yield from repeated(above[key], below[key], f"{place}{key}.")
            elif above[key] == below[key]:
                yield f"{place}{key}"

    assert list(repeated(own, base)) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("extends: none\n", r"none\.yaml: no such file"),
        ("extends: odd\n", r"odd\.yaml: extends: got 'odd', which extends this file"),
        ("extends: ../odd\n", r"extends: got '\.\./odd'; expected the name of a scale"),
        ("seed: 1\nseed: 2\n", "the key 'seed' stands twice"),
        ("seed: &a 1\nother: *a\n", "references"),
        ("seed: 1:30\n", "got '1:30'; input should be a valid integer"),
    ],
)
def test_a_slip_is_an_error(tmp_path, text, expected):
    with pytest.raises(InputError, match=expected):
        config.read(scale(tmp_path, "odd", text))


def test_a_leading_zero_is_no_octal_number(tmp_path):
    assert config._content(scale(tmp_path, "odd", "seed: 010\n")) == {"seed": 10}


def test_a_section_is_read_alone(tmp_path):
    path = change(tmp_path, "linear_heuristic", value={"nonsense": 1})
    family, grid, seed = config.section(path, "encoding_loss")
    assert (family.reference, grid.runs, seed) == ("arXiv 2407.06496", 5000, 20240709)
    with pytest.raises(InputError, match="nonsense"):
        config.section(path, "linear_heuristic")


def test_every_number_text_and_list_of_a_scale_file_has_bounds():
    lower, upper = {"minimum", "exclusiveMinimum"}, {"maximum", "exclusiveMaximum"}

    def unbounded(node, place):
        if isinstance(node, dict):
            kind, keys = node.get("type"), node.keys()
            if (
                (kind in ("number", "integer") and not (keys & lower and keys & upper))
                or (kind == "string" and not keys & {"maxLength", "pattern", "enum", "const"})
                or (kind == "array" and "maxItems" not in keys)
            ):
                yield place
            for key, value in node.items():
                yield from unbounded(value, f"{place}.{key}")
        elif isinstance(node, list):
            for value in node:
                yield from unbounded(value, place)

    assert sorted(set(unbounded(config.schema(), ""))) == []
