"""Every figure and table on one page, with captions and commands: ``docs/gallery.md``.

The pictures are kept in the repository, in ``figures/published/<family>/``, each at its best scale
and small enough for that. The README beside them says which run made them.
"""

import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path

from hiddenstate import papers
from hiddenstate.errors import InputError
from hiddenstate.files import atomic
from hiddenstate.pipeline import scores, sealed
from hiddenstate.pipeline.family import Figure
from hiddenstate.study import config

PUBLISHED = Path("figures/published")
"""Where pictures are kept, seen from the tree's top: a folder a family."""
WIDTH = 900
"""Pixels that a picture is wide at most."""
SCALES = ("paper", "mnist", "laptop")
"""Whose figures are taken where nobody says otherwise, the best first."""

_HEAD = """# Every figure and table

Each figure is shown at the best scale that was run; its command draws it. Files are in
`figures/<scale>/<family>/` (PDF and PNG) and `results/<scale>/<family>/tables/` (CSV, Markdown and
LaTeX). A family's cells are shared by all it shows, so the second figure takes seconds. The page is
made by `hiddenstate gallery`; with the name of a family, its pictures alone are made again.
"""


_RUNS = """# Published figures

The pictures that README, documentation and site show. `hiddenstate gallery` makes them from the
figures of a run. A run of yours writes its own to `figures/<scale>/`. The digest is that of the
estimates, as the run's `report.html` has it.

| paper | scale (digest of its estimates) | commit | published |
|---|---|---|---|"""


def write(out: Path, scales: Sequence[Path], families: Sequence[str] = ()) -> None:
    """Write the page, and pictures of these families, or else of all, into ``PUBLISHED``.

    That is a folder of the tree in whose ``docs`` the page is. ``scales`` are folders of figures
    such as ``figures/laptop``, the best first: a figure is taken from the first that has it.
    Without any, and for other families, the pictures stay. One that is nowhere is an error that
    names it, as is one drawn from other estimates than those in ``results/<scale>`` beside it.
    """
    for name in families:
        papers.load(name)
    # Not resolved: the target of a link has a name of its own. It is Path that leaves ".." in.
    scales = [Path(os.path.abspath(scale)) for scale in scales]
    for folder in scales:
        if not re.fullmatch(config.SCALE, folder.name):
            raise InputError(
                f"--figures: got {folder}; expected a folder with the name of a scale, such as "
                "figures/laptop"
            )
    kept = {}
    if out.exists():
        # The page itself says which scale a picture that stays is of.
        kept = dict(re.findall(r"reproduce (\w+) --config scale=([\w-]+)", out.read_text("utf-8")))
    parts = [_HEAD]
    made: dict[str, dict[str, str]] = {}
    # All are read before one is replaced.
    pictures: dict[Path, bytes] = {}
    for name in papers.names():
        family = papers.load(name)
        parts.append(f"## {family.title}\n\n`{name}`, {family.reference}\n")
        for key, figure in family.figures.items():
            place = out.parent.parent / PUBLISHED / name / f"{key}.png"
            scale = kept.get(f"{name}_{key}")
            if scales and (not families or name in families):
                source = _best(scales, name, key)
                scale, digests = source.parts[-3], made.setdefault(name, {})
                # The figures beside it have to agree with it.
                estimates = source.parents[3] / "results" / scale / name / "estimates.csv"
                known = scale in digests or not estimates.exists()
                of = sealed.signed(source, None if known else sealed.digest_of(estimates))
                if digests.setdefault(scale, of) != of:
                    raise InputError(
                        f"{source}: was drawn of other estimates than the figures beside it; draw "
                        f"all of them (./reproduce {name})"
                    )
                pictures[place] = _small(source)
            if scale is None or not (place in pictures or place.is_file()):
                raise InputError(
                    f"{out}: has no picture of {name} {key} yet; draw it (./reproduce "
                    f"{name}_{key}) and make it by `hiddenstate gallery {name}`"
                )
            picture = Path("..", PUBLISHED, name, f"{key}.png")
            parts.append(entry(name, key, figure, scale, picture))
        parts.append("### Tables\n")
        listed = [f"- `{key}`: *{t.title}.* {t.caption}" for key, t in family.tables.items()]
        parts.append("\n".join(listed) + "\n")
    for place, content in pictures.items():
        with atomic(place) as temporary:
            temporary.write_bytes(content)
    with atomic(out) as temporary:
        temporary.write_text("\n".join(parts), encoding="utf-8")
    if made:
        _write_runs(out.parent.parent / PUBLISHED / "README.md", made)


def _write_runs(place: Path, made: dict[str, dict[str, str]]) -> None:
    """Say which run made the pictures of each family; those of other families stay as they are."""
    lines = {}
    if place.exists():
        lines = dict(re.findall(r"^(\| `(?:\w+)` \|)(.*)$", place.read_text("utf-8"), re.MULTILINE))
    told = f"{scores.commit() or 'unknown'} | {datetime.now(UTC):%Y-%m-%d} |"
    for name, digests in made.items():
        scales = ", ".join(f"`{scale}` (`{digest}`)" for scale, digest in digests.items())
        lines[f"| `{name}` |"] = f" {scales} | {told}"
    rows = [f"{head}{lines[head]}" for name in papers.names() if (head := f"| `{name}` |") in lines]
    with atomic(place) as temporary:
        temporary.write_text("\n".join([_RUNS, *rows, ""]), encoding="utf-8")


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
            return path
    raise InputError(
        f"no figure {name}/{key}.png in {', '.join(map(str, scales)) or 'no folder'}; "
        f"expected it in one of them (./reproduce {name}_{key} draws it)"
    )


def _small(path: Path) -> bytes:
    """A picture, narrowed; few colours would tint grids and bands."""
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
    picture.save(found, format="PNG", optimize=True)
    return found.getvalue()
