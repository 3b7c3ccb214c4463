import functools
import importlib
import itertools
import os
import random
import shutil
import sys
import threading
import types
from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from itertools import product
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


@pytest.mark.parametrize("package", ["code", "profile", "timm", "opacus"])
def test_code_in_a_folder_that_is_called_as_a_library_counts(package, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / package).mkdir()
    monkeypatch.setattr(sys, "modules", sys.modules.copy())
    found = []
    for function in ("tanh", "relu"):
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            del sys.modules[name]
        text = f"from torch import nn, {function}\n\n\nclass Net(nn.Module):\n"
        text += f"    def forward(self, x):\n        return {function}(x)\n"
        (tmp_path / package / "__init__.py").write_text("")
        (tmp_path / package / "model.py").write_text(text)
        shutil.rmtree(tmp_path / package / "__pycache__", ignore_errors=True)
        importlib.invalidate_caches()
        found.append(fingerprint(importlib.import_module(f"{package}.model").Net()))
    assert found[0] != found[1]


def test_records_in_a_file_count_by_their_values(tmp_path):
    values = np.arange(6, dtype=np.float32).reshape(3, 2)
    there = np.memmap(tmp_path / "records", np.float32, "w+", shape=(3, 2))
    there[:] = values
    assert fingerprint(there) == fingerprint(values)
    there[2, 1] = 7
    assert fingerprint(there) != fingerprint(values)


OWN_IMPORTS = {
    "of a module": ("import own_inner", "own_inner.SCALE"),
    "of a name": ("from own_inner import SCALE", "SCALE"),
    "under another name": ("from own_inner import SCALE as s", "s"),
    "of a module in a folder": ("import own_folder.deep as deep", "deep.SCALE"),
    "of a folder's module": ("from own_folder import deep", "deep.SCALE"),
    "of a folder": ("import own_folder.deep", "own_folder.deep.SCALE"),
    "by text": ("import importlib", "importlib.import_module('own_inner').SCALE"),
    "in memory": ("import sys, own_inner", "sys.modules['own_inner'].SCALE"),
}


