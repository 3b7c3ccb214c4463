"""The documentation as a site: built without a warning, whole, and opened in a browser."""

import html
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pages
import pytest

from hiddenstate import papers
from hiddenstate.study import claims

ROOT = Path(__file__).parents[2]
PARTS = ("mkdocs", "material", "mkdocstrings_handlers")

pytestmark = [
    pytest.mark.whole,
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, PARTS)),
        reason="needs the extra docs: pip install '.[docs]'",
    ),
]


def build(tree, out):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", out],
        cwd=tree,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": f"{tree / 'src'}:{os.environ.get('PYTHONPATH', '')}"},
    )
    return done.returncode, done.stderr


@pytest.fixture(scope="module")
def site(once):
    def make(out):
        status, said = build(ROOT, out)
        assert status == 0, said
        assert not re.search("^WARNING", said, re.MULTILINE)

    return once("site", make)


def text(path):
    return html.unescape(re.sub(r"<[^>]+>", "", path.read_text(encoding="utf-8")))


class Links(HTMLParser):
    """Ids of a page, and what it links to or loads."""

    def __init__(self):
        super().__init__()
        self.ids, self.links, self.loaded = set(), [], []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids.add(given.get("id"))
        if tag == "a":
            self.links.append(given.get("href") or "")
        else:
            self.loaded += [given[key] for key in ("src", "href") if given.get(key)]


def read(path):
    page = Links()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def test_every_link_leads_somewhere_and_nothing_is_loaded_from_elsewhere(site):
    found = {path.resolve(): read(path) for path in site.rglob("*.html")}
    # The page of errors alone is written for a server's root.
    for path in found.keys() - {site.resolve() / "404.html"}:
        for link in found[path].links + found[path].loaded:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https"):
                assert link not in found[path].loaded, (path.name, link)
            elif parts.scheme != "data":
                target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
                assert target.exists(), (path.name, link)
                if parts.fragment and target in found:
                    assert unquote(parts.fragment) in found[target].ids | {"__top"}, (path, link)


def test_every_page_and_every_claim_is_there(site):
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix(".html")
        assert (site / name).is_file(), name
    assert "Adding a paper" in text(site / "contributing.html")
    gallery = (site / "gallery.html").read_text()
    for claim in claims.read(ROOT / "workflow/config/claims"):
        paper = isinstance(claim, claims.PaperClaim)
        page = f"papers/{claim.family}.html" if paper else "own-statements.html"
        words = claim.place if paper else claim.statement
        # The page shortens places and quotations to fit its number of words.
        assert plain(" ".join(words.split()[: 2 if paper else 5]).rstrip(";,")) in plain(
            text(site / page)
        ), claim.id
    front = text(site / "index.html")
    assert "reproduces?" in front and "<!--" not in front
    for name in papers.names():
        for figure in papers.load(name).figures:
            assert f'src="figures/published/{name}/{figure}.png"' in gallery


def plain(words):
    """Words as they read, however they are broken and quoted; formulas without their marks."""
    return re.sub(r"[\s`*$]+|\\[()]", "", words)


def test_every_formula_is_marked_for_drawing(site):
    """Between dollars on the page, and nothing of it read as emphasis or as a tag."""
    source = (ROOT / "docs/cyclic-bounds.md").read_text(encoding="utf-8")
    source = re.sub(r"`[^`]*`", "", re.sub(r"^```.*?^```", "", source, flags=re.S | re.M))
    blocks = re.findall(r"^\$\$\n(.*?)\n\$\$$", source, re.DOTALL | re.MULTILINE)
    rest = re.sub(r"^\$\$\n.*?\n\$\$$", "", source, flags=re.DOTALL | re.MULTILINE)
    inline = re.findall(r"\$([^$]+)\$", rest)
    page = (site / "cyclic-bounds.html").read_text(encoding="utf-8")
    drawn = [html.unescape(f) for f in re.findall(r'class="arithmatex">(.*?)</', page, re.DOTALL)]
    assert [f.strip()[2:-2].strip() for f in drawn if f.strip().startswith("\\[")] == blocks
    assert [f[2:-2] for f in drawn if f.startswith("\\(")] == inline
    assert r"t^\ast = 1" in inline and len(inline) > 100


