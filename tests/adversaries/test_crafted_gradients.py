import dataclasses
import math
from functools import partialmethod

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from hiddenstate.adversaries import crafted_gradients as crafted
from hiddenstate.adversaries.crafted_gradients import (
    ADVERSARIES,
    CraftedAudit,
    LossBased,
    scores,
)
from hiddenstate.adversaries.gradient_canaries import (
    Coordinate,
    RandomCoordinate,
    SimulatedCoordinate,
)
from hiddenstate.datasets import housing
from hiddenstate.dpsgd.kernels.tiny import Dense, Trainer
from hiddenstate.errors import InputError
from hiddenstate.streams import stream

RNG = stream(0, "crafted")
X = RNG.normal(size=(60, 8)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)


def small(**changes) -> CraftedAudit:
    given = {"epsilon": 4.0, "insertions": 5, "batch_size": 20}
    return CraftedAudit(x=X, y=Y, **given | changes)


def run(audit, world="in", index=0, role=("test",), **more):
    return crafted._Run(audit, world, 0, index, 1, ("test",), role, **more)


# sigma = sqrt(250) / mu, where mu-GDP is exactly (epsilon, 1e-5)-DP.
@pytest.mark.parametrize(
    ("epsilon", "sigma", "mu"),
    [
        (1, 58.986, 0.2681), (4, 17.095, 0.9249), (8, 9.490, 1.6660), (10, 7.904, 2.0004),
        (12, 6.825, 2.3167), (24, 3.999, 3.9534),
    ],
)  # fmt: skip
@pytest.mark.parametrize("every", [1, 5, 25])
def test_the_insertions_alone_are_accounted_for(epsilon, sigma, mu, every):
    audit = CraftedAudit(x=X, y=Y, epsilon=epsilon, every=every)
    assert audit.mechanism.noise_multiplier == pytest.approx(sigma, abs=1e-3)
    assert audit.mu == pytest.approx(mu, abs=1e-4)
    delta = norm.cdf(-epsilon / audit.mu + audit.mu / 2)
    delta -= math.exp(epsilon) * norm.cdf(-epsilon / audit.mu - audit.mu / 2)
    assert delta == pytest.approx(1e-5, rel=1e-6)
    assert audit.mechanism.steps == 250 * every
    steps = audit.inserted() + 1
    assert len(steps) == 250 and steps[0] == every and steps[-1] == 250 * every
    assert set(np.diff(steps)) == {every}


@pytest.mark.parametrize("every", [1, 3])
def test_a_dirac_canary_adds_its_gradient_in_the_insertions_alone(every):
    audit = small(every=every, clipping_norm=2.0)
    one = run(audit)
    canary = RandomCoordinate().canary(one.known(RandomCoordinate()))
    _, _, added = one.prepared(canary)
    _, _, noise = one.prepared(None)
    expected = np.zeros_like(noise)
    expected[every - 1 :: every, canary.coordinate] = 2.0
    np.testing.assert_allclose(added - noise, expected, atol=1e-5)
    std = audit.mechanism.noise_multiplier * 2.0
    assert noise.std() == pytest.approx(std, rel=5 / math.sqrt(2 * noise.size))
    # The score is minus the movement of that coordinate.
    last = one.trained(canary)
    d = canary.coordinate
    assert canary.score(last) == pytest.approx(float(one.initial[d] - last[d]), abs=1e-6)


def test_a_record_canary_is_one_more_record_in_the_insertions():
    audit = small(every=3)
    one = run(audit)
    canary = LossBased().canary(one.known(LossBased()))
    trainer, batches, added = one.prepared(canary)
    for t, (batch, without) in enumerate(zip(batches, one.batches, strict=True), 1):
        expected = [*without, 60] if t % 3 == 0 else list(without)
        assert list(batch) == expected
    record, label = canary.record
    (i,) = np.flatnonzero((record == X).all(axis=1))
    assert label == 1 - Y[i]
    # One and the same for every run of a repeat, and for no other reason than its name.
    others = [run(audit, "out", index).known(LossBased()) for index in range(5)]
    assert all(np.array_equal(LossBased().canary(k).record[0], record) for k in others)
    # Its step is the clipped gradient of 60 records and this one, with the noise of the run.
    theta = trainer.last_iterate(one.initial, batches[2:3], added[2:3])
    network, mechanism = audit.network, audit.mechanism
    inside = one.batches[2]
    total = network.clipped_sum(one.initial.astype(float), X[inside], Y[inside], 1.0)
    total += network.clipped_sum(one.initial.astype(float), record[None], np.array([label]), 1.0)
    expected = one.initial - mechanism.learning_rate * (total + added[2])
    np.testing.assert_allclose(theta, expected, atol=1e-5)
    losses = network.losses(theta, record[None], np.array([label]))
    assert canary.score(theta) == pytest.approx(-losses[0])


