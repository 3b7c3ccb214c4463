"""ConvNet and ResNet: what is trained, against autograd record by record, and how it is read."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch.func import functional_call

from hiddenstate.adversaries import canaries
from hiddenstate.adversaries.crafted_gradients import Insertions
from hiddenstate.adversaries.gradient_canaries import Inserted, Periodic, RandomCoordinate
from hiddenstate.adversaries.initialisation import average_case
from hiddenstate.datasets import data
from hiddenstate.dpsgd import ensemble as engine
from hiddenstate.dpsgd.clipping import named
from hiddenstate.errors import InputError
from hiddenstate.models import digits_resnet
from hiddenstate.papers.gradient_crafting import FAMILY, networks
from hiddenstate.pipeline.cells import Cell, Workplace

SEED = 3
"""That of the results in conftest."""
RESNET = "digits_resnet_C2_k1_fresh_eps24_20_repeat0"
CONVNET = "digits_convnet_C1_k2_fresh_eps24_20_repeat0"


@pytest.fixture(scope="module")
def jobs(grid):
    return FAMILY.jobs(grid)["train"]


def captured(job, **options):
    """What a cell returns, and the ensembles that it trains by adversary, with their options."""
    calls = []
    original = engine.scores_by_adversary
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            engine, "scores_by_adversary", lambda e, **o: calls.append((e, o)) or original(e, **o)
        )
        frame = job.run(SEED, Workplace(models=2, **options))
    ((ensembles, given),) = calls
    return frame, ensembles, given


@pytest.fixture(scope="module")
def resnet(jobs):
    """The residual network's cell, trained with two models."""
    return captured(jobs[RESNET])


def by_hand(run):
    """A residual network's last iterate, in float64: each record's gradient by plain autograd."""
    ensemble, mechanism = run.ensemble, run.ensemble.mechanism
    model, canary = digits_resnet().double(), ensemble.canary
    x, y = torch.tensor(ensemble.x).double(), torch.tensor(ensemble.y)
    if canary.record is not None:
        x = torch.cat((x, torch.tensor(canary.record[0])[None].double()))
        y = torch.cat((y, torch.tensor([canary.record[1]])))
    theta, rng = run.initial.double(), run.stream("noise")
    for step, batch in enumerate(run.batches, 1):
        total = torch.zeros_like(theta)
        now = canary.inserted(step) and run.world == "in"
        for i in [*batch, len(ensemble.x)] if now and canary.record is not None else batch:
            at = theta.clone().requires_grad_()
            logits = functional_call(model, named(at, model), (x[i : i + 1],))
            (gradient,) = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, y[[i]]), at)
            total += gradient * min(1.0, mechanism.clipping_norm / float(gradient.norm()))
        if now and canary.record is None:
            total[run.fixed.coordinate] += mechanism.clipping_norm
        noise = torch.from_numpy(rng.standard_normal(len(theta), dtype=np.float32))
        theta = theta - mechanism.learning_rate * (total + mechanism.noise_std * noise)
    return theta


@pytest.mark.parametrize("world", ["in", "out"])
def test_a_residual_network_is_trained_as_record_by_record(resnet, world):
    _, ensembles, options = resnet
    assert len(ensembles) == 3 and not options["side_by_side"]  # native code knows the network
    for ensemble in list(ensembles.values())[: 3 if world == "in" else 1]:
        runs = {
            kernel: [
                engine.Run(world, 0, i, ensemble, gradients, SEED, options["name"])
                for i in range(2)
            ]
            for kernel in ("auto", "torch")
            for gradients in [ensemble.clipped_sum(kernel=kernel)]
        }
        assert runs["torch"][0].gradients.kind == "torch"  # by book-keeping, as on an accelerator
        alone = [engine.last_iterate(run) for run in runs["auto"]]
        together = engine.last_iterates(runs["torch"])
        for run, one, other in zip(runs["auto"], alone, together, strict=True):
            expected = by_hand(run)
            assert (expected - run.initial).norm() > 1e-3
            torch.testing.assert_close(one.double(), expected, rtol=0, atol=2e-6)
            torch.testing.assert_close(other.double(), expected, rtol=0, atol=2e-6)


