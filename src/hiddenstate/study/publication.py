"""Pages made from published verdicts: one a paper, the front page, our own statements.

A paper's page has at most 1,200 words. All evidence of its verdicts is in the CSV file beside it,
which is also what is left as it was when one family alone is published.
"""

import json
import math
import re
from pathlib import Path
from typing import Any

import pandas as pd

from hiddenstate import papers
from hiddenstate.errors import InputError
from hiddenstate.files import atomic, text
from hiddenstate.pipeline import sealed
from hiddenstate.pipeline.evidence import GUARD
from hiddenstate.pipeline.family import Figure
from hiddenstate.study import claims as ledger
from hiddenstate.study import verdicts as words
from hiddenstate.study.claims import Page, Verdict

MOST_WORDS = 1200
"""Of a paper's page."""
CLAIMS = Path("workflow/config/claims")
EVIDENCE = {
    "agrees": "The evidence lies inside what the sentence allows.",
    "contradicts": "The evidence lies outside what the sentence allows.",
    "depends": "Another reading of the text has another outcome.",
    "undecided": "The evidence covers both sides.",
    "not judged": "This scale lacks what the sentence needs.",
}
"""What is said of a verdict whose row has no sentence of its own."""
FIGURE = re.compile(r"^Figure (\d+)")
"""Title of a figure that shows what one of the paper's shows."""
ORDER = ("contradicts", "depends", "agrees", "undecided", "not judged")
"""Of the rows of a paper's table, by what they say."""


def publish(
    tree: Path, verdicts: pd.DataFrame, scale: str, grids: dict[str, str], only: str | None = None
) -> None:
    """Write the pages of a source tree that are made from verdicts.

    verdicts: of every family, or with ``only`` of that one, whose rows alone are replaced. grids:
    by family, what its estimates at the scale say that they are of.

    Raises InputError for verdicts of another scale, of a part of the families, on other claims than
    the tree's, or of checks that failed.
    """
    found = words.families(verdicts)
    if only is not None:
        verdicts = words.of_family(verdicts, only)
        found = [only] if len(verdicts) else []
    for name in found:
        of = sorted(set(words.of_family(verdicts, name)["grid"]) - {""})
        if of != [grids.get(name, "")]:
            raise InputError(
                f"verdicts of {name}: got those of {', '.join(of) or 'no estimates'}; expected "
                f"those of {grids.get(name) or f'a family that scale {scale} has'}"
            )
    if missing := [name for name in ([only] if only else papers.names()) if name not in found]:
        raise InputError(
            f"verdicts: lack those of {', '.join(missing)}; expected every family, or name one by "
            "--only"
        )
    for name in found:
        _check_judged(tree / CLAIMS / f"{name}.yaml", words.of_family(verdicts, name))
    for name in papers.names():
        if name not in found:
            _check_published(tree, name, grids.get(name, f"{name} at {scale}"))
    pages = ledger.pages(tree / CLAIMS)
    places = {
        name: text(tree / name, "a page with a place for verdicts")
        for name in ("README.md", "ARTIFACT-APPENDIX.md")
    }
    for name, content in places.items():
        words.between(name, content, "")  # refuses a page without the place
    (tree / "docs/papers").mkdir(parents=True, exist_ok=True)
    for name in found:
        mine = words.of_family(verdicts, name)
        sealed.write(tree / evidence_file(name), mine, sealed.of(sorted(set(mine["estimates"]))))
    # Read back, so that the pages have the rows of all families, also of those that stay.
    every = words.read(*(tree / evidence_file(name) for name in papers.names()))
    with atomic(tree / words.expectation(scale)) as temporary:
        every[["id", "verdict"]].to_csv(temporary, index=False)
    made = {
        "docs/verdicts.md": front(every, pages),
        "docs/own-statements.md": own_statements(every),
        **{f"docs/papers/{name}.md": paper(every, name, page) for name, page in pages.items()},
        **{f"docs/papers/{name}-figures.md": side_by_side(every, name) for name in pages},
    }
    for name, table in (
        ("README.md", overview(every, pages)),
        ("ARTIFACT-APPENDIX.md", words.expectations(every)),
    ):
        made[name] = words.between(name, places[name], table)
    for name, content in made.items():
        with atomic(tree / name) as temporary:
            temporary.write_text(content, encoding="utf-8")


