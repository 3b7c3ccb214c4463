"""Every figure and table on one page, with captions and commands: ``docs/gallery.md``.

The pictures are kept in the repository, each at its best scale and small enough for that.
"""

import re
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from hiddenstate import papers
from hiddenstate.errors import InputError
from hiddenstate.files import atomic
from hiddenstate.pipeline import sealed
from hiddenstate.pipeline.family import Figure

WIDTH = 900
"""Pixels that a picture is wide at most."""
COLOURS = 128
"""Colours of a picture: enough for lines, and a third of the bytes."""
SCALES = ("paper", "mnist", "laptop")
"""Whose figures are taken where nobody says otherwise, the best first."""

_HEAD = """# Every figure and table

Each figure is shown at the best scale at hand; its command draws it. Files are in
`figures/<scale>/<family>/` (PDF and PNG) and `results/<scale>/<family>/tables/` (CSV, Markdown and
LaTeX). A family's cells are shared by all it shows, so the second figure takes seconds. The page is
made by `hiddenstate gallery`; with the name of a family, its pictures alone are made again.
"""


def write(out: Path, scales: Sequence[Path], families: Sequence[str] = ()) -> None:
    """Write the page, and pictures of these families, or else of all, into a folder beside it.

    ``scales`` are folders of figures such as ``figures/laptop``, the best first: a figure is taken
    from the first that has it. Without any, and for other families, the pictures stay. One that is
    nowhere is an error that names it.
    """
    for name in families:
        papers.load(name)
    kept = {}
    if out.exists():
        kept = dict(re.findall(r"reproduce (\w+) --config scale=([\w-]+)", out.read_text("utf-8")))
    parts = [_HEAD]
    for name in papers.names():
        family = papers.load(name)
        parts.append(f"## {family.title}\n\n`{name}`, {family.reference}\n")
        for key, figure in family.figures.items():
            picture = Path(out.stem) / f"{name}_{key}.png"
            scale = kept.get(f"{name}_{key}")
            if scales and (not families or name in families):
                source = _best(scales, name, key)
                scale = source.parts[-3]
                with atomic(out.parent / picture) as temporary:
                    temporary.write_bytes(_small(source))
            if scale is None or not (out.parent / picture).is_file():
                raise InputError(
                    f"{out}: has no picture of {name} {key} yet; draw it (./reproduce "
                    f"{name}_{key}) and make it by `hiddenstate gallery {name}`"
                )
            parts.append(entry(name, key, figure, scale, picture))
        parts.append("### Tables\n")
        listed = [f"- `{key}`: *{t.title}.* {t.caption}" for key, t in family.tables.items()]
        parts.append("\n".join(listed) + "\n")
    with atomic(out) as temporary:
        temporary.write_text("\n".join(parts), encoding="utf-8")


def at_hand(folder: Path) -> list[Path]:
    """Figures of the usual scales in a folder such as ``figures``, the best first."""
    return [folder / scale for scale in SCALES if (folder / scale).is_dir()]


def entry(name: str, key: str, figure: Figure, scale: str, picture: Path) -> str:
    """The lines of one figure: title, picture, caption, and the command that draws it."""
    seen = figure.message or figure.title
    return (
        f"### {figure.title}\n\n![{seen}]({picture.as_posix()})\n\n"
        f"{figure.caption}\n\n`./reproduce {name}_{key} --config scale={scale}`\n"
    )


def _best(scales: Sequence[Path], name: str, key: str) -> Path:
    for scale in scales:
        path = scale / name / f"{key}.png"
        if path.is_file():
            sealed.signed(path)
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
