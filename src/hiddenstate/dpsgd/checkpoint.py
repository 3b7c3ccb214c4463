"""Finished models of an audit on disk, so that a killed one loses a chunk and no more."""

import dis
import functools
import hashlib
import importlib.util
import io
import logging
import math
import os
import pickle
import re
import sys
import sysconfig
import threading
import time
import types
import warnings
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from hiddenstate.code import essence
from hiddenstate.errors import InputError
from hiddenstate.files import arrays, atomic
from hiddenstate.pipeline.parts import Identity, Row, Store, place
from hiddenstate.streams import World, model_in_words


def fingerprint(*parts: object, free: Iterable[object] = ()) -> str:
    """SHA-256 of what decides the scores, as far as a digest can see it.

    Arrays and tensors enter by their bytes and attributes; functions by their code, what they close
    over, and the functions and values that they name, of their own package and of code that is not
    installed, whose modules they may import when they are called; objects by their class's code,
    their attributes and what pickle would keep of them, models so too. Compiled functions and
    installed packages enter by name. Raises InputError for an object whose state cannot be told,
    such as a generator, or differs from thread to thread.

    free: tensors whose values do not count, but their shapes.
    """
    return hashlib.sha256(_Digest(free=free).of(parts)).hexdigest()


def structure(*parts: object) -> str:
    """The same without the values of models' trainable parameters, which every training sets."""
    return hashlib.sha256(_Digest(values=False).of(parts)).hexdigest()