def _check_judged(path: Path, verdicts: pd.DataFrame) -> None:
    """Raise InputError where claims were judged that are not those of a file, or a check failed."""
    stated = {c.id: (c.statement, getattr(c, "quote", "")) for c in ledger.read(path)}
    rows = verdicts[["id", "statement", "quote"]].itertuples(index=False, name=None)
    judged = {name: tuple(said) for name, *said in rows}
    for name in stated | judged:
        if judged.get(name) != stated.get(name):
            got = "judged with other words" if name in stated else "judged, and not stated"
            got = got if name in judged else "not judged"
            raise InputError(f"verdicts: {name}: {got}; expected the claims of {path}: run again")
    for row in verdicts[verdicts["problem"] != ""].itertuples():
        raise InputError(
            f"verdicts: {row.id}: its check failed: {row.problem}; expected none that did"
        )


def _check_published(tree: Path, name: str, grid: str) -> None:
    """Raise InputError where the verdicts that stay are of another family or grid."""
    path = tree / evidence_file(name)
    found = words.read(path)
    others = sorted(set(found["grid"]) - {grid, ""})
    if words.families(found) != [name] or others:
        got = ", ".join([*words.families(found), *others[:1]])
        raise InputError(
            f"{path}: got {got[:200]}; expected verdicts of {grid}; publish those of every family, "
            "without --only"
        )


def evidence_file(name: str) -> str:
    """Where the verdicts of a family stand with their evidence, seen from the tree's top."""
    return f"docs/papers/{name}.csv"


def overview(verdicts: pd.DataFrame, pages: dict[str, Page], to: str = "docs/papers/") -> str:
    """If each paper reproduces, in a line: its main claim, our number beside its own, a link."""
    told = dict(zip(verdicts["id"], verdicts["verdict"], strict=True))
    rows = []
    for name, page in pages.items():
        verdict = Verdict(told[f"{name}.{page.row}"])
        family = papers.load(name)
        rows.append(
            {
                "paper": f"[{family.title.split(':')[0]}]({to}{name}.md) ({family.reference})",
                "its main claim": page.main,
                "theirs": page.theirs,
                "ours": page.ours,
                "reproduces?": f"{words.SYMBOLS[verdict.group]} {verdict}",
                "all sentences": _bar(words.of_ledger(words.of_family(verdicts, name), "paper")),
            }
        )
    own = words.of_ledger(verdicts, "own")
    root = to.removesuffix("papers/")
    return "\n\n".join(
        [
            words.judged(verdicts),
            words.markdown(pd.DataFrame(rows)),
            f"[Our own statements]({root}own-statements.md) are counted separately: "
            f"{words.tally(own, 'own')}.",
        ]
    )


def _bar(rows: pd.DataFrame) -> str:
    groups = [Verdict(verdict).group for verdict in rows["verdict"]]
    return " ".join(f"{words.SYMBOLS[g]} {groups.count(g)}" for g in words.SYMBOLS if g in groups)


def front(verdicts: pd.DataFrame, pages: dict[str, Page]) -> str:
    """The page of all papers: if they reproduce, and how many sentences have which verdict."""
    legend = ", ".join(f"{symbol} {group}" for group, symbol in words.SYMBOLS.items())
    parts = [
        "# Does it reproduce?",
        overview(verdicts, pages, "papers/"),
        f"Signs: {legend}. [What a verdict means, and the rule that gives it](claims.md).",
        "## How many sentences of each paper",
        words.table(verdicts, "paper"),
    ]
    if len(close := words.guarded(verdicts)):
        parts += [
            "## Left open by the guard band",
            "The evidence would decide these claims, but not with 95 % if other seeds were drawn.",
            words.markdown(close),
        ]
    return "\n\n".join(parts) + "\n"


def own_statements(verdicts: pd.DataFrame) -> str:
    """Our own statements, counted separately from the papers'."""
    own = words.of_ledger(verdicts, "own")
    parts = [
        "# Our own statements",
        "Validations, variants and findings of this package. No paper is confirmed by any of them.",
        words.table(verdicts, "own"),
    ]
    for name in words.families(own):
        rows = [
            {
                "statement": words.plain(row["statement"]),
                "verdict": _signed(row["verdict"]),
                "ours": _ours(row),
                "id": f"`{row['id'].split('.')[1]}`",
            }
            for row in words.of_family(own, name).to_dict("records")
        ]
        parts += [
            f"## {papers.load(name).title}",
            words.markdown(pd.DataFrame(rows)),
            f"[All evidence]({evidence_file(name).removeprefix('docs/')}).",
        ]
    return "\n\n".join(parts) + "\n"


