"""The list of everything that is shown, as a Markdown page: ``docs/figures.md`` is made by it."""

from collections.abc import Sequence

from hiddenstate import papers
from hiddenstate.claims import Claim

_HEAD = """# Every figure and table

Made by `hiddenstate catalogue > docs/figures.md` from the families themselves. A command draws one
figure at the scale `laptop`; `--config scale=paper` draws the paper's. Files are in
`figures/<scale>/<family>/` (PDF and PNG) and `results/<scale>/<family>/tables/` (CSV, Markdown and
LaTeX). A family's cells are shared by all it shows, so the second figure takes seconds.
"""


def page() -> str:
    """The whole page; a test compares it with the file."""
    parts = [_HEAD]
    for name in papers.names():
        family = papers.load(name)
        parts.append(f"## `{name}`\n\n{family.title} ({family.reference})\n")
        parts += [
            f"### {figure.title}\n\n`./reproduce {name}_{key}`\n\n{figure.caption}\n"
            for key, figure in family.figures.items()
        ]
        parts.append("### Tables\n")
        parts.append(
            "\n".join(
                f"- `{key}`: *{table.title}.* {table.caption}"
                for key, table in family.tables.items()
            )
            + "\n"
        )
    return "\n".join(parts)


_CLAIMS = """# Claims

Every sentence of the papers that is checked, from `workflow/config/claims.yaml`. A run judges them:
`./reproduce claims` writes the verdicts, `./reproduce report` a page with each beside its figure.
"""


def claims_page(claims: Sequence[Claim]) -> str:
    """Every claim with what its paper states and where it is shown, as a Markdown page."""
    parts = [_CLAIMS]
    for name in papers.names():
        family = papers.load(name)
        parts.append(f"## {family.title}\n\n`{name}`, {family.reference}\n")
        for claim in claims:
            if claim.family != name:
                continue
            figure = family.figures.get(claim.shown)
            told = {
                "Place": claim.source,
                "Stated": claim.stated,
                "Figure": f"[{figure.title}](gallery/{name}_{claim.shown}.png)" if figure else "",
                "Table": f"`{claim.shown}`" if claim.shown and not figure else "",
                "Judged from scale": f"`{claim.judged_from}`",
                "Remark": claim.remark,
            }
            lines = "\n".join(f"- {key}: {value.strip()}" for key, value in told.items() if value)
            parts.append(f"### {claim.id}\n\n{claim.statement.strip()}\n\n{lines}\n")
    return "\n".join(parts)
