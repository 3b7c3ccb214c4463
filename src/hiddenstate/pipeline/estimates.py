"""Estimates: tidy rows, one point each, of which figures, tables and claims are made.

Every family's estimates share these columns and add the parameters of its cells:

* ``quantity``  what was estimated, such as "epsilon" or "fnr"
* ``cell``      the cell it belongs to
* ``method``    how, such as "pld" or "clopper-pearson"
* ``kind``      "upper" or "lower" bound, "exact", "estimate" (which bounds nothing), or "expected"
  (what audits give on average, which the experimenter computes and no adversary; no bound)
* ``x``         the argument, for curves (for "fnr" it is the false-positive rate)
* ``value``     the number; ``low`` and ``high`` its confidence interval where it has one
* ``confidence`` of the bound or interval; empty where there is none
* ``grid``      family, scale and digest, by ``config.grid_name``: the same in every row, so that no
  figure, table or verdict is made of another scale's estimates
"""

from collections.abc import Iterable
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hiddenstate.errors import InputError
from hiddenstate.files import text
from hiddenstate.pipeline import sealed

COLUMNS = ("quantity", "cell", "method", "kind", "x", "value", "low", "high", "confidence", "grid")
NUMBERS = ("x", "value", "low", "high", "confidence")
KINDS = ("upper", "lower", "exact", "estimate", "expected")


def write(path: str | Path, estimates: pd.DataFrame, grid: str, made_of: str = "") -> None:
    """Write estimates as CSV, the shared columns first, every digit kept.

    made_of: digest of the scores and bounds that they were made of, by ``sealed.of``.
    """
    estimates = estimates.assign(grid=grid)
    estimates = estimates.reindex(columns=[*COLUMNS, *estimates.columns.difference(COLUMNS)])
    unknown = set(estimates["kind"]) - set(KINDS)
    if unknown:
        raise ValueError(f"unknown kinds of estimate: {sorted(map(str, unknown))}")
    claimed = estimates.loc[estimates["kind"] == "expected", "confidence"].notna()
    if claimed.any():
        raise ValueError("expected audits bound nothing, and have no confidence")
    sealed.write(Path(path), estimates, made_of)


def read(path: str | Path, grid: str) -> pd.DataFrame:
    """Estimates of a file written by ``write``.

    One of another grid, or one that was cut or edited, is refused. ``attrs`` of what is returned
    hold its digest, and that of what it was made of.
    """
    content = text(path, "estimates written by `hiddenstate job estimate`")
    try:
        estimates = pd.read_csv(StringIO(content))
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise InputError(f"{path}: not a readable CSV file ({error})") from error
    missing = [name for name in COLUMNS if name not in estimates]
    if missing:
        raise InputError(f"{path}: lacks the columns {', '.join(missing)}")
    # pandas would read a number that is cut short as a shorter number.
    if not content.endswith("\n"):
        raise InputError(f"{path}: ends within a line; the file is cut short")
    if estimates.empty:
        raise InputError(f"{path}: has no rows; expected estimates")
    others = estimates.loc[estimates["grid"] != grid, "grid"]
    if len(others):
        raise InputError(f"{path}: grid: got {str(others.iloc[0])[:200]!r}; expected {grid!r}")
    for name in NUMBERS:
        column = estimates[name]
        if not pd.api.types.is_numeric_dtype(column):
            wrong = column[column.notna() & pd.to_numeric(column, errors="coerce").isna()]
            got = str(next(iter(wrong), column.iloc[0]))[:100]
            raise InputError(f"{path}: {name}: got {got!r}; expected numbers")
    unknown = sorted({str(kind)[:100] for kind in estimates["kind"]} - set(KINDS))
    if unknown:
        raise InputError(f"{path}: kind: got {unknown[0]!r}; expected one of {', '.join(KINDS)}")
    # The digest last, for the checks above say what is wrong.
    return sealed.check(path, content, estimates)


def select(frame: pd.DataFrame, **values: Any) -> pd.DataFrame:
    """Rows whose columns have these values; a list, set or tuple allows any of its values.

    None asks for an empty field.
    """
    kept = np.ones(len(frame), bool)  # pandas' own masks align their indices, at twice the price
    for column, value in values.items():
        field = frame[column]
        if value is None:
            kept &= field.isna().to_numpy()
        elif isinstance(value, list | set | tuple):
            kept &= field.isin(value).to_numpy()
        else:
            kept &= (field == value).to_numpy(dtype=bool, na_value=False)
    return frame.take(np.flatnonzero(kept))


def summarise(rows: pd.DataFrame, by: str | Iterable[str], value: str = "value") -> pd.DataFrame:
    """Mean, sd (nan for one row), maximum and number n of each group, in the order of the rows.

    Rows with an empty field in ``by`` are left out.
    """
    groups = rows.groupby([by] if isinstance(by, str) else list(by), sort=False)[value]
    return groups.agg(mean="mean", sd="std", maximum="max", n="size").reset_index()


def largest(rows: pd.DataFrame, column: str, by: list[str]) -> pd.DataFrame:
    """Rows with the largest value of a column among those that agree in ``by``."""
    return rows[rows[column] == rows.groupby(by)[column].transform("max")]


def plus_minus(mean: float, sd: float, digits: int = 2) -> str:
    """ "mean ± sd" as tables and claims write it; the mean alone where there is no sd."""
    words = f"{mean:.{digits}f}"
    return words if pd.isna(sd) else f"{words} ± {sd:.{digits}f}"
