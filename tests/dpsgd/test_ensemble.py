import dataclasses
import functools
import itertools
import math
import os
import subprocess
import sys
import threading

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from torch import nn

from hiddenstate import models
from hiddenstate.adversaries.canaries import RecordCanary, blank
from hiddenstate.adversaries.crafted_gradients import LossBased
from hiddenstate.adversaries.gradient_canaries import (
    Coordinate,
    Inserted,
    Once,
    Periodic,
    RandomCoordinate,
    SimulatedCoordinate,
)
from hiddenstate.adversaries.initialisation import average_case
from hiddenstate.dpsgd import memory, strategies
from hiddenstate.dpsgd.clipping import ClippedSum, cross_entropy, flat_parameters, named
from hiddenstate.dpsgd.ensemble import (
    Accuracy,
    Ensemble,
    Run,
    last_iterate,
    last_iterates,
    scores,
    scores_by_adversary,
)
from hiddenstate.dpsgd.mechanism import Mechanism
from hiddenstate.dpsgd.strategies import SideBySide, model_bytes
from hiddenstate.errors import InputError
from hiddenstate.pipeline.parts import Parts
from hiddenstate.sampling import Cyclic, FullBatch, Poisson
from hiddenstate.streams import stream

pytestmark = pytest.mark.usefixtures("one_sum")
MECHANISM = Mechanism(
    sampling=FullBatch(),
    steps=5,
    learning_rate=0.02,
    clipping_norm=1.0,
    noise_multiplier=2.0,
    adjacency="add_or_remove",
)
FIRST = Coordinate(0)


def make(sampling=None, canary=None, initial=None, records=20, model=None, **changes) -> Ensemble:
    rng = stream(0, "ensemble")
    model = model or models.digits_cnn()
    mechanism = dataclasses.replace(MECHANISM, sampling=sampling or FullBatch(), **changes)
    return Ensemble(
        model,
        mechanism,
        rng.random((records, 1, 8, 8)).astype(np.float32),
        rng.integers(10, size=records),
        canary or blank((1, 8, 8), 9),
        average_case(model, stream(0, "start")) if initial is None else initial,
    )


def run(audit: Ensemble, world="in", index=0, seed=1, kernel="auto") -> Run:
    return Run(world, 0, index, audit, audit.clipped_sum(kernel=kernel), seed, ("test",))


@pytest.mark.parametrize("kernel", ["auto", "torch", "explicit"])
def test_without_clipping_and_noise_it_is_gradient_descent(kernel):
    audit = make(clipping_norm=math.inf, noise_multiplier=0.0)
    found = last_iterate(run(audit, kernel=kernel))
    x = torch.cat((torch.as_tensor(audit.x), torch.zeros(1, 1, 8, 8)))
    y = torch.cat((torch.as_tensor(audit.y), torch.tensor([9])))
    nn.utils.vector_to_parameters(audit.initial.clone(), audit.model.parameters())
    optimiser = torch.optim.SGD(audit.model.parameters(), lr=audit.mechanism.learning_rate)
    for _ in range(audit.mechanism.steps):
        optimiser.zero_grad()
        cross_entropy(audit.model(x), y).sum().backward()
        optimiser.step()
    expected = flat_parameters(audit.model)
    assert (found - audit.initial).norm() > 0.1  # it did move
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.whole
def test_noise_has_the_promised_variance_and_the_test_would_notice_five_per_cent():
    """Chi-squared on 20 models x 3,690 coordinates, false-positive rate 1e-6.

    A scale that is wrong by 5 % moves the statistic by 19 standard deviations.
    """
    promised = 1e3

    def p_value(trained_with: float) -> float:
        audit = make(steps=1, records=1, noise_multiplier=trained_with)
        moves = [last_iterate(run(audit, "out", i)) - audit.initial for i in range(20)]
        # The record's own gradient is at most 1 in 61,000 and drowns.
        noise = torch.cat(moves).double() / audit.mechanism.learning_rate / promised
        statistic = float(noise.square().sum())
        return 2 * min(stats.chi2.cdf(statistic, len(noise)), stats.chi2.sf(statistic, len(noise)))

    assert p_value(promised) > 1e-6
    assert p_value(1.05 * promised) < 1e-6
    assert p_value(0.95 * promised) < 1e-6


def side_by_side_moves(audit: Ensemble, models: int, chunk: int) -> torch.Tensor:
    """How far the last iterates of both worlds are from the start, (worlds x models, p)."""
    moves = []

    def watch(run, last):
        moves.append(last - run.initial)
        return 0.0

    scores(audit, models=models, seed=1, chunk=chunk, side_by_side=True, measures={"w": watch})
    return torch.stack(moves)


def test_side_by_side_noise_has_the_promised_variance_and_the_test_would_notice_five_per_cent():
    """As above, for the noise drawn on the device: 20 models in groups of 4, rate 1e-6."""
    promised = 1e3

    def p_value(trained_with: float) -> float:
        audit = make(steps=1, records=1, noise_multiplier=trained_with)
        noise = side_by_side_moves(audit, models=10, chunk=4).double().flatten()
        noise = noise / audit.mechanism.learning_rate / promised
        statistic = float(noise.square().sum())
        return 2 * min(stats.chi2.cdf(statistic, len(noise)), stats.chi2.sf(statistic, len(noise)))

    assert p_value(promised) > 1e-6
    assert p_value(1.05 * promised) < 1e-6
    assert p_value(0.95 * promised) < 1e-6


def test_side_by_side_noise_of_models_groups_and_worlds_is_independent():
    """190 correlations of 3,690 coordinates: standard error 0.0165, 5 of them allowed."""
    audit = make(steps=1, records=1, noise_multiplier=1e3)
    moves = side_by_side_moves(audit, models=10, chunk=4)
    off_diagonal = torch.corrcoef(moves) - torch.eye(20)
    assert off_diagonal.abs().max() < 5 / math.sqrt(3690)


def test_noise_of_steps_runs_and_worlds_is_independent():
    """Correlations of 3,690 coordinates: standard error 0.0165, 5 of them allowed."""
    audit = make(steps=2, records=1, noise_multiplier=1e3)

    def steps(world, index):
        thetas = [audit.initial, *(t.clone() for t in run(audit, world, index).iterates())]
        return [b - a for a, b in itertools.pairwise(thetas)]

    draws = torch.stack([*steps("in", 0), *steps("in", 1), *steps("out", 0)])
    off_diagonal = torch.corrcoef(draws) - torch.eye(len(draws))
    assert off_diagonal.abs().max() < 5 / math.sqrt(3690)


def test_the_canary_s_record_is_all_that_differs_between_the_worlds():
    for sampling in (FullBatch(), Cyclic(6), Cyclic(6, shuffled_once=True)):
        audit = make(sampling)
        present, absent = (run(audit, world, 3) for world in ("in", "out"))
        assert any(20 in batch for batch in present.trained_on)
        assert not any(20 in batch for batch in absent.trained_on)
        if sampling != Cyclic(6, shuffled_once=True):
            for mine, other in zip(present.batches, absent.batches, strict=True):
                np.testing.assert_array_equal(mine, other)
    # Same noise, same batches: in the first step the worlds part by the clipped canary gradient.
    audit = make(steps=1, noise_multiplier=0.0)
    gap = last_iterate(run(audit, "out")) - last_iterate(run(audit, "in"))
    only = run(audit, "in").gradients(audit.initial, np.array([20]), 1.0)
    torch.testing.assert_close(gap / audit.mechanism.learning_rate, only, rtol=1e-3, atol=1e-5)


