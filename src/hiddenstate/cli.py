"""The command line: every job of the workflow is one of these commands."""

import argparse
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import hiddenstate
from hiddenstate import config, estimates, files, papers, scores
from hiddenstate.commands import audit, epsilon, plan
from hiddenstate.errors import InputError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status (2 for bad input, told without a traceback)."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        options.run(options)
    except InputError as error:
        print(f"hiddenstate: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 1
    return 0


def _cells(options: argparse.Namespace) -> None:
    """List the cells of a family."""
    family, grid, _ = _load(options)
    for kind, cells in family.cells(grid).items():
        for cell in cells:
            print(f"{kind}\t{cell.name}\t{cell.parameters}")


def _scores(options: argparse.Namespace) -> None:
    """Run a cell and write what the adversary observed."""
    family, grid, seed = _load(options)
    cell = papers.find(family.score_cells(grid), options.cell, str(options.config))
    start = time.perf_counter()
    frame = family.score(cell, seed)
    seconds = time.perf_counter() - start
    scores.write(
        options.out, frame, scores.provenance(cell.parameters, seed=seed, wall_seconds=seconds)
    )


def _start(options: argparse.Namespace) -> None:
    """Compute and write the initial parameters that cells train from."""
    family, grid, seed = _load(options)
    cell = papers.find(family.cells(grid)["start"], options.cell, str(options.config))
    start = time.perf_counter()
    frame = family.initialise(cell, seed, papers.Workplace(device=_device(options.device)))
    scores.write_table(options.out, frame, _origin(family, cell, seed, start))


def _train(options: argparse.Namespace) -> None:
    """Train a cell's models, write their scores; a killed run goes on."""
    family, grid, seed = _load(options)
    cell = papers.find(family.train_cells(grid), options.cell, str(options.config))
    start = time.perf_counter()
    with _workplace(options, cell, seed) as workplace:
        frame = family.train(cell, seed, workplace)
        scores.write(options.out, frame, _origin(family, cell, seed, start))


def _restore(options: argparse.Namespace) -> None:
    """Copy the cached scores of a cell, if they are of exactly its parameters."""
    family, grid, seed = _load(options)
    cell = papers.find(family.train_cells(grid), options.cell, str(options.config))
    scores.check(options.cached, cell.parameters, seed)
    with files.atomic(options.out) as temporary:
        shutil.copyfile(options.cached, temporary)


def _verify(options: argparse.Namespace) -> None:
    """Train models of a cell anew; test if cached scores are distributed so."""
    from hiddenstate import verification

    family, grid, seed = _load(options)
    cell = papers.find(family.train_cells(grid), options.cell, str(options.config))
    cached = scores.check(options.cached, cell.parameters, seed)
    fewer = replace(cell, parameters=cell.parameters | {"models": options.models})
    with _workplace(options, cell, seed, purpose="verification") as workplace:
        found = verification.compare(cached, family.train(fewer, seed, workplace))
        found.insert(0, "cell", cell.name)
        with files.atomic(options.out) as temporary:
            found.to_csv(temporary, index=False)
    print(found.to_markdown(index=False))


def _verified(options: argparse.Namespace) -> None:
    """Collect verdicts on cells; fail, naming them, if any disagree."""
    import pandas as pd

    frames = []
    for path in options.files:
        frames.append(pd.read_csv(files.require(path, "a file written by `hiddenstate verify`")))
        if not {"cell", "agree"} <= set(frames[-1]):
            raise InputError(f"{path}: lacks the columns cell and agree of `hiddenstate verify`")
    found = pd.concat(frames, ignore_index=True)
    with files.atomic(options.out) as temporary:
        found.to_csv(temporary, index=False)
    print(found.to_markdown(index=False))
    differing = sorted(set(found.loc[~found["agree"], "cell"]))
    if differing:
        raise InputError(
            f"cached scores differ from scores trained anew: {', '.join(differing)} "
            f"(p-values in {options.out})"
        )


@contextmanager
def _workplace(
    options: argparse.Namespace, cell: papers.Cell, seed: int, purpose: str = ""
) -> Iterator[papers.Workplace]:
    """What the options say of where to train; the checkpoint goes once all is written."""
    if cell.start and not options.start:
        raise InputError(f"--start: missing; expected the initial parameters {cell.start.name}")
    yield papers.Workplace(
        start=scores.check(options.start, cell.start.parameters, seed) if cell.start else None,
        checkpoint=options.checkpoint,
        device=_device(options.device),
        workers=options.workers,
        memory=options.memory * 2**20,
        progress=True,
        purpose=purpose,
    )
    if options.checkpoint:
        shutil.rmtree(options.checkpoint, ignore_errors=True)


def _device(name: str) -> str:
    """The device of that name, if torch can use it; torch on one thread.

    Sums over several threads would round differently; ``--workers`` trains models side by side.
    """
    import torch

    torch.set_num_threads(1)
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"--device: got {name!r}; expected one torch can use ({reason})"
        ) from error
    return name