def paper(verdicts: pd.DataFrame, name: str, page: Page) -> str:
    """A paper's page: three lines, the table, a figure, questions, and evidence folded.

    Many sentences have fewer of their words in the table, so that the page keeps its length; and
    of so many as leave them fewer than five, those that agree have a number without its name.
    """
    made = ""
    shapes = [(most, True) for most in range(9, 4, -1)] + [
        (most, False) for most in range(9, 1, -1)
    ]
    for shape in shapes:
        made = _paper(verdicts, name, page, *shape)
        if words_of(made) <= MOST_WORDS:
            break
    for row in _sorted(
        words.of_ledger(words.of_family(verdicts, name), "paper").to_dict("records")
    ):
        folded = _folded(row)
        if folded and words_of(made + folded) <= MOST_WORDS:
            made += "\n" + folded
    return made


def words_of(page: str) -> int:
    """Number of words of a page; what has neither letter nor digit, as a table's lines, is none."""
    return sum(any(sign.isalnum() for sign in word) for word in page.split())


def _paper(verdicts: pd.DataFrame, name: str, page: Page, most: int, all_named: bool) -> str:
    family = papers.load(name)
    rows = words.of_ledger(words.of_family(verdicts, name), "paper").to_dict("records")
    figure = family.figures[page.figure]
    parts = [
        f"# {family.title}",
        f"{family.reference}. {len(rows)} sentences: {words.tally(pd.DataFrame(rows), 'paper')}. "
        f"[What a verdict means](../claims.md).",
        f"- **What holds.** {page.holds}\n- **What does not.** {page.fails}\n"
        f"- **What nobody can tell yet.** {page.open}",
        "## Sentence by sentence",
        words.markdown(pd.DataFrame([_line(row, page, most, all_named) for row in _sorted(rows)])),
        f"Quotes in full, choices of ours and all evidence: [{name}.csv]({name}.csv).",
        "## The figure",
        _picture(name, page.figure, figure),
        page.caption,
        f"[Every figure beside the paper's words]({name}-figures.md).",
        "## If you are the author",
        "These answers would settle most. Send them as an issue, or as a change of "
        f"`{CLAIMS.as_posix()}/{name}.yaml`.",
        "\n".join(f"{i}. {question}" for i, question in enumerate(page.questions, 1)),
    ]
    return "\n\n".join(parts) + "\n"


def side_by_side(verdicts: pd.DataFrame, name: str) -> str:
    """Each of our figures with what the paper says of its own, in the paper's order.

    A paper whose figures no sentence names has those that show its sentences.
    """
    family = papers.load(name)
    rows = words.of_ledger(words.of_family(verdicts, name), "paper").to_dict("records")
    rows = [row for row in rows if row["shown"] in family.figures]
    named = [row for row in rows if "Figure" in row["place"]]
    parts = [
        f"# {family.title.split(':')[0]}: figures side by side",
        f"The paper's sentences ({family.reference}), our figure, and the difference. "
        f"[All sentences]({name}.md). [Captions and commands](../gallery.md).",
    ]
    rows = named or rows
    shown = {row["shown"]: family.figures[row["shown"]] for row in rows}
    for key, figure in sorted(shown.items(), key=lambda one: FIGURE.findall(one[1].title) or ["~"]):
        table = [
            {
                "the paper says": f"“{words.plain(row['quote'])}” ({row['place']})",
                "ours": _difference(row),
                "verdict": _signed(row["verdict"]),
            }
            for row in rows
            if row["shown"] == key
        ]
        parts += [
            f"## {figure.title}",
            _picture(name, key, figure),
            words.markdown(pd.DataFrame(table)),
        ]
    return "\n\n".join(parts) + "\n"


def _picture(name: str, key: str, figure: Figure) -> str:
    seen = figure.message or figure.title
    return f"![{seen}](../../figures/published/{name}/{key}.png)"


