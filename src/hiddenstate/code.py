"""Digests of Python code: the files that it imports, and what it does.

Docstrings, comments, layout and the version of Python do not count, so that only what may change a
result does. Of C headers each byte counts.
"""

import ast
import hashlib
import inspect
import json
import marshal
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import hiddenstate

_ROOT = Path(hiddenstate.__file__).parent
_KEPT = Path(__file__).parent / "__pycache__" / "digests.json"
"""Digests and imports of files by their content, which take a second to find for all."""
_DATA = (".csv", ".html", ".json")


def digest(*modules: str) -> str:
    """Digest of these modules of the package and of what they import from it, however deep.

    C headers beside a module count as well, and tables and pages beside a module that names them.
    """
    return _digest(map(_file, modules))


@cache
def digest_of(run: Callable[..., Any]) -> str:
    """Digest of what decides what a function of the package returns.

    That is its module with all that it imports.
    """
    return digest(inspect.unwrap(getattr(run, "func", run)).__module__)


def closure(files: Iterable[Path], imports: Callable[[Path], Iterable[Path]]) -> set[Path]:
    """Files, and all that they import, however deep; ``imports`` gives those of one file."""
    found: set[Path] = set()
    waiting = list(files)
    while waiting:
        file = waiting.pop()
        if file not in found:
            found.add(file)
            waiting += imports(file)
    return found


def imported(
    tree: ast.Module, file: Path, places: Collection[Path], *, packages: bool
) -> Iterator[Path]:
    """Files that a Python file, parsed, imports from these places or from its own package.

    packages: with the ``__init__`` of each package on the way to a module.
    """
    return _resolved(_imports(tree), file, places, packages=packages)


def _imports(tree: ast.Module) -> Iterator[tuple[int, str | None, list[str]]]:
    """Level, module and names of each import; the level is -1 for ``import name``."""
    for node in statements(tree):
        match node:
            case ast.Import(names=names):
                yield -1, None, [alias.name for alias in names]
            case ast.ImportFrom(module=module, names=names, level=level):
                yield level, module, [alias.name for alias in names]


def _resolved(
    imports: Iterable[tuple[int, str | None, list[str]]],
    file: Path,
    places: Collection[Path],
    *,
    packages: bool,
) -> Iterator[Path]:
    """Files that these imports of a file read."""
    for level, module, names in imports:
        # What is imported of a package may be a module of it.
        inside = [f"{module}.{name}" if module else name for name in names]
        bases = places if level <= 0 else [file.parents[level - 1]]
        for base, name in ((base, name) for base in bases for name in inside):
            found = _found(base, name)
            yield from found if packages else _defining(found[-1:], name.rpartition(".")[2])


def _defining(found: list[Path], name: str) -> Iterable[Path]:
    """Files that define a name of these, where a package does nothing but import it."""
    for file in found:
        *_, imports, handed_on = _parsed(file)
        its = [one for one in imports if name in one[2]]
        package = file.name == "__init__.py" and name != file.parent.name
        if package and handed_on and its:
            yield from _resolved(
                [(level, module, [name]) for level, module, _ in its],
                file,
                [_ROOT.parent],
                packages=False,
            )
        else:
            yield file


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """All statements, and what they are parts of; expressions hold none."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, field, None)
            if isinstance(inner, list) and not (field == "body" and _for_types(node)):
                waiting += inner


def _for_types(node: ast.AST) -> bool:
    """True for ``if TYPE_CHECKING``, whose statements never run."""
    match node:
        case ast.If(test=ast.Name("TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
            return True
    return False


def essence(code: CodeType) -> bytes:
    """Content of compiled code without its file, lines and functions' docstrings."""
    # Later versions mark objects that are shared, which depends on more than their content.
    return marshal.dumps(_bare(code), 2)


def _bare(code: CodeType) -> CodeType:
    constants = [_bare(c) if isinstance(c, CodeType) else c for c in code.co_consts]
    function = code.co_flags & inspect.CO_NEWLOCALS and code.co_name not in _NO_DOCSTRING
    if function and constants and isinstance(constants[0], str):
        constants[0] = None
    return code.replace(
        co_consts=tuple(constants), co_linetable=b"", co_firstlineno=1, co_filename=""
    )