CANARIES = {
    "record": blank((1, 8, 8), 9),
    "gradient": Inserted(RandomCoordinate(), Periodic(2)),
    "sampled gradient": Inserted(RandomCoordinate(), None),
}


INSERTIONS = {"record": None, "gradient": 2, "sampled gradient": None}


def each_sampler_and_canary(*samplers):
    """All pairs; those are ``slow`` whose sampler and whose canary other pairs have."""
    few = {(0, "record"), (0, "gradient"), (1, "record"), (1, "sampled gradient"), (2, "gradient")}
    pairs = itertools.product(enumerate(samplers), CANARIES)
    return pytest.mark.parametrize(
        ("sampling", "canary"),
        [
            pytest.param(sampling, canary, marks=() if (i, canary) in few else pytest.mark.slow)
            for (i, sampling), canary in pairs
        ],
    )


@pytest.mark.whole
@each_sampler_and_canary(FullBatch(), Poisson(0.4), Cyclic(6, shuffled_once=True))
def test_scores_are_the_same_for_any_chunking_order_threads_and_interruption(
    sampling, canary, tmp_path, monkeypatch
):
    audit = make(sampling, CANARIES[canary], insertions=INSERTIONS[canary])
    common = {"models": 5, "repeats": 2, "seed": 7, "name": ("bits",)}
    whole = scores(audit, **common, chunk=100)
    assert whole.score.nunique() == 20
    assert scores(audit, **common, chunk=3).equals(whole)
    assert scores(audit, **common, chunk=2, workers=3).equals(whole)
    reordered = scores(audit, **common, chunk=4, worlds=("out", "in"))
    keys = ["world", "repeat", "run"]
    pd_sorted = [t.sort_values(keys, ignore_index=True) for t in (whole, reordered)]
    assert pd_sorted[0].equals(pd_sorted[1])
    # Fewer models, or one of them alone, have the same scores too.
    few = scores(audit, **{**common, "models": 2})
    assert few.equals(whole[whole.run < 2].reset_index(drop=True))

    trained = []

    iterates = Run.iterates

    def interrupted(run, **stop):
        if len(trained) == 7:
            raise KeyboardInterrupt
        trained.append(run)
        return iterates(run, **stop)

    monkeypatch.setattr(Run, "iterates", interrupted)
    with pytest.raises(KeyboardInterrupt):
        scores(audit, **common, chunk=3, checkpoint=tmp_path)
    assert len(list(tmp_path.glob("*.npz"))) == 2
    counted = []
    monkeypatch.setattr(
        Run, "iterates", lambda run, **stop: counted.append(run) or iterates(run, **stop)
    )
    assert scores(audit, **common, chunk=4, checkpoint=tmp_path).equals(whole)
    assert len(counted) == 20 - 6


def one_of_many(world, chunk, workers, checkpoint):
    """Scores of one world of an audit that every process builds again."""
    model = models.digits_cnn()
    audit = make(Poisson(0.4), initial=functools.partial(average_case, model), model=model)
    worlds = ("in", "out") if world == "both" else (world,)
    return scores(
        audit, models=5, repeats=2, seed=7, name=("bits",), worlds=worlds, chunk=int(chunk),
        workers=int(workers), checkpoint=checkpoint or None,
    )  # fmt: skip


PROCESS = """
import runpy, sys
module, path, *arguments = sys.argv[1:]
runpy.run_path(module)["one_of_many"](*arguments).to_parquet(path)
"""


@pytest.mark.whole
def test_scores_are_the_same_in_any_number_of_processes(tmp_path):
    """One world in a process of its own, with other chunks and threads, into one checkpoint."""
    whole = one_of_many("both", 100, 1, None)
    kept, path = tmp_path / "checkpoint", tmp_path / "in.parquet"
    arguments = [__file__, str(path), "in", "2", "2", str(kept)]
    environment = os.environ | {"OMP_NUM_THREADS": "2", "PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", PROCESS, *arguments], check=True, env=environment)
    first, second = pd.read_parquet(path), one_of_many("out", 3, 1, kept)
    assert pd.concat((first, second), ignore_index=True).equals(whole)
    # Both worlds are kept now, and nothing is trained again.
    before = {path: path.stat().st_mtime_ns for path in kept.iterdir()}
    assert len(before) == 5 + 4
    assert one_of_many("both", 100, 1, kept).equals(whole)
    assert before == {path: path.stat().st_mtime_ns for path in kept.iterdir()}


def test_initial_parameters_are_drawn_for_each_model_from_its_own_stream():
    model = models.digits_cnn()
    audit = make(initial=lambda rng: average_case(model, rng), model=model)
    first, second = run(audit, index=0).initial, run(audit, index=1).initial
    assert not torch.equal(first, second)
    assert torch.equal(first, run(audit, index=0).initial)


@pytest.mark.parametrize("sampling", [FullBatch(), Poisson(0.4)])
@pytest.mark.parametrize("canary", CANARIES)
def test_models_side_by_side_are_the_models_alone(sampling, canary):
    audit = make(sampling, CANARIES[canary], insertions=INSERTIONS[canary])
    runs = [run(audit, "in", i, kernel="torch") for i in range(3)]
    together = last_iterates(runs)
    for alone, side in zip(map(last_iterate, runs), together, strict=True):
        torch.testing.assert_close(side, alone, rtol=1e-4, atol=1e-6)


@pytest.mark.whole
def test_chunks_side_by_side_fit_the_memory_and_score_like_models_alone(monkeypatch):
    groups = []

    def watched(runs, stop, **how):
        groups.append(len(runs))
        return last_iterates(runs, stop, **how)

    monkeypatch.setattr(strategies, "last_iterates", watched)
    audit = make(initial=lambda rng: average_case(models.digits_cnn(), rng))
    common = {"models": 5, "seed": 1, "kernel": "torch"}
    alone = scores(audit, **common)
    memory = 2.5 * model_bytes(audit.clipped_sum(kernel="torch"))
    together = scores(audit, **common, chunk=4, side_by_side=True, memory=memory)
    assert groups == [2, 2, 1] * 2
    np.testing.assert_allclose(together.score, alone.score, rtol=1e-4)
    # The same call gives the same scores.
    again = scores(audit, **common, chunk=4, side_by_side=True, memory=memory)
    assert again.equals(together)


def test_starts_that_seed_torch_are_the_same_in_all_threads():
    def initial(rng):
        torch.manual_seed(int(rng.integers(2**31)))
        return flat_parameters(nn.Sequential(nn.Flatten(), nn.Linear(64, 300), nn.Linear(300, 10)))

    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 300), nn.Linear(300, 10))
    audit, state = make(model=model, initial=initial), torch.get_rng_state()
    one, four = (scores(audit, models=20, seed=1, workers=w, chunk=2) for w in (1, 4))
    order = ["world", "run"]
    assert one.sort_values(order).score.tolist() == four.sort_values(order).score.tolist()
    assert torch.equal(torch.get_rng_state(), state)


