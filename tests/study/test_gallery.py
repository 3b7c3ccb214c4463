"""The gallery: that of the repository, and one of invented pictures."""

import io
import re
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from hiddenstate import cli, papers
from hiddenstate.errors import InputError
from hiddenstate.pipeline import sealed
from hiddenstate.study import gallery

PAGE = Path(__file__).parents[2] / "docs/gallery.md"


def figures():
    return {(n, k): f for n in papers.names() for k, f in papers.load(n).figures.items()}


def test_the_repository_shows_every_figure_as_it_is_described():
    text = PAGE.read_text()
    seen = set()
    for (name, key), figure in figures().items():
        picture = Path(f"../figures/published/{name}/{key}.png")
        match = re.search(rf"`\./reproduce {name}_{key} --config scale=([\w-]+)`", text)
        assert match, f"{name}_{key}: draw it and run `hiddenstate gallery {name}`"
        assert gallery.entry(name, key, figure, match[1], picture) in text
        with Image.open(PAGE.parent / picture) as image:
            image.load()
            assert 200 < image.width <= gallery.WIDTH
        seen.add(PAGE.parent / picture)
    published = PAGE.parents[1] / "figures/published"
    assert {path.resolve() for path in seen} == set(published.glob("*/*"))
    assert {path.name for path in published.iterdir()} == {*papers.names(), "README.md"}
    runs = (published / "README.md").read_text()
    for name in papers.names():
        row = rf"^\| `{name}` \| `\w+`.* \| [0-9a-f]+ \| [\d-]+ \|$"
        assert re.search(row, runs, re.M), f"{name}: commit, then run `hiddenstate gallery {name}`"
    assert sum(path.stat().st_size for path in seen) < 8e6


def test_the_page_is_the_families_own(tmp_path):
    """Captions and tables as they are, with the pictures that are there."""
    copy = tmp_path / "docs/gallery.md"
    copy.parent.mkdir()
    copy.write_text(PAGE.read_text())
    (tmp_path / "figures").symlink_to(PAGE.parents[1] / "figures")
    gallery.write(copy, [])
    assert copy.read_text() == PAGE.read_text(), "run: hiddenstate gallery --figures"


@pytest.fixture
def drawn(tmp_path):
    """A tree in which every figure is drawn at laptop scale, light, and one at paper's, dark."""
    for scale, shade, names in (
        ("paper", 10, [("encoding_loss", "figure1")]),
        ("laptop", 200, figures()),
    ):
        for name, key in names:
            path = tmp_path / "figures" / scale / name / f"{key}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (2000, 800), shade).save(path)
            sealed.sign(path.parent, {path.name: "of some estimates"})
    return tmp_path


def shade(path):
    with Image.open(path) as image:
        return image.convert("L").getpixel((0, 0))


@pytest.mark.whole
def test_the_best_scale_that_has_a_figure_gives_it(drawn, monkeypatch):
    monkeypatch.chdir(drawn)
    (drawn / "docs").mkdir()
    assert cli.main(["gallery"]) == 0
    text = (drawn / "docs/gallery.md").read_text()
    assert re.findall(r"\w+ --config scale=paper", text) == [
        "encoding_loss_figure1 --config scale=paper"
    ]
    assert text.count("--config scale=laptop") == len(figures()) - 1
    for name in papers.names():
        for key, table in papers.load(name).tables.items():
            assert f"- `{key}`: *{table.title}.* {table.caption}" in text
    with Image.open(drawn / "figures/published/encoding_loss/figure1.png") as image:
        assert image.size == (900, 360)
    assert shade(drawn / "figures/published/encoding_loss/figure1.png") == 10
    (drawn / "figures/laptop/estimators/detection.png").unlink()
    with pytest.raises(InputError, match=r"no figure estimators/detection\.png in .*laptop"):
        gallery.write(drawn / "docs/gallery.md", gallery.at_hand(drawn / "figures"))


