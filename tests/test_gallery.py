"""The gallery: that of the repository, and one of invented pictures."""

import io
import re
from pathlib import Path

import pytest
from PIL import Image

from hiddenstate import gallery, papers
from hiddenstate.errors import InputError

PAGE = Path(__file__).parents[1] / "docs/gallery.md"


def figures():
    return {(n, k): f for n in papers.names() for k, f in papers.load(n).figures.items()}


def test_the_repository_shows_every_figure_as_it_is_described():
    text = PAGE.read_text()
    seen = set()
    for (name, key), figure in figures().items():
        picture = Path(f"gallery/{name}_{key}.png")
        match = re.search(rf"`\./reproduce {name}_{key} --config scale=([\w-]+)`", text)
        assert match, f"{name}_{key}: draw it and run `hiddenstate gallery`"
        assert gallery.entry(name, key, figure, match[1], picture) in text
        with Image.open(PAGE.parent / picture) as image:
            image.load()
            assert 200 < image.width <= gallery.WIDTH
        seen.add(PAGE.parent / picture)
    assert set((PAGE.parent / "gallery").iterdir()) == seen
    assert sum(path.stat().st_size for path in seen) < 3e6


def test_the_best_scale_that_has_a_figure_gives_it(tmp_path):
    best = ("encoding_loss", "figure1")
    for scale, shade, names in (("paper", 10, [best]), ("laptop", 200, figures())):
        for name, key in names:
            path = tmp_path / "figures" / scale / name / f"{key}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (2000, 800), shade).save(path)
    out = tmp_path / "docs/gallery.md"
    scales = [tmp_path / "figures" / scale for scale in ("paper", "laptop")]
    gallery.write(out, scales)
    text = out.read_text()
    assert re.findall(r"\w+ --config scale=paper", text) == [
        "encoding_loss_figure1 --config scale=paper"
    ]
    assert text.count("--config scale=laptop") == len(figures()) - 1
    with Image.open(tmp_path / "docs/gallery/encoding_loss_figure1.png") as image:
        assert image.size == (900, 360)
        assert image.convert("L").getpixel((0, 0)) == 10
    (scales[1] / "estimators/detection.png").unlink()
    with pytest.raises(InputError, match=r"no figure estimators/detection\.png in .*laptop"):
        gallery.write(out, scales)


def test_a_thin_line_keeps_its_colour_among_many_greys(tmp_path):
    """A palette by frequency gave lines and markers the grey of the letters' edges."""
    picture = Image.linear_gradient("L").resize((800, 400)).convert("RGB")
    colours = [(222, 143, 5), (1, 115, 178), (204, 120, 188), (2, 158, 115)]
    for row, colour in enumerate(colours):
        picture.paste(colour, (10, 20 + 30 * row, 40, 22 + 30 * row))
    picture.save(tmp_path / "figure.png")
    with Image.open(io.BytesIO(gallery._small(tmp_path / "figure.png"))) as small:
        for row, colour in enumerate(colours):
            found = small.convert("RGB").getpixel((20, 20 + 30 * row))
            assert max(abs(a - b) for a, b in zip(found, colour, strict=True)) < 30