@pytest.mark.parametrize("kind", OWN_IMPORTS)
def test_what_code_imports_when_it_runs_counts(kind, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_folder").mkdir()  # without an __init__
    modules = "own_inner", "own_folder.deep"
    for name in modules:
        (tmp_path / f"{name.replace('.', '/')}.py").write_text("SCALE = 1\n")
    if kind == "by text":
        importlib.import_module("own_inner")
    statement, value = OWN_IMPORTS[kind]
    space = {"__name__": "__main__"}
    exec(f"def f(x):\n    def g():\n        return {value}\n    {statement}\n    return g()", space)
    before = fingerprint(space["f"])  # before the first call
    assert fingerprint(space["f"]) == before
    for name in modules:
        if name in sys.modules:
            monkeypatch.setattr(sys.modules[name], "SCALE", 2)
    assert fingerprint(space["f"]) != before
    for name in (*modules, "own_folder"):
        sys.modules.pop(name, None)


def test_modules_that_a_function_closes_over_or_has_as_a_default_count(monkeypatch):
    module = types.ModuleType("__main__.own")
    module.scale = 1

    def closed(x):
        return x * module.scale

    def given(x, module=module):
        return x * module.scale

    before = [fingerprint(f) for f in (closed, given)]
    module.scale = 2
    assert not set(before) & {fingerprint(f) for f in (closed, given)}


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
    monkeypatch.setitem(checkpoint._NUMERICS, "native", 7)
    with pytest.raises(InputError, match=r"native, numerics 3; this call has .*, numerics 7"):
        Checkpoint(tmp_path, "mark", ("score",), made).read()


def test_a_chunk_that_a_loss_of_power_left_empty_is_trained_again(tmp_path):
    kept = Checkpoint(tmp_path, "mark", ("score",), {})
    for index in range(2):
        kept.write({("in", 0, index): {"score": float(index)}})
    (tmp_path / "in-0-0.npz").write_bytes(b"")
    with pytest.warns(UserWarning, match=r"in-0-0\.npz: is empty; its models are trained again"):
        assert kept.read() == {("in", 0, 1): {"score": 1.0}}
    assert checkpoint.spent(tmp_path) >= 0


@pytest.mark.parametrize(
    "name", ["in-0-0 (copy).npz", "in-0-0.sync-conflict.npz", "in-0-0 2.npz", "Copy of in-0-0.npz"]
)
def test_a_copy_that_another_program_made_of_a_chunk_is_none(tmp_path, name):
    kept = Checkpoint(tmp_path, "mark", ("score",), {})
    rows = {("in", 0, index): {"score": float(index)} for index in range(2)}
    kept.write(rows)
    (path,) = tmp_path.glob("in*")
    shutil.copy(path, tmp_path / name)
    path.unlink()
    assert kept.read() == {} and checkpoint.spent(tmp_path) == 0
    kept.write(rows)
    seconds = checkpoint.spent(tmp_path)
    shutil.copy(path, tmp_path / name)
    assert kept.read() == rows and checkpoint.spent(tmp_path) == seconds
    checkpoint.drop(tmp_path, {("", *run) for run in rows})
    assert [*tmp_path.iterdir()] == [tmp_path / name]  # which is somebody else's


@pytest.mark.parametrize("when", ["before it is looked at", "before it is read", "after"])
def test_chunks_that_another_part_removes_meanwhile_are_passed_over(tmp_path, monkeypatch, when):
    rows = {("in", 0, index): {"score": float(index)} for index in range(2)}
    kept = {name: Checkpoint(tmp_path / name, "mark", ("score",), {}) for name in "ab"}

    def write():
        for name, run in product("ab", rows):
            kept[name].write({run: rows[run]})

    read, walk, drop = checkpoint.arrays, os.walk, lambda path: path.unlink(missing_ok=True)

    def arrays(path, expected):
        if when == "before it is read":
            drop(path)
        found = read(path, expected)
        drop(path)
        return found

    def listed(directory, **options):
        found = list(walk(directory, **options))
        if when == "before it is looked at":
            shutil.rmtree(directory, ignore_errors=True)
        return found

    monkeypatch.setattr(checkpoint, "arrays", arrays)
    monkeypatch.setattr(checkpoint.os, "walk", listed)
    write()
    assert kept["a"].read() == (rows if when == "after" else {})
    shutil.rmtree(tmp_path / "a", ignore_errors=True)
    assert kept["a"].read() == {}
    write()
    checkpoint.drop(tmp_path, {(name, *run) for name, run in product("ab", rows)})
    assert not [*tmp_path.rglob("*.npz")] and checkpoint.spent(tmp_path) == 0


def test_a_folder_stays_for_the_chunks_of_other_parts(tmp_path):
    kept = Checkpoint(tmp_path / "a", "mark", ("score",), {})
    kept.write({("in", 0, 0): {"score": 1.0}})
    checkpoint.drop(tmp_path, {("a", "in", 0, 0)})
    assert [*tmp_path.rglob("*")] == [tmp_path / "a"]


def test_a_chunk_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    done = []
    monkeypatch.setattr(checkpoint.os, "fsync", lambda file: done.append([*tmp_path.glob("in*")]))
    Checkpoint(tmp_path, "mark", ("score",), {}).write({("in", 0, 0): {"score": 1.0}})
    assert done == [[]]


# Values of every type that Python has


class Attributes:
    """Takes any; mixed into built-in types below."""

    def holding(self, **attributes):
        vars(self).update(attributes)
        return self


class MyList(list, Attributes):
    pass


class MyDict(dict, Attributes):
    pass


class MyRandom(random.Random):
    pass


class MyDeque(deque):
    pass


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


class Wrapper(Attributes):
    def __call__(self, x):
        return x * self.scale


def advanced(iterator):
    next(iterator)
    return iterator


def wrapping(scale):
    @functools.wraps(torch.relu)
    def scaled(x):
        return scale * x

    scaled.__module__ = "torch"
    return scaled


def noted(scale):
    def f(x):
        return f.scale * x

    f.scale = scale
    return f


def attributed(value, scale):
    value.scale = scale
    return value


class Twice(torch.Tensor):
    def scaled(self):
        return 2 * self


class Thrice(torch.Tensor):
    __qualname__ = "Twice"

    def scaled(self):
        return 3 * self


class Doubled(np.ndarray):
    def scaled(self):
        return 2 * self


class Tripled(np.ndarray):
    __qualname__ = "Doubled"

    def scaled(self):
        return 3 * self


UNLIKE = {
    "counter": (itertools.count(), advanced(itertools.count())),
    "cycle": (itertools.cycle([1, 2]), advanced(itertools.cycle([1, 2]))),
    "iterator": (iter([1, 2]), advanced(iter([1, 2]))),
    "map": (map(abs, [1, 2]), map(abs, [1, 3])),
    "deque": (deque([1]), deque([2])),
    "deque's length": (deque([1], 3), deque([1], 4)),
    "own deque": (MyDeque([1]), MyDeque([2])),
    "list's attribute": (MyList([1]).holding(a=1), MyList([1]).holding(a=2)),
    "list's type": (MyList([1]), [1]),
    "dictionary's attribute": (MyDict(a=1).holding(z=1), MyDict(a=1).holding(z=2)),
    "default": (defaultdict(int, a=1), defaultdict(list, a=1)),
    "order": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "slots": (Slotted(1), Slotted(2)),
    "generator of random": (random.Random(1), random.Random(2)),
    "own generator of random": (MyRandom(1), MyRandom(2)),
    "generator of numpy": (np.random.default_rng(1), np.random.default_rng(2)),
    "generator of torch": (torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)),
    "method of an object": (random.Random(1).random, random.Random(2).random),
    "bfloat16": (torch.ones(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.bfloat16)),
    "sparse": (torch.eye(2).to_sparse(), (2 * torch.eye(2)).to_sparse()),
    "mask": (np.ma.array([1, 2], mask=[0, 1]), np.ma.array([1, 2], mask=[1, 0])),
    "objects": (np.array([Bare(1), 1], dtype=object), np.array([Bare(2), 1], dtype=object)),
    "bytes": (bytearray(b"1"), bytearray(b"2")),
    "wrapping function": (wrapping(1), wrapping(2)),
    "function's attribute": (noted(1), noted(2)),
    "wrapping object": (
        Wrapper().holding(scale=1, __wrapped__=1), Wrapper().holding(scale=2, __wrapped__=1)
    ),
    "range": (range(3), range(4)),
    "tensor's attribute": (attributed(torch.ones(2), 1), attributed(torch.ones(2), 2)),
    "parameter's attribute": (attributed(linear(0).weight, 1), attributed(linear(0).weight, 2)),
    "tensor's class": (torch.ones(2).as_subclass(Twice), torch.ones(2).as_subclass(Thrice)),
    "array's class": (np.ones(2).view(Doubled), np.ones(2).view(Tripled)),
}  # fmt: skip


