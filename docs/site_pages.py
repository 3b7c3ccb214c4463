"""A hook of mkdocs: pages that lie elsewhere in the tree, links as they lead on the site."""

import html
import json
import os
import re
from pathlib import Path
from textwrap import indent

from markdown import Extension
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
PAGES = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "artifact-appendix.md": "ARTIFACT-APPENDIX.md",
}
"""Pages of the site that are files at the top of the tree."""
PICTURES = {
    path.relative_to(ROOT).as_posix(): path.relative_to(ROOT).as_posix()
    for path in sorted((ROOT / "figures/published").glob("*/*.png"))
}
"""Pictures of the site that lie outside of the documentation's folder."""


class Formulas(Extension):
    """Markdown in which <x, y> is an inner product and no tag, and X~_t a name and no emphasis."""

    def extendMarkdown(self, md):
        """Let go of what reads HTML and underscores."""
        md.preprocessors.deregister("html_block")
        md.inlinePatterns.deregister("html")
        md.delimiters.remove("_")


@event_priority(100)
def on_config(config):
    """Read every page and docstring so, before mkdocstrings takes the list of extensions."""
    config.markdown_extensions.append(Formulas())
    return config


def on_files(files, config):
    """Add the pages that are not in the folder of the documentation."""
    for name, source in (PAGES | PICTURES).items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Let links within the tree lead to the site's page; where it has none, keep their text."""
    name = page.file.src_uri
    here = ROOT / PAGES.get(name, f"docs/{name}")
    pages = {ROOT / source: name for name, source in (PAGES | PICTURES).items()}

    def link(match):
        text, target, anchor = match.groups()
        path = Path(os.path.normpath(here.parent / target))
        found = pages.get(path) or os.path.relpath(path, ROOT / "docs")
        if found not in files.src_uris:
            return text
        return f"[{text}]({os.path.relpath(found, os.path.dirname(name) or '.')}{anchor})"

    # Tags are words here, and so would be the marks of generated parts and what is folded.
    told = re.sub(r"^<!-- .* -->\n", "", markdown, flags=re.MULTILINE)
    told = re.sub(
        r"^<details markdown><summary>(.*?)</summary>\n(.*?)\n</details>$",
        lambda match: f'??? note "{match[1]}"\n' + indent(match[2], "    "),
        told,
        flags=re.MULTILINE | re.DOTALL,
    )
    return re.sub(r"\[([^]]+)\]\(([^)#:\s]+)((?:#[^)\s]*)?)\)", link, told)


def on_post_page(output, page, config):
    """Name the search for screen readers, and load its worker from the site, not from a server."""
    here = os.path.dirname(page.url) or "."
    shim = os.path.relpath("offline/iframe-worker.js", here)
    output = output.replace(' role="dialog">', ' role="dialog" aria-label="Search">')
    if page.file.src_uri.endswith(".ipynb"):
        for seen in pictures(json.loads(Path(page.file.abs_src_path).read_text(encoding="utf-8"))):
            output = output.replace(_UNSEEN, f'alt="{html.escape(seen)}"', 1)
    return output.replace("https://unpkg.com/iframe-worker/shim", shim)


_UNSEEN = 'alt="No description has been provided for this image"'


def pictures(notebook):
    """What each picture of a notebook shows, which its converter leaves out."""
    outputs = (out for cell in notebook["cells"] for out in cell.get("outputs", []))
    return [
        out["metadata"]["image/png"]["alt"] for out in outputs if "image/png" in out.get("data", {})
    ]