def _difference(row: dict[str, Any]) -> str:
    """Measured values beside printed ones, or beside what the sentence allows."""
    items = [one for one in json.loads(row["evidence"]) if not pd.isna(one["measured"])]
    printed = [one for one in items if one["stated"]]
    if printed:
        return "; ".join(
            f"{one['what']}: {one['measured']:.3g} for {one['stated']}" for one in printed
        )
    if not items:
        return "nothing was measured"
    one = _decisive(row, items)
    return f"{one['what']}: {_number(one)}; the sentence allows {one['allowed']}"


def _line(row: dict[str, Any], page: Page, most: int, all_named: bool) -> dict[str, str]:
    named = all_named or Verdict(row["verdict"]).group != "agrees"
    return {
        "where": _short(row["place"], max(2, most - 4)),
        "their words": f"“{words.plain(_short(row['quote'], most))}”",
        "theirs": _theirs(row),
        "ours": _ours(row, named=named),
        "verdict": _signed(row["verdict"]),
        "because": words.plain(_because(row, page)),
    }


def _folded(row: dict[str, Any]) -> str:
    found = words.evidence(row["evidence"])
    if found.empty or len(found) > 12:
        return ""
    table = words.markdown(found)
    return f"<details markdown><summary>{row['id']}</summary>\n\n{table}\n\n</details>\n"


def _theirs(row: dict[str, Any]) -> str:
    stated = [one["stated"] for one in json.loads(row["evidence"]) if one["stated"]]
    if len(set(stated)) == 1:
        return stated[0]
    return ", ".join(stated) if len(stated) <= 4 else f"{len(stated)} numbers"


def _ours(row: dict[str, Any], *, named: bool = True) -> str:
    """Measured value of the item that decides the verdict, after what it is if none is printed.

    named: False: without what it is.
    """
    items = [one for one in json.loads(row["evidence"]) if not pd.isna(one["measured"])]
    if not items:
        return ""
    stated = [one for one in items if one["stated"]]
    if 1 < len(stated) <= 4:
        return ", ".join(f"{one['measured']:.3g}" for one in stated)
    one = _decisive(row, items)
    return (f"{one['what']}: " if named and not one["stated"] else "") + _number(one)


def _number(one: dict[str, Any]) -> str:
    """Measured value of an item, with its interval; of a test its p-value."""
    if one["allowed"].startswith("not rejected"):
        return f"p = {one['measured']:.2g}"
    low, high = one["low"], one["high"]
    if pd.isna(low) or low == high or math.isinf(low) or math.isinf(high):
        return f"{one['measured']:.4g}"
    return f"{one['measured']:.3g} ({low:.3g} to {high:.3g})"


def _decisive(row: dict[str, Any], items: list[dict[str, Any]]) -> dict[str, Any]:
    group = Verdict(row["verdict"]).group
    wanted = {"agrees": "agrees", "contradicts": "contradicts"}.get(group, "undecided")
    same = [one for one in items if one["outcome"] == wanted]
    # Of several that decide, the one that other seeds would turn first.
    return max(same or items, key=lambda one: one["turns"] or 0)


def _because(row: dict[str, Any], page: Page) -> str:
    """Why a row has its verdict: its own sentence, or what the evidence alone says.

    A verdict that changed since its sentence was written has the latter.
    """
    group = Verdict(row["verdict"]).group
    if own := page.because.get(row["id"].split(".")[1], {}).get(group):
        return own
    if float(row["turns"] or 0) > 1 - GUARD and group == "undecided":
        return f"Other seeds would turn the verdict in {float(row['turns']):.0%} of reruns."
    return EVIDENCE[group]


def _sorted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Contradictions first; otherwise in the paper's own order."""
    return sorted(rows, key=lambda row: ORDER.index(Verdict(row["verdict"]).group))


def _signed(verdict: str) -> str:
    return f"{words.SYMBOLS[Verdict(verdict).group]} {verdict}"


def _short(sentence: str, most: int) -> str:
    parts = sentence.split()
    if len(parts) <= most:
        return " ".join(parts)
    kept = " ".join(parts[:most])
    if kept.count("$") % 2:  # a formula is left out whole
        kept = kept[: kept.rindex("$")].rstrip()
    return kept.rstrip(",;:") + " …"
