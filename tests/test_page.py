"""The page of claims, made of invented verdicts and pictures, parsed and opened in a browser."""

import re
from pathlib import Path

import numpy as np
import pages
import pandas as pd
import pytest
from PIL import Image

from hiddenstate import claims, config, estimates, page, papers, scores
from hiddenstate.errors import InputError

CLAIMS = Path(__file__).parents[1] / "workflow/config/claims.yaml"
SCALE = CLAIMS.parent / "scales/smoke.yaml"
VERDICTS = ["reproduced", "not reproduced", claims.NOT_JUDGED]


def of(scale, name):
    """What a family's estimates are of."""
    _, grid, seed = config.section(scale, name)
    return config.grid_name(scale, name, grid, seed)


def fill(directory, families, scale=SCALE):
    """Pictures, tables and verdicts of a scale; the verdicts say which claim is which."""
    places = page.Places(directory / "figures", directory / "results", directory / "cached")
    for name in families:
        family = papers.load(name)
        (places.figures / name).mkdir(parents=True)
        (places.results / name / "tables").mkdir(parents=True)
        for key in family.figures:
            Image.new("L", (1200, 500), 200).save(places.figures / name / f"{key}.png")
        for key in family.tables:
            wide = pd.DataFrame({f"column {i}": ["<b>&", "3.10"] for i in range(12)})
            wide.to_csv(places.results / name / "tables" / f"{key}.csv", index=False)
        row = {"quantity": "q", "cell": "a", "method": "m", "kind": "exact", "value": 1.0}
        estimates.write(
            places.results / name / "estimates.csv", pd.DataFrame([row]), of(scale, name)
        )
    stated = [claim for claim in claims.read(CLAIMS) if claim.family in families]
    rows = [
        {
            **claim.model_dump(include={"id", "statement", "source", "stated", "remark"}),
            "measured": f"measured {number}",
            "tolerance": f"tolerance {number}",
            "deviation": None if number % 2 else number / 4,
            "verdict": VERDICTS[number % 3],
            "cells": "" if VERDICTS[number % 3] == claims.NOT_JUDGED else "a",
            "grid": of(scale, claim.family),
        }
        for number, claim in enumerate(stated)
    ]
    verdicts = directory / "claims.csv"
    pd.DataFrame(rows).to_csv(verdicts, index=False)
    return stated, rows, verdicts, places


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    directory = tmp_path_factory.mktemp("page")
    stated, rows, verdicts, places = fill(directory, papers.names())
    out = directory / "report.html"
    page.write(out, SCALE, stated, verdicts, places)
    return out, rows


def articles(text):
    return dict(re.findall(r'<article class="[^"]*" id="([^"]+)">(.*?)</article>', text, re.DOTALL))


def test_every_claim_is_answered_beside_its_figure(made):
    out, rows = made
    text = pages.html_unescape(out.read_text())
    found = articles(text)
    assert list(sorted(found)) == sorted(row["id"] for row in rows)
    shown = {claim.id: claim.shown for claim in claims.read(CLAIMS)}
    blocks = re.split(r'<div class="exhibit', text)
    for row in rows:
        told, family = found[row["id"]], row["id"].split(".")[0]
        for key in ("statement", "source", "stated", "measured", "tolerance", "verdict", "remark"):
            assert row[key] in told, (row["id"], key)
        assert papers.load(family).reference in told
        assert "./reproduce " in told and "--config scale=smoke" in told
        cells = "\u2013" if row["verdict"] == claims.NOT_JUDGED else "no cells"
        assert f"<dt>Cells</dt><dd>{cells}</dd>" in told
        assert ("standard errors" in told) == (row["deviation"] is not None)
        (block,) = [block for block in blocks if f'id="{row["id"]}"' in block]
        kind = "figure" if shown[row["id"]] in papers.load(family).figures else "table"
        assert f'id="{family}-{kind}-{shown[row["id"]]}"' in block
        assert "<img" in block or "<table" in block
    assert "+1.5 standard errors" in text


def test_every_figure_and_table_has_its_caption(made):
    text = " ".join(pages.html_unescape(made[0].read_text()).split())
    for name in papers.names():
        family = papers.load(name)
        for thing in (*family.figures.values(), *family.tables.values()):
            assert thing.title in text
            assert " ".join(thing.caption.split()) in text
    assert text.count("<img") == sum(len(papers.load(name).figures) for name in papers.names())
    assert text.count("<td>3.10</td>") == 12 * sum(
        len(papers.load(name).tables) for name in papers.names()
    )


def test_the_page_is_whole_and_offline(made):
    assert pages.faults(made[0]) == []


@pytest.mark.parametrize(
    "before, after, fault",
    [
        ('src="data:image/png;base64,iVBOR', 'src="data:image/png;base64,AAAAA', "picture"),
        ('href="#encoding_loss.curve"', 'href="#nowhere"', "dead link #nowhere"),
        ("<style>", '<link rel="stylesheet" href="https://example.org/a.css"><style>', "<link>"),
        ("<style>", '<script src="https://example.org/a.js"></script><style>', "<script>"),
        ("* {", "body { background: url(https://example.org/a.png); } * {", "url("),
    ],
)
def test_each_fault_is_found_by_parsing(made, tmp_path, before, after, fault):
    text = made[0].read_text()
    assert before in text
    broken = tmp_path / "broken.html"
    broken.write_text(text.replace(before, after, 1))
    assert any(fault in found for found in pages.faults(broken))