def _origin(family: papers.Family, cell: papers.Cell, seed: int, start: float) -> dict:
    """Provenance of what took since ``start`` to compute, with the data sets' digests."""
    from hiddenstate import data

    seconds = time.perf_counter() - start
    digests = {name: data.splits(name).sha256 for name in family.data(cell)}
    return scores.provenance(cell.parameters, seed=seed, wall_seconds=seconds) | {"data": digests}


def _bounds(options: argparse.Namespace) -> None:
    """Ask the accountant about a cell and write its answer."""
    family, grid, _ = _load(options)
    cell = papers.find(family.bound_cells(grid), options.cell, str(options.config))
    frame = family.bound(cell)
    with files.atomic(options.out) as temporary:
        frame.to_parquet(temporary, index=False, compression="zstd")


def _estimates(options: argparse.Namespace) -> None:
    """Turn a family's scores and bounds into tidy estimates."""
    import pandas as pd

    family, grid, seed = _load(options)
    observed = {
        cell.name: scores.check(options.scores / f"{cell.name}.parquet", cell.parameters, seed)
        for cell in [*family.score_cells(grid), *family.train_cells(grid)]
    }
    bounds = {
        cell.name: pd.read_parquet(
            files.require(options.bounds / f"{cell.name}.parquet", "bounds of this cell")
        )
        for cell in family.bound_cells(grid)
    }
    estimates.write(options.out, family.estimate(grid, observed, bounds))


def _figure(options: argparse.Namespace) -> None:
    """Draw a figure from estimates."""
    from hiddenstate import plotting

    family, grid, _ = _load(options)
    figure = _named(family.figures, options.name, f"{options.family} figure")
    with plotting.style():
        drawn = figure.draw(estimates.read(options.estimates))
        footer = f"{options.family}, scale {options.config.stem}: {grid.shows}"
        plotting.save(drawn, options.out, footer)


def _table(options: argparse.Namespace) -> None:
    """Write a table from estimates as CSV, Markdown or LaTeX, by suffix."""
    family, _, _ = _load(options)
    table = _named(family.tables, options.name, f"{options.family} table")
    frame = table.draw(estimates.read(options.estimates))
    writers = {
        ".csv": lambda path: frame.to_csv(path, index=False),
        ".md": lambda path: path.write_text(frame.to_markdown(index=False) + "\n"),
        ".tex": lambda path: path.write_text(frame.to_latex(index=False, escape=True)),
    }
    for out in options.out:
        if out.suffix not in writers:
            raise InputError(f"--out: got {out}; expected a name ending in {', '.join(writers)}")
    for out in options.out:
        with files.atomic(out) as temporary:
            writers[out.suffix](temporary)


def _claims(options: argparse.Namespace) -> None:
    """Judge the claims of the families whose estimates are given."""
    from hiddenstate import claims

    frames = {}
    for item in options.estimates:
        family, separator, path = item.partition("=")
        if not separator:
            raise InputError(f"--estimates: got {item!r}; expected FAMILY=FILE")
        papers.load(family)
        frames[family] = estimates.read(path)
    verdicts = claims.judge(claims.read(options.claims), frames, options.scale)
    claims.write(verdicts, options.csv, options.markdown, options.scale)


def _digest(options: argparse.Namespace) -> None:
    """Print the SHA-256 of the scores in each file, for bit-for-bit comparison."""
    for path in options.files:
        print(f"{scores.digest(scores.read(path)[0])}  {path}")


def _schema(options: argparse.Namespace) -> None:
    """Print the JSON schema of a scale file."""
    import json

    print(json.dumps(config.schema(), indent=2))