class _Digest:
    """Recursive digests of values that visit each object once, so that cycles terminate."""

    def __init__(self, *, values: bool = True, free: Iterable[object] = ()) -> None:
        self._values, self._free = values, {id(tensor) for tensor in free}
        self._known: dict[int, bytes] = {}
        self._alive: list[object] = []  # so that no address is used twice
        self._places: dict[int, int] = {}

    def of(self, value: Any) -> bytes:
        if value is None or isinstance(value, _PLAIN):
            kind = type(value)
            if _library(kind.__module__):
                return _hash(kind.__name__, repr(value))
            # A user's subclass may have another text, and attributes.
            plain = next(base for base in _PLAIN if isinstance(value, base))
            return _hash(plain.__repr__(value), self.of(kind), self._kept(value))
        if id(value) not in self._known:
            # Where a cycle comes back, the value is its number in the order of visits.
            self._known[id(value)] = _hash("again", len(self._known))
            self._alive.append(value)
            self._known[id(value)] = self._of_object(value)
        return self._known[id(value)]

    def _of_object(self, value: Any) -> bytes:
        kind = type(value).__qualname__
        if isinstance(value, _NAMES) or type(value).__module__ == "typing":
            return _hash(kind, repr(value))
        if isinstance(value, type):
            return self._of_class(value)
        if hasattr(value, "detach") and hasattr(value, "numpy"):
            return self._of_tensor(value)
        if isinstance(value, np.ndarray):
            array = np.ascontiguousarray(value)
            content = self.of(value.tolist()) if value.dtype.hasobject else array.tobytes()
            own = type(value) not in (np.ndarray, np.memmap)  # a file's name decides nothing
            kept = self.of(type(value)) + self._kept(value) if own else b""
            return _hash("array", array.dtype, array.shape, content, kept)
        if isinstance(value, types.CodeType):
            return _hash(kind, essence(value))
        if isinstance(value, functools.partial):
            return _hash(kind, self.of(value.func), self.of(value.args), self.of(value.keywords))
        if isinstance(value, types.MethodType):
            return _hash(kind, self.of(value.__self__), self.of(value.__func__))
        if isinstance(value, types.FunctionType):
            return self._of_function(value)
        if isinstance(value, functools._lru_cache_wrapper):
            return _hash(kind, self.of(value.__wrapped__))
        if isinstance(value, types.ModuleType):
            return _hash(kind, value.__name__)
        if isinstance(value, types.BuiltinFunctionType):
            owner = value.__self__  # a method's object, or a function's module
            of_module = owner is None or isinstance(owner, types.ModuleType)
            return _hash(
                kind, value.__qualname__, str(value.__module__) if of_module else self.of(owner)
            )
        if hasattr(value, "named_parameters"):
            return self._of_model(value)
        if isinstance(value, dict):  # in its order, in which it is read
            content = b"".join(self.of(k) + self.of(v) for k, v in value.items())
        elif isinstance(value, list | tuple):
            content = b"".join(map(self.of, value))
        elif isinstance(value, set | frozenset):
            # The order of a set changes from process to process.
            content = b"".join(sorted(map(self.of, value)))
        else:
            return self._of_instance(value)
        if type(value).__module__ in _CONTAINERS:
            return _hash(kind, content, self._made(value) if kind == "defaultdict" else b"")
        return _hash(self.of(type(value)), content, self._kept(value))

    def _of_tensor(self, value: Any) -> bytes:
        kept = self.of(type(value)) + self._kept(value)
        if id(value) in self._free:
            return _hash("free tensor", value.dtype, tuple(value.shape), kept)
        plain = value.detach().cpu()
        try:
            content: object = np.ascontiguousarray(plain.numpy()).tobytes()
        except (TypeError, RuntimeError):  # a type or layout that numpy does not know
            content = pickle.dumps(plain)
        return _hash("tensor", value.dtype, tuple(value.shape), content, kept)

    def _of_instance(self, value: Any) -> bytes:
        """An object: its class, its attributes, and what its C code keeps."""
        if isinstance(value, _SILENT):
            return _hash(type(value).__qualname__, getattr(value, "name", ""))
        if isinstance(value, threading.local):
            if held := sorted(vars(value)):  # in this thread; models are trained in others as well
                raise InputError(
                    f"{type(value).__qualname__}: holds {held[0]!r}, which differs from thread to "
                    "thread; expected what all threads share"
                )
            return self.of(type(value))
        if isinstance(value, weakref.ref):
            return _hash("weakref", self.of(value()))
        if isinstance(value, np.ufunc) and value.__name__.endswith(" (vectorized)"):
            raise InputError(
                "numpy.ufunc: its state cannot be read (it hides its function); expected "
                "np.vectorize in place of np.frompyfunc"
            )
        return _hash(self.of(type(value)), self._kept(value), self._made(value))

    def _kept(self, value: Any) -> bytes:
        """Its attributes, without values of cached properties, which follow from their code."""
        kept = getattr(value, "__dict__", {})
        kept = {k: v for k, v in kept.items() if not _cached(type(value), k)}
        for base in type(value).__mro__:
            if not _library(base.__module__):
                slots = (n for n, m in vars(base).items() if isinstance(m, _SLOTS[0]))
                kept |= {f"{base.__name__}.{n}": v for n in slots if (v := _slot(base, n, value))}
        return self._of_names(kept)

    def _of_names(self, named: Mapping[str, Any]) -> bytes:
        return _hash(*(_hash(name) + self.of(named[name]) for name in sorted(named)))

    def _made(self, value: Any) -> bytes:
        """State that pickle keeps besides attributes; InputError if it cannot be pickled."""
        try:
            made = value.__reduce_ex__(4)
        except Exception as error:  # whatever C code raises
            if _library(type(value).__module__):
                if callable(value) and hasattr(value, "__name__"):
                    return _hash(value.__name__)  # compiled code
                if hasattr(value, "__dict__"):
                    return b""  # its attributes are all that there is
            raise InputError(
                f"{type(value).__module__}.{type(value).__qualname__}: its state cannot be read "
                f"({error}); expected an object that pickle can save"
            ) from error
        if isinstance(made, str):
            return _hash(made)
        constructor, arguments, state, *rest = (*made, None, None, None, None)[:5]
        parts = [getattr(constructor, "__qualname__", ""), self.of(arguments)]
        for part in state if isinstance(state, tuple) else (state,):
            if isinstance(part, dict):
                own = getattr(value, "__dict__", {})
                # Attributes are digested by ``_kept``, which leaves cached properties out.
                others = {str(k): v for k, v in part.items() if k not in own}
                parts.append(self._of_names(others))
            else:
                parts.append(self.of(part))
        return _hash(*parts, *(self.of(list(items)) for items in rest if items is not None))

    def _of_function(self, function: types.FunctionType) -> bytes:
        if original := getattr(function, "_torchdynamo_orig_callable", None):
            return _hash("compiled", self.of(original))  # by torch, when it is first called
        cells = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
        # Not by __module__, which functools.wraps sets to that of what it wraps.
        package = str(function.__globals__.get("__name__")).partition(".")[0]
        if _library(package):
            name = _hash("function", function.__module__, function.__qualname__)
            # A library's decorator closes over the user's function.
            return _hash(name, *map(self.of, cells)) if cells else name
        given = [*cells, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        named = []
        for word, value in _named(function, given, package):
            # Other packages' code enters by name; a value enters whole, whosever it is.
            code_alone = isinstance(value, _CODE) or hasattr(value, "__wrapped__")
            if not code_alone or _owned(getattr(value, "__module__", None), package):
                named.append(_hash(word, self.of(value)))
            else:
                known = ("__module__", "__qualname__", "__name__")
                named.append(_hash(word, *(getattr(value, n, "") for n in known)))
        return _hash(
            "function", self.of(function.__code__), self.of(function.__defaults__),
            self.of(function.__kwdefaults__), self._kept(function), *map(self.of, cells), *named,
        )  # fmt: skip

    def _of_class(self, kind: type) -> bytes:
        parts: list[bytes] = []
        if _owned(type(kind).__module__, "__main__"):
            parts.append(self.of(type(kind)))
        for base in kind.__mro__:
            parts.append(_hash(base.__module__, base.__qualname__))
            if _library(base.__module__):
                continue
            for name, member in sorted(vars(base).items()):
                if isinstance(member, property):
                    members = member.fget, member.fset, member.fdel
                    member = members if any(members[1:]) else member.fget
                elif isinstance(member, staticmethod | classmethod):
                    member = member.__func__
                elif isinstance(member, functools.cached_property):
                    member = member.func
                elif isinstance(member, functools.partialmethod):
                    member = member.func, member.args, member.keywords
                # ``_abc_impl`` has Python's caches of ``isinstance``, which change with use.
                hidden = name == "_abc_impl" or isinstance(member, _SLOTS)
                hidden |= name[:2] == "__" and (name in _OF_PYTHON or not _settings(member))
                if isinstance(member, types.FunctionType) or not hidden:
                    parts += [_hash(name), self.of(member)]
        return _hash("class", *parts)

    def _of_model(self, model: Any) -> bytes:
        """A torch module: its class's code, attributes, buffers, hooks and inner modules."""
        attributes = {k: v for k, v in vars(model).items() if not _cached(type(model), k)}
        parameters, modules = attributes.pop("_parameters"), attributes.pop("_modules")
        described = [
            (
                name,
                p
                if p is None or self._values or not p.requires_grad
                else (p.shape, str(p.dtype), type(p), vars(p)),
                *self._again(p),
            )
            for name, p in parameters.items()
        ]
        # In their order, which is that in which a Sequential applies them.
        inner = [(name, module, *self._again(module)) for name, module in modules.items()]
        return _hash(self.of(type(model)), *map(self.of, (described, inner, attributes)))

    def _again(self, part: Any) -> tuple[int, ...]:
        """The number of a model's part that is in two places, where it is met again."""
        new = len(self._places)
        found = new if part is None else self._places.setdefault(id(part), new)
        return () if found == new else (found,)


_LIBRARIES = {"numpy", "scipy", "pandas", "torch", "torchvision"}
"""Packages whose classes and functions enter by name, wherever they lie."""
_INSTALLED = {"sklearn", "opacus", "lightning", "timm", "transformers", *sys.stdlib_module_names}
"""The same where they are installed: a user's own folder may be called ``code`` or ``timm``."""
_STANDARD = sysconfig.get_path("stdlib")
_SITES = {"site-packages", "dist-packages"}
_PLAIN = (bool, int, float, complex, str, bytes)
_OF_PYTHON = {"__doc__", "__module__", "__qualname__", "__slots__", "__annotations__"} | {
    "__slotnames__", "__firstlineno__", "__static_attributes__", "__match_args__", "__parameters__",
}  # fmt: skip
"""Names of what Python itself writes into classes, and of texts that no code reads."""
_CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_NAMES = (
    *_SLOTS, types.MethodDescriptorType, types.WrapperDescriptorType, types.GenericAlias,
    types.UnionType,
)  # fmt: skip
"""Compiled attributes and annotations, whose text says all."""
_CONTAINERS = {"builtins", "collections", "torch"}
"""Modules whose lists and dictionaries have no attributes."""
_SILENT = (type(threading.Lock()), type(threading.RLock()), io.IOBase, logging.Logger)
"""Types of objects that hold nothing which decides a score."""
_IMPORT_NAME = dis.opmap["IMPORT_NAME"]
_BY_TEXT = {"import_module", "__import__", "modules"}
"""Names of what gives a module by its name."""
_READ_BY_TEXT = {"getattr", "attrgetter", "globals", "vars", "__dict__", "eval", "exec"}
"""Names of what gives a value by its name."""
_WORDS = re.compile(r"[^\W\d]\w*")


def _hash(*parts: object) -> bytes:
    """Digest of parts; bytes as they are, others as text. Lengths keep them apart."""
    total = hashlib.sha256()
    for part in parts:
        content = part if isinstance(part, bytes) else str(part).encode()
        total.update(len(content).to_bytes(8, "big") + content)
    return total.digest()


def _settings(value: Any) -> bool:
    """True for values as settings have them, not Python's or a library's own objects."""
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_settings, value))
    if isinstance(value, dict):
        return all(map(_settings, (*value, *value.values())))
    return isinstance(value, _PLAIN)