@pytest.mark.skipif(not pages.CHROMIUM, reason="no Chromium here")
def test_every_formula_is_drawn_without_a_network(site, tmp_path):
    copy = shutil.copytree(site, tmp_path / "site")
    page = copy / "cyclic-bounds.html"
    probe = """<script>addEventListener("load", () => { const all = [...document.querySelectorAll(
      ".arithmatex")]; const p = document.createElement("pre"); p.id = "found"; p.textContent =
      JSON.stringify({all: all.length, drawn: all.filter(e => e.querySelector(".katex")).length,
      wrong: [...document.querySelectorAll(".katex-error")].map(e => e.title)});
      document.body.append(p); });</script>"""
    page.write_text(page.read_text(encoding="utf-8").replace("<head>", f"<head>{probe}", 1))
    found = pages.answer(page, tmp_path)
    assert found["wrong"] == []
    assert found["drawn"] == found["all"] > 100


@pytest.mark.parametrize("package", ["accounting", "auditing", "atlas", "dpsgd", "adversaries"])
def test_every_module_is_in_the_api_with_all_that_its_docstring_says(site, package):
    told = plain(text(site / f"api/{package}.html"))
    for module in sorted((ROOT / "src/hiddenstate" / package).glob("*.py")):
        source = module.read_text()
        docstring = re.match(r'"""(.*?)"""', source, re.DOTALL)[1]
        for paragraph in docstring.split("\n\n"):
            words = re.sub(r"^[*-] ", "", paragraph, flags=re.MULTILINE)
            assert plain(words) in told, (module.name, paragraph)
        for name in re.findall(r"^(?:def|class) ([a-z]\w*)", source, re.MULTILINE | re.IGNORECASE):
            if not name.startswith("_"):
                assert name in told, (module.name, name)


def test_a_dead_link_stops_the_build(tmp_path):
    for name in ("docs", "src", "workflow"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True)
    for path in (*ROOT.glob("*.md"), ROOT / "mkdocs.yml"):
        shutil.copy(path, tmp_path)
    for path in (tmp_path / "docs/api").iterdir():
        path.write_text("# None here\n")
    guide = tmp_path / "docs/auditing.md"
    guide.write_text(guide.read_text() + "\nSee [there](accounting.md#nowhere).\n")
    status, said = build(tmp_path, tmp_path / "site")
    assert status != 0
    assert "auditing.md" in said and "#nowhere" in said


@pytest.mark.skipif(not pages.CHROMIUM, reason="no Chromium here")
@pytest.mark.parametrize("width", [390, 1300])
@pytest.mark.parametrize("page", ["index.html", "api/auditing.html"])
def test_it_opens_in_a_browser_without_an_error(site, tmp_path, page, width):
    copy = shutil.copytree(site, tmp_path / "site")
    assert pages._in_browser(copy / page, (copy / page).parent, width) == []


REACH = """<script>addEventListener("load", () => setTimeout(() => {
  const all = (what) => [...document.querySelectorAll(what)], look = getComputedStyle, wrong = [];
  for (const one of all("[role=dialog]"))
    if (!one.getAttribute("aria-label")) wrong.push("a dialog without a name");
  for (const one of all(".md-content *"))
    if (/auto|scroll/.test(look(one).overflowX) && one.scrollWidth > one.clientWidth + 1 &&
        one.tabIndex < 0 && !one.querySelector("a, button, input, [tabindex='0']"))
      wrong.push("no key reaches " + one.className);
  for (const one of all(".md-typeset p a:not(.headerlink)"))
    if (look(one).textDecorationLine !== "underline") wrong.push("colour alone: " + one.href);
  for (const one of all("table[data-wide] tbody td"))
    if (!one.dataset.name) wrong.push("a cell without its column's name: " + one.textContent);
  const p = document.createElement("pre"); p.id = "found";
  p.textContent = JSON.stringify({wrong, wide: all("table[data-wide]").length});
  document.body.append(p); }, 500));</script>"""


@pytest.mark.skipif(not pages.CHROMIUM, reason="no Chromium here")
@pytest.mark.parametrize("page", ["index.html", "papers/worst_case_init.html", "faq.html"])
def test_a_page_serves_readers_who_use_keys_or_a_phone(site, tmp_path, page):
    """Dialogs have names, keys reach what scrolls, links are underlined, cells have a column."""
    copy = shutil.copytree(site, tmp_path / "site") / page
    copy.write_text(copy.read_text(encoding="utf-8").replace("<head>", f"<head>{REACH}", 1))
    found = pages.answer(copy, tmp_path)
    assert found["wrong"] == [] and (found["wide"] > 0) == (page != "faq.html")
