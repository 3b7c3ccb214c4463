"""Many canaries in one model: scores against their law, and trainings against plain loops."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch.func import functional_call

from hiddenstate.datasets import data
from hiddenstate.dpsgd.clipping import named
from hiddenstate.errors import InputError
from hiddenstate.models import digits_cnn
from hiddenstate.papers.gradient_crafting import cells, networks, one_run, training
from hiddenstate.pipeline.cells import Cell

SEED = 3
"""That of the results in conftest."""


@pytest.fixture(scope="module")
def larger(grid):
    return cells.one_run_networks(grid)[0]


def models(cell, monkeypatch, module):
    """The models of a cell's audits, before they are trained."""
    made = []
    with monkeypatch.context() as patch:
        patch.setattr(one_run, "trained", lambda name, p, seed, model_of: made.append(model_of))
        module.one_run(cell, SEED)
    (model_of,) = made
    return [model_of((SEED, "test", i)) for i in range(40)]


@pytest.mark.parametrize("which", ["housing", "larger"])
def test_a_canary_moves_a_score_by_mu_and_noise_is_told_apart(grid, monkeypatch, which):
    """In the least moved coordinates, with the noise's deviation as the unit; 400 scores."""
    module = training if which == "housing" else networks
    part = cells.one_run_housing(grid) if which == "housing" else cells.one_run_networks(grid)
    coins = np.arange(10) % 2 == 0
    pairs = [model.scores(coins) for model in models(part[0], monkeypatch, module)]
    scores, noise = (np.concatenate(each) for each in zip(*pairs, strict=True))
    # Epsilon 4: mu is 0.9249.
    signal = scores - noise
    there = np.tile(coins, 40)
    assert stats.kstest(noise, "norm").pvalue > 1e-3
    gap = signal[there].mean() - signal[~there].mean()
    assert gap == pytest.approx(0.9249, abs=4 * 2 * signal[~there].std() / np.sqrt(400) + 1e-3)
    # What noise moves beside itself is small there, so that the gap above has power.
    assert signal[~there].std() < 0.3


def test_a_training_with_canaries_is_the_loop_that_it_should_be(larger, monkeypatch):
    """Each record's gradient by plain autograd, in float64."""
    (model, *_) = models(larger, monkeypatch, networks)
    mechanism = model.mechanism
    rng = np.random.default_rng(1)
    added = rng.standard_normal((mechanism.steps, len(model.order)), dtype=np.float32)
    records, network = data.splits("digits").private, digits_cnn().double()
    x, y = torch.tensor(records.x).double(), torch.tensor(records.y)
    ends = []
    for more in (added, 0 * added):
        theta = model._run.initial.double()
        moved = torch.zeros_like(theta)
        for batch, row in zip(model._run.batches, more, strict=True):
            total = torch.tensor(row).double()
            for i in batch:
                at = theta.clone().requires_grad_()
                logits = functional_call(network, named(at, network), (x[i : i + 1],))
                loss = torch.nn.functional.cross_entropy(logits, y[[i]])
                (gradient,) = torch.autograd.grad(loss, at)
                total += gradient * min(1.0, mechanism.clipping_norm / float(gradient.norm()))
            theta -= mechanism.learning_rate * total
            moved += (mechanism.learning_rate * total).abs()
        ends.append(theta)
    np.testing.assert_allclose(model.end(added), ends[0], atol=2e-5)
    np.testing.assert_allclose(model.expected, ends[1], atol=2e-5)
    np.testing.assert_allclose(model.movement, moved, atol=2e-5)


def test_every_audit_and_rule_of_each_number_of_canaries_is_there(grid, results):
    for cell, rules in (
        (cells.one_run(grid)[0], 5),
        (cells.one_run_housing(grid)[0], 6),
        (cells.one_run_networks(grid)[0], 6),
    ):
        frame = results["bounds"][cell.name]
        assert (frame.groupby(["canaries", "rule"]).size() == 2).all()
        assert frame["rule"].nunique() == rules


def test_bounds_from_one_model_are_those_of_the_guesses(grid):
    cell = cells.one_run(grid)[0]
    frame = one_run.idle(cell, SEED)
    # Of 50 coins, each guess right with probability Phi(mu / 2) = 0.678.
    right = frame.loc[frame["rule"] == "all guessed", "correct"]
    assert right.between(*stats.binom.ppf([1e-5, 1 - 1e-5], 50, 0.678)).all()


def test_more_canaries_than_parameters_are_refused(larger):
    p = larger.parameters.model_copy(update={"canaries": (4000,)})
    with pytest.raises(InputError, match="canaries: got 4000; expected at most 3690"):
        networks.one_run(Cell(larger.name, p), SEED)


def test_streams_of_an_audit_and_of_its_null_law_differ(larger, monkeypatch):
    model, other, *_ = models(larger, monkeypatch, networks)
    nothing = np.zeros(10, bool)
    drawn = [
        tuple(one.scores(nothing, *purpose)[1])
        for one in (model, other)
        for purpose in ((), ("null", 0), ("null", 1))
    ]
    assert len(set(drawn)) == 6
