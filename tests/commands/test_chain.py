"""From scores to the page, each file says what it was made of: no edit, cut or swap goes on."""

import io
import json
import random
import shutil
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import CLAIMS, SMOKE, run
from PIL import Image

from hiddenstate import cli
from hiddenstate.pipeline import scores
from hiddenstate.study import config as scale_files

pytestmark = pytest.mark.whole
FAMILY, OTHER = "encoding_loss", "atlas"
# Every file of a smoke run, of less: no change is found or overlooked for the number of cells.
SCALE = f"""
extends: smoke
only: [{FAMILY}, {OTHER}]
{FAMILY}:
  curves: [{{noise_multiplier: 4.0, sampling_rate: 0.1, steps: 100}}]
  settings: [{{sampling_rate: 0.1, steps: 100}}]
{OTHER}:
  settings:
    - title: "a tenth in every step"
      setting: {{noise_multiplier: 1.0, sampling_rate: 0.1, steps: 4}}
"""


def quietly(*arguments):
    assert cli.main(list(map(str, arguments))) == 0


def steps(place, config):
    """The commands of a run, by the name of what they make."""
    results, figures = place / "results", place / "figures"
    found = {}
    for name in (FAMILY, OTHER):
        here = results / name
        asked = (name, "--config", config)
        of = ("--estimates", here / "estimates.csv")
        found |= {
            f"{name} estimates": (
                *("estimate", *asked, "--results", here, "--out", here / "estimates.csv"),
            ),
            f"{name} figures": ("figures", *asked, *of, "--out", figures / name),
            f"{name} claims": (
                *("claims", *asked, *of, "--claims", CLAIMS / f"{name}.yaml", "--out", here),
                *("--tables", here / "tables"),
            ),
        }
    families = [results / name / "claims.csv" for name in (FAMILY, OTHER)]
    judged = ("--verdicts", results / "claims.csv", "--figures", figures, "--results", results)
    return found | {
        "verdicts": ("collect", *families, "--config", config, "--out", results),
        "page": (
            *("report", "--config", config, *judged),
            *("--cached", place / "cached", "--out", place / "report.html"),
        ),
    }


def make(place):
    """A run of two families, another seed's and another scale's beside it."""
    place.mkdir()
    shutil.copy(SMOKE, place / "smoke.yaml")
    for folder, seed in (("run", 20240709), ("seed", 7)):
        config = place / folder / "tiny.yaml"
        config.parent.mkdir()
        shutil.copy(SMOKE, config.with_name("smoke.yaml"))
        config.write_text(f"{SCALE}seed: {seed}\n")
        for name in (FAMILY, OTHER):
            family, grid, _ = scale_files.section(config, name)
            for kind in ("simulate", "bound"):
                jobs = family.jobs(grid)[kind]
                out = [
                    place / folder / "results" / name / job.work.folder / f"{cell}.parquet"
                    for cell, job in jobs.items()
                ]
                if jobs:
                    quietly(kind, name, "--config", config, "--cell", *jobs, "--out", *out)
        for name, arguments in steps(place / folder, config).items():
            # Of the other seed nothing is drawn.
            if folder == "run" or name.endswith(("estimates", "claims", "verdicts")):
                quietly(*arguments)


@pytest.fixture(scope="module")
def made(once, tmp_path_factory):
    """A copy of it, of this process alone."""
    return shutil.copytree(once("chain", make), tmp_path_factory.mktemp("copy") / "chain")


def provenance(path, key):
    """A score file whose provenance has one bit changed."""
    table = pq.read_table(path)
    origin = json.loads(table.schema.metadata[b"hiddenstate"])
    value = origin[key]
    origin[key] = {**value, "x": 1} if isinstance(value, dict) else f"{value}"[:-1] + "~"
    metadata = table.schema.metadata | {b"hiddenstate": json.dumps(origin).encode()}
    pq.write_table(table.replace_schema_metadata(metadata), path)


def values(path, rng):
    """A score file with one other value, under its old provenance."""
    table = pq.read_table(path)
    frame = table.to_pandas()
    columns = [name for name in frame if frame[name].dtype.kind == "f"]
    frame.loc[rng.randrange(len(frame)), rng.choice(columns)] = 0.123
    pq.write_table(pa.Table.from_pandas(frame, table.schema, preserve_index=False), path)


def cut(path, rng):
    lines = path.read_text().splitlines(keepends=True)
    del lines[rng.randrange(1, len(lines))]
    path.write_text("".join(lines))


def doubled(path, rng):
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines, lines[rng.randrange(1, len(lines))]]))


def edited(path, rng):
    """A file of text with one digit or letter changed, anywhere behind its first line."""
    text = path.read_text()
    places = [i for i, c in enumerate(text) if c.isalnum() and i > text.index("\n")]
    i = rng.choice(places)
    path.write_text(text[:i] + ("7" if text[i] != "7" else "3") + text[i + 1 :])


def truncated(path, rng):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])


def redrawn(path, rng):
    """A picture with one other pixel."""
    with Image.open(path) as image:
        picture = image.convert("RGB")
    picture.putpixel((rng.randrange(picture.width), rng.randrange(picture.height)), (1, 2, 3))
    drawn = io.BytesIO()
    picture.save(drawn, format="PNG")
    path.write_bytes(drawn.getvalue())