def test_the_mechanism_is_that_of_the_paper(jobs):
    p = jobs[CONVNET].cell.parameters
    _, ensembles, options = captured(jobs[CONVNET])
    assert not options["side_by_side"]  # native code knows the ConvNet
    for ensemble in ensembles.values():
        m = ensemble.mechanism
        assert (m.steps, m.insertions) == (p.every * p.insertions, p.insertions)
        assert m.learning_rate == pytest.approx(0.01 / 4)
        # mu = sqrt(insertions) / sigma, exactly (24, 1e-5)-DP.
        assert p.insertions**0.5 / m.noise_multiplier == pytest.approx(3.9534, abs=1e-4)
        assert ensemble.insertions == p.insertions
        assert [t for t in range(1, m.steps + 1) if ensemble.canary.inserted(t)] == [2, 4]
        assert len(ensemble.x) == len(data.splits("digits").train)


def test_scores_are_those_of_every_adversary_in_both_worlds(jobs, results):
    for name in (RESNET, CONVNET):
        frame = results["scores"][name]
        assert list(frame) == ["world", "repeat", "run", "score", "adversary"]
        counts = frame.groupby(["adversary", "world"]).size()
        assert (counts == 20).all() and len(counts) == 6
        assert np.isfinite(frame["score"]).all() and frame["score"].nunique() == len(frame)


def test_models_without_a_canary_are_read_by_each_adversary_as_by_one_alone(jobs, results):
    job = jobs[RESNET]
    for word in job.cell.parameters.adversaries:
        p = job.cell.parameters.model_copy(update={"adversaries": (word,)})
        alone = networks.train(Cell(job.cell.name, p), SEED, Workplace(models=5))
        frame = results["scores"][RESNET]
        found = frame[(frame["adversary"] == word) & (frame["run"] < 5)].reset_index(drop=True)
        pd.testing.assert_frame_equal(alone, found)


@pytest.mark.whole
@pytest.mark.parametrize("name", [pytest.param(RESNET, marks=pytest.mark.whole), CONVNET])
def test_scores_depend_on_neither_workers_nor_checkpoint(jobs, results, name, tmp_path):
    job = jobs[name]
    for _ in range(2):  # the second time all of them come from the checkpoint
        frame = job.run(SEED, Workplace(workers=2, checkpoint=tmp_path))
        pd.testing.assert_frame_equal(frame, results["scores"][name])


def test_verification_keeps_what_all_runs_of_an_audit_share(jobs, resnet):
    plain, first, options = resnet
    again, second, other = captured(jobs[RESNET], purpose="verification")
    assert options["name"] != other["name"]
    for one, other in zip(first.values(), second.values(), strict=True):
        if one.canary.record is not None:
            np.testing.assert_array_equal(one.canary.record[0], other.canary.record[0])
        else:
            assert one.canary == other.canary
    assert not np.isin(again["score"], plain["score"]).any()


def test_one_random_coordinate_is_drawn_once(resnet):
    ensembles = resnet[1]
    one = next(e for e in ensembles.values() if isinstance(e.canary, Inserted)
               and not isinstance(e.canary.adversary, RandomCoordinate))  # fmt: skip
    runs = [engine.Run("in", 0, i, one, one.clipped_sum(), SEED, ()) for i in range(3)]
    assert len({run.fixed.coordinate for run in runs}) == 1


def test_a_reading_is_the_canary_s_own():
    records = data.splits("digits").train.take(slice(0, 20))
    record = canaries.RecordCanary(records.x[3], 1, Periodic())
    mechanism = Insertions(epsilon=8.0, insertions=2, batch_size=4, learning_rate=0.01).mechanism
    model = digits_resnet()
    start = average_case(model, np.random.default_rng(0))
    crafted = Inserted(RandomCoordinate())
    ensemble = engine.Ensemble(model, mechanism, records.x, records.y, crafted, start)
    run = engine.Run("out", 0, 0, ensemble, ensemble.clipped_sum(), SEED, ())
    last = engine.last_iterate(run)
    d = run.fixed.coordinate
    assert run.score(last) == float(start[d] - last[d])
    outputs = functional_call(model, named(last, model), (torch.tensor(records.x[3:4]),))
    loss = torch.nn.functional.cross_entropy(outputs, torch.tensor([1]))
    read = run.score_by(record.fixed(run.known()), last)
    assert read == pytest.approx(-float(loss), rel=1e-5)


def test_batches_larger_than_the_data_are_refused(jobs):
    p = jobs[RESNET].cell.parameters.model_copy(update={"batch_size": 1439})
    with pytest.raises(InputError, match="batch_size: got 1439; expected at most 1438"):
        networks.train(Cell(RESNET, p), SEED, Workplace())