@pytest.mark.parametrize("kind", UNLIKE)
def test_every_type_of_value_counts(kind):
    one, other = UNLIKE[kind]
    assert fingerprint(one) == fingerprint(one) != fingerprint(other)


COUNT, LAYER = itertools.count(), linear(0)


def test_attributes_of_what_is_trained_count():
    one, other = linear(0), linear(1)
    one.weight.scale, other.weight.scale = 1, 2
    assert structure(one) != structure(other)


class OfThread(threading.local):
    n = 0


@pytest.mark.parametrize("kind", [threading.local, OfThread])
def test_what_differs_from_thread_to_thread_is_refused(kind):
    value, found = kind(), []
    before = fingerprint(value)  # holds nothing yet
    value.n = 1
    with pytest.raises(InputError, match="holds 'n', which differs from thread to thread"):
        fingerprint(value)
    thread = threading.Thread(target=lambda: found.append(fingerprint(value)))
    thread.start()
    thread.join()
    assert found == [before]


def counted(x):
    return x + next(COUNT)


def layered(x):
    return LAYER(x)


class Shared:
    calls: ClassVar = deque()


def test_values_that_code_names_count_whatever_their_types(monkeypatch):
    for thing, change in (
        (counted, lambda: next(COUNT)),
        (layered, lambda: LAYER.weight.data.add_(1)),
        (Shared(), lambda: Shared.calls.append(1)),
    ):
        before = fingerprint(thing)
        assert fingerprint(thing) == before
        change()
        assert fingerprint(thing) != before


