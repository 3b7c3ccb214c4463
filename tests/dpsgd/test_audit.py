"""The loop of every audit, with runs that train nothing."""

import threading
from functools import partial

import numpy as np
import pytest
from tqdm import tqdm

from hiddenstate.dpsgd.audit import Group, by_adversary, column, finished, in_chunks
from hiddenstate.dpsgd.checkpoint import Checkpoint
from hiddenstate.errors import InputError
from hiddenstate.pipeline.parts import Parts

RUNS = [
    (world, repeat, index) for world in ("out", "in") for repeat in (0, 1) for index in (0, 1, 2)
]


def number(run):
    """What is observed of a run."""
    world, repeat, index = run
    return 100.0 * (world == "in") + 10 * repeat + index


def group(store=None, observed=None, size=2, threads=1, runs=RUNS) -> Group:
    """Runs whose score is their number."""

    def plain(chunk, stop):
        yield from ((run, {"score": number(run)}) for run in chunk)

    store = Checkpoint(store, "fingerprint", ("score",), {})
    return Group(runs, store, partial(in_chunks, size=size), observed or plain, threads)


def bar() -> tqdm:
    return tqdm(disable=True)


@pytest.mark.parametrize("threads", [1, 3])
def test_every_run_has_its_row_in_the_order_of_the_runs(threads):
    found = finished(group(threads=threads), bar())
    assert list(found) == RUNS
    assert {run: row["score"] for run, row in found.items()} == {r: number(r) for r in RUNS}


def test_chunks_are_of_one_world_in_the_order_of_the_runs():
    chunks = in_chunks(RUNS, 4)
    assert [len(chunk) for chunk in chunks] == [4, 2, 4, 2]
    assert [run for chunk in chunks for run in chunk] == RUNS
    assert all(len({world for world, _, _ in chunk}) == 1 for chunk in chunks)


def test_finished_runs_are_not_trained_again_and_others_runs_of_the_store_not_returned(tmp_path):
    finished(group(tmp_path), bar())
    fewer = RUNS[::3]

    def refuse(chunk, stop):
        raise AssertionError

    assert list(finished(group(tmp_path, refuse, runs=fewer), bar())) == fewer