def _load(options: argparse.Namespace):
    """The family, its grid at the configured scale, and the root seed."""
    family = papers.load(options.family)
    scale = config.read(options.config)
    if options.family not in config.families(scale):
        raise InputError(f"{options.config}: has no section {options.family}")
    return family, getattr(scale, options.family), scale.seed


def _named(things, name: str, what: str):
    if name not in things:
        raise InputError(f"unknown {what} {name!r}; expected one of {', '.join(things)}")
    return things[name]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hiddenstate",
        description="How much does the last iterate of DP-SGD leak? "
        "Each command is one job of the workflow and can be run by hand.",
    )
    parser.add_argument("--version", action="version", version=hiddenstate.__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run, *, family: bool = True) -> argparse.ArgumentParser:
        summary = run.__doc__.splitlines()[0]
        sub = commands.add_parser(name, help=summary, description=summary)
        sub.set_defaults(run=run)
        if family:
            sub.add_argument("family", metavar="FAMILY", help=f"one of {', '.join(papers.names())}")
            sub.add_argument(
                "--config",
                type=Path,
                required=True,
                metavar="FILE",
                help="scale file, such as workflow/config/scales/laptop.yaml",
            )
        return sub

    def out(sub: argparse.ArgumentParser, **options) -> None:
        sub.add_argument("--out", type=Path, required=True, metavar="FILE", **options)

    command("cells", _cells)
    for name, run in (("scores", _scores), ("bounds", _bounds)):
        sub = command(name, run)
        sub.add_argument("--cell", required=True, help="a name that `hiddenstate cells` lists")
        out(sub, help="Parquet file to write")
    for name, run in (
        ("start", _start),
        ("train", _train),
        ("restore", _restore),
        ("verify", _verify),
    ):
        sub = command(name, run)
        sub.add_argument("--cell", required=True, help="a name that `hiddenstate cells` lists")
        out(sub, help="CSV file to write" if name == "verify" else "Parquet file to write")
        if name in ("restore", "verify"):
            sub.add_argument("--cached", type=Path, required=True, metavar="FILE", help="scores")
        if name != "restore":
            sub.add_argument("--device", default="cpu", help="cpu (the default), cuda, cuda:1, …")
        if name in ("train", "verify"):
            sub.add_argument("--start", type=Path, metavar="FILE", help="initial parameters")
            sub.add_argument("--checkpoint", type=Path, metavar="DIR", help="for finished models")
            sub.add_argument("--workers", type=int, default=1, help="threads (1)")
            sub.add_argument("--memory", type=int, default=2048, help="for models, in MiB (2048)")
        if name == "verify":
            sub.add_argument("--models", type=int, default=20, help="in each world and repeat (20)")
    sub = command("verified", _verified, family=False)
    sub.add_argument("files", nargs="+", type=Path, metavar="FILE", help="of `hiddenstate verify`")
    out(sub, help="CSV file to write")
    sub = command("estimates", _estimates)
    for name in ("scores", "bounds"):
        sub.add_argument(
            f"--{name}", type=Path, default=Path(), metavar="DIR", help=f"directory of the {name}"
        )
    out(sub, help="CSV file to write")
    for name, run in (("figure", _figure), ("table", _table)):
        sub = command(name, run)
        sub.add_argument("name", metavar="NAME", help=f"which {name} of the family")
        sub.add_argument("--estimates", type=Path, required=True, metavar="FILE")
        out(sub, nargs="+", help="files to write; the suffix decides the format")
    sub = command("claims", _claims, family=False)
    sub.add_argument("--claims", type=Path, required=True, metavar="FILE", help="claims.yaml")
    sub.add_argument("--scale", required=True, help="the scale the estimates were made at")
    sub.add_argument("--estimates", nargs="+", required=True, metavar="FAMILY=FILE")
    sub.add_argument("--csv", type=Path, required=True, metavar="FILE")
    sub.add_argument("--markdown", type=Path, required=True, metavar="FILE")
    sub = command("digest", _digest, family=False)
    sub.add_argument("files", nargs="+", type=Path, metavar="FILE", help="score files")
    command("schema", _schema, family=False)
    for name, module in (("epsilon", epsilon), ("audit", audit), ("plan-audit", plan)):
        module.add_arguments(command(name, module.run, family=False))
    return parser