def test_it_opens_on_a_telephone_without_an_error(made, tmp_path):
    assert pages.opened(made[0], tmp_path, 390) == []


def test_a_lost_picture_and_an_error_of_the_console_are_found(made, tmp_path):
    broken = tmp_path / "broken.html"
    text = made[0].read_text().replace(";base64,iVBOR", ";base64,AAAAA", 1)
    broken.write_text(text.replace("<style>", "<script>console.error('no')</script><style>", 1))
    found = "\n".join(pages.opened(broken, tmp_path, 390))
    assert "picture" in found
    assert "CONSOLE" in found or "<script>" in found


def test_what_cells_took_is_read_from_their_files(tmp_path):
    family, grid, seed = config.section(SCALE, "gradient_crafting")
    jobs = [*family.jobs(grid)["train"].values()][:2] + [*family.jobs(grid)["bound"].values()][:1]
    frame = pd.DataFrame({"world": ["in", "out"], "repeat": 0, "run": 0, "score": np.arange(2.0)})
    for job, seconds in zip(jobs, (100.0, 7200.0, 20.0), strict=True):
        origin = scores.provenance(job.identity, seed=seed, wall_seconds=seconds)
        path = tmp_path / "results" / job.work.folder / f"{job.cell.name}.parquet"
        scores.write_table(path, frame, origin)
    first, second, _ = (f"{job.cell.name}.parquet" for job in jobs)
    (tmp_path / "cached").mkdir()
    restored = (tmp_path / "results/scores" / second).read_bytes()
    (tmp_path / "cached" / second).write_bytes(restored)
    # Cached scores of the first are there too, but these were trained anew.
    (tmp_path / "cached" / first).write_bytes(restored)
    found = page.made(family, grid, seed, tmp_path / "results", tmp_path / "cached")
    assert page.effort(found) == ("2 computed in 2 min; 1 from the cache (computed once in 2.0 h)")


def test_a_claim_is_told_what_its_own_cells_took_and_never_less():
    jobs = config.section(SCALE, "worst_case_init")[0].jobs(config.read(SCALE).worst_case_init)
    every = [
        page.Made(job, False, 1.0)
        for kind in ("start", "train", "bound")
        for job in jobs[kind].values()
    ]
    names = [*jobs["train"]]
    one, bound = names[0], [*jobs["bound"]]
    start = jobs["train"][one].start.cell.name

    def wanted(cells, all_cells):
        return {m.job.cell.name for m in page.made_for(every, set(cells), set(all_cells))}

    # Only what was trained for the cell, from its start.
    assert wanted([one], [*names, *bound]) == {start, one}
    assert wanted(bound, [*names, *bound]) == set(bound)
    # What has no cell of its own may serve any, a cell that has no job may come from any.
    assert wanted([one], names) == {start, one, *bound}
    assert wanted([one, "of both"], [*names, *bound, "of both"]) == {m.job.cell.name for m in every}
    # Repeats of a cell, and a cell of several jobs, have one beginning.
    assert wanted([one.rpartition("_")[0]], [one.rpartition("_")[0], *names[1:], *bound]) >= {one}
    assert names[1] not in wanted([f"{one}_repeat3"], [f"{one}_repeat3", *names, *bound])


def test_a_missing_figure_and_verdicts_of_others_are_refused(tmp_path):
    scale = tmp_path / "scale.yaml"
    scale.write_text(
        "extends: smoke\n"
        + "".join(f"{name}: null\n" for name in papers.names() if name != "encoding_loss")
    )
    (tmp_path / "smoke.yaml").write_text(SCALE.read_text())
    stated, _, verdicts, places = fill(tmp_path, ["encoding_loss"], scale)
    gone = places.figures / "encoding_loss/figure2.png"
    gone.unlink()
    with pytest.raises(InputError, match=r"figure2\.png: no such file"):
        page.write(tmp_path / "out.html", scale, stated, verdicts, places)
    with pytest.raises(InputError, match=r"claims\.csv: id: got 'encoding_loss\.curve'"):
        page.write(tmp_path / "out.html", scale, stated[1:], verdicts, places)
    text = verdicts.read_text()
    verdicts.write_text(text.replace("encoding_loss at scale", "encoding_loss at laptop"))
    with pytest.raises(InputError, match="verdicts on the grid 'encoding_loss at laptop"):
        page.write(tmp_path / "out.html", scale, stated, verdicts, places)
    verdicts.write_text(text.replace("not reproduced", "unclear"))
    with pytest.raises(InputError, match="verdict: got 'unclear'"):
        page.write(tmp_path / "out.html", scale, stated, verdicts, places)
    assert not (tmp_path / "out.html").exists()