@pytest.mark.whole
def test_the_scale_is_the_folder_s_own_name_and_its_figures_are_of_one_run(drawn):
    """A link's target has a name too, which no scale has."""
    out, folder = drawn / "docs/gallery.md", drawn / "figures/laptop"
    folder.rename(drawn / "run7")
    folder.symlink_to(drawn / "run7")
    gallery.write(out, [folder])
    assert "--config scale=laptop" in out.read_text() and "run7" not in out.read_text()
    sealed.sign(folder / "encoding_loss", {"figure2.png": "of older estimates"})
    # What is refused replaces no picture, also none of the families before.
    Image.new("L", (2000, 800), 90).save(folder / "atlas/atlas.png")
    sealed.sign(folder / "atlas", {"atlas.png": "of some estimates"})
    with pytest.raises(
        InputError, match=r"encoding_loss/figure2\.png: was drawn of other estimates"
    ):
        gallery.write(out, [folder])
    assert shade(drawn / "figures/published/atlas/atlas.png") == 200


@pytest.mark.whole
def test_pictures_of_other_estimates_than_those_beside_them_are_not_published(drawn):
    out = drawn / "docs/gallery.md"
    source = drawn / "results/laptop/atlas/estimates.csv"
    made_of = sealed.write(source, pd.DataFrame([{"value": 1.0}]), "scores")
    with pytest.raises(InputError, match=r"laptop/atlas/\w+\.png: was drawn from other estimates"):
        gallery.write(out, [drawn / "figures/laptop"])
    assert not out.exists()
    for path in drawn.glob("figures/laptop/atlas/*.png"):
        sealed.sign(path.parent, {path.name: made_of})
    gallery.write(out, [drawn / "figures/laptop"])
    assert made_of in (drawn / "figures/published/README.md").read_text()


@pytest.mark.whole
@pytest.mark.parametrize("typed", [".", "../laptop", "../paper/../laptop/"])
def test_a_scale_s_name_is_that_of_its_folder_however_the_path_is_typed(drawn, monkeypatch, typed):
    """It was "..", or an IndexError."""
    monkeypatch.chdir(drawn / "figures/laptop")
    out = drawn / "docs/gallery.md"
    out.parent.mkdir()
    assert cli.main(["gallery", "--figures", typed, "--out", str(out)]) in (0, None)
    assert set(re.findall(r"--config scale=(\S+)`", out.read_text())) == {"laptop"}


@pytest.mark.parametrize("folder", ["/", "figures/my run", "figures/v1.5"])
def test_a_folder_whose_name_is_no_scale_s_is_refused(tmp_path, capsys, folder):
    out = tmp_path / "docs/gallery.md"
    assert cli.main(["gallery", "--figures", folder, "--out", str(out)]) == 2
    assert "expected a folder with the name of a scale" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.whole
def test_one_paper_s_pictures_are_made_and_all_others_stay(drawn):
    out, scales = drawn / "docs/gallery.md", gallery.at_hand(drawn / "figures")
    with pytest.raises(InputError, match=r"no picture of atlas \w+ yet; draw it .*gallery atlas`"):
        gallery.write(out, scales, ["encoding_loss"])
    gallery.write(out, scales)
    before = out.read_text()
    for name, key in figures():
        path = drawn / "figures/laptop" / name / f"{key}.png"
        Image.new("L", (2000, 800), 90).save(path)
        sealed.sign(path.parent, {path.name: "of other estimates"})
    gallery.write(out, scales[1:], ["encoding_loss"])
    for name, key in figures():
        mine = name == "encoding_loss"
        assert shade(drawn / f"figures/published/{name}/{key}.png") == (90 if mine else 200), (
            name,
            key,
        )
    # Now it is the laptop scale's.
    assert out.read_text() == before.replace("scale=paper", "scale=laptop")
    with pytest.raises(InputError, match="unknown family 'toy'"):
        gallery.write(out, scales, ["toy"])


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
