"""Pages show what the commands print."""

import re

import consoles
import pytest

PAGES = [consoles.ROOT / "README.md", *sorted((consoles.ROOT / "docs").glob("*.md"))]
LONG = "hiddenstate plan-audit"
"""A command that searches for numbers of models up to a million."""
SHOWN = [
    pytest.param(
        command,
        stated,
        id=f"{page.stem}-{i}",
        marks=pytest.mark.whole if command.startswith(LONG) else (),
    )
    for page in PAGES
    for i, (command, stated) in enumerate(
        pair
        for block in consoles.BLOCK.findall(page.read_text())
        for pair in consoles.commands(block)
    )
]


@pytest.mark.whole
@pytest.mark.parametrize(("command", "stated"), SHOWN)
def test_a_page_shows_what_its_command_prints(command, stated):
    found = consoles.printed(command)
    assert consoles.agree(found, stated), "python tests/consoles.py PAGE writes:\n" + "\n".join(
        found
    )


def test_a_changed_digit_is_found():
    command = "hiddenstate epsilon --noise-multiplier 1 --sampling-rate 0.1 --steps 10 --delta 1e-5"
    found = consoles.printed(command)
    assert consoles.agree(found, found)
    assert consoles.agree(found, [found[0], "...", found[-1]])
    changed = re.sub(r"\d(?=\D*$)", lambda digit: str((int(digit[0]) + 1) % 10), found[1])
    assert changed != found[1]
    assert not consoles.agree(found, [found[0], changed, *found[2:]])
    assert not consoles.agree(found, [found[0], changed, "...", found[-1]])
