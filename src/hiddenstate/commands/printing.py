"""Printing of the commands: tables for people, JSON for programs."""

import argparse
import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def print_json(found: Any) -> None:
    """Print JSON, with every digit; infinite numbers and nan as Python writes them."""
    print(json.dumps(found, indent=2, ensure_ascii=False))


def print_table(frame: "pd.DataFrame", options: argparse.Namespace) -> None:
    """Print a table, or its rows as JSON."""
    if options.json:
        print_json(records(frame))
    else:
        print(frame.to_markdown(index=False))


def records(frame: "pd.DataFrame") -> list[dict[str, Any]]:
    """The rows of a table, with every digit; what is not finite is null."""
    return [{str(k): _plain(v) for k, v in row.items()} for row in frame.to_dict("records")]


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # NumPy's numbers and arrays
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def duration(seconds: float) -> str:
    """A time in hours, minutes or seconds, with two digits."""
    if seconds < 1e-3:
        return "less than 1 ms"
    unit, size = next((u for u in (("h", 3600), ("min", 60)) if seconds >= u[1]), ("s", 1))
    return f"{float(f'{seconds / size:.2g}'):g} {unit}"
