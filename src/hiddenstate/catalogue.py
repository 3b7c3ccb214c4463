"""The list of everything that is shown, as a Markdown page: ``docs/figures.md`` is made by it."""

from hiddenstate import papers

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
