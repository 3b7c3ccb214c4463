"""The command line: every job of the workflow is one of these commands."""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import hiddenstate
from hiddenstate import files, papers
from hiddenstate.commands import (
    atlas,
    audit,
    audit_one_run,
    audit_training,
    device_check,
    epsilon,
    new_paper,
    plan,
    suggest_canary,
)
from hiddenstate.commands.printing import add_json, print_json, records
from hiddenstate.errors import InputError
from hiddenstate.pipeline.family import FamilyGrid, Figure, Job, Shown, Table, Workplace
from hiddenstate.study import config

# Modules that import pandas are imported where they are used: it takes half a second, and
# accounting needs none of it.
if TYPE_CHECKING:
    import pandas as pd

S = TypeVar("S", bound=Shown)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status.

    0, and 1 where an audit refutes a claim or a device is wrong; 2 for bad input, told without a
    traceback; 3 for any other failure. Whoever reads the output and stops, or interrupts, gets the
    shell's own statuses.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    _end_with_driver()
    try:
        status = options.run(options) or 0
        sys.stdout.flush()
        return status
    except InputError as error:
        print(f"hiddenstate: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("hiddenstate: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        _discard_output()
        return 128 + signal.SIGPIPE
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name in _TRAINING:
            print(
                f"hiddenstate: error: this needs {error.name}, which is not installed; "
                "pip install 'hiddenstate[train]'",
                file=sys.stderr,
            )
            return 2
        # Python's own status after a traceback is 1, which would accuse a training.
        traceback.print_exc()
        _discard_output()
        return FAILED


FAILED = 3
"""Exit status of a failure of the tool itself."""
_TRAINING = ("torch", "torchvision", "opacus")
"""What the package can be installed without."""


def _discard_output() -> None:
    """Spare the interpreter its last attempt to write what cannot be written."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end_with_driver() -> None:
    """End this job of a workflow once the process that runs the workflow has ended.

    A driver that is killed cannot end its jobs, and the next run would do their work once more. The
    environment variable HIDDENSTATE_DRIVER has its process id; only Linux tells when it ends.
    """
    driver = os.environ.get("HIDDENSTATE_DRIVER", "")
    try:
        ended = os.pidfd_open(int(driver))
    except (AttributeError, OSError, ValueError):
        return

    def wait() -> None:
        select.select([ended], [], [])
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)
        os._exit(130)

    threading.Thread(target=wait, daemon=True).start()


def _cells(options: argparse.Namespace) -> None:
    """List the cells of a family."""
    family, grid, _ = config.section(options.config, options.family)
    found = [
        {"kind": kind, "cell": name, "identity": job.identity}
        for kind, jobs in family.jobs(grid).items()
        for name, job in jobs.items()
    ]
    if options.json:
        print_json(found)
        return
    for row in found:
        print(f"{row['kind']}\t{row['cell']}\t{json.dumps(row['identity'])}")


def _compute(options: argparse.Namespace) -> None:
    """Simulate cells, or compute their bounds, and write each one's result."""
    if len(options.cell) != len(options.out):
        raise InputError(
            f"--out: got {len(options.out)} files for {len(options.cell)} cells; "
            "expected one for each cell"
        )
    family, grid, seed = config.section(options.config, options.family)
    jobs = family.jobs(grid)
    wanted = [_known(jobs, options.kind, cell, options.config) for cell in options.cell]
    for job, path in zip(wanted, options.out, strict=True):
        start = time.perf_counter()
        try:
            _write(path, job, job.run(seed, Workplace()), _origin(job, seed, start, job.files))
        except InputError as error:
            raise InputError(f"{job.cell.name}: {error}") from error
        except Exception as error:
            error.add_note(f"(of the cell {job.cell.name})")
            raise


def _write(path: Path, job: Job, frame: pd.DataFrame, origin: dict[str, Any]) -> None:
    """Write the result of a job with its provenance."""
    from hiddenstate.pipeline import scores

    write = scores.write if job.work.folder == "scores" else scores.write_table
    write(path, frame, origin)


def _run(options: argparse.Namespace) -> None:
    """Make a cell's initial parameters, or train it; interrupted training goes on."""
    from hiddenstate.dpsgd import checkpoint

    job, seed = _job(options, options.kind)
    given = job.files  # as they are before the work: they may be replaced meanwhile
    with _workplace(options, job, seed) as workplace:
        before = checkpoint.spent(getattr(options, "checkpoint", None))
        start = time.perf_counter() - before
        frame = job.run(seed, workplace)
        if workplace.part:
            with files.atomic(options.out) as temporary:
                temporary.touch()
            return
        origin = _origin(job, seed, start, given)
        if gathered := getattr(options, "gathers", 0):
            origin["parts"] = gathered
        _write(options.out, job, frame, origin)


def _restore(options: argparse.Namespace) -> None:
    """Copy the cached scores of a family's cells, if each is of exactly its cell's parameters."""
    from hiddenstate.pipeline import scores

    family, grid, seed = config.section(options.config, options.family)
    jobs = family.jobs(grid)["train"]
    found = {name: path for name in jobs if (path := options.cached / f"{name}.parquet").exists()}
    for name, path in found.items():
        scores.check(path, jobs[name].identity, seed, jobs[name].files)
    options.out.mkdir(parents=True, exist_ok=True)
    for path in found.values():
        with files.atomic(options.out / path.name) as temporary:
            shutil.copyfile(path, temporary)


def _verify(options: argparse.Namespace) -> None:
    """Train models of a cell again; test if cached scores are distributed so."""
    from hiddenstate.pipeline import scores, verification

    job, seed = _job(options, "train")
    cached = scores.check(options.cached, job.identity, seed, job.files)
    with _workplace(options, job, seed, purpose="verification") as workplace:
        found = verification.compare(cached, job.run(seed, workplace))
        found.insert(0, "cell", job.cell.name)
        with files.atomic(options.out) as temporary:
            found.to_csv(temporary, index=False)
    _print_table(found, options)


def _verified(options: argparse.Namespace) -> None:
    """Collect verdicts on cells; fail, naming them, if any disagree."""
    import pandas as pd

    if not options.files:
        raise InputError(
            "nothing to verify: no cell is cached, or the new models per world (verify_models) "
            "are too few to disagree with any cached scores"
        )
    frames = []
    for path in options.files:
        frames.append(pd.read_csv(files.require(path, "a file written by `hiddenstate verify`")))
        if not {"cell", "agree"} <= set(frames[-1]):
            raise InputError(f"{path}: lacks the columns cell and agree of `hiddenstate verify`")
    found = pd.concat(frames, ignore_index=True)
    with files.atomic(options.out) as temporary:
        found.to_csv(temporary, index=False)
    _print_table(found, options)
    differing = sorted(set(found.loc[~found["agree"], "cell"]))
    if differing:
        raise InputError(
            f"cached scores differ from scores trained again: {', '.join(differing)} "
            f"(p-values in {options.out})"
        )


def _job(options: argparse.Namespace, kind: str) -> tuple[Job, int]:
    """The job that makes the named cell, and the root seed."""
    family, grid, seed = config.section(options.config, options.family)
    return _known(family.jobs(grid), kind, options.cell, options.config), seed


def _known(jobs: dict[str, dict[str, Job]], kind: str, cell: str, path: Path) -> Job:
    """The job of that kind and cell; the error of another name says which there are."""
    if cell not in jobs[kind]:
        shown = ", ".join([*jobs[kind]][:4]) + (", …" if len(jobs[kind]) > 4 else "")
        raise InputError(
            f"{path}: no cell {cell!r} to {kind}; expected one of {len(jobs[kind])}: {shown}"
        )
    return jobs[kind][cell]


@contextmanager
def _workplace(
    options: argparse.Namespace, job: Job, seed: int, purpose: str = ""
) -> Iterator[Workplace]:
    """What the options say of where to train; the checkpoint goes once all is written."""
    from hiddenstate.pipeline import scores

    if job.work.kind == "start":
        yield Workplace(device=_device(options.device))
        return
    if job.start and not options.start:
        raise InputError(f"--start: missing; expected the initial parameters {job.start.cell.name}")
    begun = job.start and (job.start.identity, seed, job.start.files)
    with _removable(options.start):
        start = scores.check(options.start, *begun) if begun else None
    workplace = Workplace(
        start=start,
        checkpoint=options.checkpoint,
        device=_device(options.device),
        workers=options.workers,
        memory=options.memory * 2**20 or None,
        progress=True,
        purpose=purpose,
        models=options.models if purpose else None,
        part=None if purpose else options.part,
    )
    if not options.checkpoint:
        if workplace.part:
            raise InputError("--part: needs --checkpoint, where its models are kept")
        yield workplace
        return
    part = "-".join(map(str, workplace.part or ()))
    with files.alone(options.checkpoint, f"another process trains {job.cell.name}", part):
        yield workplace
        if not part:
            shutil.rmtree(options.checkpoint, ignore_errors=True)


@contextmanager
def _removable(path: str | Path | None) -> Iterator[None]:
    """Say of a result that is damaged, or of something else, what to do about it."""
    try:
        yield
    except InputError as error:
        if not path or not Path(path).exists():
            raise
        raise InputError(f"{error}; remove the file and run the same command again") from error


def _part(text: str) -> tuple[int, int]:
    """The part that "K/N" names, counted from 0, and the number of parts."""
    match text.split("/"):
        case [k, n] if k.isdecimal() and n.isdecimal() and 1 <= int(k) <= int(n):
            return int(k) - 1, int(n)
    raise argparse.ArgumentTypeError(f"got {text!r}; expected K/N with K from 1 to N, such as 2/8")


def _device(name: str) -> str:
    """The device of that name, if torch can use it; torch on one thread.

    Sums over several threads would round differently; ``--workers`` trains models side by side.
    """
    import torch

    from hiddenstate.dpsgd.clipping import usable

    torch.set_num_threads(1)
    return str(usable(name, "--device"))


def _origin(job: Job, seed: int, start: float, given: dict[str, str]) -> dict[str, Any]:
    """Provenance of what took since ``start`` to compute, with the digests of its data sets."""
    from hiddenstate.pipeline import scores

    seconds = time.perf_counter() - start
    origin = scores.provenance(job.identity, seed=seed, wall_seconds=seconds)
    if job.data:
        from hiddenstate.datasets import data

        origin["data"] = {name: data.splits(name).sha256 for name in job.data}
        origin["files"] = given
    return origin


def _estimate(options: argparse.Namespace) -> None:
    """Turn a family's scores and bounds into tidy estimates."""
    from hiddenstate.pipeline import estimates, scores

    family, grid, seed = config.section(options.config, options.family)
    found: dict[str, dict[str, pd.DataFrame]] = {"scores": {}, "bounds": {}}
    for kind in ("simulate", "train", "bound"):
        for name, job in family.jobs(grid)[kind].items():
            path = options.results / job.work.folder / f"{name}.parquet"
            skipped = kind == "train" and options.missing == "skip"
            if skipped and not scores.computed(path, job.identity, seed, job.files):
                continue
            with _removable(path):
                found[job.work.folder][name] = scores.check(path, job.identity, seed, job.files)
    frame = family.estimates(grid, found["scores"], found["bounds"])
    estimates.write(
        options.out, frame, config.grid_name(options.config, options.family, grid, seed)
    )


def _figures(options: argparse.Namespace) -> None:
    """Draw a family's figures from estimates, each as PDF and PNG."""
    from hiddenstate import plotting

    figures, rows, grid = _asked(options, Figure)
    for name, figure in figures.items():
        footer = f"{options.family}, {figure.footer(options.config.stem, grid)}"
        with plotting.style():
            paths = [options.out / f"{name}{suffix}" for suffix in (".pdf", ".png")]
            plotting.save(figure.draw(rows), paths, footer)


def _tables(options: argparse.Namespace) -> None:
    """Write a family's tables from estimates, each as CSV, Markdown and LaTeX."""
    tables, rows, _ = _asked(options, Table)
    for name, table in tables.items():
        frame = table.draw(rows)
        for suffix, text in (
            (".csv", frame.to_csv(index=False)),
            (".md", frame.to_markdown(index=False) + "\n"),
            (".tex", frame.to_latex(index=False, escape=True)),
        ):
            with files.atomic(options.out / f"{name}{suffix}") as temporary:
                temporary.write_text(text, encoding="utf-8")


def _print_table(frame: pd.DataFrame, options: argparse.Namespace) -> None:
    """Print a table, or its rows as JSON."""
    if options.json:
        print_json(records(frame))
    else:
        print(frame.to_markdown(index=False))


def _print_verdicts(
    found: pd.DataFrame, options: argparse.Namespace, expected: Path | None = None
) -> None:
    """Say how many claims have which verdict, and if they are as expected."""
    from hiddenstate.study import verdicts

    if options.json:
        print_json(verdicts.told(found, expected))
        return
    print("\n".join(verdicts.lines(found)))
    if expected:
        print(verdicts.compared(found, expected))


def _claims(options: argparse.Namespace) -> None:
    """Judge the claims of a family from its estimates."""
    from hiddenstate.pipeline import estimates
    from hiddenstate.study import claims, verdicts

    _, grid, seed = config.section(options.config, options.family)
    named = config.grid_name(options.config, options.family, grid, seed)
    with _removable(options.estimates):
        frame = estimates.read(options.estimates, named)
    if options.claims.stem != options.family:
        raise InputError(f"--claims: got {options.claims}; expected {options.family}.yaml")
    scale = options.config.stem
    found = claims.judge(claims.read(options.claims), frame, scale)
    verdicts.write(options.out, found, scale)
    _print_verdicts(found, options)


def _collect(options: argparse.Namespace) -> None:
    """Join the verdicts of families; say if they are as expected."""
    from hiddenstate.study import verdicts

    found = verdicts.read(*options.verdicts)
    verdicts.write(options.out, found, options.config.stem, options.expected)
    _print_verdicts(found, options, options.expected)


def _verdicts(options: argparse.Namespace) -> None:
    """Write the verdicts of a run into the pages of a source tree."""
    from hiddenstate.study import verdicts

    verdicts.publish(options.tree, verdicts.read(options.verdicts), options.config.stem)


def _report(options: argparse.Namespace) -> None:
    """Write the page of claims, figures and tables: one HTML file that needs no network."""
    from hiddenstate.study import page

    places = page.Places(options.figures, options.results, options.cached)
    page.write(options.out, options.config, options.verdicts, places)


def _digest(options: argparse.Namespace) -> None:
    """Print the SHA-256 of the scores in each file, for bit-for-bit comparison."""
    from hiddenstate.pipeline import scores

    found = {str(path): scores.digest(scores.read(path)[0]) for path in options.files}
    if options.json:
        print_json(found)
        return
    for path, digest in found.items():
        print(f"{digest}  {path}")


def _schema(options: argparse.Namespace) -> None:
    """Print the JSON schema of a scale file."""
    print_json(config.schema())


def _plan(options: argparse.Namespace) -> None:
    """Print what a run would take: jobs, processor time, memory and disk, and what is cached."""
    from hiddenstate.study import forecast

    trains = options.missing != "skip"
    found = forecast.table(
        options.config,
        options.results,
        options.cached,
        trains=trains,
        part_hours=options.part_hours,
    )
    stray = [str(path) for path in forecast.stray(options.config, options.results)]
    if options.json:
        told = {"families": records(found), "all": forecast.sums(found, options.cores)}
        print_json(told | {"stray": stray})
        return
    print(forecast.words(found, options.cores, options.part_hours), end="")
    if stray:
        print(
            f"Files of cells that the scale no longer has, which may be deleted: {len(stray)}, "
            f"the first is {stray[0]}"
        )


def _cores(given: str) -> int:
    """A number of cores of the command line."""
    if not re.fullmatch("[1-9][0-9]{0,6}", given):
        raise argparse.ArgumentTypeError(f"got {given!r}; expected a number from 1")
    return int(given)


def _gallery(options: argparse.Namespace) -> None:
    """Write the page of every figure and table, with small pictures from what is drawn."""
    from hiddenstate.study import gallery

    figures = gallery.at_hand(Path("figures")) if options.figures is None else options.figures
    gallery.write(options.out, figures, options.families)


def _asked(
    options: argparse.Namespace, kind: type[S]
) -> tuple[dict[str, S], pd.DataFrame, FamilyGrid]:
    """The figures or tables that are named, or all that the scale has cells for; their rows."""
    from hiddenstate.pipeline import estimates

    family, grid, seed = config.section(options.config, options.family)
    every = family.every(kind)
    for name in options.names:
        if name not in every:
            what = f"{options.family} {kind.__name__.lower()}"
            raise InputError(f"unknown {what} {name!r}; expected one of {', '.join(every)}")
    named = config.grid_name(options.config, options.family, grid, seed)
    with _removable(options.estimates):
        rows = estimates.read(options.estimates, named)
    chosen = {name: thing for name, thing in every.items() if name in options.names}
    return chosen or family.shown(kind, grid), rows, grid


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hiddenstate",
        description="How much does the last iterate of DP-SGD leak? "
        "Each command is one job of the workflow and can be run by hand.",
    )
    parser.add_argument("--version", action="version", version=hiddenstate.__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(
        name: str,
        run: Callable[[argparse.Namespace], None],
        *,
        family: bool = True,
        summary: str | None = None,
    ) -> argparse.ArgumentParser:
        summary = (summary or str(run.__doc__).splitlines()[0]).removesuffix(".")
        sub = commands.add_parser(name, help=summary, description=f"{summary}.")
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

    def out(sub: argparse.ArgumentParser, *, metavar: str = "FILE", **options: Any) -> None:
        sub.add_argument("--out", type=Path, required=True, metavar=metavar, **options)

    def cell(sub: argparse.ArgumentParser, **options: Any) -> None:
        words = "a name that `hiddenstate cells` lists"
        sub.add_argument("--cell", required=True, metavar="CELL", help=words, **options)

    def missing(sub: argparse.ArgumentParser, *, default: str, what: str) -> None:
        words = f"trained scores that are not there: {what} (the default), or left out"
        sub.add_argument("--missing", choices=(default, "skip"), default=default, help=words)

    def trains(sub: argparse.ArgumentParser, *, models: bool) -> None:
        sub.add_argument("--device", default="cpu", help="cpu (the default), cuda, cuda:1, …")
        if models:
            # Without a value: the cell has no initial parameters of its own.
            sub.add_argument("--start", type=Path, nargs="?", help="file of initial parameters")
            sub.add_argument("--checkpoint", type=Path, metavar="DIR", help="for finished models")
            sub.add_argument("--workers", type=int, default=1, help="threads (1)")
            sub.add_argument(
                "--memory", type=int, default=0,
                help="for models, in MiB (2048; on CUDA 80 %% of what is free)",
            )  # fmt: skip

    add_json(command("cells", _cells), "lines")
    for kind, what in (
        ("simulate", "Run cells and write what the adversary observed"),
        ("bound", "Ask the accountant about cells and write its answers"),
    ):
        sub = command(kind, _compute, summary=what)
        sub.set_defaults(kind=kind)
        cell(sub, nargs="+")
        out(sub, nargs="+", help="Parquet files to write, one for each cell")
    for kind, what in (
        ("start", "Make and write the initial parameters that cells train from"),
        ("train", "Train a cell's models and write their scores; a killed run goes on"),
    ):
        sub = command(kind, _run, summary=what)
        sub.set_defaults(kind=kind)
        cell(sub)
        trains(sub, models=kind == "train")
        if kind == "train":
            sub.add_argument(
                "--part", type=_part, metavar="K/N",
                help="train the K-th of N parts of the models, kept in --checkpoint; FILE is empty",
            )  # fmt: skip
            sub.add_argument(
                "--gathers", type=int, default=0, metavar="N",
                help="the number of parts whose models are in --checkpoint, for the provenance",
            )  # fmt: skip
        out(sub, help="Parquet file to write")
    sub = command("restore", _restore)
    sub.add_argument("--cached", type=Path, required=True, metavar="DIR", help="cached scores")
    out(sub, metavar="DIR", help="directory to write them to")
    sub = command("verify", _verify)
    cell(sub)
    sub.add_argument("--cached", type=Path, required=True, metavar="FILE", help="cached scores")
    sub.add_argument("--models", type=int, default=20, help="per world and repeat (20)")
    trains(sub, models=True)
    out(sub, help="CSV file to write")
    add_json(sub)
    sub = command("verified", _verified, family=False)
    sub.add_argument("files", nargs="*", type=Path, metavar="FILE", help="of `hiddenstate verify`")
    out(sub, help="CSV file to write")
    add_json(sub)
    sub = command("estimate", _estimate)
    sub.add_argument(
        "--results", type=Path, required=True, metavar="DIR", help="directory of scores and bounds"
    )
    missing(sub, default="error", what="an error")
    out(sub, help="CSV file to write")
    for name, run in (("figures", _figures), ("tables", _tables)):
        sub = command(name, run)
        sub.add_argument("names", nargs="*", metavar="NAME", help="these alone")
        sub.add_argument("--estimates", type=Path, required=True, metavar="FILE")
        out(sub, metavar="DIR", help="directory to write them to")
    sub = command("claims", _claims)
    sub.add_argument("--claims", type=Path, required=True, metavar="FILE", help="of the family")
    sub.add_argument("--estimates", type=Path, required=True, metavar="FILE")
    out(sub, metavar="DIR", help="directory to write claims.csv and claims.md to")
    add_json(sub, "words")
    scale: dict[str, Any] = {"type": Path, "required": True, "metavar": "FILE"}
    sub = command("collect", _collect, family=False)
    sub.add_argument("verdicts", nargs="+", type=Path, metavar="FILE", help="families' claims.csv")
    sub.add_argument("--config", **scale, help="scale file")
    sub.add_argument("--expected", type=Path, metavar="FILE", help="the verdicts to compare with")
    out(sub, metavar="DIR", help="directory to write claims.csv and claims.md to")
    add_json(sub, "words")
    sub = command("verdicts", _verdicts, family=False)
    sub.add_argument("verdicts", type=Path, metavar="FILE", help="claims.csv of a scale")
    sub.add_argument("--config", **scale, help="scale file")
    sub.add_argument("--tree", type=Path, default=Path(), metavar="DIR", help="source tree (.)")
    sub = command("report", _report, family=False)
    for name, what in (
        ("config", "scale file"),
        ("verdicts", "CSV file of `hiddenstate collect`"),
    ):
        sub.add_argument(f"--{name}", type=Path, required=True, metavar="FILE", help=what)
    for name, what in (
        ("figures", "figures of the scale, by family"),
        ("results", "results of the scale, by family"),
        ("cached", "cached scores, by family"),
    ):
        sub.add_argument(f"--{name}", type=Path, required=True, metavar="DIR", help=what)
    out(sub, help="HTML file to write")
    sub = command("digest", _digest, family=False)
    sub.add_argument("files", nargs="+", type=Path, metavar="FILE", help="score files")
    add_json(sub, "lines")
    command("schema", _schema, family=False)
    sub = command("plan", _plan, family=False)
    sub.add_argument("--config", type=Path, required=True, metavar="FILE", help="scale file")
    sub.add_argument(
        "--results", type=Path, required=True, metavar="DIR", help="results of the scale, by family"
    )
    sub.add_argument("--cached", type=Path, metavar="DIR", help="cached scores; without: train all")
    sub.add_argument("--cores", type=_cores, default=1, help="on which to run (1)")
    sub.add_argument(
        "--part-hours", type=float, default=0.0, metavar="HOURS",
        help="divide longer trainings into jobs of at most so many hours (0: none is divided)",
    )  # fmt: skip
    missing(sub, default="train", what="trained")
    add_json(sub)
    sub = command("gallery", _gallery, family=False)
    sub.add_argument("families", nargs="*", metavar="FAMILY", help="these alone have new pictures")
    sub.add_argument(
        "--figures",
        nargs="*",
        type=Path,
        metavar="DIR",
        help="figures of scales, the best first (figures/paper, figures/mnist, figures/laptop, as "
        "far as they are there); none: captions alone",
    )
    page = Path("docs/gallery.md")
    sub.add_argument("--out", type=Path, default=page, metavar="FILE", help=f"page ({page})")
    for name, module in (
        ("epsilon", epsilon),
        ("atlas", atlas),
        ("audit", audit),
        ("plan-audit", plan),
        ("suggest-canary", suggest_canary),
        ("audit-training", audit_training),
        ("audit-one-run", audit_one_run),
        ("device-check", device_check),
        ("new-paper", new_paper),
    ):
        module.add_arguments(command(name, module.run, family=False))
    return parser
