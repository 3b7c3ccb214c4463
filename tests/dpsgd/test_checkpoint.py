import functools
from collections import OrderedDict
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch

from hiddenstate.dpsgd import checkpoint
from hiddenstate.dpsgd.checkpoint import Checkpoint, fingerprint, structure
from hiddenstate.errors import InputError
from hiddenstate.models import fcnn


@dataclass(frozen=True, eq=False)
class Settings:
    values: np.ndarray = field(repr=False)
    rate: float = 0.1


class Bare:
    def __init__(self, depth):
        self.depth = depth


def draw(model, rng, scale=1.0):
    return scale


def test_equal_things_have_equal_fingerprints_wherever_they_lie_in_memory():
    def parts():
        return (
            Settings(np.arange(3.0)),
            Bare(3),
            functools.partial(draw, linear(0), scale=2.0),
            draw,
            {"a": torch.ones(2), "b": 1},
            ("name", 1),
        )

    assert fingerprint(*parts()) == fingerprint(*parts())


def linear(value):
    model = torch.nn.Linear(2, 1)
    torch.nn.init.constant_(model.weight, value)
    torch.nn.init.constant_(model.bias, value)
    return model


def test_values_of_parameters_count_but_for_what_is_trained():
    assert fingerprint(linear(0)) != fingerprint(linear(1))
    assert structure(linear(0)) == structure(linear(1))
    frozen = [linear(value).requires_grad_(False) for value in (0, 1)]
    assert structure(frozen[0]) != structure(frozen[1])


def test_modules_count_in_their_order():
    parts = {"act": torch.nn.ReLU(), "norm": torch.nn.LayerNorm(2)}
    one, other = (
        torch.nn.Sequential(OrderedDict((name, parts[name]) for name in order))
        for order in (("act", "norm"), ("norm", "act"))
    )
    assert structure(one) != structure(other)


SCALES = [0.1]
SETTINGS = {"scale": 0.1}


def listed(x):
    return x * SCALES[0]


def looked_up(x):
    return x * SETTINGS["scale"]


class Means:
    mean: ClassVar = [0.1]
    others: ClassVar = {"mean": np.zeros(2)}

    @functools.cached_property
    def twice(self):
        return 2


def test_what_functions_and_classes_name_counts(monkeypatch):
    for thing, change in (
        (listed, lambda patch: patch.setitem(globals(), "SCALES", [0.5])),
        (looked_up, lambda patch: patch.setitem(SETTINGS, "scale", 0.5)),
        (Means(), lambda patch: patch.setattr(Means, "mean", [0.9])),
        (Means(), lambda patch: patch.setitem(Means.others, "mean", np.ones(2))),
        (Means(), lambda patch: patch.setattr(Means.twice, "func", lambda self: 3)),
    ):
        before = fingerprint(thing)
        with monkeypatch.context() as patch:
            change(patch)
            assert fingerprint(thing) != before


def test_code_and_values_of_modules_of_ones_own_count(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    loss = "import own_parts\ndef loss(o):\n    return own_parts.f(o) * own_parts.SCALE\n"
    (tmp_path / "own_losses.py").write_text(loss)
    (tmp_path / "own_parts.py").write_text("SCALE = 1\ndef f(o):\n    return o\n")
    import own_losses
    import own_parts

    before = fingerprint(own_losses.loss)
    assert fingerprint(own_losses.loss) == before
    with monkeypatch.context() as patch:
        patch.setattr(own_parts, "SCALE", 2)
        assert fingerprint(own_losses.loss) != before
    with monkeypatch.context() as patch:
        exec("def f(o):\n    return 2 * o", vars(own_parts))
        assert fingerprint(own_losses.loss) != before
    # Installed packages enter by name: their code is told by their versions.
    with monkeypatch.context() as patch:
        patch.setattr(np, "pi", 3)
        assert fingerprint(circle) == CIRCLE


def circle(x):
    return np.pi * x


CIRCLE = fingerprint(circle)


def test_unequal_things_have_unequal_fingerprints():
    things = [
        Settings(np.arange(3.0)),
        Settings(np.arange(3.0), 0.2),
        Settings(np.arange(4.0)),
        Bare(3),
        Bare(4),
        functools.partial(draw, fcnn()),
        functools.partial(draw, fcnn(), scale=2.0),
        draw,
        np.arange(3.0),
        np.arange(3),
        np.arange(6).reshape(2, 3),
        np.arange(6).reshape(3, 2),
        torch.ones(2),
        1,
        "1",
    ]
    assert len({fingerprint(thing) for thing in things}) == len(things)


def test_the_seconds_kept_are_those_between_writes(tmp_path, monkeypatch):
    now = SimpleNamespace(at=5.0)
    monkeypatch.setattr(checkpoint, "time", SimpleNamespace(perf_counter=lambda: now.at))
    for place, took in (("a", (3, 4)), ("b", (10,))):
        kept = Checkpoint(tmp_path / place, "mark", ("score",), {"kernel": "native"})
        for index, seconds in enumerate(took):
            now.at += seconds
            kept.write({("in", 0, index): {"score": 1.0}})
        now.at += 100  # lost with what was not kept
    assert checkpoint.spent(tmp_path) == 17
    assert checkpoint.spent(None) == checkpoint.spent(tmp_path / "none") == 0
    np.savez(tmp_path / "old.npz", values=[1.0])  # of a release that told no time
    assert checkpoint.spent(tmp_path) == 17


def test_chunks_that_were_made_in_another_way_are_refused_with_both_named(tmp_path):
    def kept(**made):
        return Checkpoint(tmp_path, "mark", ("score",), {"kernel": "native", **made})

    kept().write({("in", 0, 0): {"score": 1.0}})
    assert kept().read() == {("in", 0, 0): {"score": 1.0}}
    with pytest.raises(InputError, match=r"made with kernel native, .* has kernel torch"):
        kept(kernel="torch").read()
    with pytest.raises(InputError, match="precision TF32"):
        kept(precision="TF32").read()


def test_chunks_of_other_numerics_are_refused(tmp_path, monkeypatch):
    made = {"kernel": "native"}
    kept = Checkpoint(tmp_path, "mark", ("score",), made)
    kept.write({("in", 0, 0): {"score": 1.0}})
    monkeypatch.setitem(checkpoint._NUMERICS, "native", 2)
    with pytest.raises(InputError, match=r"native, numerics 1; this call has .*, numerics 2"):
        Checkpoint(tmp_path, "mark", ("score",), made).read()


def test_a_chunk_that_a_loss_of_power_left_empty_is_trained_again(tmp_path):
    kept = Checkpoint(tmp_path, "mark", ("score",), {})
    for index in range(2):
        kept.write({("in", 0, index): {"score": float(index)}})
    (tmp_path / "in-0-0.npz").write_bytes(b"")
    with pytest.warns(UserWarning, match=r"in-0-0\.npz: is empty; its models are trained again"):
        assert kept.read() == {("in", 0, 1): {"score": 1.0}}
    assert checkpoint.spent(tmp_path) >= 0


def test_a_chunk_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    done = []
    monkeypatch.setattr(checkpoint.os, "fsync", lambda file: done.append([*tmp_path.glob("in*")]))
    Checkpoint(tmp_path, "mark", ("score",), {}).write({("in", 0, 0): {"score": 1.0}})
    assert done == [[]]