def test_starts_that_follow_from_more_than_the_runs_name_are_refused():
    own = np.random.default_rng(7)
    for other in (own, np.random.default_rng()):
        audit = make(initial=lambda rng, other=other: average_case(models.digits_cnn(), other))
        with pytest.raises(InputError, match=r"^initial: gave a run two starts"):
            scores(audit, models=1, seed=1)


def test_a_group_that_does_not_fit_the_memory_is_split(monkeypatch):
    audit = make(noise_multiplier=0.0)
    groups = []

    def limited(runs, stop, *, kept):
        groups.append(len(runs))
        if len(runs) > 2:
            raise torch.OutOfMemoryError
        return last_iterates(runs)

    monkeypatch.setattr(strategies, "last_iterates", limited)
    runs = [run(audit, "in", i, kernel="torch") for i in range(5)]
    for one in runs:
        one.gradients = runs[0].gradients  # as in one audit
    block, stop = runs[0].gradients.block, threading.Event()
    together = SideBySide(runs[0].gradients, 1e9, together=4)
    assert [r.index for r, _ in together.trained(runs, stop)] == [0, 1, 2, 3, 4]
    assert groups == [4, 2, 2, 1]
    assert runs[0].gradients.block == block // 2
    # What fitted is remembered: the next chunk does not run out again.
    assert [r.index for r, _ in together.trained(runs, stop)] == [0, 1, 2, 3, 4]
    assert groups[4:] == [2, 2, 1]


def test_models_side_by_side_end_at_the_step_that_they_are_told_to():
    runs = [run(make(), "in", i, kernel="torch") for i in range(2)]
    stop, steps = threading.Event(), []
    for one in runs:
        one.gradients, one.see = runs[0].gradients, lambda step, theta: steps.append(step)
    stop.set()
    assert not list(SideBySide(runs[0].gradients, 1e9, together=2).trained(runs, stop))
    assert not steps


def test_blocks_become_smaller_until_one_record_of_one_model_does_not_fit(monkeypatch):
    runs = [run(make(), "in", 0, kernel="torch")]
    blocks = []

    def limited(group, stop, most, kept):
        blocks.append(group[0].gradients.block)
        if blocks[-1] > most:
            raise torch.OutOfMemoryError
        return last_iterates(group)

    runs[0].gradients.block = 6
    monkeypatch.setattr(strategies, "last_iterates", functools.partial(limited, most=2))
    together, stop = SideBySide(runs[0].gradients, 1e9), threading.Event()
    assert len(list(together.trained(runs, stop))) == 1
    assert blocks == [6, 3, 2]
    monkeypatch.setattr(strategies, "last_iterates", functools.partial(limited, most=0))
    with pytest.raises(torch.OutOfMemoryError):
        list(together.trained(runs, stop))
    assert blocks[3:] == [2, 1]


@pytest.mark.filterwarnings("ignore:no book-keeping rule")
@pytest.mark.parametrize("kernel", ["torch", "explicit"])
def test_the_memory_of_a_record_is_measured_where_shapes_do_not_tell_it(kernel):
    """Depthwise convolutions on large images: 7 parameters' worth of weights, pages of images."""
    channels = 8
    parts = [nn.Conv2d(1, channels, 1)]
    for _ in range(3):
        parts += [nn.Conv2d(channels, channels, 3, padding=1, groups=channels), nn.ReLU()]
    model = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 2))
    rng = stream(0, "memory")
    x, y = rng.random((16, 1, 48, 48)).astype(np.float32), rng.integers(2, size=16)
    total = ClippedSum(model, x, y, kernel=kernel)
    assert total.kind == ("explicit" if kernel == "explicit" else "torch")
    assert total.activations > 20 * 4 * (total.parameters + x[0].size)
    thetas = torch.stack([flat_parameters(model)] * 3)
    indices = torch.arange(16).expand(3, -1)
    total.block = 16
    peak = memory.peak(lambda: total.side_by_side(thetas, indices, None, 1.0))
    assert 0.7 * 3 * model_bytes(total) < peak < 3 * model_bytes(total)


def test_a_checkpoint_of_another_audit_or_a_damaged_one_is_refused(tmp_path):
    audit = make()
    scores(audit, models=1, seed=1, checkpoint=tmp_path)
    others = (
        (make(learning_rate=0.03), 1, ()),
        (make(canary=blank((1, 8, 8), 8)), 1, ()),
        (make(records=19), 1, ()),
        (make(initial=audit.initial * 2), 1, ()),
        (audit, 2, ()),
        (audit, 1, ("other",)),
    )
    for other, seed, name in others:
        with pytest.raises(InputError, match="another audit"):
            scores(other, models=1, seed=seed, name=name, checkpoint=tmp_path)
    path = next(tmp_path.glob("*.npz"))
    for damaged in (path.read_bytes()[:100], b"none"):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match="; expected finished models of an audit"):
            scores(audit, models=1, seed=1, checkpoint=tmp_path)
    np.savez(path, values=[1.0])
    with pytest.raises(InputError, match=r"'fingerprint'.*; expected finished models of an audit"):
        scores(audit, models=1, seed=1, checkpoint=tmp_path)


def test_measures_add_columns_that_checkpoints_keep(tmp_path):
    audit = make()
    common = {"models": 2, "seed": 1, "checkpoint": tmp_path}
    measures = {"accuracy": Accuracy(audit.x, audit.y), "norm": lambda run, last: last.norm()}
    table = scores(audit, **common, measures=measures)
    one = run(audit, "in", 1)
    one.name = ()
    last = last_iterate(one)
    outputs = torch.func.functional_call(
        audit.model, named(last, audit.model), (torch.as_tensor(audit.x),)
    )
    expected = float((outputs.argmax(1) == torch.as_tensor(audit.y)).double().mean())
    row = table[(table.world == "in") & (table.run == 1)].iloc[0]
    assert row.accuracy == expected
    assert row.norm == float(last.norm())
    assert scores(audit, **common, measures=measures).equals(table)
    with pytest.raises(InputError, match="measures"):
        scores(audit, **common)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"models": 2.5}, "models: got 2.5; expected an integer"),
        ({"seed": 1.5}, "got 1.5; expected seeds and numbers in names to be integers"),
        ({"name": ("epsilon", 0.1)}, "got 0.1; expected seeds and numbers"),
        ({"memory": -1}, "memory: got -1; expected bytes, more than 0"),
        ({"worlds": ("in", "in")}, "worlds: got .*; expected 'in', 'out' or both"),
        ({"device": "gpu"}, "device: got 'gpu'; expected one that torch can use"),
        ({"measures": {"score": lambda run, last: 0.0}}, "measures: got 'score'; expected other"),
        ({"measures": {"run": lambda run, last: 0.0}}, "measures: got 'run'; expected other"),
    ],
)
def test_arguments_that_would_be_taken_for_others_are_refused(wrong, message):
    # A measure named "score" took the place of the scores, a seed of 1.5 was 1, and the world
    # "in" given twice counted each of its models twice.
    common = {"models": 2, "seed": 1}
    with pytest.raises(InputError, match=message):
        scores(make(), **(common | wrong))


