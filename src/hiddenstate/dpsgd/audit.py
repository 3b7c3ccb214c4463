"""The loop of every audit: chunks of runs, threads, finished runs on disk, a bar of progress.

A group of runs says how a chunk of it is trained and observed; the loop knows names alone. It is
that of ``ensemble`` and of the small networks of ``crafted_gradients``. The adversaries of an audit
read the same models that were trained without a canary.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import pandas as pd
from tqdm import tqdm

from hiddenstate.dpsgd.checkpoint import Checkpoint, Identity, Row
from hiddenstate.errors import InputError
from hiddenstate.streams import World


@dataclass(frozen=True)
class Group:
    """Runs that are trained and observed alike.

    store: what keeps finished ones. chunks: divides those that are not finished. observed: trains a
    chunk and yields each run with its row; it ends early once the event is set, and a chunk that is
    not whole is not kept. threads: how many chunks are trained at once. part: (index, number) of
    several: every so many-th run alone, from the index-th, counted from 0.
    """

    runs: Sequence[Identity]
    store: Checkpoint
    chunks: Callable[[list[Identity]], list[list[Identity]]]
    observed: Callable[[list[Identity], threading.Event], Iterator[tuple[Identity, Row]]]
    threads: int
    part: tuple[int, int] | None = None


def finished(group: Group, bar: "tqdm[Any]", before: int = 0) -> dict[Identity, Row]:
    """The rows of a group's runs, or of its part's; those that the store has are not trained again.

    before: how many runs the groups before it have, by which parts take turns, so that each has as
    many runs.
    """
    done = group.store.read()
    mine = group.runs
    if group.part:
        # Of all runs, whether they are finished or not, so that parts share nothing.
        index, number = group.part
        mine = mine[(index - before) % number :: number]
    pending = [run for run in mine if run not in done]
    there = len(mine) - len(pending)
    if not bar.disable:
        bar.initial += there  # which take no time
    bar.update(there)
    bar.refresh()
    stop = threading.Event()

    def work(chunk: list[Identity]) -> dict[Identity, Row]:
        found: dict[Identity, Row] = {}
        for run, row in group.observed(chunk, stop):
            found[run] = row
            bar.update()
        if len(found) < len(chunk):
            return {}
        group.store.write(found)
        return found

    with ThreadPoolExecutor(group.threads) as pool:
        futures = [pool.submit(work, chunk) for chunk in group.chunks(pending)]
        try:
            for future in as_completed(futures):
                done |= future.result()
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    return {run: done[run] for run in mine}


def progress_bar(models: int, shown: bool) -> "tqdm[Any]":
    """A bar of so many models, or one that is not shown."""
    # Not drawn before it is known how many are finished.
    return tqdm(total=models, unit="model", disable=not shown, delay=1e-9)


def in_chunks(runs: Sequence[Identity], size: int) -> list[list[Identity]]:
    """Runs in chunks of at most so many, each of one world; worlds in the order of the runs."""
    worlds = dict.fromkeys(world for world, _, _ in runs)
    parts = [[run for run in runs if run[0] == world] for world in worlds]
    return [part[i : i + size] for part in parts for i in range(0, len(part), size)]


def by_adversary(
    names: Sequence[str],
    group: Callable[[World, tuple[str, ...]], Group],
    observed: Sequence[str],
    *,
    progress: bool,
) -> pd.DataFrame:
    """One audit by each adversary: columns world, repeat, run, ``observed`` and adversary.

    The models of world "out" are trained once and read by all adversaries; those of world "in" are
    each one's own. ``group(world, those)`` are the runs that those adversaries read, with a row
    that has ``column(name, what)`` for each of them and each of ``observed``. Raises InputError for
    names that are not distinct. Of a part, its own runs' rows alone.
    """
    if not names or len(set(names)) < len(names):
        raise InputError(f"adversaries: got {list(names)}; expected one or more of distinct names")
    first = group("out", tuple(names))
    models = len(first.runs)
    with progress_bar(models * (1 + len(names)), progress) as bar:
        without = finished(first, bar)
        del first  # and its copies of the records
        present = [
            finished(group("in", (name,)), bar, before=models * i)
            for i, name in enumerate(names, 1)
        ]
    rows = [
        (*run, *(row[column(name, what)] for what in observed), name)
        for name, its in zip(names, present, strict=True)
        for found in (its, without)
        for run, row in found.items()
    ]
    return pd.DataFrame(rows, columns=["world", "repeat", "run", *observed, "adversary"])


def column(name: str, what: str) -> str:
    """What a row calls what an adversary of this name observed."""
    return f"{name} {what}"
