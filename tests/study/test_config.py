import hashlib
import json
import math
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from command_line import shipped_scales

from hiddenstate import papers
from hiddenstate.errors import InputError
from hiddenstate.pipeline.cells import Cell, FamilyGrid, Grid
from hiddenstate.study import config

ROOT = Path(__file__).parents[2]
SCALES = shipped_scales()


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
        ("extends: none\n", "extends: got .none.; expected a scale"),
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
                scale = config.checked("odd.yaml", model, changed, ())
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
        ("a:\n  b: 2020-01-01\n", r"got a value of type timestamp; .*\n.*line 2, column 6"),
        ("a: !!set {a, b}\n", "got a value of type set; expected text, in quotes, a number or a"),
        ("a: !!binary aGVsbG8=\n", "got a value of type binary"),
        ("a: !!omap [a: 1]\n", "got a value of type omap"),
        ('a:\n  b: "a\\uD800b"\n', r"'a\\ud800b' has half of a character; .*\n.*line 2, column 6"),
        ('a: {"\\uDFFF": 1}\n', r"'\\udfff' has half of a character"),
        ('a: "\\uD7FF\\uE000"\n', "a: is not a known key"),
        (f"{'k' * 900}: 1\nseed: 1\n", r"k{200}: is not a known key"),
        (f"extends: {'k' * 9999}\n", "expected the name of a scale"),
        ("[" * 9999, "nested too deep"),
        ("- " * 9999, "not valid YAML"),
        ("#" * 1_000_001, "has 1000001 characters"),
        (f"seed: {'9' * 9999}\n", "not valid YAML"),
        ("seed: true\n", "seed: got True; input should be a valid integer"),
        ("seed: '1'\n", "seed: got '1'; input should be a valid integer"),
        ("seed: 2020-01-01\n", "got a value of type timestamp"),
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
    path = change(tmp_path, "linear_heuristic", "figure5", "epsilons", value=[1.0, 1.0000001])
    wanted = r"changed\.yaml: linear_heuristic: two cells are named bounds/figure5_eps1"
    with pytest.raises(InputError, match=wanted):
        config.section(path, "linear_heuristic")
    with pytest.raises(InputError, match=wanted):
        config.read(path)


@pytest.mark.parametrize(
    ("keys", "value", "wanted"),
    [
        (("sequential", "looks"), [5, 10, 10, 20], "each once, but 10 stands twice"),
        (("sequential", "looks"), [20, 10], "them in ascending order"),
        (("sequential", "truths"), [0.5, 1.0, 0.5], "each once, but 0.5 stands twice"),
    ],
)
def test_lists_have_each_value_once_and_looks_ascend(tmp_path, keys, value, wanted):
    path = change(tmp_path, "estimators", *keys, value=value)
    key = r"changed\.yaml: " + r"\.".join(("estimators", *keys))
    with pytest.raises(InputError, match=rf"{key}: got .*; expected {wanted}"):
        config.read(path)


def test_what_figures_say_of_a_scale_is_not_another_one_s(tmp_path):
    """ "the paper's own parameters, 2 x 5,000 runs" stood below a run of 200."""
    scale(tmp_path, "laptop", (ROOT / "workflow/config/scales/laptop.yaml").read_text())
    own = "extends: laptop\nonly: [encoding_loss]\nencoding_loss: {runs: 200, repeats: 2}\n"
    grid = config.section(scale(tmp_path, "own", own), "encoding_loss")[1]
    assert grid.shows == "as scale laptop, but for runs, repeats"
    more = scale(tmp_path, "more", "extends: own\nencoding_loss: {shows: mine, runs: 300}\n")
    assert config.section(more, "encoding_loss")[1].shows == "mine"
    same = scale(tmp_path, "same", "extends: laptop\nonly: [encoding_loss]\n")
    assert "own parameters" in config.section(same, "encoding_loss")[1].shows


@pytest.mark.parametrize("name", ["laptop", "paper", "mnist"])
def test_no_scale_calls_what_a_text_does_not_state_the_papers_own(name):
    """Delta of one text and the standard epsilon of the other are ours."""
    path = ROOT / f"workflow/config/scales/{name}.yaml"
    grids = config.read(path)
    families = [one for one in ("encoding_loss", "linear_heuristic") if hasattr(grids, one)]
    assert families
    for family in families:
        shows = getattr(grids, family).shows
        assert shows.startswith("the paper's own parameters where stated, "), family


@pytest.mark.parametrize("value", ['!!bool "x"', '!!timestamp "x"'])
def test_a_tag_is_no_value(tmp_path, value):
    with pytest.raises(InputError, match=r"own\.yaml: not valid YAML"):
        config.read(scale(tmp_path, "own", f"seed: {value}\n"))


