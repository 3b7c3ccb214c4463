"""What users read is short and in the glossary's words: docs/glossary.md."""

import argparse
import ast
import re
import statistics
from pathlib import Path

import pytest
from command_line import parsers

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARTIFACT-APPENDIX.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
RETIRED = re.compile(
    r"\b(worlds?|rivals?|ledgers?|turns? no gradient|at hand|idle coordinates?|remains(?= \())\b",
    re.IGNORECASE,
)
"""Words that the glossary has a plainer one for."""


def prose(text):
    """A page without code, formulas, tables, headings, quotations and pictures."""
    text = re.sub(r"```.*?```|`[^`]*`|<[^>]+>|\$\$.*?\$\$|\$[^$]*\$", " x ", text, flags=re.DOTALL)
    kept = [line for line in text.splitlines() if not re.match(r"\s*(\||#|>|!\[)", line)]
    return re.sub(r"\]\([^)]*\)", "]", "\n".join(kept))


def sentences(text):
    """Each sentence of three words or more, with its number of words."""
    for part in re.split(r"(?<=[.!?])\s+|\n\s*\n|\n\s*[-*] |\n\s*\d+\. ", prose(text)):
        words = re.findall(r"[A-Za-z][\w'-]*", part)
        if len(words) > 2:
            yield " ".join(part.split()), len(words)


def longest(pages, most):
    """Sentences of more words, with their page."""
    return [
        f"{page.name} ({count} words): {sentence}"
        for page in pages
        for sentence, count in sentences(page.read_text(encoding="utf-8"))
        if count > most
    ]


def retired(text):
    """Paragraphs of a page, outside of code and quotations, that have a retired word."""
    paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", prose(text)))
    return [part for part in paragraphs if RETIRED.search(part)]


def test_half_of_the_sentences_have_at_most_18_words():
    counts = [n for page in PAGES for _, n in sentences(page.read_text(encoding="utf-8"))]
    assert statistics.median(counts) <= 18


def test_no_sentence_has_more_than_40_words():
    assert not longest(PAGES, 40)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_page_has_a_retired_word(page):
    assert not retired(page.read_text(encoding="utf-8"))


def heads(text):
    """Headings, and the first row of each table."""
    lines = re.sub(r"```.*?```", "", text, flags=re.DOTALL).splitlines()
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("#") or re.fullmatch(r"\|[\s:|-]+\|", below):
            yield re.sub(r"`[^`]*`", " x ", line)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_heading_and_no_head_of_a_table_has_a_retired_word(page):
    assert not [line for line in heads(page.read_text(encoding="utf-8")) if RETIRED.search(line)]


def fragments(text):
    """What follows a block of code and goes on with a sentence that no one began."""
    after = re.findall(r"^```\w+\n.*?^```\n+([^\n]*)", text, re.DOTALL | re.MULTILINE)
    return [line for line in after if line[:1].islower()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_sentence_after_code_has_its_own_beginning(page):
    assert fragments(page.read_text(encoding="utf-8")) == []


def test_a_slip_is_found():
    assert fragments("Then\n\n```sh\nls\n```\n\nlists files.\n") == ["lists files."]
    assert list(heads("## Two worlds\n\n| a world |\n|---|\n| b |\n")) == [
        "## Two worlds",
        "| a world |",
    ]
    text = "The two worlds differ.\n\n" + "word " * 41 + "end.\n"
    assert retired(text) == ["The two worlds differ."]
    assert [n for _, n in sentences(text)] == [4, 42]
    assert retired("an idle\ncoordinate") == ["an idle coordinate"]
    assert not retired("> the worlds of a quotation\n`world`, ```\nworld\n```")


def options():
    for name, parser in parsers().items():
        for action in parser._actions:
            if action.help is not argparse.SUPPRESS:
                yield pytest.param(action, id=f"{name}-{action.dest}")


@pytest.mark.parametrize("action", list(options()))
def test_a_help_is_a_noun_phrase_in_plain_words(action):
    """It begins with no pronoun or preposition, is no sentence, and has no retired word."""
    text = action.help
    assert text, "every option has a help"
    assert not re.match(
        r"(an?|the|every|of|in|that|these|those|it|its|what|whether|how|for|with|at|by|on|instead|also)\b",
        text,
        re.I,
    )
    # A column and an argument of scores are named "world".
    words = re.sub(r"train\(world, seed\)|\{world\}|world \('in' or 'out'", "", text)
    assert not text.endswith(".") and not RETIRED.search(words)


@pytest.mark.parametrize("action", list(options()))
def test_a_default_is_called_so(action):
    """No help ends with a bare number or word in parentheses, as in "threads (1)"."""
    assert not re.search(r"\((none|not known|the last|[\d. ]+|\.|that of [^)]*)\)$", action.help)
    if isinstance(action.default, int | float) and action.option_strings and action.nargs != 0:
        assert "default" in action.help


READ = [
    path
    for part in ("adversaries", "auditing", "campaign", "commands", "dpsgd", "pipeline")
    for path in sorted((ROOT / "src/hiddenstate" / part).rglob("*.py"))
]
"""Modules whose messages people read."""


def texts(path):
    """Strings that a module may print: neither docstrings nor keys nor names."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    spared = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in spared
        ) and " " in node.value.strip():
            yield node.lineno, node.value


@pytest.mark.parametrize("path", READ, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_no_message_has_a_retired_word_or_a_python_value(path):
    """An argument, a column and a key are named "world"; no message prints None."""
    for line, text in texts(path):
        words = re.sub(WORLD, "", text)
        assert not RETIRED.search(words), f"{path.name}:{line}: {text}"
        assert "got None" not in text and "got {'" not in text, f"{path.name}:{line}: {text}"


WORLD = (
    r"train\(world, seed\)|\{world\}|columns? world|world \('in'|: world: got|^worlds: got"
    r"|than world and seed"
    r"|got world, run|[(]world, seed[)]| of world $|'world'"
)
