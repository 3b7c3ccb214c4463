"""CSV files that carry what they were made of and a digest of themselves, in two columns.

Readers refuse a file whose digest is not that of its other columns: one that was cut or edited.
"""

import hashlib
import json
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd

from hiddenstate.errors import InputError
from hiddenstate.files import atomic, text

MADE_OF, DIGEST, EMPTY = "made_of", "digest", "no rows"


def of(values: Any) -> str:
    """Digest of plain JSON values, such as of the digests of files by their names."""
    return _short(json.dumps(values, sort_keys=True))


def write(path: Path, frame: pd.DataFrame, made_of: str) -> str:
    """Write a table as CSV with the digest of what it was made of, and its own; return that."""
    frame = frame.assign(**{MADE_OF: made_of})
    own = _short(frame.to_csv(index=False))
    with atomic(path) as temporary:
        # Without rows there is no field to hold the digest, so the column's head holds it.
        last = DIGEST if len(frame) else f"{EMPTY} {own}"
        frame.assign(**{last: own}).to_csv(temporary, index=False)
    return own


def digest_of(path: Path) -> str:
    """Digest that a file of ``write`` carries; InputError where it was cut or edited."""
    content = text(path, "a CSV file that carries its digest")
    try:
        frame = pd.read_csv(StringIO(content), dtype=str, keep_default_na=False)
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise InputError(f"{path}: not a readable CSV file ({error})") from error
    return str(check(path, content, frame).attrs[DIGEST])


def check(path: str | Path, content: str, frame: pd.DataFrame) -> pd.DataFrame:
    """The table of a file without the two columns, whose values are in its ``attrs``.

    content: the file's text. InputError where they are absent, or not those of the content.
    """
    what = f"{path}: its rows are not what was written; the file was cut or edited"
    bare = content.split("\n", 1)[0].rpartition(",")[0] + "\n"
    last = DIGEST if len(frame) else f"{EMPTY} {_short(bare)}"
    if not {MADE_OF, last} <= set(frame) or frame.columns[-1] != last:
        raise InputError(what)
    made, own = (
        # pandas reads an empty field as NaN.
        pd.Series(["" if pd.isna(value) else str(value) for value in frame[name]], dtype=str)
        for name in (MADE_OF, last)
    )
    if len(frame):
        # The digest is of the text: numbers that are read and written again may have other digits.
        bare = content.replace(f",{own.iloc[0]}\n", "\n")
        if made.nunique() != 1 or own.nunique() != 1:
            raise InputError(what)
        if own.iloc[0] != _short(bare.replace(f",{DIGEST}\n", "\n", 1)):
            raise InputError(what)
    found = frame.drop(columns=[MADE_OF, last])
    found.attrs = {key: next(iter(rows), "") for key, rows in ((MADE_OF, made), (DIGEST, own))}
    return found


def _short(content: str) -> str:
    # A letter first: all digits would be read as a number.
    return f"d{hashlib.sha256(content.encode()).hexdigest()[:20]}"


def write_page(path: Path, content: str, made_of: str) -> None:
    """Write HTML or Markdown, with a comment of what it was made of and its own digest."""
    with atomic(path) as temporary:
        temporary.write_text(_sealed_page(content, made_of), encoding="utf-8")


def check_page(path: Path, made_of: str) -> None:
    """InputError for a page that is not as it was written, or made of something else."""
    again = "remove it and run again"
    content = text(path, "a page of verdicts")
    own, _, comment = content.rpartition("<!-- ")
    found = comment.partition(" ")[0]
    if content != _sealed_page(own, found):
        raise InputError(f"{path}: is not the file that was written; {again}")
    if found != made_of:
        raise InputError(f"{path}: was made of other verdicts than those beside it; {again}")


def _sealed_page(content: str, made_of: str) -> str:
    return f"{content}<!-- {made_of} {of([content, made_of])} -->\n"


MANIFEST = "digests.json"
"""Beside figures and tables: the digest of each, and of the estimates that it is drawn from."""


def sign(folder: Path, names: Mapping[str, str]) -> None:
    """Enter files of a folder into its manifest; ``names`` are theirs, each with its estimates."""
    place = folder / MANIFEST
    entries = _entries(place) if place.is_file() else {}
    for name, made_of in names.items():
        entries[name] = {DIGEST: _bytes(folder / name), MADE_OF: made_of}
    with atomic(place) as temporary:
        temporary.write_text(json.dumps(entries, indent=1, sort_keys=True) + "\n", "utf-8")


def signed(path: Path, made_of: str | None = None) -> str:
    """Digest of the estimates that a figure or table was drawn from.

    InputError where the file is not as it was drawn, or, if ``made_of`` is given, drawn from other
    estimates.
    """
    place = path.parent / MANIFEST
    entry = _entries(place).get(path.name)
    again = f"by {place}; remove both and run again"
    if entry is None or entry[DIGEST] != _bytes(path):
        raise InputError(f"{path}: is not the file that was drawn, {again}")
    if made_of is not None and entry[MADE_OF] != made_of:
        raise InputError(f"{path}: was drawn from other estimates, {again}")
    return entry[MADE_OF]


def _entries(place: Path) -> dict[str, dict[str, str]]:
    content = text(place, "the digests of figures or tables beside them")
    try:
        found = json.loads(content)
        return {
            name: {key: str(entry[key]) for key in (DIGEST, MADE_OF)}
            for name, entry in found.items()
        }
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise InputError(f"{place}: not the digests that were written ({error!r})") from error


def _bytes(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
