import math

import numpy as np
import pytest

from hiddenstate.accounting import gaussian, iteration
from hiddenstate.estimates import select
from hiddenstate.family import Cell
from hiddenstate.papers.gradient_crafting import cells, simulations, stated


def test_the_landscape_has_the_reference_values():
    parameters = cells.Landscape(epsilon=4, delta=1e-5, batch_sizes=(1, 2), steps=25)
    table = simulations.landscape(Cell("x", parameters), 0)
    middle = select(table, threshold="midpoint").set_index(["batch_size", "step"])
    for size, line in stated.EVOLUTION.items():
        for step, value in line.items():
            assert middle.loc[(size, step), "epsilon_gdp"] == pytest.approx(value, abs=6e-4)
    best = select(table, threshold="h*").set_index("batch_size")["epsilon_exact"]
    for size in (1, 2):
        assert best[size] / 4 == pytest.approx(stated.EXACT_AT_BEST[4.0][size], abs=6e-4)
    # On a flat landscape both readings are that of mu / sqrt(t), wherever the exact one is told.
    flat = middle.loc[0].dropna()
    np.testing.assert_allclose(flat["epsilon_exact"], flat["epsilon_gdp"], atol=1e-6)


def test_simulated_scores_follow_the_exact_law():
    parameters = cells.SimulatedLandscape(
        epsilon=4, delta=1e-5, batch_size=2, steps=6, runs=20_000, repeats=2
    )
    frame = simulations.simulate(Cell("x", parameters), 5)
    mu = gaussian.mu(4, 1e-5)
    law = iteration.SingleInsertion(mu, 2 * mu, 6).law
    for world, expected in zip(("out", "in"), law.above(0.0), strict=True):
        part = select(frame, world=world)
        found = (part["score"] > 0).mean()
        # Five deviations of a binomial share of 40,000: wrong once in two million.
        assert abs(found - expected) < 5 * math.sqrt(0.25 / 40_000)
    both = [select(frame, repeat=r)["score"].to_numpy() for r in (0, 1)]
    assert not np.array_equal(*both)


def test_distances_are_zero_without_drift_and_subsampling_and_not_otherwise():
    def last(**what):
        parameters = cells.Distances(mu=1.0, steps=(5,), **what)
        return simulations.distances(Cell("x", parameters), 0).iloc[0]

    for flat in (last(beta=0.0, sampling_rate=None), last(beta=None, sampling_rate=1.0)):
        assert flat["distance"] < 1e-6 and flat["mu"] == pytest.approx(
            1.0 if flat["berry_esseen"] == 0 else 5**-0.5, abs=1e-4
        )
    assert last(beta=1.0, sampling_rate=None)["distance"] > 0.01
    sampled = last(beta=None, sampling_rate=0.1)
    assert 0.01 < sampled["distance"] < sampled["bound"]


def test_ideal_audits_are_of_mu_over_the_root_of_k():
    parameters = cells.IdealAudits(epsilons=(12,), delta=1e-5, every=5, models=4000, audits=40)
    table = simulations.ideal(Cell("x", parameters), 1)
    means = table.groupby("method")["value"].mean()
    # The reference's mean, with 5,000 models, is of few audits of deviation 0.17; this one of 40.
    assert means["as published"] == pytest.approx(4.29, abs=0.17)
    fixed = select(table, method="fixed threshold")["value"]
    assert (fixed < 4.561).all() and means["fixed threshold"] < means["as published"]
    assert len(fixed) == 40
