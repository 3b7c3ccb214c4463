"""What Python code is made of: the files that it imports, and what it does.

Docstrings, comments and layout do not count, so that only what may change a result does.
"""

import ast
import hashlib
import inspect
import marshal
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import hiddenstate

_ROOT = Path(hiddenstate.__file__).parent


def digest(*modules: str) -> str:
    """Digest of these modules of the package and of what they import from it, however deep.

    C headers beside a module count as well, and tables (.csv) beside a module that names them.
    """
    return _digest(map(_file, modules))


@cache
def digest_of(run: Callable[..., Any]) -> str:
    """Digest of what decides what a function of the package returns.

    That is its module with all that it imports; of a function in a package's ``__init__``, which
    is there to import late, its own code and what it imports itself.
    """
    function = inspect.unwrap(getattr(run, "func", run))
    file = _file(function.__module__)
    if file.name != "__init__.py":
        return _digest([file])
    content, imports = _read(file, function.__name__)
    return hashlib.sha256(content + _digest(imports).encode()).hexdigest()[:16]


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
    for node in statements(tree):
        match node:
            case ast.Import(names=names):
                wanted = [(place, alias.name) for place in places for alias in names]
            case ast.ImportFrom(module=module, names=names, level=level):
                # What is imported of a package may be a module of it.
                inside = [f"{module}.{alias.name}" if module else alias.name for alias in names]
                bases = places if level == 0 else [file.parents[level - 1]]
                wanted = [(base, name) for base in bases for name in inside]
            case _:
                continue
        for base, name in wanted:
            found = _found(base, name)
            yield from found if packages else found[-1:]


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """All statements, and what they are parts of; expressions hold none."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, field, None)
            if isinstance(inner, list):
                waiting += inner


def essence(code: CodeType) -> bytes:
    """What compiled code does, without its file, lines and functions' docstrings."""
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
    for file in sorted(closure(files, lambda file: _read(file)[1])):
        content = _read(file)[0]
        total.update(file.relative_to(_ROOT).as_posix().encode() + content)
        folders[file.parent] = folders.get(file.parent, b"") + content
    for folder, contents in sorted(folders.items()):
        tables = (t for t in folder.glob("*.csv") if t.name.encode() in contents)
        for beside in sorted((*folder.glob("*.h"), *tables)):
            total.update(beside.read_bytes())
    return total.hexdigest()[:16]


def _file(module: str) -> Path:
    return _found(_ROOT.parent, module)[-1]


@cache
def _read(file: Path, function: str = "") -> tuple[bytes, list[Path]]:
    """What a file of the package does, and the package's files that it imports.

    function: of this one alone.
    """
    tree = ast.parse(file.read_bytes())
    if function:
        tree.body = [node for node in tree.body if getattr(node, "name", "") == function]
    imports = imported(tree, file, [_ROOT.parent], packages=False)
    ours = [path for path in imports if path.is_relative_to(_ROOT)]
    # This optimisation leaves out the docstrings of modules and classes.
    return essence(compile(tree, "", "exec", dont_inherit=True, optimize=2)), ours
