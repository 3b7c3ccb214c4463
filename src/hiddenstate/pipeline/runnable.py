"""Find what a section of a scale file asks for that no job could do, before any of them starts."""

import re
from collections.abc import Iterator
from typing import Any

from hiddenstate.datasets import data

IMAGE = (3, 32, 32)
MODELS: dict[str, tuple[int, ...] | None] = {
    **{"mnist_cnn": (1, 28, 28), "mnist_linear": (1, 28, 28), "cifar_cnn": IMAGE},
    **{"digits_cnn": (1, 8, 8), "digits_mlp": (1, 8, 8), "digits_resnet": (1, 8, 8)},
    **{"fcnn": (8,), "resnet18": IMAGE, "wrn_16_4": IMAGE, "features": None},
}
"""The shape of a record by the name of a model; None where any number of features will do."""
# Of digits and housing, what is left beside the fifth that is the test split.
DATA: dict[str, tuple[tuple[int, ...], int]] = {
    "digits": ((1, 8, 8), 1438),
    "housing": ((8,), 16_512),
    "mnist": ((1, 28, 28), 60_000),
    "cifar10": (IMAGE, 50_000),
    "cifar100": (IMAGE, 50_000),
}
"""The shape of a record, and the number of training records, by the name of a data set."""


def problems(
    section: dict[str, Any], path: str = "", source: str = "", available: float = float("inf")
) -> Iterator[str]:
    """Key, value and reason of whatever cannot run, of a section and all that is in it.

    source, available: the data set of what the section is a part of, and how many records of it
    there are to train on. A part that is named as a data set is about that one.
    """
    if "dataset" in section:
        source = str(section["dataset"])
        kind, _, name = source.partition(":")
        known = source in DATA or (kind == "raw" and name in DATA) or kind in ("folder", "features")
        if not known or source.endswith(":"):
            yield (
                f"{path}dataset: got {source!r}; expected one of {', '.join(DATA)}, "
                "raw:<one of these>, folder:<path> or features:<file>"
            )
            return
        available = DATA[source.removeprefix("raw:")][1] if kind not in data.LAYOUTS else available
        available = available // 2 if section.get("half") else available
    if "model" in section:
        yield from _unfit(str(section["model"]), source, path)
    if "private" in section and source.removeprefix("raw:") in DATA:
        # Of an odd number, the private half has one record more, as ``Dataset.halves`` cuts it.
        half = (available + 1) // 2
        if section["private"] != half:
            yield f"{path}private: got {section['private']}; expected {half}, half of {source}"
    records = section.get("records")
    if isinstance(records, int):
        if records > available:
            yield f"{path}records: got {records}; expected at most {available}, those of {source}"
        available = records
    for key in ("batch_size", "batch"):
        size = section.get(key)
        size = size * section.get("batches", 1) if isinstance(size, int) else 0
        # Where batches are counted, the canary is one of their records, and takes none of the data.
        if size > available + ("batches" in section):
            yield (
                f"{path}{key}: got {section[key]}; expected batches of at most {available} records"
            )
    for key in ("shows", "title"):
        if isinstance(section.get(key), str) and (reason := undrawable(section[key])):
            yield f"{path}{key}: got {section[key][:100]!r}; {reason}"
    for key, value in section.items():
        inner = value if isinstance(value, list | tuple) else [value]
        for i, one in enumerate(inner):
            if isinstance(one, dict):
                at = f"{path}{key}.{i}." if inner is value else f"{path}{key}."
                about = (key, DATA[key][1]) if key in DATA else (source, available)
                yield from problems(one, at, *about)


def _unfit(model: str, source: str, path: str) -> Iterator[str]:
    if model not in MODELS:
        yield f"{path}model: got {model!r}; expected one of {', '.join(MODELS)}"
        return
    shape: tuple[int, ...] | None = IMAGE if source.startswith("folder:") else None
    if source.removeprefix("raw:") in DATA:
        shape = DATA[source.removeprefix("raw:")][0]
    given = "features" if shape is None else "x".join(map(str, shape))
    taken = "features" if MODELS[model] is None else "x".join(map(str, MODELS[model] or ()))
    if given != taken:
        yield (
            f"{path}model: got {model!r}, which takes records of {taken}; "
            f"expected one for those of {source}, {given}"
        )


def undrawable(words: str) -> str:
    """Reason that a caption cannot be drawn; empty where it can."""
    if not words.isprintable():
        return "expected characters that can be printed, on one line"
    # Most captions end here, without matplotlib, which takes a while to import.
    if words.isascii() and "$" not in words:
        return ""
    from matplotlib import font_manager, mathtext

    if "$" in words:
        try:
            mathtext.MathTextParser("path").parse(words)
        except ValueError as error:
            return f"expected a formula between two $ ({str(error).splitlines()[-1].strip()})"
    font = font_manager.get_font(font_manager.findfont("DejaVu Sans"))
    drawn = re.sub(r"\$[^$]*\$", "", words)
    absent = [letter for letter in drawn if ord(letter) not in font.get_charmap()]
    return f"expected letters of the figures' font, which lacks {absent[0]!r}" if absent else ""