@pytest.mark.parametrize("number_of_parts", [1, 2, 5, 20])
def test_parts_train_every_run_once_and_the_whole_finds_them(tmp_path, number_of_parts):
    trained = []

    def noted(chunk, stop):
        for run in chunk:
            trained.append(run)
            yield run, {"score": number(run)}

    for index in reversed(range(number_of_parts)):
        before = len(trained)
        for _ in range(2):
            part = group(Parts(tmp_path, part=(index, number_of_parts)), noted)
            found = finished(part, bar())
            # Its own rows alone, though the directory has those of parts before.
            assert list(found) == RUNS[index::number_of_parts]
            assert all(row["score"] == number(run) for run, row in found.items())
        assert len(trained) - before <= -(-len(RUNS) // number_of_parts)
    assert sorted(trained) == sorted(RUNS)

    def refuse(chunk, stop):
        raise AssertionError

    found = finished(group(tmp_path, refuse), bar())
    assert {run: row["score"] for run, row in found.items()} == {r: number(r) for r in RUNS}


@pytest.mark.parametrize("number_of_parts", [1, 2, 5, 12])
def test_parts_of_several_adversaries_have_equally_many_models(tmp_path, number_of_parts):
    """Each group has fewer models than there are parts, all groups together have not."""
    names, trained = ["first", "second", "third"], []

    def make(parts, world, those):
        def observed(chunk, stop):
            for run in chunk:
                trained.append((those, run))
                yield run, {column(name, "score"): number(run) for name in those}

        store = Checkpoint(parts / "-".join((world, *those)), "mark", columns(those), {})
        runs = [(world, 0, i) for i in range(3)]
        chunks = partial(in_chunks, size=2)
        return Group(runs, store, chunks, observed, 1)

    def columns(those):
        return tuple(column(name, "score") for name in those)

    for index in range(number_of_parts):
        before = len(trained)
        parts = Parts(tmp_path, part=(index, number_of_parts))
        table = by_adversary(names, partial(make, parts), ("score",), progress=False)
        assert sorted({(row.world, row.run) for row in table.itertuples()}) == sorted(
            {(world, run) for _, (world, _, run) in trained[before:]}
        )
        assert 12 // number_of_parts <= len(trained) - before <= -(-12 // number_of_parts)
    assert len(trained) == len(set(trained)) == 12


def test_a_part_with_little_time_trains_worlds_in_turn_and_at_least_a_chunk():
    found = finished(group(Parts(hours=1e-9), size=1), bar())
    assert list(found) == RUNS[:1]
    later = finished(group(Parts(hours=1), size=1), bar())
    assert list(later) == RUNS
    begun = []

    def noted(chunk, stop):
        begun.extend(chunk)
        yield from ((run, {"score": number(run)}) for run in chunk)

    finished(group(Parts(hours=1), noted, size=1), bar())
    assert [run[0] for run in begun[:4]] == ["out", "in", "out", "in"]


def test_the_bar_counts_finished_runs_and_their_speed_does_not(tmp_path):
    finished(group(tmp_path, runs=RUNS[:6]), bar())
    with tqdm(total=len(RUNS)) as shown:
        finished(group(tmp_path), shown)
    assert (shown.n, shown.initial) == (12, 6)


def test_a_chunk_that_ends_early_is_not_kept(tmp_path):
    """One chunk is interrupted; another, which trains meanwhile, sees it and ends early."""
    began, told = threading.Event(), []

    def observed(chunk, stop):
        if chunk == RUNS[:2]:
            assert began.wait(10)
            raise KeyboardInterrupt
        yield chunk[0], {"score": number(chunk[0])}
        began.set()
        told.append(stop.wait(10))

    with pytest.raises(KeyboardInterrupt):
        finished(group(tmp_path, observed, threads=2), bar())
    assert told and all(told) and not list(tmp_path.glob("*.npz"))


def test_whole_chunks_before_an_interruption_are_kept(tmp_path):
    seen = []

    def observed(chunk, stop):
        for run in chunk:
            if len(seen) == 5:
                raise KeyboardInterrupt
            seen.append(run)
            yield run, {"score": number(run)}

    with pytest.raises(KeyboardInterrupt):
        finished(group(tmp_path, observed), bar())
    assert len(list(tmp_path.glob("*.npz"))) == 2
    seen.clear()
    assert list(finished(group(tmp_path), bar())) == RUNS


def test_models_without_a_canary_are_trained_once_and_read_by_each_adversary():
    trained = []

    def made(world, those):
        def observed(chunk, stop):
            trained.append((world, those))
            for run in chunk:
                at = {"first": 0.0, "second": 1000.0}
                yield run, {column(name, "score"): number(run) + at[name] for name in those}

        return group(observed=observed, size=9, runs=[(world, 4, index) for index in range(3)])

    table = by_adversary(["first", "second"], made, ("score",), progress=False)
    assert trained == [("out", ("first", "second")), ("in", ("first",)), ("in", ("second",))]
    assert list(table) == ["world", "repeat", "run", "score", "adversary"]
    assert list(table.adversary) == ["first"] * 6 + ["second"] * 6
    assert list(table.world) == (["in"] * 3 + ["out"] * 3) * 2
    assert list(table.run) == [0, 1, 2] * 4 and set(table["repeat"]) == {4}
    at = np.where(table.adversary == "second", 1000.0, 0.0) + 100.0 * (table.world == "in")
    np.testing.assert_array_equal(table.score, at + 40 + table.run)


def test_adversaries_have_distinct_names():
    for names in ([], ["one", "one"]):
        with pytest.raises(InputError, match="expected one or more of distinct names"):
            by_adversary(names, lambda world, those: group(), ("score",), progress=False)
