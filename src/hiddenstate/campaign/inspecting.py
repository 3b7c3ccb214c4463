"""The white-box check of a training that is observed anyway, imported when it is needed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def inspecting(**claimed: float | None) -> Iterator[dict[str, Any]]:
    """Fill in the report on what is trained meanwhile, as JSON; nothing without steps of Opacus.

    claimed: ``noise_multiplier``, ``sampling_rate`` and ``steps``.
    """
    from hiddenstate.campaign import recording, whitebox

    report: dict[str, Any] = {}
    with recording.recording(claimed.get("noise_multiplier")) as recorded:
        yield report
    if recorded.steps:
        names = {name.replace("_", " "): value for name, value in claimed.items()}
        found = whitebox.judge(recorded, names).confirmed(None)
        report |= found.as_json() | {"words": found.words(), "noise": recorded.noise}
