import numpy as np
import pytest
import torch

from hiddenstate.adversaries.canaries import blank, clip_backdoor, mislabelled, read
from hiddenstate.adversaries.gradient_canaries import (
    Coordinate,
    Inserted,
    Once,
    Periodic,
    RandomCoordinate,
    SimulatedCoordinate,
)
from hiddenstate.adversaries.initialisation import average_case, pretrained
from hiddenstate.dpsgd.clipping import ClippedSum, cross_entropy, flat_parameters, named
from hiddenstate.dpsgd.ensemble import Ensemble, Run, last_iterate
from hiddenstate.dpsgd.mechanism import Mechanism
from hiddenstate.errors import InputError
from hiddenstate.models import digits_cnn, fcnn
from hiddenstate.sampling import FullBatch
from hiddenstate.streams import stream


def ensemble(canary, noise_multiplier=1.0) -> Ensemble:
    rng = stream(0, "canaries")
    model = fcnn()
    mechanism = Mechanism(
        sampling=FullBatch(),
        steps=6,
        learning_rate=0.01,
        clipping_norm=2.0,
        noise_multiplier=noise_multiplier,
        adjacency="add_or_remove",
    )
    x = rng.normal(size=(30, 8)).astype(np.float32)
    return Ensemble(
        model, mechanism, x, (x[:, 0] > 0).astype(np.int64), canary, average_case(model, rng)
    )


def run(canary, world="in", index=0, noise_multiplier=1.0) -> Run:
    audit = ensemble(canary, noise_multiplier)
    return Run(world, 0, index, audit, audit.clipped_sum(), 1, ())


def test_a_blank_record_scores_minus_its_loss():
    one = run(blank((8,), 1))
    last = last_iterate(one)
    outputs = torch.func.functional_call(
        one.ensemble.model, named(last, one.ensemble.model), (torch.zeros(1, 8),)
    )
    expected = -float(cross_entropy(outputs, torch.tensor([1]))[0])
    assert one.score(last) == pytest.approx(expected, rel=1e-6)


def test_a_record_is_read_from_its_file(tmp_path):
    given = np.arange(6, dtype=np.int64).reshape(1, 2, 3)
    np.save(tmp_path / "record.npy", given)
    found = read(tmp_path / "record.npy", (1, 2, 3))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, given)
    with pytest.raises(
        InputError, match=r"record\.npy: got a record of shape \(1, 2, 3\); .*\(6,\)"
    ):
        read(tmp_path / "record.npy", (6,))


def test_files_that_hold_no_record_are_refused_by_name(tmp_path):
    path = tmp_path / "record.npy"
    np.save(path, np.ones((2, 3)))
    whole = path.read_bytes()
    np.save(path, np.full((2, 3), "a"))
    words = path.read_bytes()
    np.save(path, np.full((2, 3), 1 + 2j))  # of which a half would be dropped
    complex_ = path.read_bytes()
    np.save(path, np.array([{}, {}]), allow_pickle=True)
    objects = path.read_bytes()
    np.savez(tmp_path / "record.npz", record=np.ones((2, 3)))
    archive = (tmp_path / "record.npz").read_bytes()
    for content in (whole[:-1], b"", b"no array", words, complex_, objects, archive):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"record\.npy: not a readable \.npy file"):
            read(path, (2, 3))
    with pytest.raises(InputError, match=r"absent\.npy: not a readable"):
        read(tmp_path / "absent.npy", (2, 3))
    for wrong in (np.nan, np.inf):
        np.save(path, np.full((2, 3), wrong))
        with pytest.raises(InputError, match=r"record\.npy: .*finite"):
            read(path, (2, 3))


