"""Adversaries who see iterates as they are made, beside the one who sees the last alone."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from hiddenstate.adversaries.canaries import blank
from hiddenstate.adversaries.gradient_canaries import Coordinate, Inserted, Iterates, Periodic
from hiddenstate.dpsgd.ensemble import LAST, Ensemble, Run, scores
from hiddenstate.dpsgd.mechanism import Mechanism
from hiddenstate.errors import InputError
from hiddenstate.sampling import Cyclic, FullBatch, Poisson

pytestmark = pytest.mark.usefixtures("one_sum")
UNUSED = 0
"""The first parameter is the weight of a pixel that is 0 in all records: nothing moves it."""
STEPS, NOISE, RATE, CLIP = 6, 0.8, 0.5, 2.0


def ensemble(sampling, schedule, **changes):
    rng = np.random.default_rng(0)
    x = rng.random((12, 5)).astype(np.float32)
    x[:, 0] = 0
    insertions = None if schedule is None else sum(map(schedule, range(1, STEPS + 1)))
    mechanism = Mechanism(
        **{
            "sampling": sampling, "steps": STEPS, "learning_rate": 0.3, "clipping_norm": CLIP,
            "noise_multiplier": NOISE, "adjacency": "add_or_remove", "insertions": insertions,
        } | changes
    )  # fmt: skip
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(5, 3))
    canary = Inserted(Coordinate(UNUSED), schedule)
    return Ensemble(model, mechanism, x, rng.integers(3, size=12), canary, torch.zeros(18))


def found(audit, observers, **how):
    table = scores(audit, models=5, seed=3, observers=observers, **how)
    return {name: rows["score"].to_numpy() for name, rows in table.groupby("adversary", sort=False)}


def replayed(audit, seed=3):
    """The unused coordinate's moves in each run, in units of learning rate times clipping norm."""
    moves = []
    for world in ("in", "out"):
        for index in range(5):
            run = Run(world, 0, index, audit, audit.clipped_sum(), seed, ())
            path = [float(theta[UNUSED]) for theta in run.iterates()]
            moves.append(-np.diff([0, *path]) / audit.mechanism.learning_rate / CLIP)
    return np.array(moves)


def test_one_training_shows_each_adversary_what_it_may_see():
    audit = ensemble(Poisson(RATE), None)
    seen = found(audit, {"all iterates": Iterates(), "every third": Iterates(3)})
    assert list(seen) == [LAST, "all iterates", "every third"]
    alone = scores(audit, models=5, seed=3)["score"]
    np.testing.assert_array_equal(seen[LAST], alone)
    moves = replayed(audit)

    def ratio(y, steps):
        """By the density of a sum of normal noise and Bernoulli(rate) insertions, term by term."""
        n = np.arange(steps + 1)
        pascal = np.array([1.0])
        for _ in range(steps):
            pascal = np.convolve(pascal, [1 - RATE, RATE])
        exponent = -((y[..., None] - n) ** 2 - y[..., None] ** 2) / 2 / steps / NOISE**2
        return logsumexp(exponent + np.log(pascal), axis=-1)

    expected = ratio(moves, 1).sum(axis=1)
    np.testing.assert_allclose(seen["all iterates"], expected, rtol=1e-4, atol=1e-4)
    expected = ratio(moves.reshape(-1, 2, 3).sum(axis=2), 3).sum(axis=1)
    np.testing.assert_allclose(seen["every third"], expected, rtol=1e-4, atol=1e-4)
    # Another rate, or a step less, would be seen.
    assert np.abs(seen["all iterates"] - ratio(moves[:, 1:], 1).sum(axis=1)).max() > 0.1


def test_of_every_step_s_insertion_the_last_iterate_shows_all():
    """The moves' sum is sufficient: whatever is seen, the ratio is that of the last iterate."""
    audit = ensemble(FullBatch(), Periodic())
    seen = found(audit, {"all": Iterates(1, Periodic()), "rare": Iterates(4, Periodic())})
    displacement = seen[LAST] / audit.mechanism.learning_rate / CLIP
    expected = (displacement - STEPS / 2) / NOISE**2
    for name in ("all", "rare"):
        np.testing.assert_allclose(seen[name], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "how",
    [{"workers": 2, "chunk": 2}, {"side_by_side": True, "chunk": 3}, {"kernel": "linear"}],
    ids=str,
)
def test_it_makes_no_difference_how_models_are_trained(how):
    audit = ensemble(Poisson(RATE), None)
    expected = found(audit, {"all iterates": Iterates()}, kernel="torch")
    for name, values in found(audit, {"all iterates": Iterates()}, **how).items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-4, atol=1e-4)


def test_a_training_that_went_on_shows_the_same_and_another_observer_is_another_audit(tmp_path):
    audit = ensemble(Poisson(RATE), None)
    observers = {"all iterates": Iterates()}
    expected = found(audit, observers, chunk=2)
    found(audit, observers, chunk=2, checkpoint=tmp_path)
    sorted(tmp_path.glob("*.npz"))[0].unlink()
    again = found(audit, observers, chunk=2, checkpoint=tmp_path)
    for name, values in expected.items():
        np.testing.assert_array_equal(again[name], values)
    with pytest.raises(InputError):
        found(audit, {"all iterates": Iterates(2)}, chunk=2, checkpoint=tmp_path)


class Broken:
    def watch(self, known, canary):
        return self

    def see(self, step, theta):
        pass

    def score(self):
        return float("nan")


@pytest.mark.parametrize(
    ("audit", "observers", "words"),
    [
        (ensemble(FullBatch(), Periodic()), {LAST: Iterates()}, "observers: got 'last iterate'"),
        (ensemble(FullBatch(), Periodic()), {"a": Broken()}, "'a' gave model 0 with the canary"),
        (ensemble(Cyclic(4), None), {"a": Iterates()}, "expected FullBatch or Poisson"),
        (
            ensemble(FullBatch(), Periodic(), noise_multiplier=0.0),
            {"a": Iterates()},
            "expected noise",
        ),
    ],
)
def test_what_cannot_be_watched_is_refused(audit, observers, words):
    with pytest.raises(InputError, match=words):
        scores(audit, models=1, seed=0, observers=observers)


@pytest.mark.parametrize("label", [LAST, "adversary"])
def test_a_measure_has_no_name_of_the_long_form(label):
    audit = ensemble(FullBatch(), Periodic())
    measures = {label: lambda run, last: 0.0}
    assert label in scores(audit, models=1, seed=0, measures=measures)
    observers = {"a": Iterates(1, Periodic())}
    with pytest.raises(InputError, match=f"measures: got '{label}'"):
        scores(audit, models=1, seed=0, measures=measures, observers=observers)


def test_a_record_is_no_canary_in_a_coordinate():
    audit = ensemble(FullBatch(), None)
    audit = Ensemble(audit.model, audit.mechanism, audit.x, audit.y, blank((5,), 1), audit.initial)
    with pytest.raises(InputError, match="expected one in one coordinate"):
        scores(audit, models=1, seed=0, observers={"a": Iterates()})


class Doubling:
    """An adversary who writes into what it is shown."""

    def watch(self, known, canary):
        return self

    def see(self, step, theta):
        theta.mul_(2)

    def score(self):
        return 0.0


@pytest.mark.parametrize("chunk", [1, 5])
def test_no_observer_changes_what_it_sees(chunk):
    audit = ensemble(Poisson(RATE), None)
    seen = found(audit, {"doubling": Doubling()}, chunk=chunk)
    np.testing.assert_array_equal(seen[LAST], scores(audit, models=5, seed=3, chunk=chunk)["score"])
