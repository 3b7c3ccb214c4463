"""Scale files: read, checked, typed.

A scale file (``workflow/config/scales/<scale>.yaml``) holds the root seed and a section for each
family that the scale has. It is checked against the families' ``Grid`` models before any work
starts; the JSON schema of the whole is generated from the same models (``hiddenstate schema``).

``extends: other`` takes everything from the scale file of that name in the same directory and
says only what differs: mappings are merged, lists and values replaced, and null removes a key.
``only: [family, …]`` leaves out all other families, those that are added later too.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Hashable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, Field, ValidationError, create_model

from hiddenstate import papers
from hiddenstate.errors import InputError, expect
from hiddenstate.files import text
from hiddenstate.pipeline.cells import NAME, Grid
from hiddenstate.pipeline.family import Family


def read(path: str | Path) -> Any:
    """The scale file at ``path`` as a checked model; an error names file, key and value."""
    content = _sections(Path(path))
    # A family that the scale does not have may be half written.
    present = tuple(name for name in papers.names() if content.get(name) is not None)
    scale = checked(path, _model(present), content, _keys())
    if not present:
        raise InputError(f"{path}: expected a section for one of {', '.join(papers.names())}")
    for name in present:
        _check_cells(path, name, getattr(scale, name))
    return scale


def section(path: str | Path, name: str) -> tuple[Family, Any, int]:
    """A family, its checked section of a scale file, and the root seed; looks at no other."""
    family = papers.load(name)
    content = _sections(Path(path))
    if content.get(name) is None:
        raise InputError(f"{path}: has no section {name}")
    part = {key: content[key] for key in ("seed", name) if key in content}
    scale = checked(path, _model((name,)), part, _keys())
    grid = getattr(scale, name)
    _check_cells(path, name, grid)
    return family, grid, scale.seed


def _check_cells(path: str | Path, name: str, grid: Grid) -> None:
    """Refuse a section beyond its family's limits, or whose lists hold a value twice.

    Also one with two cells of one name, or with none.
    """
    for problem in papers.load(name).limits(grid):
        raise InputError(f"{path}: {name}.{problem}")
    for key, values, twice in _repeated(grid.model_dump(), name):
        raise InputError(_twice(path, key, values, twice))
    try:
        jobs = papers.load(name).jobs(grid)
    except InputError as error:
        raise InputError(f"{path}: {name}: {error}") from error
    if not any(jobs.values()):
        raise InputError(f"{path}: {name}: has nothing to compute; expected figures or tables")


def _repeated(value: Any, key: str) -> Iterator[tuple[str, Any, Any]]:
    """Lists within a value in which an entry stands twice: key, list and entry."""
    if isinstance(value, dict):
        for inner, one in value.items():
            yield from _repeated(one, f"{key}.{inner}")
    elif isinstance(value, list):
        for i, one in enumerate(value):
            if one in value[:i]:
                yield key, value, one
            yield from _repeated(one, f"{key}.{i}")


def _twice(path: str | Path, key: str, values: Any, twice: Any) -> str:
    return (
        f"{path}: {key}: got {_shown(values)}; expected each once, but {_shown(twice)} stands twice"
    )


SCALE = r"[A-Za-z0-9_-]+"
"""Pattern of a scale's name, which is that of its file and of folders of results and figures."""


def grid_name(path: str | Path, name: str, grid: Any, seed: int) -> str:
    """Name of a family's section and seed, which its estimates carry."""
    content = json.dumps({"seed": seed, "grid": grid.model_dump(mode="json")}, sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()
    return f"{name} at {Path(path).stem} ({digest[:12]})"


def grid_names(path: str | Path) -> dict[str, str]:
    """Name of each family's section and seed at a scale, by family."""
    scale = read(path)
    return {
        name: grid_name(path, name, getattr(scale, name), scale.seed) for name in families(scale)
    }


def families(scale: Any) -> list[str]:
    """Names of the families that a scale has a section for."""
    return [name for name in papers.names() if getattr(scale, name, None) is not None]


@cache
def _model(names: tuple[str, ...]) -> type[BaseModel]:
    """The closed model of a scale file: ``seed`` and a section for each of these families."""
    sections: dict[str, Any] = {name: (papers.load(name).grid | None, None) for name in names}
    return create_model(
        "Scale",
        __base__=Grid,
        __doc__="Everything that decides the numbers of a scale.",
        seed=(int, Field(ge=0, lt=2**63, description="root seed of every random stream")),
        **sections,
    )


def schema() -> dict[str, Any]:
    """JSON schema of a scale file."""
    described = _model(()).model_json_schema()
    described["properties"] |= {
        "extends": {
            "type": "string",
            "pattern": f"^{NAME}$",
            "description": "a scale file beside this one, of which only what differs is said",
        },
        "only": {
            "type": "array",
            "items": {"enum": papers.names()},
            "maxItems": len(papers.names()),
            "uniqueItems": True,
            "description": "families that the scale has, of all whose sections there are",
        },
    }
    definitions: dict[str, Any] = {}
    for name in papers.names():
        family = papers.load(name)
        # Each family by itself: two may have a class of the same name.
        section = family.grid.model_json_schema(ref_template=f"#/$defs/{name}.{{model}}")
        inner = section.pop("$defs", {})
        definitions |= {f"{name}.{key}": value for key, value in inner.items()}
        definitions[name] = section
        described["properties"][name] = {
            "anyOf": [{"$ref": f"#/$defs/{name}"}, {"type": "null"}],
            "description": f"{family.title} ({family.reference})",
        }
    # What is not said may come from the file that is extended.
    described |= {"required": [], "$defs": definitions}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **described}


