"""The page of claims, made of invented verdicts and pictures, parsed and opened in a browser."""

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pages
import pandas as pd
import pytest
from PIL import Image

from hiddenstate import papers
from hiddenstate.errors import InputError
from hiddenstate.pipeline import estimates, scores, sealed
from hiddenstate.pipeline.family import Figure, Table
from hiddenstate.study import claims, config, page, verdicts

SCALE = Path(__file__).parents[2] / "workflow/config/scales/smoke.yaml"
EVIDENCE = {"what": "<gap>", "stated": "2.22", "measured": 2.2224, "low": 2.2, "high": 2.3} | {
    "allowed": "2.1 to 2.4 (rounding)",
    "outcome": "agrees",
    "turns": 0.01,
}


def of(scale, name):
    """What a family's estimates are of."""
    _, grid, seed = config.section(scale, name)
    return config.grid_name(scale, name, grid, seed)


def shown(name, scale):
    """Figures and tables of a family that a scale has, as claims name them."""
    family, grid, _ = config.section(scale, name)
    return list(family.shown(Figure, grid)) + list(family.shown(Table, grid))


def row(name, number, scale):
    """A claim of a family, with every verdict of either ledger in turn."""
    ledger = ("paper", "own")[number % 2]
    allowed = claims.LEDGERS[ledger]
    verdict = str(allowed[number // 2 % len(allowed)])
    paper = {
        **{"quote": f"quoted {number} [sigma]", "version": "version 7", "source": "second-hand"},
        "readings": json.dumps(
            [
                {
                    "choice": f"choice {number}",
                    "rivals": [{"choice": f"rival {number}", "verdict": "agrees"}],
                }
            ]
        ),
    }
    return {
        **dict.fromkeys(claims.COLUMNS, ""),
        **{"id": f"{name}.claim{number}", "ledger": ledger, "verdict": verdict},
        **{"statement": f"Statement {name} {number}.", "place": f"place {number}"},
        **{"measured": f"measured {number}", "remark": f"remark {number} <&>", "readings": "[]"},
        **{"evidence": json.dumps([EVIDENCE] if number % 3 else [])},
        **{"grid": of(scale, name)},
        **{"commit": "0123456789abcdef-dirty", "date": "2026-11-23"},
    } | (paper if ledger == "paper" else {})


def fill(directory, families, scale=SCALE):
    """Pictures, tables and verdicts of a scale; the verdicts say which claim is which."""
    places = page.Places(directory / "figures", directory / "results", directory / "cached")
    rows = []
    for name in families:
        family = papers.load(name)
        (places.figures / name).mkdir(parents=True)
        (places.results / name / "tables").mkdir(parents=True)
        estimate = {"quantity": "q", "cell": "a", "method": "m", "kind": "exact", "value": 1.0}
        path, grid = places.results / name / "estimates.csv", of(scale, name)
        estimates.write(path, pd.DataFrame([estimate]), grid, sealed.of({}))
        digest = estimates.read(path, grid).attrs["digest"]
        for key in family.figures:
            Image.new("L", (1200, 500), 200).save(places.figures / name / f"{key}.png")
            (places.figures / name / f"{key}.pdf").write_bytes(b"%PDF")
            sealed.sign(places.figures / name, {f"{key}.png": digest, f"{key}.pdf": digest})
        for key in family.tables:
            wide = pd.DataFrame({f"column {i}": ["<b>&", "3.10"] for i in range(12)})
            tables = places.results / name / "tables"
            for suffix in (".csv", ".md", ".tex"):
                wide.to_csv(tables / f"{key}{suffix}", index=False)
                sealed.sign(tables, {f"{key}{suffix}": digest})
        keys = itertools.cycle(shown(name, scale))
        made_of = {"estimates": digest}
        rows += [row(name, i, scale) | {"shown": next(keys)} | made_of for i in range(18)]
        # One that no figure of the scale shows.
        rows[-1]["shown"] = "elsewhere"
    verdicts.write(directory, pd.DataFrame(rows), "smoke")
    return rows, directory / "claims.csv", places


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    directory = tmp_path_factory.mktemp("page")
    rows, judged, places = fill(directory, papers.names())
    out = directory / "report.html"
    page.write(out, SCALE, judged, places)
    return out, rows


def articles(text):
    return dict(re.findall(r'<article class="claim" id="([^"]+)"(.*?)</article>', text, re.DOTALL))


def test_every_claim_is_told_in_full_under_its_figure(made):
    out, rows = made
    text = pages.html_unescape(out.read_text())
    found = articles(text)
    assert sorted(found) == sorted(row["id"] for row in rows)
    blocks = re.split(r'<div class="exhibit', text)
    for row in rows:
        told, family = found[row["id"]], row["id"].split(".")[0]
        keys = ("statement", "quote", "place", "version", "measured", "remark", "verdict")
        for key in keys:
            assert row[key] in told, (row["id"], key)
        group = claims.Verdict(row["verdict"]).group
        assert f'data-group="{group}" data-ledger="{row["ledger"]}"' in told
        assert verdicts.SYMBOLS[group] in told
        if row["ledger"] == "paper":
            assert "second-hand: the text was not available" in told
            for reading in json.loads(row["readings"]):
                assert reading["choice"] in told and reading["rivals"][0]["choice"] in told
        else:
            assert "Our own statement" in told and "<blockquote>" not in told
        cells = ("<gap>", "2.22", "2.222", "2.2 to 2.3", "2.1 to 2.4 (rounding)", "✔ agrees")
        shows = row["evidence"] != "[]"
        assert [f"<td>{cell}</td>" in told for cell in cells] == [shows] * 6
        (block,) = [block for block in blocks if f'id="{row["id"]}"' in block]
        if row["shown"] == "elsewhere":
            assert "Claims whose figure this scale lacks" in block
            continue
        kind = "figure" if row["shown"] in papers.load(family).figures else "table"
        assert f'id="{family}-{kind}-{row["shown"]}"' in block
        assert "<img" in block or "<table" in block
        assert f"{family}_claims --config scale=smoke" in block


def rows_of(text, words):
    """The cells of the rows of the table in the region that is called so."""
    (region,) = re.findall(rf'aria-label="{re.escape(words)}">(.*?)</div>', text, re.DOTALL)
    lines = re.findall(r"<tr>(.*?)</tr>", region, re.DOTALL)
    strip = re.compile(r"<[^>]+>")
    return [
        [" ".join(strip.sub(" ", cell).split()) for cell in re.findall(r"<t[hd].*?</t[hd]>", line)]
        for line in lines
    ]


def test_either_ledger_is_counted_by_itself(made):
    out, rows = made
    text = out.read_text()
    for ledger, noun in (("paper", "sentences of the papers"), ("own", "statements of our own")):
        head, *lines = rows_of(text, f"Counts of {noun} by verdict")
        assert [cell.split(" ", 1)[1] for cell in head[2:]] == list(claims.LEDGERS[ledger])
        assert [line[0].split()[0] for line in lines] == papers.names()
        for head, *numbers in lines:
            name, _, reference = head.partition(" ")
            assert reference == papers.load(name).reference
            mine = [r for r in rows if r["id"].startswith(f"{name}.") and r["ledger"] == ledger]
            assert [int(n) for n in numbers] == [len(mine)] + [
                sum(r["verdict"] == verdict for r in mine) for verdict in claims.LEDGERS[ledger]
            ]


def test_the_page_begins_with_what_was_found(made):
    """Every contradicted sentence up to three a paper, before the counts and the figures."""
    path, rows = made
    text = path.read_text()
    begin = text[text.index('id="found"') : text.index('<nav aria-label="Contents">')]
    told = pd.DataFrame(rows)
    told = told[told["ledger"] == "paper"]
    total = " ".join(begin.split())
    assert f"<p>{len(told)} sentences of the papers: " in total
    groups = told["verdict"].map(lambda verdict: claims.Verdict(verdict).group)
    for name in papers.names():
        mine = told["id"].str.startswith(f"{name}.")
        for group in ("contradicts", "agrees"):
            ids = list(told["id"][mine & (groups == group)])
            named = [one for one in ids if f'href="#{one}"' in begin]
            assert len(named) == min(len(ids), page.NAMED)
    undecided = told["id"][~groups.isin(["contradicts", "agrees"])]
    assert not any(f'href="#{one}"' in begin for one in undecided)


def test_it_says_when_and_of_what_state_it_was_judged(made):
    text = " ".join(made[0].read_text().split())
    assert "Judged on 2026-11-23 (UTC), commit 0123456789ab (edited)." in text


def test_every_figure_and_table_has_its_caption_and_its_file(made):
    text = " ".join(pages.html_unescape(made[0].read_text()).split())
    for name in papers.names():
        family, grid, _ = config.section(SCALE, name)
        for kind in (Figure, Table):
            for key, thing in family.shown(kind, grid).items():
                caption = " ".join(thing.caption.split())
                assert thing.title in text
                assert caption in text
                if kind is Figure:
                    assert f'href="figures/{name}/{key}.pdf"' in text
                    # What is seen, in words, is the caption's first sentence.
                    alt = re.search(rf'<img [^>]*alt="{re.escape(thing.title)}\. ([^"]+)"', text)[1]
                    assert caption.startswith(alt) and len(alt) > 20
    assert text.count("<img") == text.count('type="checkbox" class="zoom"')


def test_the_page_is_whole_and_offline(made):
    assert pages.faults(made[0]) == []


@pytest.mark.parametrize(
    "before, after, fault",
    [
        ('src="data:image/png;base64,iVBOR', 'src="data:image/png;base64,AAAAA', "picture"),
        ('href="#encoding_loss.claim1"', 'href="#nowhere"', "dead link #nowhere"),
        ('href="figures/encoding_loss/figure1.pdf"', 'href="figures/x.pdf"', "dead link figures/x"),
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


@pytest.mark.whole
def test_it_opens_on_a_telephone_without_an_error(made, tmp_path):
    assert pages.opened(made[0], tmp_path, 390) == []


@pytest.mark.whole
def test_a_lost_picture_and_an_error_of_the_console_are_found(made, tmp_path):
    broken = tmp_path / "broken.html"
    text = made[0].read_text().replace(";base64,iVBOR", ";base64,AAAAA", 1)
    broken.write_text(text.replace("<style>", "<script>console.error('no')</script><style>", 1))
    found = "\n".join(pages.opened(broken, tmp_path, 390))
    assert "picture" in found
    assert "CONSOLE" in found or "<script>" in found


CHOICES = {
    "only-agrees": {"group": "agrees"},
    "only-not-judged": {"group": "not judged"},
    "only-own": {"ledger": "own"},
    "only-encoding_loss": {"family": "encoding_loss"},
    "only-contradicts only-paper": {"group": "contradicts", "ledger": "paper"},
}
"""Boxes that are ticked, and what is then left."""


@pytest.mark.whole
@pytest.mark.skipif(not pages.CHROMIUM, reason="no Chromium here")
def test_a_filter_shows_these_claims_alone(made, tmp_path):
    """Choices are made by script, and what is then laid out is asked of the browser."""
    probe = f"""<script>addEventListener("load", () => {{
      const seen = q => [...document.querySelectorAll(q)].filter(e => e.getClientRects().length);
      const found = {{}};
      for (const choice of {json.dumps(list(CHOICES))}) {{
        for (const box of document.querySelectorAll("[id^=only-any]")) box.checked = true;
        for (const id of choice.split(" ")) document.getElementById(id).checked = true;
        const claims = seen(".claim");
        found[choice] = {{claims: claims.map(e => e.id),
          empty: seen(".exhibit").filter(e => !claims.some(c => e.contains(c))).map(e => e.id)}};
      }}
      const p = document.createElement("pre"); p.id = "found";
      p.textContent = JSON.stringify(found); document.body.append(p); }});</script>"""
    out, rows = made
    probed = tmp_path / "probed.html"
    probed.write_text(out.read_text().replace("<head>", f"<head>{probe}", 1))
    found = pages.answer(probed, tmp_path)
    for choice, kept in CHOICES.items():
        expected = set()
        for row in rows:
            told = {
                "group": claims.Verdict(row["verdict"]).group,
                "ledger": row["ledger"],
                "family": row["id"].split(".")[0],
            }
            if kept.items() <= told.items():
                expected.add(row["id"])
        assert set(found[choice]["claims"]) == expected, choice
        assert "family" in kept or found[choice]["empty"] == [], choice


def test_it_has_landmarks_and_is_reached_by_keyboard(made):
    text = made[0].read_text()
    for tag in ("header", "nav", "main", "footer"):
        assert len(re.findall(rf"<{tag}[ >]", text)) == 1
    assert re.findall(r'<div class="scroll"(?! tabindex="0" role="region" aria-label=)', text) == []
    assert text.count('href="#top"') == 1
    assert 'id="top"' in text


def luminance(colour):
    digits = colour if len(colour) == 6 else "".join(2 * c for c in colour)
    linear = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in linear]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_its_colours_stand_out_by_day_and_by_night(made):
    """WCAG's contrast of 4.5 for text."""
    text = made[0].read_text()
    day, night = re.findall(r":root \{([^}]+)\}", text)
    for scheme in (day, night):
        colours = dict(re.findall(r"--(\w+): #(\w+)", scheme))
        for name in ("agrees", "contradicts", "undecided", "notjudged", "text", "soft", "link"):
            for ground in ("page", "panel"):
                pair = sorted([luminance(colours[name]), luminance(colours[ground])])
                assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5, (name, ground)


@pytest.fixture
def computed(tmp_path):
    """A family with two trained cells, of which the second is in the cache, and a bound."""
    family, grid, seed = config.section(SCALE, "gradient_crafting")
    jobs = [*family.jobs(grid)["train"].values()][:2] + [*family.jobs(grid)["bound"].values()][:1]
    frame = pd.DataFrame({"world": ["in", "out"], "repeat": 0, "run": 0, "score": np.arange(2.0)})
    for job, seconds in zip(jobs, (100.0, 7200.0, 20.0), strict=True):
        origin = scores.provenance(job.identity, seed=seed, wall_seconds=seconds)
        if seconds == 7200:  # as files were written before these were recorded
            del origin["date"], origin["processor"]
        path = tmp_path / "results" / job.work.folder / f"{job.cell.name}.parquet"
        scores.write_table(path, frame, origin)
    first, second, _ = (f"{job.cell.name}.parquet" for job in jobs)
    (tmp_path / "cached").mkdir()
    restored = (tmp_path / "results/scores" / second).read_bytes()
    (tmp_path / "cached" / second).write_bytes(restored)
    # Cached scores of the first are there too, but these were trained again.
    (tmp_path / "cached" / first).write_bytes(restored)
    return page.made(family, grid, seed, tmp_path / "results", tmp_path / "cached")


def test_what_cells_took_is_read_from_their_files(computed):
    assert page.effort(computed) == (
        "2 computed in 2 min; 1 from the cache (computed once in 2.0 h)"
    )


def test_where_numbers_come_from_is_read_from_their_files(computed):
    here, kept = page.origins(computed).values()
    assert here["results"] == "2" and kept["results"] == "1"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", here["when"]) and kept["when"] == "not recorded"
    assert here["processor"] == scores.processor() and kept["processor"] == "not recorded"
    assert here["Python"] == scores.provenance({}, seed=1, wall_seconds=0)["python"]
    assert here["torch"] == (scores.packages()["torch"] or "not recorded")
    assert page.origins([]) == {}
    assert page._commit("0123456789abcdef-dirty") == "0123456789ab edited"
    assert page._values(["a", None, "b", "b"]) == "b (2), a (1), not recorded (1)"


def test_a_missing_figure_and_verdicts_of_others_are_refused(tmp_path):
    scale = tmp_path / "scale.yaml"
    scale.write_text(
        "extends: smoke\n"
        + "".join(f"{name}: null\n" for name in papers.names() if name != "encoding_loss")
    )
    (tmp_path / "smoke.yaml").write_text(SCALE.read_text())
    _, judged, places = fill(tmp_path, ["encoding_loss"], scale)
    gone = places.figures / "encoding_loss/figure2.png"
    gone.unlink()
    with pytest.raises(InputError, match=r"figure2\.png: no such file"):
        page.write(tmp_path / "out.html", scale, judged, places)
    text = judged.read_text()
    judged.write_text(text.replace("encoding_loss at scale", "encoding_loss at laptop"))
    with pytest.raises(InputError, match="verdicts on the grid 'encoding_loss at laptop"):
        page.write(tmp_path / "out.html", scale, judged, places)
    judged.write_text(text.replace("refuted", "unclear"))
    with pytest.raises(InputError, match="verdict: got 'unclear'"):
        page.write(tmp_path / "out.html", scale, judged, places)
    judged.write_text(text.replace("readings", "reading"))
    with pytest.raises(InputError, match="lacks the columns readings"):
        page.write(tmp_path / "out.html", scale, judged, places)
    assert not (tmp_path / "out.html").exists()