def _slot(base: type, name: str, value: Any) -> tuple[Any, ...]:
    """Value of an object in a slot of its class, or nothing."""
    with suppress(AttributeError):
        return (vars(base)[name].__get__(value),)
    return ()


def _named(function: types.FunctionType, given: list[Any], package: str) -> list[tuple[str, Any]]:
    """Objects that a function refers to, including through the user's own modules.

    given: what it closes over and its defaults, where it may have modules from as well.
    """
    codes, space = _codes(function.__code__), function.__globals__
    modules = [v for v in given if isinstance(v, types.ModuleType)]
    modules += (module for code in codes for module in _imports(code, space, package))
    spaces = [space]
    for module in modules:
        if _owned(module.__name__, package) and not any(vars(module) is s for s in spaces):
            spaces.append(vars(module))
    names = list(dict.fromkeys(name for code in codes for name in code.co_names))
    if not _READ_BY_TEXT.isdisjoint(names):
        texts = (text for code in codes for text in code.co_consts if isinstance(text, str))
        names = list(dict.fromkeys((*names, *(n for t in texts for n in _WORDS.findall(t)))))
    values: list[tuple[str, Any]] = []
    for space in spaces:  # grows meanwhile
        for name, value in ((name, space[name]) for name in names if name in space):
            if not isinstance(value, types.ModuleType) or not _owned(value.__name__, package):
                values.append((name, value))
            elif not any(vars(value) is s for s in spaces):
                spaces.append(vars(value))
    return values


