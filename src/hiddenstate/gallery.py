"""The gallery: every figure at its best scale, small enough to be kept in the repository."""

import inspect
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from hiddenstate import papers
from hiddenstate.errors import InputError
from hiddenstate.family import Figure
from hiddenstate.files import atomic

WIDTH = 900
"""Pixels that a picture is wide at most."""
COLOURS = 128
"""Colours of a picture: enough for lines, and a third of the bytes."""

_HEAD = """# Gallery

Every figure that the package draws, each at the best scale at hand, made by `hiddenstate gallery`
from the workflow's own figures. What is drawn in full, with its caption, is in `figures/<scale>/`
after a run; [the list of figures](figures.md) has the captions, the report of a run the claims.
"""


def write(out: Path, scales: Sequence[Path]) -> None:
    """Write the page, and its pictures into a folder of the same name beside it.

    ``scales`` are folders of figures such as ``figures/laptop``, the best first: a figure is taken
    from the first that has it. One that none has is an error that names it.
    """
    parts = [_HEAD]
    for name in papers.names():
        family = papers.load(name)
        parts.append(f"## {family.title}\n\n`{name}`, {family.reference}\n")
        for key, figure in family.figures.items():
            source = _best(scales, name, key)
            picture = Path(out.stem) / f"{name}_{key}.png"
            with atomic(out.parent / picture) as temporary:
                temporary.write_bytes(_small(source))
            parts.append(entry(name, key, figure, source.parts[-3], picture))
    with atomic(out) as temporary:
        temporary.write_text("\n".join(parts), encoding="utf-8")


def entry(name: str, key: str, figure: Figure, scale: str, picture: Path) -> str:
    """The lines of one figure: title, picture, one sentence, and the command that draws it."""
    sentence = inspect.getdoc(figure.draw) or figure.title
    return (
        f"### {figure.title}\n\n![{figure.title}]({picture.as_posix()})\n\n"
        f"{sentence.splitlines()[0]} `./reproduce {name}_{key} --config scale={scale}`\n"
    )


def _best(scales: Sequence[Path], name: str, key: str) -> Path:
    for scale in scales:
        path = scale / name / f"{key}.png"
        if path.is_file():
            return path.resolve()
    raise InputError(
        f"no figure {name}/{key}.png in {', '.join(map(str, scales)) or 'no folder'}; "
        f"expected it in one of them (./reproduce {name}_{key} draws it)"
    )


def _small(path: Path) -> bytes:
    """A picture, narrowed and with few colours."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            picture = image.convert("RGB")
    except OSError as error:
        raise InputError(f"{path}: not a readable picture ({error})") from error
    if picture.width > WIDTH:
        height = round(picture.height * WIDTH / picture.width)
        picture = picture.resize((WIDTH, height), Image.Resampling.LANCZOS)
    found = BytesIO()
    few = picture.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(found, format="PNG", optimize=True)
    return found.getvalue()
