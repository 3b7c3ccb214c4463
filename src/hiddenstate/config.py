"""Scale files: read, checked, typed.

A scale file (``workflow/config/scales/<scale>.yaml``) holds the root seed and a section for each
family that the scale has. It is checked against the families' ``Grid`` models before any work
starts; the JSON schema of the whole is generated from the same models (``hiddenstate schema``).
"""

from functools import cache
from pathlib import Path
from typing import Any, get_origin

import yaml
from pydantic import BaseModel, Field, ValidationError, create_model

from hiddenstate import papers
from hiddenstate.errors import InputError
from hiddenstate.files import require


@cache
def model() -> type[BaseModel]:
    """The closed model of a scale file: ``seed`` and a section for each family it has."""
    sections: dict[str, Any] = {
        name: (
            family.grid | None,
            Field(default=None, description=f"{family.title} ({family.reference})"),
        )
        for name in papers.names()
        for family in [papers.load(name)]
    }
    return create_model(
        "Scale",
        __base__=papers.Grid,
        __doc__="Everything that decides the numbers of a scale.",
        seed=(int, Field(ge=0, description="root seed of every random stream")),
        **sections,
    )


def read(path: str | Path) -> Any:
    """The scale file at ``path`` as a checked model; an error names file, key and value."""
    require(path, "a scale file such as workflow/config/scales/laptop.yaml")
    try:
        content = yaml.safe_load(Path(path).read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected keys and values, got {type(content).__name__}")
    try:
        scale = model().model_validate(content)
    except ValidationError as error:
        raise InputError(_explain(path, error)) from error
    if not families(scale):
        raise InputError(f"{path}: expected a section for one of {', '.join(papers.names())}")
    return scale


def families(scale: Any) -> list[str]:
    """Names of the families that a scale has a section for."""
    return [name for name in papers.names() if getattr(scale, name) is not None]


def schema() -> dict[str, Any]:
    """JSON schema of a scale file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **model().model_json_schema(),
    }


def _explain(path: str | Path, error: ValidationError) -> str:
    lines = []
    for problem in error.errors(include_url=False):
        key = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "missing":
            lines.append(f"{path}: {key}: is missing")
        elif problem["type"] == "extra_forbidden":
            known = ", ".join(_siblings(problem["loc"]))
            lines.append(f"{path}: {key}: is not a known key; expected one of {known}")
        else:
            message = problem["msg"].removeprefix("Value error, ")
            if problem["type"] == "value_error" and isinstance(problem["input"], dict):
                # A check of a whole section names key and value itself.
                lines.append(f"{path}: {key}: {message}")
                continue
            lines.append(
                f"{path}: {key}: got {problem['input']!r}; {message[0].lower()}{message[1:]}"
            )
    return "\n".join(lines)


def _siblings(location: tuple[int | str, ...]) -> list[str]:
    """Keys that would have been allowed where ``location`` ends."""
    node: Any = model()
    for part in location[:-1]:
        if part not in node.model_fields:
            continue  # the place in a list, or a key of a mapping
        node = node.model_fields[part].annotation
        while not hasattr(node, "model_fields"):
            node = node.__args__[1 if get_origin(node) is dict else 0]
    return list(node.model_fields)