@pytest.mark.parametrize("rank", ["absolute", "squared", "net"])
def test_the_simulation_is_each_run_s_own(rank):
    audit, adversary = small(insertions=30), SimulatedCoordinate(rank)
    picks = set()
    for index in range(8):
        one = run(audit, "out", index)
        known = one.known(adversary)
        trainer = Trainer(
            audit.network, X, Y, learning_rate=0.1 / 20, clipping_norm=1.0, kernel="numpy"
        )
        theta, moved = one.initial, np.zeros(68)
        for batch in one.batches:
            after = trainer.last_iterate(theta, [batch], None)
            moved += np.abs(after - theta) ** (2 if rank == "squared" else 1)
            theta = after
        expected = np.abs(theta - one.initial) if rank == "net" else moved
        found = adversary.canary(known).coordinate
        # Dead units have several coordinates that do not move at all.
        assert expected[found] <= expected.min() * (1 + 1e-3) + 1e-9
        picks.add(found)
    assert len(picks) > 1


class Peeking:
    """Tries every way to an iterate between that the interface might offer."""

    name = "peeking"

    def canary(self, known):
        for refused in (
            lambda: known.simulated(noise=True),
            lambda: known.simulated(known.rng.normal(size=(5, 68))),
            lambda: known.noise,
            lambda: known.seed,
            lambda: known.stream("noise"),
            lambda: known.last,
            lambda: known.iterates(),
        ):
            with pytest.raises((AttributeError, TypeError)):
                refused()
        for array in (known.initial, known.x, known.y, *known.batches):
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0
            assert isinstance(array.base, bytes)  # which nothing changes, nor the array's flag
        with pytest.raises(dataclasses.FrozenInstanceError):
            known.initial = None
        self.gradients = np.zeros((5, 68), np.float32)
        return self

    coordinate = -1
    record = None

    def score(self, last):
        # What was fixed is fixed: it cannot be changed with hindsight, nor can the last iterate.
        self.gradients[:] = 1e6
        last[:] = 0
        return 0.0


def test_an_adversary_cannot_reach_an_iterate_between():
    peeking = Peeking()
    audit = small()
    table = scores(audit, models=2, seed=1, adversaries=[peeking, LossBased()])
    alone = scores(audit, models=2, seed=1, adversaries=[LossBased()])
    found = table[table.adversary == "loss-based"].reset_index(drop=True)
    assert found.equals(alone)
    # Its random numbers are not those of the noise, whatever it draws.
    one = run(audit)
    noise = one.stream("noise").standard_normal(20, dtype=np.float32)
    drawn = one.known(peeking).rng.standard_normal(20, dtype=np.float32)
    assert not np.isin(drawn, noise).any()


def test_every_gradient_is_read_before_the_first_step(monkeypatch):
    order = []

    class Lazy:
        """An array whose rows are made when they are read."""

        name, coordinate, record = "lazy", -1, None

        def canary(self, known):
            return self

        @property
        def gradients(self):
            order.append("gradients")
            return np.zeros((5, 68), np.float32)

        def score(self, last):
            order.append("score")
            return 0.0

    original = Trainer.last_iterate

    def watched(self, *arguments):
        order.append("training")
        # Nothing but arrays goes in: no callable that could be asked on the way.
        assert all(a is None or isinstance(a, np.ndarray | list | tuple) for a in arguments)
        return original(self, *arguments)

    monkeypatch.setattr(Trainer, "last_iterate", watched)
    scores(small(), models=1, seed=1, adversaries=[Lazy()])
    assert order.index("training") == 0 and order.count("training") == 2  # world "out" first
    assert order[-2:] == ["training", "score"]
    assert "gradients" not in order[order.index("score", 2) - 1 :]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"record": (X[0] + 1j, 0)}, "canary: its record: got an array of complex64"),
        ({"record": (X[0], 0.7)}, r"canary: its record has the label 0\.7"),
        ({"record": (X[0], 1 + 1j)}, "canary: its label: got"),
        ({"record": (X[0, :7], 0)}, r"canary: its record has shape \(7,\); expected \(8,\)"),
        ({"record": (np.full(8, np.nan), 0)}, "canary: its record holds nan"),
        ({"gradients": np.full((5, 68), 0.01j)}, "canary: its gradients: got an array of complex"),
    ],
)
@pytest.mark.parametrize("world", ["in", "out"])
def test_canaries_of_no_real_numbers_are_refused(changes, message, world):
    class Wrong:
        name, coordinate, record, gradients = "wrong", -1, None, None

        def canary(self, known):
            vars(self).update(changes)
            return self

        def score(self, last):
            return 0.0

    if world == "out" and "gradients" in changes:
        return  # they are read where they are inserted
    with pytest.raises(InputError, match=message):
        crafted._observed(run(small(), world), (Wrong(),), False)