class _Loader(yaml.SafeLoader):
    """YAML in which a slip is an error: no key twice, no references, keys and numbers as in JSON.

    Plain YAML takes the last of two equal keys, 1:30 for 90 and 010 for 8, and lets references
    grow a line into gigabytes.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012 (as the base class has it)
        first: [rule for rule in rules if not rule[0].endswith((":int", ":float"))]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def fetch_flow_collection_start(self, token: type[yaml.Token]) -> None:
        # The scanner takes the square of the depth.
        if self.flow_level >= 20:
            raise yaml.MarkedYAMLError(problem="nested too deep", problem_mark=self.get_mark())
        super().fetch_flow_collection_start(token)

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.MarkedYAMLError(problem="references (*) are not read", problem_mark=mark)
        return super().compose_node(parent, index)

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        node = super().compose_scalar_node(anchor)
        # An escape can write half of a character, which no JSON has.
        if not node.value.isascii() and any("\ud800" <= sign <= "\udfff" for sign in node.value):
            problem = f"{_shown(node.value)} has half of a character; expected whole ones"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            problem = ""
            if key.tag != "tag:yaml.org,2002:str":
                problem = f"the key {_shown(key.value)} is no word"
            elif key.value in seen:
                problem = f"the key {_shown(key.value)} stands twice"
            if problem:
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def _refuse(_: yaml.SafeLoader, node: yaml.Node) -> Any:
    kind = node.tag.rpartition(":")[2]
    problem = f"got a value of type {kind}; expected text, in quotes, a number or a list"
    raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


for _kind in ("timestamp", "binary", "set", "omap", "pairs"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _refuse)

_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?\.inf|\.nan")
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?\d+$"), [*"-+0123456789"])
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(rf"(?:{_NUMBER.pattern})$"), [*"-+.0123456789"]
)
_Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(node.value))


@lru_cache(maxsize=8)
def _loaded(written: str) -> Any:
    # Every paper's rules read the scale file, in one process.
    return yaml.load(written, _Loader)


def _sections(path: Path) -> dict[str, Any]:
    """Keys and values of a scale file, with the sections of those families alone that it has."""
    content = _content(path)
    if "only" not in content:
        return content
    only = content.pop("only")
    if not (isinstance(only, list) and only):
        raise InputError(f"{path}: only: got {_shown(only)}; expected a list of families")
    for name in only:
        if not isinstance(name, str) or content.get(name) is None:
            present = ", ".join(key for key in papers.names() if content.get(key) is not None)
            raise InputError(
                f"{path}: only: got {_shown(name)}; expected a family with a section: {present}"
            )
    for key, names, twice in _repeated(only, "only"):
        raise InputError(_twice(path, key, names, twice))
    left_out = set(papers.names()) - set(only)
    return {key: value for key, value in content.items() if key not in left_out}


def loaded(path: Path, what: str) -> dict[str, Any]:
    """Keys and values of a YAML file, read strictly; an error names the file and the line."""
    written = text(path, what)
    if len(written) > 1_000_000:
        raise InputError(f"{path}: has {len(written)} characters; expected at most a million")
    try:
        content = _loaded(written)
    # A tag makes its constructor fail in ways of its own.
    except (yaml.YAMLError, RecursionError, ValueError, LookupError, AttributeError) as error:
        raise InputError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected keys and values, got {type(content).__name__}")
    return content


def _content(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Keys and values of a scale file, with those of the files that it extends."""
    content = loaded(path, "a scale file such as workflow/config/scales/laptop.yaml")
    if "extends" not in content:
        return content
    base, content = content["extends"], {k: v for k, v in content.items() if k != "extends"}
    if not (isinstance(base, str) and re.fullmatch(NAME, base)):
        raise InputError(f"{path}: extends: got {_shown(base)}; expected the name of a scale")
    other = path.with_name(f"{base}.yaml")
    if other in (*seen, path):
        raise InputError(f"{path}: extends: got {base!r}, which extends this file")
    expect(other.is_file(), f"{path}: extends", base, f"a scale, but there is no {other}")
    below = _content(other, (*seen, path))
    for name in papers.names():
        section = content.get(name)
        # The words of the other scale's figures would be of its own numbers.
        if isinstance(section, dict) and section and "shows" not in section and name in below:
            content[name] = section | {"shows": f"as scale {base}, but for {', '.join(section)}"}
    return _overlaid(below, content)