_NO_DOCSTRING = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}
"""Code whose first constant is one like any other."""


def _found(base: Path, name: str) -> list[Path]:
    """Files that are read to import a module or what one defines, from the outermost package on."""
    parts = name.split(".")
    found = []
    for depth in range(1, len(parts) + 1):
        stem = base.joinpath(*parts[:depth])
        both = stem.with_name(f"{stem.name}.py"), stem / "__init__.py"
        found += [path for path in both if path.is_file()]
    return found


def _digest(files: Iterable[Path]) -> str:
    total = hashlib.sha256()
    folders: dict[Path, bytes] = {}
    every = sorted(closure(files, lambda file: _read(file)[1]))
    if _new:
        _keep(_kept())
    for file in every:
        content = _read(file)[0]
        total.update(file.relative_to(_ROOT).as_posix().encode() + content)
        folders[file.parent] = folders.get(file.parent, b"") + content
    for folder, contents in sorted(folders.items()):
        named = (f for f in folder.glob("*.*") if f.suffix in _DATA and f.name.encode() in contents)
        for beside in sorted((*folder.glob("*.h"), *named)):
            total.update(beside.read_bytes())
    return total.hexdigest()[:16]


def _file(module: str) -> Path:
    return _found(_ROOT.parent, module)[-1]


@cache
def _read(file: Path) -> tuple[bytes, list[Path]]:
    """Digest of what a file of the package does, and the package's files that it imports."""
    done, texts, imports, _ = _parsed(file)
    found = _resolved(imports, file, [_ROOT.parent], packages=False)
    ours = [path for path in found if path.is_relative_to(_ROOT)]
    return " ".join([done, *texts]).encode(), ours


@cache
def _parsed(file: Path) -> list[Any]:
    """Digest, names of data files and imports of a file, and if it does nothing but import."""
    content = file.read_bytes()
    key = hashlib.sha256(_own() + content).hexdigest()
    kept = _kept()
    if key not in kept:
        tree = ast.parse(content)
        texts = [name for name in _texts(tree) if name.endswith(_DATA)]
        done = hashlib.sha256(_said(tree).encode()).hexdigest()
        kept[key] = [done, texts, list(_imports(tree)), all(map(_hands_on, tree.body))]
        _new.append(key)
    return kept[key]


def _hands_on(node: ast.stmt) -> bool:
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Assign(targets=[ast.Name("__all__")]):
            return True
    return _remark(node)


@cache
def _own() -> bytes:
    """Content of this module: another may find other digests."""
    return Path(__file__).read_bytes()


@cache
def _kept() -> dict[str, Any]:
    try:
        return json.loads(_KEPT.read_bytes())
    except (OSError, ValueError):
        return {}


_new: list[str] = []
"""Digests that other processes would have to find again."""


def _keep(found: dict[str, Any]) -> None:
    """Keep digests for other processes, where Python may keep compiled modules as well."""
    _new.clear()
    if sys.dont_write_bytecode:
        return
    # Of processes that write at once the last one wins; others' digests are found again.
    temporary = _KEPT.with_suffix(f".{os.getpid()}")
    with suppress(OSError):
        _KEPT.parent.mkdir(exist_ok=True)
        temporary.write_text(json.dumps(found), encoding="utf-8")
        temporary.replace(_KEPT)


_ASIDE = {"ctx", "kind", "type_comment", "type_ignores", "type_params"}
"""Fields of syntax trees that say nothing here, and differ between versions of Python."""


def _said(node: Any) -> str:
    """A syntax tree as text, without its places and texts that no code uses, as docstrings are."""
    if isinstance(node, ast.AST):
        fields = (
            f"{name}={_said(value)}"
            for name, value in ast.iter_fields(node)
            if name not in _ASIDE and value is not None and value != []
        )
        return f"{type(node).__name__}({','.join(fields)})"
    if isinstance(node, list):
        return f"[{','.join(_said(item) for item in node if not _remark(item))}]"
    return f"{type(node).__name__}:{node!r}"


def _remark(node: Any) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
