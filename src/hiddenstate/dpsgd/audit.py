"""The loop of every audit: chunks of runs, threads, finished runs on disk, a bar of progress.

A group of runs says how a chunk of it is trained and observed; the loop knows names alone. It is
that of ``ensemble`` and of the small networks of ``crafted_gradients``. The adversaries of an audit
read the same models that were trained without a canary.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import pandas as pd
from tqdm import tqdm

from hiddenstate.dpsgd.checkpoint import Checkpoint
from hiddenstate.errors import InputError
from hiddenstate.pipeline.parts import Identity, Row
from hiddenstate.streams import World


@dataclass(frozen=True)
class Group:
    """Runs that are trained and observed alike.

    store: what keeps finished ones. chunks: divides those that are not finished. observed: trains a
    chunk and yields each run with its row; it ends early once the event is set, and a chunk that is
    not whole is not kept. threads: how many chunks are trained at once.
    """

    runs: Sequence[Identity]
    store: Checkpoint
    chunks: Callable[[list[Identity]], list[list[Identity]]]
    observed: Callable[[list[Identity], threading.Event], Iterator[tuple[Identity, Row]]]
    threads: int


def finished(group: Group, bar: "tqdm[Any]") -> dict[Identity, Row]:
    """The rows of a group's runs; those that the store has are not trained again.

    Of a part of a cell, those of its own runs alone, as far as it had time for them.
    """
    done, place = group.store.read(), group.store.place
    # Of all runs, whether they are finished or not, so that parts share nothing.
    mine = place.parts.mine(group.runs)
    pending = [run for run in mine if run not in done]
    there = len(mine) - len(pending)
    if not bar.disable:
        bar.initial += there  # which take no time
    bar.update(there)
    bar.refresh()
    stop = threading.Event()

    def work(chunk: list[Identity]) -> dict[Identity, Row]:
        found: dict[Identity, Row] = {}
        if not place.parts.begins():
            return found
        began = time.monotonic()
        for run, row in group.observed(chunk, stop):
            found[run] = row
            bar.update()
        if len(found) < len(chunk):
            return {}
        group.store.write(found)
        place.parts.ended(time.monotonic() - began)
        return found

    with ThreadPoolExecutor(group.threads) as pool:
        chunks = group.chunks(pending)
        if place.parts.limited:  # worlds in turn, so that as many models of each are there
            chunks.sort(key=lambda chunk: chunk[0][1:])
        futures = [pool.submit(work, chunk) for chunk in chunks]
        try:
            for future in as_completed(futures):
                done |= future.result()
        except BaseException:  # an interruption as well
            # Running chunks are asked to stop, and waiting ones are dropped.
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    found = {run: done[run] for run in mine if run in done}
    place.parts.add(place.name, group.store.made, found)
    return found


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
        present = [finished(group("in", (name,)), bar) for name in names]
    rows = [
        (*run, *(row[column(name, what)] for what in observed), name)
        for name, its in zip(names, present, strict=True)
        for found in (its, without)
        for run, row in found.items()
    ]
    return pd.DataFrame(rows, columns=["world", "repeat", "run", *observed, "adversary"])


def column(name: str, what: str) -> str:
    """Column name of the quantity ``what`` for the adversary ``name``."""
    return f"{name} {what}"