def test_gradients_beyond_the_clipping_norm_are_refused():
    class Loud(RandomCoordinate):
        def canary(self, known):
            canary = super().canary(known)
            return dataclasses.replace(canary, gradients=canary.gradients * 1.001)

    class Short(RandomCoordinate):
        def canary(self, known):
            canary = super().canary(known)
            return dataclasses.replace(canary, gradients=canary.gradients[1:])

    with pytest.raises(InputError, match=r"norm 1\.00.*at most 1"):
        scores(small(), models=1, seed=0, adversaries=[Loud()])
    with pytest.raises(InputError, match="one for each insertion"):
        scores(small(), models=1, seed=0, adversaries=[Short()])


def test_scores_do_not_depend_on_how_they_were_computed(tmp_path):
    audit = small(every=2)
    expected = scores(audit, models=5, seed=3)
    assert list(expected.columns) == [
        "world", "repeat", "run", "score", "adversary", "coordinate",
    ]  # fmt: skip
    assert len(expected) == 3 * 2 * 5 and np.isfinite(expected.score).all()
    assert scores(audit, models=5, seed=3, workers=3, chunk=2).equals(expected)
    few = scores(audit, models=2, seed=3)
    kept = expected[expected.run < 2].reset_index(drop=True)
    assert few.equals(kept)
    for changed in ({"seed": 4}, {"repeat": 1}, {"name": ("other",)}):
        other = scores(audit, models=5, **{"seed": 3} | changed)
        assert not np.isin(other.score, expected.score).any()
    # The loss-based adversary has no coordinate; out-models are shared, in-models are not.
    assert set(expected.coordinate[expected.adversary == "loss-based"]) == {-1}
    assert expected.score.nunique() == len(expected)


def test_a_killed_audit_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    audit = small()
    expected = scores(audit, models=6, seed=3)
    trained = []
    original = Trainer.last_iterate

    def counted(self, *given, most=9):
        if len(trained) == most:
            raise KeyboardInterrupt
        trained.append(self)
        return original(self, *given)

    monkeypatch.setattr(Trainer, "last_iterate", counted)
    with pytest.raises(KeyboardInterrupt):
        scores(audit, models=6, seed=3, chunk=2, checkpoint=tmp_path)
    trained.clear()
    monkeypatch.setattr(Trainer, "last_iterate", partialmethod(counted, most=100))
    found = scores(audit, models=6, seed=3, chunk=2, checkpoint=tmp_path)
    assert found.equals(expected)
    assert len(trained) == 24 - 8  # nine were trained, the last in a chunk that was not finished
    for other in (small(epsilon=5.0), small(start="shared"), small(batch_size=30)):
        with pytest.raises(InputError, match="another audit"):
            scores(other, models=6, seed=3, checkpoint=tmp_path)


def test_a_shared_start_is_one_for_each_repeat():
    fresh, shared = small(), small(start="shared")
    starts = [run(shared, world, i).initial for world in ("in", "out") for i in range(3)]
    assert all(np.array_equal(start, starts[0]) for start in starts)
    starts = [run(fresh, world, i).initial for world in ("in", "out") for i in range(3)]
    assert len({start.tobytes() for start in starts}) == 6


def test_unusable_audits_are_refused():
    for changed in ({"every": 0}, {"insertions": 0}, {"start": "warm"}):
        with pytest.raises(InputError, match=next(iter(changed))):
            small(**changed)
    with pytest.raises(InputError, match="epsilon"):
        scores(small(epsilon=-1.0), models=1, seed=0)
    for changed in ({"models": 0}, {"workers": 0}, {"chunk": 0}):
        with pytest.raises(InputError, match=next(iter(changed))):
            scores(small(), **{"models": 1, "seed": 0} | changed)
    with pytest.raises(InputError, match="distinct"):
        scores(small(), models=1, seed=0, adversaries=[LossBased(), LossBased()])
    with pytest.raises(InputError, match="rank"):
        SimulatedCoordinate("loudest")
    with pytest.raises(InputError, match="diverge"):
        scores(small(learning_rate=1e40), models=1, seed=0, adversaries=ADVERSARIES[:1])