def test_a_test_set_that_does_not_fit_is_refused_before_anything_is_trained(tmp_path):
    audit = make()
    x, y = np.asarray(audit.x), np.asarray(audit.y)
    broken = x.copy()
    broken.flat[0] = np.nan
    common = {"models": 2, "seed": 1, "checkpoint": tmp_path / "kept"}
    for accuracy, message in (
        (Accuracy(x[:0], y[:0]), "x: got no record"),
        (Accuracy(x[:3], y), "y: got .* labels; expected 3"),
        (Accuracy(broken, y), "x: record 0 holds nan"),
        (Accuracy(x, y + 90), "y: record 0 has the label"),
        (Accuracy(x[:, :, :4], y), "x: the model fails on test records of shape"),
    ):
        with pytest.raises(InputError, match=message):
            scores(audit, **common, measures={"accuracy": accuracy})
    assert not (tmp_path / "kept").exists()
    with pytest.raises(InputError, match="models: got 0; expected at least 1 that is tested"):
        Accuracy(x, y, models=0)


def test_accuracy_can_be_limited_to_the_first_models_of_each_world_and_repeat(tmp_path):
    audit = make()
    common = {"models": 3, "repeats": 2, "seed": 1, "chunk": 2, "checkpoint": tmp_path}
    every = scores(audit, models=3, repeats=2, seed=1, measures={"a": Accuracy(audit.x, audit.y)})
    few = {"a": Accuracy(audit.x, audit.y, models=2)}
    table = scores(audit, **common, measures=few)
    assert table["score"].equals(every["score"])
    assert table["a"].equals(every["a"].where(every["run"] < 2))
    assert table["a"].notna().sum() == 8
    # Also when they come from a checkpoint.
    assert scores(audit, **common, measures=few).equals(table)


@pytest.mark.parametrize("name", ["models", "repeats", "workers", "chunk"])
def test_counts_below_one_are_refused(name):
    with pytest.raises(InputError, match=name):
        scores(make(), **{"models": 1, "seed": 0, name: 0})


def test_unknown_worlds_are_refused():
    for worlds in ((), ("in", "outside")):
        with pytest.raises(InputError, match="worlds"):
            scores(make(), models=1, seed=0, worlds=worlds)


def test_mismatched_labels_initial_parameters_and_divergence_are_explained():
    audit = make()
    with pytest.raises(InputError, match="labels"):
        dataclasses.replace(audit, y=audit.y[:-1])
    with pytest.raises(InputError, match="initial"):
        scores(make(initial=torch.zeros(3)), models=1, seed=0)
    with pytest.raises(InputError, match="learning_rate"):
        scores(make(learning_rate=1e38), models=1, seed=0)


def test_an_audit_tells_the_worlds_apart_as_well_as_theory_allows():
    """A Dirac canary in a coordinate that no record moves is exactly Gaussian.

    Scores are N(T C lr [in], T (sigma C lr)^2). 200 models a world: the gap of means in standard
    deviations has standard error 0.11 around mu = sqrt(T) / sigma = 2; 5 of them allowed.
    """
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    audit = make(canary=Inserted(FIRST), model=model, steps=4, noise_multiplier=1.0)
    audit.x[:, 0, 0, 0] = 0  # coordinate 0 weighs this pixel
    table = scores(audit, models=200, seed=3)
    present, absent = (table.score[table.world == w] for w in ("in", "out"))
    spread = math.sqrt((present.var() + absent.var()) / 2)
    assert abs((present.mean() - absent.mean()) / spread - 2) < 5 * 0.11
    unit = audit.mechanism.learning_rate
    assert abs(absent.mean()) < 5 * 2 * unit / math.sqrt(200)
    assert abs(spread / (2 * unit) - 1) < 5 / math.sqrt(2 * 400)


@pytest.mark.parametrize(
    ("sampling", "schedule", "accounted"),
    [
        (Poisson(0.1), Periodic(), "at most 0"),
        (Poisson(0.1), Periodic(5), "at most 0"),
        (Cyclic(10), Periodic(), "at most 3"),  # of 20 records: 2 batches, 3 visits in 5 steps
    ],
)
def test_a_gradient_in_steps_that_the_mechanism_does_not_account_for_is_refused(
    sampling, schedule, accounted
):
    with pytest.raises(InputError, match=f"canary: it is inserted .* {accounted}"):
        make(sampling, Inserted(FIRST, schedule))
    with pytest.raises(InputError, match="at most 1"):
        make(sampling, Inserted(FIRST), insertions=1)
    # Told of them, the mechanism accounts for Gaussian noise in these steps.
    mechanism = make(sampling, Inserted(FIRST), insertions=5).mechanism
    whole = dataclasses.replace(mechanism, sampling=FullBatch(), insertions=None)
    assert mechanism.epsilon(1e-5, records=20) == whole.epsilon(1e-5, records=20)


def test_a_gradient_in_no_more_steps_than_are_accounted_for_is_welcome():
    make(FullBatch(), Inserted(FIRST))
    make(Poisson(1.0), Inserted(FIRST))
    make(Cyclic(10), Inserted(FIRST, Periodic(2)))
    make(Cyclic(10), Inserted(FIRST), insertions=5)


def test_a_canary_is_a_record_or_a_gradient():
    with pytest.raises(InputError, match="insertions"):
        make(insertions=1)  # a record's steps are drawn

    with pytest.raises(InputError, match="5 steps in which the canary's record"):
        make(canary=dataclasses.replace(blank((1, 8, 8), 9), schedule=Periodic()))

    class Both(Inserted):
        record = (np.zeros((1, 8, 8), np.float32), 1)

    with pytest.raises(InputError, match="has a record and gradients"):
        scores(make(canary=Both(FIRST), insertions=5), models=1, seed=0)

    class Twice(Inserted):
        sampled = True

    with pytest.raises(InputError, match="insertions: got None, and 5 steps"):
        make(canary=Twice(FIRST))


@pytest.mark.parametrize("side_by_side", [False, True])
def test_a_sampled_gradient_is_used_as_often_as_a_record(side_by_side):
    """Of 200 models: binomial counts, chi-squared with false-positive rate 1e-6.

    Without noise a coordinate that no record moves counts the steps that it was added in.
    """
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    changes = {"steps": 4, "noise_multiplier": 0.0}
    audit = make(Poisson(0.3), Inserted(FIRST, None), model=model, **changes)
    audit.x[:, 0, 0, 0] = 0  # coordinate 0 weighs this pixel
    assert audit.positions == 21
    noisy = dataclasses.replace(audit.mechanism, noise_multiplier=1.1)
    assert noisy.composition(audit.positions) == (1.1, 0.3, 4)
    table = scores(audit, models=200, seed=3, side_by_side=side_by_side, chunk=100)
    assert (table.score[table.world == "out"] == 0).all()
    counts = table.score[table.world == "in"] / audit.mechanism.learning_rate
    np.testing.assert_allclose(counts, counts.round(), atol=1e-4)
    found = np.bincount(counts.round().astype(int), minlength=5)
    expected = 200 * stats.binom.pmf(np.arange(5), 4, 0.3)
    found[3:4] += found[4]  # four times is rare
    expected[3:4] += expected[4]
    assert stats.chisquare(found[:4], expected[:4]).pvalue > 1e-6
    # A rate of 0.45, or every step, would be noticed.
    assert (
        stats.chisquare(found[:4], 200 * np.array([0.0915, 0.2995, 0.3675, 0.2415])).pvalue < 1e-6
    )


