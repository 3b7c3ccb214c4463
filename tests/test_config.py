import json
import math
from copy import deepcopy
from pathlib import Path

import pytest
import yaml

from hiddenstate import config, papers
from hiddenstate.errors import InputError
from hiddenstate.family import Cell, Grid

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
    path = change(tmp_path, "worst_case_init", "tasks", "mnist", "step", value=5)
    with pytest.raises(InputError, match=r"tasks\.mnist\.step: is not a known key.* steps"):
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


NAMES = ["$(touch PWNED)", "../../../evil", "my scale", "a;b", "a\nb", "", "-x", "x" * 200]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_a_shell_or_a_path_could_take_amiss_are_refused(tmp_path, name):
    content = yaml.safe_load((ROOT / "workflow/config/scales/smoke.yaml").read_text())
    tasks = content["worst_case_init"]["tasks"]
    for i, (place, key) in enumerate([(tasks, name), (tasks["digits"], "model")]):
        before = dict(place)
        place[key] = deepcopy(tasks["digits"]) if i == 0 else name
        path = tmp_path / "odd.yaml"
        path.write_text(yaml.safe_dump(content))
        with pytest.raises(InputError, match=r"worst_case_init\.tasks\.") as caught:
            config.read(path)
        assert "String should match pattern".lower() in str(caught.value).lower()
        assert len(str(caught.value)) < 1000
        place.clear()
        place.update(before)
    with pytest.raises(InputError, match=r"expected letters, digits and _ . \+ - alone"):
        Cell(name, Grid())


BAD = [
    math.nan,
    math.inf,
    1e12,
    1e-320,
    -1,
    10**40,
    True,
    "1:30",
    "7",
    "",
    None,
    [],
    {},
    "x" * 9999,
]


def leaves(node, place=()):
    """Every place in nested mappings and lists."""
    pairs = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in pairs:
        yield (*place, key)
        if isinstance(value, dict | list):
            yield from leaves(value, (*place, key))


def put(node, place, value):
    """A copy of nested mappings and lists with another value at a place."""
    if not place:
        return value
    copy = dict(node) if isinstance(node, dict) else list(node)
    copy[place[0]] = put(node[place[0]], place[1:], value)
    return copy


@pytest.mark.parametrize("name", papers.names())
def test_whatever_stands_in_a_scale_file_is_used_or_refused_by_name(name):
    content = yaml.safe_load((ROOT / "workflow/config/scales/smoke.yaml").read_text())
    family, model, section = papers.load(name), config._model((name,)), content[name]
    for place in leaves(section):
        for value in BAD:
            changed = {"seed": 1, name: put(section, place, value)}
            try:
                scale = config._checked("odd.yaml", model, changed)
                jobs = family.jobs(getattr(scale, name))
            except InputError as error:
                message = str(error)
                # What is wrong in a whole section is named within it.
                assert ".".join(map(str, place)) in message
                assert f"odd.yaml: {name}" in message
                assert len(message) < 2000
            else:
                # What is used is no slip: a number for a number, text for text, an empty list.
                old = section
                for key in place:
                    old = old[key]
                optional = value is None or (value == [] and isinstance(old, list))
                assert optional or isinstance(value, str) == isinstance(old, str), place
                assert isinstance(value, bool) == isinstance(old, bool), place
                assert sum(map(len, jobs.values())) < 10_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: &a [1]\nb: &b [*a, *a]\nc: [*b, *b]\n", "references"),
        ("? [a]\n: 1\n", "is no word"),
        ("2020-01-01: 1\n", "the key '2020-01-01' is no word"),
        ("<<: {a: 1}\n", "the key '<<' is no word"),
        (f"{'k' * 900}: 1\nseed: 1\n", r"k{200}: is not a known key"),
        (f"extends: {'k' * 9999}\n", "expected the name of a scale"),
        ("[" * 9999, "nested too deep"),
        ("- " * 9999, "not valid YAML"),
        ("#" * 1_000_001, "has 1000001 characters"),
        (f"seed: {'9' * 9999}\n", "not valid YAML"),
        ("seed: true\n", "seed: got True; input should be a valid integer"),
        ("seed: '1'\n", "seed: got '1'; input should be a valid integer"),
        ("seed: 2020-01-01\n", "seed: got '2020-01-01'; input should be a valid integer"),
    ],
)
def test_a_message_about_odd_yaml_is_short(tmp_path, text, expected):
    with pytest.raises(InputError, match=expected) as caught:
        config.read(scale(tmp_path, "odd", text))
    assert len(str(caught.value)) < 1500


def test_of_many_problems_the_first_are_told(tmp_path):
    path = change(tmp_path, "encoding_loss", "epsilons", value=["x"] * 999)
    with pytest.raises(InputError, match=r"and 979 more problems") as caught:
        config.read(path)
    assert len(str(caught.value).splitlines()) == 21


def test_sweeps_of_too_many_combinations_are_refused(tmp_path):
    many = [float(i) for i in range(1, 200)]
    sweep = {"task": "mnist", "epsilons": many, "clipping_norms": [*many]}
    path = change(tmp_path, "worst_case_init", "figure4", value=[sweep])
    with pytest.raises(InputError, match=r"figure4\.0: got 39601 combinations"):
        config.read(path)


def test_two_values_of_one_name_are_refused(tmp_path):
    path = change(tmp_path, "linear_heuristic", "figure5", "epsilons", value=[1.0, 1.0])
    family, grid, _ = config.section(path, "linear_heuristic")
    with pytest.raises(InputError, match="two cells are named bounds/figure5_eps1"):
        family.jobs(grid)