ON_THE_WAY = {
    "estimates": ("results/*/scores/*.parquet", "results/*/bounds/*.parquet"),
    "text": ("results/*/estimates.csv", "results/*/claims.csv", "results/claims.csv"),
    "drawn": ("figures/*/*.p*", "results/*/tables/*.csv", "results/*/tables/*.md"),
}


def faults(place):
    """Name, file and change: more than a hundred, of every kind of file on the way."""
    rng = random.Random(48)
    keys = (
        "cell",
        "made_by",
        "seed",
        "commit",
        "date",
        "device",
        "packages",
        "wall_seconds",
        "digest",
    )
    for pattern in ON_THE_WAY["estimates"]:
        for path in sorted(place.glob(pattern)):
            yield "values", path, lambda path: values(path, rng)
            yield "truncated", path, lambda path: truncated(path, rng)
            for key in rng.sample(keys, 3):
                yield f"provenance: {key}", path, lambda path, key=key: provenance(path, key)
            other = place.parent / "seed" / path.relative_to(place)
            yield "of another seed", path, lambda path, other=other: shutil.copy(other, path)
            for twin in [p for p in sorted(path.parent.glob("*.parquet")) if p != path][:1]:
                yield "its neighbour", path, lambda path, twin=twin: shutil.copy(twin, path)
    for pattern in ON_THE_WAY["text"]:
        for path in sorted(place.glob(pattern)):
            for change in (cut, doubled, edited, edited, edited, truncated):
                yield change.__name__, path, lambda path, change=change: change(path, rng)
            other = place.parent / "seed" / path.relative_to(place)
            yield "of another seed", path, lambda path, other=other: shutil.copy(other, path)
    for path in sorted(place.glob("results/*/*s.csv")):
        family = {FAMILY: OTHER, OTHER: FAMILY}[path.parent.name]
        other = place / "results" / family / path.name
        yield "of another family", path, lambda path, other=other: shutil.copy(other, path)
    for pattern in ON_THE_WAY["drawn"]:
        for path in sorted(place.glob(pattern)):
            yield "truncated", path, lambda path: truncated(path, rng)
            if path.suffix == ".png":
                yield "one pixel", path, lambda path: redrawn(path, rng)
            for twin in [p for p in sorted(path.parent.glob(f"*{path.suffix}")) if p != path][:1]:
                yield "its neighbour", path, lambda path, twin=twin: shutil.copy(twin, path)
    for path in sorted(place.glob("*/**/digests.json")):
        yield "edited", path, lambda path: edited(path, rng)
        yield "gone", path, lambda path: path.unlink()


def test_each_of_more_than_a_hundred_changes_is_refused_by_name(made, capsys):
    place = made / "run"
    config = place / "tiny.yaml"
    commands = steps(place, config)
    quietly(*commands["page"])
    tried, gone_on = 0, []
    for name, path, change in list(faults(place)):
        family = path.relative_to(place).parts[1]
        # What reads the file next; nothing that would make it anew.
        reader = "page"
        if path.suffix == ".parquet":
            reader = f"{family} estimates"
        elif path.name == "claims.csv" and family in (FAMILY, OTHER):
            reader = "verdicts"
        kept = path.read_bytes()
        written = {p: p.read_bytes() for p in place.rglob("*.csv")}
        change(path)
        if path.exists() and path.read_bytes() == kept:
            continue  # by chance
        capsys.readouterr()
        status, _, err = run(capsys, *commands[reader])
        told = [status == 2 and path.stem in err and "Traceback" not in err]
        if path.name == "estimates.csv":
            for command in ("figures", "claims"):
                status, _, err = run(capsys, *commands[f"{family} {command}"])
                told.append(status == 2 and path.name in err)
        if not all(told):
            gone_on.append((name, str(path.relative_to(place)), told))
        tried += 1
        for other, content in written.items():
            other.write_bytes(content)
        path.write_bytes(kept)
    assert not gone_on
    assert tried >= 100
    quietly(*commands["page"])


def test_scores_made_anew_after_the_estimates_are_refused_by_the_page(made, capsys):
    place = made / "run"
    path = sorted(place.glob("results/*/scores/*.parquet"))[0]
    kept = path.read_bytes()
    frame, origin = scores.read(path)
    scores.write(path, frame.assign(score=frame["score"] + 1), origin)
    status, _, err = run(capsys, *steps(place, place / "tiny.yaml")["page"])
    path.write_bytes(kept)
    assert status == 2
    assert "estimates.csv: was made of other scores or bounds than those beside it" in err


def test_verdicts_carry_the_digest_of_their_estimates(made):
    place = made / "run/results"
    for name in (FAMILY, OTHER):
        rows = pd.read_csv(place / name / "claims.csv")
        estimates = pd.read_csv(place / name / "estimates.csv")
        assert set(rows["estimates"]) == set(estimates["digest"])
        page = Path(made / "run/report.html").read_text()
        assert f"{name} <code>{estimates['digest'].iloc[0]}</code>" in page