def _overlaid(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Mappings merged key by key; anything else is replaced, and null removes."""
    merged = dict(below)
    for key, value in above.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(below.get(key), dict):
            merged[key] = _overlaid(below[key], value)
        else:
            merged[key] = value
    return merged


def _keys() -> tuple[str, ...]:
    return ("seed", "extends", "only", *papers.names())


def checked(
    path: str | Path, expected: type[BaseModel], content: dict[str, Any], known: tuple[str, ...]
) -> Any:
    """The content of a file as a model; an error names file, key and value.

    known: the keys that the file may have.
    """
    try:
        # Strict as JSON is: true is no number, nor is a number in quotes.
        return expected.model_validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        raise InputError(_explain(path, expected, error, known)) from error


_LONGEST = 200
"""Characters of a value, or of a key, that an error message shows."""
_MOST = 20
"""Problems that an error message lists."""


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"


def _explain(
    path: str | Path, expected: type[BaseModel], error: ValidationError, top: tuple[str, ...]
) -> str:
    found = [(problem, _Place(expected, problem["loc"])) for problem in error.errors()]
    # Where one of several models may stand, the problems of the one that is nearest are told.
    problems: Counter[tuple[Keys, str]] = Counter()
    for _, place in found:
        problems.update(place.chosen.items())
    nearest = {keys: member for (keys, member), _ in problems.most_common()}
    told = [
        (problem, place)
        for problem, place in found
        if all(nearest[keys] == member for keys, member in place.chosen.items())
    ]
    lines = []
    for problem, place in told[:_MOST]:
        key = ".".join(str(part)[:_LONGEST] for part in place.keys)
        if problem["type"] == "missing":
            lines.append(f"{path}: {key}: is missing")
        elif problem["type"] == "extra_forbidden":
            known = [*place.siblings]
            if len(place.keys) == 1:
                known = [*top]
            lines.append(f"{path}: {key}: is not a known key; expected one of {', '.join(known)}")
        else:
            message = problem["msg"].removeprefix("Value error, ")
            if problem["type"] == "value_error" and isinstance(problem["input"], dict):
                # A check of a whole section names key and value itself.
                inner = re.match(r"[a-z_][\w.]*: ", message)
                lines.append(f"{path}: {key}{'.' if inner else ': '}{message}")
                continue
            got = _shown(problem["input"])
            lines.append(f"{path}: {key}: got {got}; {message[0].lower()}{message[1:]}")
    if len(told) > _MOST:
        lines.append(f"{path}: and {len(told) - _MOST} more problems")
    return "\n".join(lines)


Keys = tuple[int | str, ...]


class _Place:
    """Where in a file a problem is, from pydantic's location of it.

    keys: as they stand in the file. siblings: keys that the mapping may have in which the last of
    them stands. chosen: the member that was tried wherever one of several may stand, which pydantic
    names within the location.
    """

    def __init__(self, expected: Any, location: Keys) -> None:
        self.keys: Keys = ()
        self.siblings: list[str] = []
        self.chosen: dict[Keys, str] = {}
        node: Any = expected
        for part in location:
            members = _members(node)
            if len(members) > 1 and self.keys not in self.chosen:
                tag = str(part)
                self.chosen[self.keys] = tag
                named = [m for m in members if re.search(rf"\b{_name(m)}\b", tag)]
                node = named[0] if named else None
                continue
            node = members[0] if members else None
            self.keys += (part,)
            if hasattr(node, "model_fields"):
                self.siblings = list(node.model_fields)
                field = node.model_fields.get(part)
                node = field.annotation if field else None
            else:
                inner = get_args(node)
                node = inner[-1] if inner else None


def _members(node: Any) -> list[Any]:
    """The types that may stand somewhere, except for None; those inside Annotated."""
    if get_origin(node) is Annotated:
        return _members(get_args(node)[0])
    if get_origin(node) in (Union, UnionType):
        return [m for inner in get_args(node) for m in _members(inner)]
    return [] if node in (None, NoneType) else [node]


def _name(member: Any) -> str:
    return re.escape(getattr(member, "__name__", str(member)))