def _imports(
    code: types.CodeType, space: dict[str, Any], package: str
) -> Iterator[types.ModuleType]:
    """Modules of the user's own that code imports when it runs; imported, if they were not.

    Where it asks for modules by text, those in memory that a constant names.
    """
    names: list[str] = []
    if _IMPORT_NAME in code.co_code[::2]:  # instructions are two bytes, the first its code
        loaded: list[Any] = [0, None]  # the last two: the level, and what is taken of the module
        for step in dis.get_instructions(code):
            if step.opcode == _IMPORT_NAME:
                level, taken = loaded
                base = str(space.get("__package__")).rsplit(".", level - 1)[0] if level else ""
                name = ".".join(filter(None, (base, step.argval)))
                names += [name, *(f"{name}.{part}" for part in taken or ())]
            elif step.opname.startswith("LOAD_"):
                loaded = [loaded[1], step.argval]
    for name in dict.fromkeys(names):
        if _owned(name, package):
            with suppress(Exception, SystemExit):  # whatever a module raises
                importlib.import_module(name)
    if not _BY_TEXT.isdisjoint(code.co_names):
        names += (text for text in code.co_consts if isinstance(text, str))
    within = (name.split(".")[:depth] for name in names for depth in range(1, name.count(".") + 2))
    for parts in within:
        if module := sys.modules.get(".".join(parts)):
            yield module


def _library(module: object) -> bool:
    """True for modules of packages whose classes and functions enter by name."""
    root = str(module).partition(".")[0]
    if root not in _INSTALLED:
        return root in _LIBRARIES
    return _installed(root, sys.modules.get(root))