def test_a_mislabelled_record_has_a_wrong_label_that_any_class_may_be():
    x, y = np.arange(12, dtype=np.float32).reshape(6, 2), np.array([0, 1, 2, 0, 1, 2])
    seen = set()
    for i in range(60):
        canary = mislabelled(x, y, 3, stream(i, "mislabelled"))
        truth = y[int(canary.x[0]) // 2]
        assert canary.y != truth
        seen.add((truth, canary.y))
    assert len(seen) == 6  # P(one of the six pairs is missing) < 6 (5/6)^60 = 1e-4; seeds fixed
    with pytest.raises(InputError, match="classes"):
        mislabelled(x, y, 1, stream(0))


def test_a_mislabelled_record_stays_as_it_was_drawn():
    x = np.ones((6, 2), np.float32)
    canary = mislabelled(x, np.zeros(6, np.int64), 3, stream(0, "mislabelled"))
    x[:] = 7
    np.testing.assert_array_equal(canary.x, [1, 1])


def test_a_clip_backdoor_takes_logits_as_a_model_gives_them():
    x, model = stream(0, "backdoor").normal(size=(20, 4)).astype(np.float32), torch.nn.Linear(4, 3)
    canary = clip_backdoor(x, lambda records: model(torch.from_numpy(records)))
    logits = model(torch.from_numpy(canary.record[0][None])).detach().numpy()
    assert canary.record[1] == int(logits.argmin())


def test_a_clip_backdoor_lies_where_the_data_do_not():
    rng = stream(0, "backdoor")
    x = rng.normal(size=(200, 1, 2, 3)).astype(np.float32)
    x[:, 0, 1, 2] *= 0.01
    canary = clip_backdoor(x, lambda records: np.array([[3.0, -1.0, 2.0]]))
    assert canary.y == 1
    assert canary.x.shape == (1, 2, 3)
    norm = np.linalg.norm(x.reshape(200, -1), axis=1).mean()
    assert abs(canary.x[0, 1, 2]) == pytest.approx(norm, rel=1e-3)
    assert np.linalg.norm(canary.x) == pytest.approx(norm, rel=1e-5)


@pytest.mark.parametrize(
    ("schedule", "steps"), [(Periodic(), [1, 2, 3, 4, 5, 6]), (Periodic(3), [3, 6]), (Once(), [1])]
)
def test_a_dirac_canary_adds_its_gradient_in_the_schedule_s_steps(schedule, steps):
    assert [t for t in range(1, 7) if schedule(t)] == steps
    lasts = [
        last_iterate(run(Inserted(Coordinate(5), schedule), world, noise_multiplier=0.0))
        for world in ("in", "out")
    ]
    # Coordinate 5 of the first layer moves by lr C an insertion; the training reacts a little.
    moved = lasts[1][5] - lasts[0][5]
    assert float(moved) == pytest.approx(0.01 * 2.0 * len(steps), rel=0.35)
    once = Inserted(Coordinate(5), Once())
    first = next(iter(run(once, "in", noise_multiplier=0.0).iterates())).clone()
    other = next(iter(run(once, "out", noise_multiplier=0.0).iterates()))
    torch.testing.assert_close(other - first, torch.eye(68)[5] * 0.02, rtol=1e-4, atol=1e-7)


def test_a_dirac_canary_scores_the_last_iterate_s_coordinate():
    one = run(Inserted(Coordinate(7)))
    last = last_iterate(one)
    assert one.score(last) == float(one.initial[7] - last[7])


@pytest.mark.whole
def test_random_coordinates_differ_between_runs_and_stay_with_a_run():
    def picks(shared):
        audit = ensemble(Inserted(RandomCoordinate(shared)))
        gradients = audit.clipped_sum()
        runs = (Run("in", 0, index, audit, gradients, 1, ()) for index in range(20))
        return [one.fixed.coordinate for one in runs]

    assert picks(False) == picks(False)
    assert len(set(picks(False))) > 5
    assert len(set(picks(True))) == 1


@pytest.mark.parametrize("rank", ["absolute", "squared", "net"])
def test_the_least_updated_coordinate_is_found_by_simulation_alone(rank):
    canary = Inserted(SimulatedCoordinate(rank))
    present, absent = (run(canary, world) for world in ("in", "out"))
    assert present.fixed.coordinate == absent.fixed.coordinate
    # A dead unit never moves: its weights are the least updated.
    dead = run(canary)
    dead.initial[8:16] = 0
    dead.initial[48 + 1] = -100.0
    assert dead.fixed.coordinate in range(8, 16)


def test_schedules_refuse_nonsense():
    for wrong in (lambda: Periodic(0), lambda: Once(0), lambda: Periodic(1.5), lambda: Once(2.5)):
        with pytest.raises(InputError, match="expected an integer of at least 1"):
            wrong()
    with pytest.raises(InputError, match=r"coordinate: got 2\.5; expected 0"):
        _ = run(Inserted(Coordinate(2.5))).fixed


def test_xavier_weights_fill_their_interval_and_biases_are_zero():
    model = digits_cnn()
    parts = named(average_case(model, stream(0, "xavier")), model)
    assert not parts["0.bias"].any()
    bound = (6 / ((16 + 16) * 9)) ** 0.5
    weight = parts["3.weight"]
    assert 0.99 * bound < weight.abs().max() <= bound
    # Variance of U(-b, b) from 2,304 draws: relative standard error 0.0186, 5 allowed.
    assert abs(float(weight.var()) / (bound**2 / 3) - 1) < 5 * 0.0186
    gains = named(average_case(torch.nn.GroupNorm(2, 4), stream(0)), torch.nn.GroupNorm(2, 4))
    assert gains["weight"].all() and not gains["bias"].any()


def test_pretraining_makes_ordinary_gradients_small():
    from hiddenstate.datasets.data import load

    data = load("digits").take(slice(0, 400))
    model = digits_cnn()
    before = flat_parameters(model).clone()
    start = average_case(model, stream(0, "start"))

    def train(epochs):
        return pretrained(
            model,
            data.x,
            data.y,
            start=start,
            epochs=epochs,
            batch_size=32,
            learning_rate=0.2,
            rng=stream(0, "order"),
        )

    trained = train(15)
    assert torch.equal(train(1), train(1))
    # The caller's model and starting point are left alone.
    assert torch.equal(flat_parameters(model), before)
    assert torch.equal(start, average_case(model, stream(0, "start")))
    norms = ClippedSum(model, data.x, data.y)
    at_start, at_end = (norms.norms(t, np.arange(400)).median() for t in (start, trained))
    assert at_end < at_start / 5


def test_pretraining_refuses_labels_that_do_not_fit():
    model = fcnn()
    with pytest.raises(InputError, match="labels"):
        pretrained(
            model,
            np.ones((3, 8), np.float32),
            np.array([0]),
            start=flat_parameters(model),
            epochs=1,
            batch_size=2,
            learning_rate=0.1,
            rng=stream(0),
        )