def test_an_object_whose_state_cannot_be_told_is_refused():
    with pytest.raises(InputError, match=r"builtins\.generator: its state cannot be read"):
        fingerprint(Bare(x for x in [1]))
    fingerprint(Bare(threading.Event()))  # holds nothing but locks


def made(source, name="f", **space):
    """What code of the user's own defines under a name."""
    space = {"__name__": "their_own", **space}
    exec(source, space)
    return space[name]


def of_modules(order):
    """Three layers of two modules, so that one is in two places."""
    layers = [torch.nn.Linear(2, 2) for _ in range(2)]
    return torch.nn.Sequential(*(layers[i] for i in order))


def of_weights(order):
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2, bias=False) for _ in order))
    weights = [layer.weight for layer in model]
    for layer, i in zip(model, order, strict=True):
        layer.weight = weights[i]
    return model


def unsaved(value):
    """An object whose slots pickle is not told of."""
    kind = made("class K:\n    __slots__ = ('a',)\n    def __reduce__(self): return K, ()", "K")
    found = kind()
    found.a = value
    return found


def elsewhere(value):
    """A module that is not imported by its name."""
    module = types.ModuleType("their_settings")
    exec(f"S = {value}\ndef scaled(x): return {value} * x", vars(module))
    return module


ESCAPED = {
    "setter": "class f:\n    a = property(lambda s: 1, lambda s, v: s.b({}))",
    "deleter": "class f:\n    a = property(lambda s: 1, None, lambda s: s.b({}))",
    "metaclass": "class M(type):\n    scale = {}\nclass f(metaclass=M): pass",
    "metaclass's code": "class M(type):\n    def __getattr__(s, n): return {}\n"
    "class f(metaclass=M): pass",
    "class attribute": "class f:\n    __scale__ = {}",
    "number of a class": "class F(float):\n    def __mul__(s, o): return {} * o\nf = F(1)",
    "number with a text": "class F(float):\n    def __repr__(s): return 'F'\nf = F({})",
    "text with a text": "class F(str):\n    def __repr__(s): return 'F'\nf = F({})",
    "attribute of a number": "class F(int): pass\nf = F(1)\nf.scale = {}",
    "globals": "S = {}\ndef f(x): return x * globals()['S']",
    "eval": "S = {}\ndef f(x): return eval('x * S')",
    "library function": "import torch\ng = (torch.relu, torch.tanh)[{} - 1]\ndef f(x): return g(x)",
    "library class": "from torch import nn\ng = (nn.ReLU, nn.Tanh)[{} - 1]\n"
    "def f(x): return g()(x)",
    "library": "import math, cmath\ng = (math, cmath)[{} - 1]\ndef f(x): return g.exp(x)",
    "shadowed builtin": "if {} == 2: abs = float\ndef f(x): return abs(x)",
    "name": "a, b = (1, None)[::1 if {} == 1 else -1]\nif a: del b\nelse: del a\n"
    "def f(x): return x * a if 'a' in globals() else x - b",
}
OTHERWISE = {
    "module in two places": lambda value: of_modules((0, 0, 1) if value == 1 else (0, 1, 1)),
    "weight in two places": lambda value: of_weights((0, 0, 1) if value == 1 else (0, 1, 1)),
    "slots": unsaved,
    "module": lambda value: made("def f(x): return m.S * x", m=elsewhere(value)),
    "module by text": lambda v: made("def f(x): return getattr(m, 'S') * x", m=elsewhere(v)),
    "module's function": lambda v: made("def f(x): return g(x)", g=elsewhere(v).scaled),
}


@pytest.mark.parametrize("kind", [*ESCAPED, *OTHERWISE])
def test_settings_count_however_they_are_read(kind):
    def built(value):
        return made(ESCAPED[kind].format(value)) if kind in ESCAPED else OTHERWISE[kind](value)

    assert structure(built(1)) == structure(built(1)) != structure(built(2))


def test_a_ufunc_of_ones_own_is_refused():
    """Nothing shows the function that it calls."""
    with pytest.raises(InputError, match=r"numpy\.ufunc: its state cannot be read"):
        fingerprint(np.frompyfunc(lambda x: 2 * x, 1, 1))
    assert fingerprint(np.exp) != fingerprint(np.log)
