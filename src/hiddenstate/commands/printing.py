"""``--json``: the numbers that a command prints, for programs."""

import argparse
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def add_json(parser: argparse.ArgumentParser, instead: str = "a table") -> None:
    """The option, which every command that prints numbers has."""
    parser.add_argument("--json", action="store_true", help=f"print JSON instead of {instead}")


def print_json(found: Any) -> None:
    """Print JSON, with every digit; infinite numbers and nan as Python writes them."""
    print(json.dumps(found, indent=2, ensure_ascii=False))


def records(frame: "pd.DataFrame") -> list[dict[str, Any]]:
    """The rows of a table, with every digit; nan is null."""
    rows: list[dict[str, Any]] = json.loads(frame.to_json(orient="records", double_precision=15))
    return rows
