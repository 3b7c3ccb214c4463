"""Estimates: tidy rows, one point each, of which figures, tables and claims are made.

Every family's estimates share these columns and add the parameters of its cells:

* ``quantity``  what was estimated, such as "epsilon" or "fnr"
* ``cell``      the cell it belongs to
* ``method``    how, such as "pld" or "clopper-pearson"
* ``kind``      "upper" or "lower" bound, "exact", or "estimate" (which bounds nothing)
* ``x``         the argument, for curves (for "fnr" it is the false-positive rate)
* ``value``     the number; ``low`` and ``high`` its confidence interval where it has one
* ``confidence`` of the bound or interval; empty where there is none
"""

from pathlib import Path

import pandas as pd

from hiddenstate.errors import InputError
from hiddenstate.files import atomic, require

COLUMNS = ("quantity", "cell", "method", "kind", "x", "value", "low", "high", "confidence")
KINDS = ("upper", "lower", "exact", "estimate")


def write(path: str | Path, estimates: pd.DataFrame) -> None:
    """Write estimates as CSV, the shared columns first, every digit kept."""
    estimates = estimates.reindex(columns=[*COLUMNS, *estimates.columns.difference(COLUMNS)])
    unknown = set(estimates["kind"]) - set(KINDS)
    if unknown:
        raise ValueError(f"unknown kinds of estimate: {sorted(map(str, unknown))}")
    with atomic(path) as temporary:
        estimates.to_csv(temporary, index=False)


def read(path: str | Path) -> pd.DataFrame:
    """Estimates of a file written by ``write``."""
    require(path, "estimates written by `hiddenstate estimates`")
    try:
        estimates = pd.read_csv(path)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a readable CSV file ({error})") from error
    missing = [name for name in COLUMNS if name not in estimates]
    if missing:
        raise InputError(f"{path}: lacks the columns {', '.join(missing)}")
    return estimates