@functools.cache
def _installed(root: str, module: types.ModuleType | None) -> bool:
    """True for what lies where Python or pip put it; module: what is imported by that name."""
    path = _path(root)
    return (
        path in (None, "built-in", "frozen")
        or str(path).startswith(_STANDARD)
        or not _SITES.isdisjoint(Path(str(path)).parts)
    )


def _owned(module: str | None, package: str) -> bool:
    """True for modules of the package, and for user code that is not installed."""
    root = str(module).partition(".")[0]
    if root in (package, "__main__"):
        return True
    if _library(root):
        return False
    path = _path(root)
    if path is None:  # made by code, or not imported by its name
        return module is not None
    return not path.startswith(_STANDARD) and _SITES.isdisjoint(Path(path).parts)


def _path(root: str) -> str | None:
    """Where a module or package lies, one without an ``__init__`` too; None if nobody knows."""
    module = sys.modules.get(root)
    spec = getattr(module, "__spec__", None)
    if module is None:
        with suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(root)
    places = getattr(spec, "submodule_search_locations", None) or ()
    return (
        getattr(module, "__file__", None)
        or getattr(spec, "origin", None)
        or next(iter(places), None)
    )


def _cached(kind: type, name: str) -> bool:
    return isinstance(getattr(kind, name, None), functools.cached_property)


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty cell raises
    except ValueError:
        return False
    return True


def _codes(code: types.CodeType) -> list[types.CodeType]:
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return [code, *(deep for c in inner for deep in _codes(c))]


_KEPT = "finished models of an audit"
_NUMERICS = {"torch": 2, "explicit": 2, "loop": 2, "native": 3}
"""By kernel (others: 1): raised when its code changes scores, so that older chunks are refused."""


class Checkpoint:
    """Finished runs: one file a chunk in a directory of one audit, and those of part files.

    store: the directory, or a place of a cell that is trained in parts; None keeps nothing.
    columns: the names of what is kept of a run. made: what else decides the last digits of scores
    (kernel, device, precision), by name. measures: columns that are no scores, which may have no
    number of a run. ``read`` raises InputError for another audit, and for
    chunks that were made in another way: a table of both is that of no uninterrupted run. A chunk
    that a loss of power left empty is trained again.
    """

    def __init__(
        self,
        store: Store,
        fingerprint: str,
        columns: tuple[str, ...],
        made: Mapping[str, object],
        measures: Collection[str] = (),
    ):
        self.place = place(store)
        self._directory = self.place.directory
        self._fingerprint = fingerprint
        self.columns, self._measures = columns, measures
        made = {**made, "numerics": _NUMERICS.get(str(made.get("kernel")), 1)}
        self.made = ", ".join(f"{key} {value}" for key, value in made.items())
        self._told, self._clock = threading.Lock(), time.perf_counter()

    def read(self) -> dict[Identity, Row]:
        """Scores and measures of the finished runs."""
        done = self._elsewhere()
        for path, chunk in _chunks(self._directory, within=False):
            if chunk is None:
                warnings.warn(f"{path}: is empty; its models are trained again", stacklevel=3)
                continue
            found = {key: array.tolist() for key, array in chunk.items()}
            try:
                fingerprint, columns = found["fingerprint"], tuple(found["columns"])
                runs = list(zip(found["world"], found["repeat"], found["run"], strict=True))
                values = found["values"]
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(f"{path}: {error!r}; expected {_KEPT}") from error
            if fingerprint != self._fingerprint or columns != self.columns:
                raise InputError(
                    f"{path}: is of another audit (other mechanism, data, initial parameters, "
                    "canary, seed, measures, or code of any of them); expected a directory of this "
                    "audit, or an empty one"
                )
            if (made := found.get("made", "nobody knows how")) != self.made:
                raise InputError(
                    f"{path}: was made with {made}; this call has {self.made}; expected the same, "
                    "or an empty directory"
                )
            for run, row in zip(runs, values, strict=True):
                done[run] = dict(zip(columns, row, strict=True))
        return done

    def _elsewhere(self) -> dict[Identity, Row]:
        """Scores and measures of the runs that part files have.

        Another kernel or device must have trained its models with the canary and without it in
        pairs: what it changes, it changes in both alike.
        """
        done: dict[Identity, Row] = {}
        known = self.place.parts.known(self.place.name)
        trained = {(model.made, *run) for run, model in known.items()}
        for run, (made, path, row) in known.items():
            world, repeat, index = run
            twin = (made, "out" if world == "in" else "in", repeat, index)
            if made != self.made and not (_exact(made, self.made) and twin in trained):
                raise InputError(
                    f"{path}: has {model_in_words(world, index)}, made with {made}; this "
                    f"call has {self.made}; expected the same, or that model both with the canary "
                    "and without it, of equal precision and this version's numerics"
                )
            if set(row) != set(self.columns):
                raise InputError(
                    f"{path}: has {', '.join(row)} of {model_in_words(world, index)}; "
                    f"expected {', '.join(self.columns)}"
                )
            for name in row.keys() - self._measures:
                if not math.isfinite(row[name]):
                    raise InputError(
                        f"{path}: has the {name} {row[name]} of {model_in_words(world, index)}; "
                        "expected a finite number"
                    )
            done[run] = {column: row[column] for column in self.columns}
        return done

    def write(self, found: dict[Identity, Row]) -> None:
        """Keep one chunk."""
        if self._directory is None or not found:
            return
        world, repeat, run = zip(*found, strict=True)
        with self._told:
            # Since any thread's last chunk, so that all threads' chunks add up to the time spent.
            since, self._clock = self._clock, time.perf_counter()
            seconds = self._clock - since
        path = self._directory / f"{world[0]}-{repeat[0]}-{run[0]}.npz"
        with atomic(path) as temporary, temporary.open("wb") as file:
            np.savez(
                file,
                fingerprint=self._fingerprint,
                columns=self.columns,
                made=self.made,
                world=world,
                repeat=repeat,
                run=run,
                values=[[row[column] for column in self.columns] for row in found.values()],
                seconds=seconds,
            )
            file.flush()
            os.fsync(file.fileno())  # or the new name could outlive its content