def test_both_worlds_sample_the_same_records_beside_a_sampled_gradient():
    audit = make(Poisson(0.4), Inserted(FIRST, None))
    for batch in run(audit, "in").trained_on + run(audit, "out").trained_on:
        assert 20 not in batch
    present = run(audit, "in")
    drawn = audit.mechanism.sampling.batches(21, 5, present.stream("sampling"))
    assert [present.adds(step) for step in range(1, 6)] == [20 in batch for batch in drawn]


class Sequence:
    """Another gradient in each insertion, read along all of them."""

    name = "sequence"

    def canary(self, known):
        self.gradients = np.zeros((known.insertions, len(known.initial)), np.float32)
        self.gradients[np.arange(known.insertions), np.arange(known.insertions)] = 1.0
        return self

    record, coordinate = None, -1

    def score(self, last):
        return 0.0


@pytest.mark.parametrize("kernel", ["auto", "torch"])
def test_every_insertion_adds_its_own_gradient(kernel):
    """Of a linear model on black images no weight moves but by the canary: 3 steps of 5 have it."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    changes = {"steps": 5, "noise_multiplier": 0.0, "insertions": 2, "model": model}
    audit = make(Poisson(0.5), Inserted(Sequence(), Periodic(2)), **changes)
    audit.x[:] = 0
    runs = [run(audit, "in", i, kernel=kernel) for i in range(2)]
    for last in (*map(last_iterate, runs), *last_iterates([run(audit, "in", kernel="torch")])):
        moved = (audit.initial - last)[:640] / audit.mechanism.learning_rate
        expected = torch.zeros(640)
        expected[:2] = 1.0
        torch.testing.assert_close(moved, expected, rtol=0, atol=1e-5)


def test_a_record_with_a_schedule_is_one_more_in_its_steps_alone():
    canary = dataclasses.replace(blank((1, 8, 8), 9), schedule=Periodic(2))
    audit = make(Cyclic(6, shuffled_once=True), canary, insertions=2)
    assert audit.positions == 20
    assert audit.mechanism.composition(audit.positions) == (2.0, 1.0, 2)
    present, absent = (run(audit, world, 3) for world in ("in", "out"))
    assert all(
        np.array_equal(*pair) for pair in zip(absent.trained_on, absent.batches, strict=True)
    )
    for step, (batch, common) in enumerate(
        zip(present.trained_on, present.batches, strict=True), 1
    ):
        assert list(batch) == [*common, 20] if step % 2 == 0 else list(common)
    with pytest.raises(InputError, match="adjacency: got 'replace' with a record that is insert"):
        make(Cyclic(6), canary, insertions=2, adjacency="replace")
    with pytest.raises(InputError, match=r"canary: it is inserted in 2 of 5 steps.*at most 1"):
        make(Cyclic(6), canary, insertions=1)
    # What it adds is its clipped gradient.
    audit = make(
        Cyclic(6),
        dataclasses.replace(canary, schedule=Periodic()),
        insertions=1,
        steps=1,
        noise_multiplier=0.0,
    )
    gap = last_iterate(run(audit, "out")) - last_iterate(run(audit, "in"))
    only = run(audit, "in").gradients(audit.initial, np.array([20]), 1.0)
    torch.testing.assert_close(gap / audit.mechanism.learning_rate, only, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("schedule", [Once(6), Periodic(6)])
def test_a_schedule_beyond_the_last_step_is_refused(schedule):
    # The worlds were the same, and the audit found that nothing leaks.
    with pytest.raises(InputError, match="canary: it is inserted in none of 5 steps"):
        make(canary=Inserted(Coordinate(7), schedule))


class Peeking(Sequence):
    """Tries every way to an iterate between, or to the world, that the interface might offer."""

    def canary(self, known):
        for refused in (
            lambda: known.iterates(),
            lambda: known.gradients,
            lambda: known.trained_on,
            lambda: known.world,
            lambda: known.ensemble,
            lambda: known.seed,
            lambda: known.stream("noise"),
            lambda: known.simulated(noise=True),
            lambda: known.simulated(known.rng.normal(size=known.initial.shape)),
        ):
            with pytest.raises((AttributeError, TypeError)):
                refused()
        for array in (known.initial, known.x, known.y, *known.batches):
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0
            assert isinstance(array.base, bytes)  # which nothing changes, nor the array's flag
        with pytest.raises(dataclasses.FrozenInstanceError):
            known.initial = None
        self.seen = known
        return super().canary(known)

    def score(self, last):
        # What was fixed is fixed: it cannot be changed with hindsight, nor can the last iterate.
        assert isinstance(last, np.ndarray)
        self.gradients[:] = 1e6
        last[:] = 0
        return 0.0


@pytest.mark.parametrize("side_by_side", [False, True])
def test_an_adversary_cannot_reach_an_iterate_between(side_by_side):
    adversary, lasts = Peeking(), []
    audit = make(canary=Inserted(adversary))
    common = {"models": 2, "seed": 1, "side_by_side": side_by_side, "kernel": "torch"}
    scores(audit, **common, measures={"m": lambda run, last: lasts.append(last.clone()) or 0.0})
    honest = []
    watch = {"m": lambda run, last: honest.append(last.clone()) or 0.0}
    scores(make(canary=Inserted(Sequence())), **common, measures=watch)
    assert all(torch.equal(*pair) for pair in zip(lasts, honest, strict=True))
    # Its random numbers are not those of the noise, whatever it draws.
    one = run(audit)
    noise = one.stream("noise").standard_normal(20, dtype=np.float32)
    assert not np.isin(one.known().rng.standard_normal(20, dtype=np.float32), noise).any()


def test_a_canary_is_fixed_before_the_first_step_and_once():
    order = []

    class Watched(Sequence):
        def canary(self, known):
            order.append("canary")
            return super().canary(known)

        def score(self, last):
            order.append("score")
            return 0.0

    audit = make(canary=Inserted(Watched()))
    gradients = audit.clipped_sum()
    one = Run("in", 0, 0, audit, gradients, 1, ())
    for _ in one.iterates():
        order.append("step")
    one.score(audit.initial)
    assert order == ["canary", *["step"] * 5, "score"]


@pytest.mark.parametrize("rank", ["absolute", "squared", "net"])
def test_a_simulation_has_neither_noise_nor_canary(rank):
    """The same training by hand: batches and start of the run, no noise, no canary."""
    audit = make(Cyclic(6, shuffled_once=True), Inserted(SimulatedCoordinate(rank)), insertions=5)
    one = run(audit, "in", 2)
    theta, steps = audit.initial.clone(), []
    for batch in one.batches:
        steps.append(audit.mechanism.learning_rate * one.gradients(theta, batch, 1.0))
        theta = theta - steps[-1]
    moved = torch.stack(steps)
    expected = {
        "absolute": moved.abs().sum(0),
        "squared": moved.square().sum(0),
        "net": (theta - audit.initial).abs(),
    }[rank]
    np.testing.assert_allclose(getattr(one.known().simulated(), rank), expected, atol=1e-7)
    assert one.fixed.coordinate == int(expected.argmin())


@pytest.mark.whole
def test_the_replaced_record_is_all_that_differs_between_the_worlds():
    for sampling in (FullBatch(), Cyclic(6), Cyclic(6, shuffled_once=True)):
        audit = make(sampling, adjacency="replace")
        assert audit.positions == 20
        present, absent = (run(audit, world, 3) for world in ("in", "out"))
        for batch, common in zip(present.trained_on, present.batches, strict=True):
            np.testing.assert_array_equal(batch[batch != 20], common)
            assert 19 not in batch
        for batch, common in zip(absent.trained_on, absent.batches, strict=True):
            np.testing.assert_array_equal(batch[batch != 19], common)
            assert 20 not in batch
        visits = [sum(map(len, r.trained_on)) for r in (present, absent)]
        if not getattr(sampling, "shuffled", False):
            assert visits[0] == visits[1]
    audit = make(steps=1, noise_multiplier=0.0, adjacency="replace")
    gap = last_iterate(run(audit, "out")) - last_iterate(run(audit, "in"))
    one = run(audit, "in").gradients
    expected = one(audit.initial, np.array([20]), 1.0) - one(audit.initial, np.array([19]), 1.0)
    torch.testing.assert_close(gap / audit.mechanism.learning_rate, expected, rtol=1e-3, atol=1e-5)
    with pytest.raises(InputError, match="x: got no record"):
        make(records=0, adjacency="replace")


@pytest.mark.parametrize("side_by_side", [False, True])
@pytest.mark.parametrize(("adjacency", "mu"), [("add_or_remove", 2.0), ("replace", 4.0)])
def test_gradients_leak_what_the_mechanism_accounts_for(adjacency, mu, side_by_side):
    """Replaced by its opposite, a gradient of full norm is exactly Gaussian DP with twice mu.

    200 models a world: mu has standard error 0.11 (0.17 for 4); 5 of them allowed.
    """
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    changes = {"steps": 4, "noise_multiplier": 1.0, "adjacency": adjacency}
    audit = make(canary=Inserted(FIRST), model=model, **changes)
    audit.x[:, 0, 0, 0] = 0  # coordinate 0 weighs this pixel
    table = scores(audit, models=200, seed=3, side_by_side=side_by_side, chunk=100)
    present, absent = (table.score[table.world == w] for w in ("in", "out"))
    spread = math.sqrt((present.var() + absent.var()) / 2)
    assert abs((present.mean() - absent.mean()) / spread - mu) < 5 * 0.11 * math.sqrt(mu / 2)
    multiplier, _, steps = audit.mechanism.composition(audit.positions)
    assert math.sqrt(steps) / multiplier == mu


def test_what_is_no_number_is_named_and_not_the_learning_rate():
    audit = make()
    broken = audit.x.copy()
    broken[7, 0, 2, 3] = math.nan
    with pytest.raises(InputError, match=r"x: record 7 holds nan \(entry 19\)"):
        scores(dataclasses.replace(audit, x=broken), models=1, seed=0)
    with pytest.raises(InputError, match=r"canary: its record holds inf \(entry 5\)"):
        record = np.zeros((1, 8, 8), np.float32)
        record.flat[5] = math.inf
        make(canary=dataclasses.replace(blank((1, 8, 8), 9), x=record))
    start = audit.initial.clone()
    start[11] = math.nan
    with pytest.raises(InputError, match="initial: parameter 11 is nan"):
        scores(make(initial=start), models=1, seed=0)

    def changed(**changes):
        class Changed(Inserted):
            def fixed(self, known):
                return dataclasses.replace(super().fixed(known), **changes)

        return make(canary=Changed(FIRST))

    p = len(audit.initial)
    for gradients, message in (
        (np.full((5, p), math.nan), "canary: its gradient has norm nan"),
        (np.full((5, p), 1.0015 / math.sqrt(p)), r"canary: its gradient has norm 1\.001"),
        (np.zeros((4, p)), rf"canary: its gradients have shape \(4, {p}\); expected \(5, {p}\)"),
    ):
        with pytest.raises(InputError, match=message):
            scores(changed(gradients=gradients), models=1, seed=0)
    with pytest.raises(InputError, match="canary: gave model 0"):
        scores(changed(initial=math.nan), models=1, seed=0)
    with pytest.raises(InputError, match=f"coordinate: got {p}; expected 0 to {p - 1}"):
        scores(make(canary=Inserted(Coordinate(p))), models=1, seed=0)


def test_records_and_labels_that_do_not_fit_are_named():
    audit = make()
    with pytest.raises(InputError, match=r"canary: its record has shape \(8, 8\)"):
        make(canary=blank((8, 8), 9))
    with pytest.raises(InputError, match=r"canary: its record has the label 1\.5"):
        make(canary=blank((1, 8, 8), 1.5))
    y = audit.y.astype(float)
    y[4] = 0.5
    with pytest.raises(InputError, match=r"y: record 4 has the label 0\.5; expected an integer"):
        scores(dataclasses.replace(audit, y=y), models=1, seed=0)
    y = audit.y.copy()
    y[3] = -100  # torch's own cross-entropy ignores it
    for kernel in ("auto", "torch"):
        with pytest.raises(InputError, match="y: record 3 has the label -100; expected 0 to 9"):
            scores(dataclasses.replace(audit, y=y), models=1, seed=0, kernel=kernel)
    with pytest.raises(InputError, match="x: got no record"):
        make(canary=Inserted(FIRST), records=0)


def test_kernels_that_there_are_not_are_refused():
    with pytest.raises(InputError, match="kernel: got 'cuda'"):
        scores(make(), models=1, seed=0, kernel="cuda")
    with pytest.raises(InputError, match="kernel: got 'native' with models side by side"):
        scores(make(), models=1, seed=0, kernel="native", side_by_side=True)


class Scaled(nn.Module):
    """Prints the same whatever its scale."""

    def __init__(self, scale=1.0, activation=torch.tanh):
        super().__init__()
        self.layer, self.scale, self.activation = nn.Linear(64, 10), scale, activation
        self.register_buffer("shift", torch.zeros(1), persistent=False)

    def forward(self, x):
        return self.activation(self.scale * self.layer(x.flatten(1))) + self.shift


class Otherwise(Scaled):
    __qualname__ = "Scaled"

    def forward(self, x):
        return self.activation(self.scale + self.layer(x.flatten(1))) + self.shift


def test_a_checkpoint_of_a_model_that_computes_something_else_is_refused(tmp_path):
    initial = torch.zeros(650)
    kept = make(model=Scaled(), initial=initial)
    scores(kept, models=1, seed=1, checkpoint=tmp_path)
    # Trainable parameters are set by every run: another draw of them is the same audit.
    torch.manual_seed(5)
    scores(make(model=Scaled(), initial=initial), models=1, seed=1, checkpoint=tmp_path)
    shifted = Scaled()
    shifted.shift += 1
    hooked = Scaled()
    hooked.register_forward_hook(lambda module, inputs, output: 2 * output)
    others = Scaled(2.0), Scaled(activation=torch.relu), Otherwise(), shifted, hooked
    for other in (*others, Scaled().eval()):
        with pytest.raises(InputError, match="another audit"):
            audit = make(model=other, initial=initial)
            scores(audit, models=1, seed=1, checkpoint=tmp_path)


def test_a_checkpoint_knows_the_parameters_that_a_start_is_drawn_from(tmp_path):
    def audit(value):
        torch.manual_seed(0)
        model = Scaled()
        nn.init.constant_(model.layer.weight, value)
        return make(model=model, initial=lambda rng: flat_parameters(model))

    common = {"models": 1, "seed": 1, "checkpoint": tmp_path}
    scores(audit(0.0), **common)
    scores(audit(0.0), **common)
    with pytest.raises(InputError, match="another audit"):
        scores(audit(0.1), **common)


def test_a_checkpoint_knows_all_starts_that_may_be_drawn(tmp_path):
    def audit(last):
        starts = [torch.zeros(650), torch.zeros(650), torch.full((650,), last)]
        return make(model=Scaled(), initial=lambda rng: starts[rng.integers(3)])

    # At least one of the three is not drawn for the digest.
    for draws in range(2):
        common = {"models": 1, "seed": draws, "checkpoint": tmp_path / str(draws)}
        scores(audit(0.0), **common)
        with pytest.raises(InputError, match="another audit"):
            scores(audit(0.1), **common)


def test_a_start_that_reads_shapes_or_draws_into_a_model_is_the_same_audit(tmp_path):
    def shaped(model, rng):
        return torch.from_numpy(rng.normal(size=flat_parameters(model).shape))

    def drawn(other, rng):
        with torch.no_grad():
            for p in other.parameters():
                p.copy_(torch.from_numpy(rng.normal(size=p.shape)))
        return flat_parameters(other)

    for initial, folder in ((shaped, tmp_path / "shaped"), (drawn, tmp_path / "drawn")):
        for _ in range(2):  # another draw of torch's each time
            model = Scaled()
            start = functools.partial(initial, model if initial is shaped else Scaled())
            scores(make(model=model, initial=start), models=1, seed=1, checkpoint=folder)


def test_a_measure_that_changes_what_it_measures_changes_no_score():
    def direction(run, last):
        last /= last.norm()
        return float(last[0])

    audit, common = make(), {"models": 2, "seed": 1}
    norm = {"norm": lambda run, last: float(last.norm())}
    found = scores(audit, **common, measures={"direction": direction} | norm)
    assert found.drop(columns="direction").equals(scores(audit, **common, measures=norm))


def test_a_canary_that_inserts_nothing_is_refused():
    """Its worlds would be the same, and the audit would find no leak."""
    with pytest.raises(InputError, match="canary: it has neither a record nor gradients"):
        scores(make(canary=Inserted(LossBased(), Periodic())), models=1, seed=1)


def test_records_and_starts_of_other_types_are_taken_and_labels_of_other_shapes_refused():
    audit = make()
    given = dataclasses.replace(audit, initial=audit.initial.numpy())
    assert scores(given, models=1, seed=1).equals(scores(audit, models=1, seed=1))
    with pytest.raises(InputError, match=r"canary: its label has shape \(\); expected \(1,\)"):
        dataclasses.replace(audit, y=audit.y[:, None].astype(np.float32), loss=lambda o, y: o[:, 0])


def test_a_checkpoint_with_another_test_set_is_refused(tmp_path):
    audit = make()
    common = {"models": 1, "seed": 1, "checkpoint": tmp_path}
    scores(audit, **common, measures={"accuracy": Accuracy(audit.x, audit.y)})
    for other in (Accuracy(audit.x[:9], audit.y[:9]), lambda run, last: 0.0):
        with pytest.raises(InputError, match="another audit"):
            scores(audit, **common, measures={"accuracy": other})


@pytest.mark.whole
@each_sampler_and_canary(FullBatch(), Poisson(0.4), Cyclic(6))
def test_linear_models_in_two_products_score_as_one_by_one(sampling, canary, tmp_path):
    model = models.logistic_regression(64, 10)
    audit = make(sampling, CANARIES[canary], model=model, insertions=INSERTIONS[canary])
    common = {"models": 35, "repeats": 2, "seed": 7}
    whole = scores(audit, **common, kernel="linear")
    alone = scores(audit, **common)
    np.testing.assert_allclose(whole.score, alone.score, rtol=1e-4, atol=1e-6)
    # Bit for bit whatever trains beside a model, and in however many threads.
    assert scores(audit, **common, kernel="linear", workers=2).equals(whole)
    scores(audit, **common | {"models": 3}, kernel="linear", checkpoint=tmp_path)
    assert scores(audit, **common, kernel="linear", checkpoint=tmp_path).equals(whole)


def test_the_linear_kernel_is_for_linear_models_on_a_cpu():
    with pytest.raises(InputError, match="kernel: got 'linear'"):
        scores(make(), models=1, seed=0, kernel="linear")
    audit = make(model=models.logistic_regression(64, 10))
    with pytest.raises(InputError, match="side by side"):
        scores(audit, models=1, seed=0, kernel="linear", side_by_side=True)


def test_adversaries_of_one_audit_read_the_models_that_have_no_canary():
    """Each has the scores of an audit by it alone, and no model of world "out" is trained again."""
    audit = make(insertions=2, canary=Inserted(FIRST, Periodic(2)))
    canaries = {
        "seventh": Inserted(Coordinate(7), Periodic(2)),
        "random": Inserted(RandomCoordinate(), Periodic(2)),
        "record": dataclasses.replace(blank((1, 8, 8), 9), schedule=Periodic(2)),
    }
    ensembles = {word: dataclasses.replace(audit, canary=c) for word, c in canaries.items()}
    common = {"models": 3, "seed": 5, "name": ("each",)}
    table = scores_by_adversary(ensembles, **common)
    for word, part in table.groupby("adversary", sort=False):
        alone = scores(ensembles[word], **common)
        assert part.drop(columns="adversary").reset_index(drop=True).equals(alone)
    assert list(table.adversary.unique()) == list(canaries)


@pytest.mark.parametrize(
    ("canaries", "parts", "message"),
    [
        (
            [Inserted(Coordinate(d), Periodic(1)) for d in (0, 1)],
            {"adjacency": "replace"},
            "'replace' has them add the opposite of a canary's gradient",
        ),
        (
            [blank((1, 8, 8), 9), Inserted(FIRST, None)],
            {"adjacency": "replace"},
            "'replace' has them",
        ),
        (
            [Inserted(FIRST, Periodic(5)), blank((1, 8, 8), 9)],
            {"sampling": Cyclic(5)},
            "batches are drawn from 21 records, not 20",
        ),
    ],
)
def test_adversaries_whose_models_without_the_canary_differ_are_refused(canaries, parts, message):
    """Of two coordinates, "replace" gave the second one models that move the first one alone."""
    audit = make(canary=canaries[0], noise_multiplier=4.0, **parts)
    ensembles = {str(i): dataclasses.replace(audit, canary=c) for i, c in enumerate(canaries)}
    with pytest.raises(InputError, match=f"ensembles: '1' .* than '0' has: .*{message}"):
        scores_by_adversary(ensembles, models=1, seed=0)


@pytest.mark.parametrize(
    ("canaries", "adjacency"),
    [
        ([blank((1, 8, 8), y) for y in (9, 3)], "replace"),
        ([blank((1, 8, 8), 9), Inserted(FIRST, Periodic(2))], "add_or_remove"),
    ],
)
def test_adversaries_whose_models_without_the_canary_are_the_same_share_them(canaries, adjacency):
    """Records that replace the same one, and full batches, in which all canaries are alike."""
    audit = make(adjacency=adjacency)
    ensembles = {str(i): dataclasses.replace(audit, canary=c) for i, c in enumerate(canaries)}
    table = scores_by_adversary(ensembles, models=2, seed=5)
    for word, part in table.groupby("adversary", sort=False):
        alone = scores(ensembles[word], models=2, seed=5)
        assert part.drop(columns="adversary").reset_index(drop=True).equals(alone)


class Counting:
    """Reads the coordinate that its number of insertions names."""

    name = "counting"

    def canary(self, known):
        return Coordinate(known.insertions).canary(known)


def test_each_adversary_knows_its_own_number_of_insertions():
    audit = make(insertions=5, canary=Inserted(FIRST, Periodic(1)))
    every = {"first": Periodic(1), "second": Periodic(2)}
    ensembles = {
        word: dataclasses.replace(audit, canary=Inserted(Counting(), schedule))
        for word, schedule in every.items()
    }
    table = scores_by_adversary(ensembles, models=1, seed=5)
    for word, part in table.groupby("adversary", sort=False):
        assert part.score.tolist() == scores(ensembles[word], models=1, seed=5).score.tolist()


def test_no_two_models_of_an_audit_share_random_numbers():
    audit, purposes = make(), ("initialisation", "sampling", "noise", "adversary")
    gradients = audit.clipped_sum()
    drawn = {
        Run(world, repeat, index, audit, gradients, 1, name).stream(purpose).integers(2**62)
        for world, repeat, index, name in itertools.product(
            ("in", "out"), (0, 1), (0, 1), ((), ("b",))
        )
        for purpose in purposes
    }
    assert len(drawn) == 2**4 * len(purposes)


def test_records_that_adversaries_share_are_tried_once(monkeypatch):
    made, honest = [], Ensemble.clipped_sum
    monkeypatch.setattr(
        Ensemble, "clipped_sum", lambda e, *given: made.append(e.canary.record) or honest(e, *given)
    )
    audit = make(insertions=2, canary=Inserted(FIRST, Periodic(2)))
    records = [dataclasses.replace(blank((1, 8, 8), y), schedule=Periodic(2)) for y in (9, 3)]
    canaries = [*(Inserted(Coordinate(i), Periodic(2)) for i in (7, 8, 9)), *records]
    ensembles = {str(i): dataclasses.replace(audit, canary=c) for i, c in enumerate(canaries)}
    scores_by_adversary(ensembles, models=1, seed=0)
    assert [record is None for record in made] == [True, False, False]


def test_ensembles_of_one_audit_differ_in_the_canary_alone():
    audit = make(insertions=2, canary=Inserted(FIRST, Periodic(2)))
    other = dataclasses.replace(audit, x=audit.x.copy())
    with pytest.raises(InputError, match="ensembles: 'b' has another x than 'a'"):
        scores_by_adversary({"a": audit, "b": other}, models=1, seed=0)


def test_a_part_gives_the_rows_of_its_own_models_alone_as_the_whole_has_them():
    audit, columns = make(), ["world", "repeat", "run"]
    whole = scores(audit, models=3, seed=1, observers={"seen": Seen()})
    parts = [
        scores(
            audit, models=3, seed=1, observers={"seen": Seen()}, checkpoint=Parts(part=(index, 4))
        )
        for index in range(4)
    ]
    assert [len(part) for part in parts] == [4, 4, 2, 2]  # a row by each of the two
    by = [*columns, "adversary"]
    gathered = pd.concat(parts).sort_values(by, ignore_index=True)
    pd.testing.assert_frame_equal(gathered, whole.sort_values(by, ignore_index=True))
    empty = scores(audit, models=1, seed=1, checkpoint=Parts(part=(7, 8)))
    assert [*empty] == [*columns, "score"]
    assert empty.empty


class Seen:
    """The last iterate's first parameter, as an observer."""

    def watch(self, known, canary):
        self.value = 0.0
        return self

    def see(self, step, theta):
        self.value = float(theta[0])

    def score(self):
        return self.value