def test_a_scale_has_only_the_families_that_it_names(tmp_path):
    laptop = (ROOT / "workflow/config/scales/laptop.yaml").read_text()
    scale(tmp_path, "laptop", laptop)
    path = scale(tmp_path, "own", "extends: laptop\nonly: [linear_heuristic]\n")
    assert config.families(config.read(path)) == ["linear_heuristic"]
    with pytest.raises(InputError, match=r"own\.yaml: has no section atlas"):
        config.section(path, "atlas")
    # What extends it may widen it again.
    wider = scale(tmp_path, "wider", "extends: own\nonly: [atlas, linear_heuristic]\n")
    assert config.families(config.read(wider)) == ["atlas", "linear_heuristic"]


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        (
            "[linear_heuristik]",
            "only: got 'linear_heuristik'; expected a family with a section: en",
        ),
        ("[atlas]", "only: got 'atlas'; expected a family with a section: encoding_loss$"),
        ("[1]", "only: got 1; expected a family"),
        ("atlas", "only: got 'atlas'; expected a list of families"),
        ("[]", r"only: got \[\]; expected a list of families"),
        ("[encoding_loss, encoding_loss]", "only: got .*; expected each once, but 'encodi"),
    ],
)
def test_families_that_a_scale_cannot_have_are_refused(tmp_path, only, expected):
    path = scale(tmp_path, "own", f"seed: 1\nencoding_loss: {{}}\nonly: {only}\n")
    with pytest.raises(InputError, match=rf"own\.yaml: {expected}"):
        config.read(path)


def test_each_shipped_scale_has_the_families_that_it_is_for():
    every = set(papers.names())
    expected = {"smoke": every, "laptop": every, "paper": every, "mnist": {"linear_heuristic"}}
    for path in SCALES:
        families = set(config.families(config.read(path)))
        assert families == expected.get(path.stem, {"worst_case_init"}), path.stem


def test_a_family_that_is_half_written_leaves_the_others_alone(tmp_path, monkeypatch):
    package = tmp_path / "half"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from hiddenstate.pipeline import family\nFAMILY = family.Famly\n"
    )
    monkeypatch.setattr(papers, "__path__", [*papers.__path__, str(tmp_path)])
    smoke = ROOT / "workflow/config/scales/smoke.yaml"
    assert "half" in papers.names()
    assert "half" not in config.families(config.read(smoke))
    content = smoke.read_text() + "\nhalf: {shows: nothing}\n"
    with pytest.raises(
        InputError, match=r"papers\.half cannot be loaded: AttributeError.*\(line 2"
    ):
        config.read(scale(tmp_path, "own", content))


def refusals(path):
    with pytest.raises(InputError) as caught:
        config.read(path)
    return [line.partition("yaml: ")[2] for line in str(caught.value).splitlines()]


@pytest.fixture
def smoke(tmp_path):
    scale(tmp_path, "smoke", (ROOT / "workflow/config/scales/smoke.yaml").read_text())
    return tmp_path


def setting(directory, **values):
    content = {"extends": "smoke", "atlas": {"settings": [{"title": "t", "setting": values}]}}
    return scale(directory, "own", yaml.safe_dump(content))


def test_of_several_models_only_the_nearest_one_s_problems_are_told(smoke):
    poisson = {"noise_multiplier": -1.0, "sampling_rate": 0.1, "steps": 100}
    key = "atlas.settings.0.setting"
    problem = f"{key}.noise_multiplier: got -1.0; input should be greater than 0.1"
    assert refusals(setting(smoke, **poisson)) == [problem]
    cyclic = {"noise_multiplier": -1.0, "records": 10, "batch_size": 5, "steps": 100}
    assert refusals(setting(smoke, **cyclic)) == [problem]
    slip = {"noise_multiplier": 1.0, "sampling_rate": 0.1, "steps": 100, "stpes": 1}
    (line,) = refusals(setting(smoke, **slip))
    assert line.startswith(f"{key}.stpes: is not a known key; expected one of noise_multiplier, s")
    assert "records" not in line


def test_two_families_may_have_a_class_of_one_name(smoke, monkeypatch):
    """Messages and the schema of the one do not change with the other."""
    before, schema = refusals(setting(smoke, noise_multiplier=-1.0)), config.schema()

    class Poisson(Grid):
        rate: float

    class OtherGrid(FamilyGrid):
        sampling: Poisson | None = None

    load = papers.load
    other = replace(load("encoding_loss"), grid=OtherGrid)
    monkeypatch.setattr(
        papers, "load", lambda name: other if name == "encoding_loss" else load(name)
    )
    config._model.cache_clear()
    try:
        path = setting(smoke, noise_multiplier=-1.0)
        path.write_text(path.read_text() + "encoding_loss: null\n")
        assert refusals(path) == before
        changed = config.schema()
    finally:
        config._model.cache_clear()
    same = {key for key in schema["$defs"] if not key.startswith("encoding_loss")}
    assert same and all(changed["$defs"][key] == schema["$defs"][key] for key in same)


def test_a_check_within_a_section_is_told_with_its_whole_path(tmp_path):
    weights = tmp_path / "w.npz"
    weights.write_bytes(b"")
    stages = [
        {"dataset": "mnist", "epochs": 1, "batch_size": 8, "learning_rate": 0.1},
        {"weights": str(weights), "sha256": hashlib.sha256(b"").hexdigest()},
    ]
    path = change(tmp_path, "worst_case_init", "tasks", "mnist", "pretraining", value=stages)
    (line,) = refusals(path)
    assert line.startswith("worst_case_init.tasks.mnist.pretraining.1")


def test_a_file_that_extends_what_is_not_there_is_named(tmp_path):
    path = scale(tmp_path, "own", "extends: nowhere\n")
    expected = rf"own\.yaml: extends: got 'nowhere'; expected a scale, .* {tmp_path}/nowhere\.yaml$"
    with pytest.raises(InputError, match=expected):
        config.read(path)


def test_known_keys_are_all_that_a_file_may_have(smoke):
    (line,) = refusals(scale(smoke, "own", "extends: smoke\nsead: 1\n"))
    known = ", ".join(["seed", "extends", "only", *papers.names()])
    assert line == f"sead: is not a known key; expected one of {known}"
