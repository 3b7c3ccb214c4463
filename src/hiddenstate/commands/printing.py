"""Printing of the commands: tables for people, JSON for programs."""

import argparse
import json
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
    """The rows of a table, with every digit; nan is null."""
    rows: list[dict[str, Any]] = json.loads(frame.to_json(orient="records", double_precision=15))
    return rows


def duration(seconds: float) -> str:
    """A time in hours, minutes or seconds, with two digits."""
    if seconds < 1e-3:
        return "less than 1 ms"
    unit, size = next((u for u in (("h", 3600), ("min", 60)) if seconds >= u[1]), ("s", 1))
    return f"{float(f'{seconds / size:.2g}'):g} {unit}"