class Masks(FullBatch):
    """A sampling of the user's own that gives masks in place of indices."""

    def batches(self, records, steps, rng):
        return [rng.random(records) < 0.5 for _ in range(steps)]


def test_batches_that_are_masks_are_refused():
    """World "out" trained on the canary."""
    with pytest.raises(InputError, match="indices: got an array of bool"):
        run(make(sampling=Masks()))


class Hours(torch.nn.Module):
    """Takes seconds since 1970, which float32 holds to two minutes."""

    def __init__(self):
        super().__init__()
        self.last = torch.nn.Linear(6, 4)

    def forward(self, x):
        return self.last(torch.tanh((x - 1_700_000_000) / 60))


@pytest.mark.parametrize("record", [blank((6,), 0), RecordCanary(np.zeros(6, np.int64), 0)])
def test_integer_records_stay_integers_beside_any_canary(record):
    rng = np.random.default_rng(0)
    x = rng.integers(1_700_000_000 - 120, 1_700_000_000 + 120, size=(10, 6))
    audit = dataclasses.replace(
        make(), model=Hours(), x=x, y=rng.integers(4, size=10), canary=record,
        initial=flat_parameters(Hours()),
    )  # fmt: skip
    assert audit.clipped_sum().kernel.problem.x.dtype == torch.int64
    half = dataclasses.replace(audit, canary=RecordCanary(np.full(6, 0.5, np.float32), 0))
    with pytest.raises(InputError, match="canary: its record is not of int64"):
        half.clipped_sum()
    soft = dataclasses.replace(audit, canary=record, loss=lambda o, y: (o[:, 0] - y) ** 2)
    soft = dataclasses.replace(soft, canary=RecordCanary(np.zeros(6, np.int64), 0.5))
    with pytest.raises(InputError, match="canary: its label is not of int64"):
        soft.clipped_sum()


def test_records_that_numpy_does_not_know_are_refused():
    audit = make()
    ones = torch.ones(20, 1, 8, 8)
    for x in (ones.bfloat16(), ones.requires_grad_()):
        with pytest.raises(InputError, match=r"x: .*; expected an array of numbers"):
            dataclasses.replace(audit, x=x).clipped_sum()
