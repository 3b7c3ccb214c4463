"""``hiddenstate report``: claims, figures and tables of a run on one page."""

import argparse

from hiddenstate.commands.options import Commands, add_config, add_out, add_path, command


def add_jobs(commands: Commands) -> None:
    parser = command(commands, "report", run)
    add_config(parser)
    add_path(parser, "verdicts", "CSV file of `hiddenstate job collect`")
    for name, what in (
        ("figures", "figures of the scale, by family"),
        ("results", "results of the scale, by family"),
        ("cached", "cached scores, by family"),
    ):
        add_path(parser, name, what, metavar="DIR")
    add_out(parser, "HTML file to write")


def run(options: argparse.Namespace) -> None:
    """Write the page of claims, figures and tables: one HTML file that needs no network."""
    from hiddenstate.study import page

    places = page.Places(options.figures, options.results, options.cached)
    page.write(options.out, options.config, options.verdicts, places)