def test_the_gradient_norms_are_those_of_the_baseline_s_training():
    audit = small()
    norms = crafted.gradient_norms(audit, run=1, seed=1)
    assert norms.shape == (5,) and (norms > 0).all()
    one = crafted._Run(audit, "in", 0, 1, 1, (), ("loss-based",))
    canary = LossBased().canary(one.known(LossBased()))
    x, y = canary.record
    first = audit.network.clipped_sum(one.initial.astype(float), x[None], np.array([y]), 1e9)
    assert norms[0] == pytest.approx(np.linalg.norm(first))


@pytest.mark.whole
def test_an_idle_coordinate_leaks_mu_over_the_root_of_the_period():
    """With records that have no gradient but the canary's, the score is exactly Gaussian."""
    network = Dense((8, 6, 2))
    for every in (1, 5):
        audit = CraftedAudit(
            x=np.zeros((1, 8), np.float32), y=np.zeros(1, np.int64), epsilon=8.0, every=every,
            insertions=40, batch_size=1, network=network,
        )  # fmt: skip
        # Weights of the first layer see features that are all zero, so nothing else moves them.
        idle = Coordinate(11)
        table = scores(audit, models=400, seed=every, adversaries=[idle])
        inside, outside = (table.score[table.world == w].to_numpy() for w in ("in", "out"))
        unit = audit.mechanism.learning_rate * audit.mechanism.noise_std
        spread = unit * math.sqrt(40 * every)
        mu = (inside.mean() - outside.mean()) / spread
        # Difference of two means of 400: standard error sqrt(2 / 400); four of them allowed.
        assert mu == pytest.approx(audit.mu / math.sqrt(every), abs=4 * math.sqrt(2 / 400))
        for part in (inside, outside):
            assert part.std() == pytest.approx(spread, rel=4 / math.sqrt(800))


@pytest.mark.slow
def test_the_paper_s_ordering_on_its_own_network_and_data():
    """Fresh starts: only the simulated coordinate is nearly tight. 240 models a world, 3 seeds."""
    x, y = housing.records()
    audit = CraftedAudit(x=x, y=y, epsilon=24.0)
    table = scores(audit, models=240, seed=5)
    mu = {}
    for name, part in table.groupby("adversary"):
        inside, outside = (part.score[part.world == w] for w in ("in", "out"))
        mu[name] = (inside.mean() - outside.mean()) / math.sqrt((inside.var() + outside.var()) / 2)
    # Standard error of the plug-in at mu = 3.95: sqrt(2 / 240) sqrt(1 + mu^2 / 8) = 0.157.
    assert 0.9 * audit.mu - 3 * 0.157 < mu["simulated coordinate"] < audit.mu + 3 * 0.157
    assert mu["random coordinate"] < 0.5 * audit.mu
    assert mu["loss-based"] < 0.5 * audit.mu


def test_what_is_simulated_is_where_a_run_with_hardly_any_noise_ends():
    """At epsilon 1000 the noise is small: the worlds end where simulated, and a shift beyond."""
    audit = CraftedAudit(x=X, y=Y, epsilon=1000.0, insertions=20, batch_size=20)
    shared = {"models": 6, "seed": 4, "name": ("known",)}
    table = scores(audit, **shared)
    known = scores(audit, **shared, noiseless=True)
    keys = ["world", "repeat", "run", "adversary", "coordinate"]
    pd.testing.assert_frame_equal(table[keys], known[keys])
    mechanism = audit.mechanism
    shift = mechanism.learning_rate * mechanism.clipping_norm * mechanism.steps
    noise = mechanism.learning_rate * mechanism.noise_std * mechanism.steps**0.5
    assert shift > 20 * noise
    groups = table.assign(left=table.score - known.score)
    for (word, world), part in groups.groupby(["adversary", "world"]):
        if word != "loss-based":
            expected = shift * (world == "in")
            # Where a canary moves a coordinate that gradients move, they answer.
            most = 6 * noise if world == "out" else 0.25 * shift
            assert (part.left - expected).abs().max() < most