def _exact(made: str, other: str) -> bool:
    """True if two ways to train differ in kernel and device alone, and ``made`` has no old code."""
    one, two = (dict(p.rpartition(" ")[::2] for p in way.split(", ")) for way in (made, other))
    current = str(_NUMERICS.get(one.get("kernel", ""), 1))
    return one.get("precision") == two.get("precision") and one.get("numerics") == current


Runs = Collection[tuple[str, World, int, int]]
"""Runs of several places: place, world, repeat and index of each."""


def spent(directory: Path | None, runs: Runs | None = None) -> float:
    """Seconds that runs kept in a directory, and those below it, took before now: all, or these."""
    return sum(float(found.get("seconds", 0)) for _, found in _of_runs(directory, runs))


def drop(directory: Path | None, runs: Runs) -> None:
    """Remove the chunks of which all runs are among these.

    Their folders stay, for another part may be about to write there.
    """
    for path, _ in _of_runs(directory, runs):
        path.unlink(missing_ok=True)


def _of_runs(directory: Path | None, runs: Runs | None) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Chunks in a directory and below it: all, or those of which all runs are among these."""
    for path, found in _chunks(directory, within=True):
        if directory is None or found is None:
            continue
        place = path.parent.relative_to(directory).as_posix().removeprefix(".")
        if runs is not None:
            names = (found[key].tolist() for key in ("world", "repeat", "run"))
            if any((place, *run) not in runs for run in zip(*names, strict=True)):
                continue
        yield path, found


def _chunks(
    directory: Path | None, *, within: bool
) -> Iterator[tuple[Path, dict[str, Any] | None]]:
    """Chunks in a directory, or ``within`` it, by name; None for one that a loss of power emptied.

    A file that is not named as ``Checkpoint.write`` does is none, such as a program's copy of one.
    Parts of a cell share a directory, so another may remove its chunks and folders meanwhile.
    """
    if directory is None:
        return
    folders = islice(os.walk(directory), None if within else 1)  # passes over what is gone
    names = (Path(at) / name for at, _, files in folders for name in files)
    named = re.compile(r"(in|out)-[0-9]+-[0-9]+\.npz")
    for path in sorted(path for path in names if named.fullmatch(path.name)):
        try:
            found = arrays(path, _KEPT) if path.stat().st_size else None
        except (FileNotFoundError, InputError) as error:
            # ``arrays`` raises InputError from whatever went wrong.
            if isinstance(error.__cause__ or error, FileNotFoundError):
                continue
            raise
        yield path, found
