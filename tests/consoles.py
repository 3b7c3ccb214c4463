"""The console blocks of the pages: commands with what they print.

``python tests/consoles.py README.md docs/*.md`` runs them and writes what they print now.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def commands(block):
    r"""The commands of a block and what stands below each; a command ends without a ``\``."""
    pairs = []
    going_on = False
    for line in block.splitlines():
        if going_on:
            pairs[-1][0] += "\n" + line
        elif line.startswith("$ "):
            pairs.append([line[2:], []])
        else:
            pairs[-1][1].append(line)
        going_on = line.endswith("\\") and (going_on or line.startswith("$ "))
    return [(command, lines) for command, lines in pairs]


def pairs(page):
    """All commands of a page with what it says that they print."""
    return [pair for block in BLOCK.findall(page.read_text()) for pair in commands(block)]


def printed(command):
    """What a command prints, with its errors in their place; only this package's are run."""
    if not re.match(r"(hiddenstate|cat|head|echo|python examples/)", command):
        raise ValueError(f"{command}: a page shows the output of a command that is not ours")
    where = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "COLUMNS": "80"}
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, cwd=ROOT, env=where
    )
    return (done.stdout + done.stderr).rstrip("\n").splitlines()


def agree(found, stated):
    """Whether a page states what is printed; a line ``...`` stands for any number of lines."""
    lines = [r"(?:.*\n)*?" if line == "..." else re.escape(line) + r"\n" for line in stated]
    return re.fullmatch("".join(lines), "".join(f"{line}\n" for line in found)) is not None


def main(pages):
    """Write what the commands of pages print now; a block with ``...`` is left to a person."""
    for page in map(Path, pages):

        def now(block):
            lines = []
            for command, stated in commands(block[1]):
                kept = "..." in stated
                lines += [f"$ {command}", *(stated if kept else printed(command))]
            return "```console\n" + "\n".join(lines) + "\n```"

        page.write_text(BLOCK.sub(now, page.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
