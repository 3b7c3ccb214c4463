"""What is asked of an HTML page that must be read offline: by parsing, and in a browser."""

import base64
import html
import io
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

from PIL import Image, UnidentifiedImageError

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
"""A browser, if there is one; parsing finds the same faults, but for what only a layout shows."""


def html_unescape(text):
    """The page as it reads, except for its tags."""
    return html.unescape(text)


class _Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.ids, self.links, self.pictures, self.faults, self.text = [], [], [], [], []
        self.style = False

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.style = tag == "style"
        self.ids += [given["id"]] if "id" in given else []
        if tag in ("script", "iframe", "object", "embed", "video", "audio"):
            self.faults.append(f"<{tag}>")
        if tag == "a":
            self.links.append(given.get("href", ""))
        elif given.get("href", "data:").startswith("data:") is False:
            self.faults.append(f"<{tag}> from {given['href'][:60]}")
        if tag == "img":
            self.pictures.append(given.get("src") or "")
            if not given.get("alt"):
                self.faults.append("<img> without words")
        elif "src" in given:
            self.faults.append(f"<{tag}> from {given['src'][:60]}")
        if re.search(r"url\(", given.get("style") or ""):
            self.faults.append(f"<{tag}> style with an address")

    def handle_data(self, data):
        (self.faults if self.style and re.search(r"url\(|@import", data) else self.text).append(
            data
        )


def parsed(path):
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def faults(path):
    """All that is wrong with a page, by parsing it."""
    page = parsed(path)
    found = list(page.faults)
    found += [f"id {name} twice" for name in set(page.ids) if page.ids.count(name) > 1]
    found += [f"dead link {link}" for link in page.links if not _alive(path, link, page.ids)]
    for source in page.pictures:
        kind, _, content = source.partition(";base64,")
        try:
            if kind != "data:image/png":
                raise ValueError("no PNG in the page")
            with Image.open(io.BytesIO(base64.b64decode(content, validate=True))) as picture:
                picture.load()
        except (ValueError, OSError, UnidentifiedImageError) as error:
            found.append(f"picture {source[:40]}: {error}")
    return found


def _alive(path, link, ids):
    return link[1:] in ids if link.startswith("#") else (path.parent / link).is_file()


_PROBE = """<script>
const wrong = [];
addEventListener("error", e => wrong.push("error: " + (e.message || e.target.src)), true);
addEventListener("load", () => {
  for (const d of document.querySelectorAll("details")) d.open = true;
  for (const i of document.images)
    if (!i.complete || !i.naturalWidth) wrong.push("picture: " + i.alt);
  for (const a of document.querySelectorAll("a[href^='#']"))
    if (!document.getElementById(a.hash.slice(1))) wrong.push("dead link: " + a.hash);
  if (document.documentElement.scrollWidth > innerWidth)
    wrong.push("wider than the screen: " + document.documentElement.scrollWidth);
  parent.postMessage(wrong, "*");
});
</script>"""


def opened(path, directory, width):
    """What is wrong with a page as a browser opens it; as parsing finds it where there is none."""
    return _in_browser(path, directory, width) if CHROMIUM else faults(path)


def _in_browser(path, directory, width):
    """What a browser finds wrong at this width: errors of its console, pictures, links, layout."""
    probed = directory / "probed.html"
    page = path.read_text(encoding="utf-8")
    assert "<head>" in page
    probed.write_text(page.replace("<head>", f"<head>{_PROBE}", 1), encoding="utf-8")
    # A frame is as narrow as a telephone; a window of the browser's own has a least width.
    frame = directory / "frame.html"
    frame.write_text(
        f'<iframe src="probed.html" style="width:{width}px;height:900px"></iframe><script>'
        'addEventListener("message", e => { const p = document.createElement("pre");'
        "p.id = 'found'; p.textContent = JSON.stringify(e.data); document.body.append(p); });"
        "</script>"
    )
    done = _browse(frame, directory)
    match = re.search(_FOUND, done.stdout, re.DOTALL)
    assert match, f"the page did not load: {done.stdout[-500:]} {done.stderr[-2000:]}"
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(match[1]) + console


_FOUND = '<pre id="found">(.*?)</pre>'


def _browse(path, directory):
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
    options += [f"--user-data-dir={directory / 'browser'}", "--virtual-time-budget=20000"]
    # Only what is on this machine: a page that asks for more fails.
    options += ["--host-resolver-rules=MAP * ~NOTFOUND", "--dump-dom"]
    return subprocess.run(
        [CHROMIUM, *options, path.as_uri()], capture_output=True, text=True, timeout=300
    )


def answer(path, directory):
    """What a script of a page has put as JSON into an element called found, once it is loaded."""
    done = _browse(path, directory)
    return json.loads(html.unescape(re.search(_FOUND, done.stdout, re.DOTALL)[1]))
