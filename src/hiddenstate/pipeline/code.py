"""What a module is made of: a digest of its code and of all code of the package that it imports.

Docstrings, comments and layout do not count, so that only what may change a result does.
"""

import ast
import hashlib
import inspect
import marshal
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import hiddenstate

_ROOT = Path(hiddenstate.__file__).parent


def digest(*modules: str) -> str:
    """Digest of these modules of the package and of what they import from it, however deep.

    C headers and tables (.csv) beside a module that it names count as well.
    """
    total = hashlib.sha256()
    for name in sorted(_closure(modules)):
        compiled = _code(_file(name))[0]
        total.update(name.encode() + compiled)
        beside = _file(name).parent
        for named in sorted((*beside.glob("*.h"), *beside.glob("*.csv"))):
            if named.name.encode() in compiled:
                total.update(named.read_bytes())
    return total.hexdigest()[:16]


@cache
def digest_of(run: Callable[..., Any]) -> str:
    """Digest of what decides what a function of the package returns.

    That is its module with all that it imports; of a function in a package's ``__init__``, which
    is there to import late, its own code and what it imports itself.
    """
    function = inspect.unwrap(getattr(run, "func", run))
    path = _file(function.__module__)
    if path.name != "__init__.py":
        return digest(function.__module__)
    compiled, imported = _code(path, function.__name__)
    return hashlib.sha256(compiled + digest(*imported).encode()).hexdigest()[:16]


def _closure(modules: Iterable[str]) -> set[str]:
    found: set[str] = set()
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += _code(_file(name))[1]
    return found


def _file(name: str) -> Path:
    path = _ROOT.joinpath(*name.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def _code(path: Path, function: str = "") -> tuple[bytes, list[str]]:
    """The compiled code without docstrings and lines, and the package's modules it imports.

    function: of this one alone.
    """
    tree = ast.parse(path.read_bytes())
    if function:
        tree.body = [node for node in tree.body if getattr(node, "name", "") == function]
    imported: list[str] = []
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            modules = [name for name in inner if _ours(name) and _file(name).is_file()]
            # A name that is no module is an attribute, which the package itself defines.
            imported += modules if len(modules) == len(inner) else [node.module, *modules]
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and _is_docstring(
            node.body
        ):
            node.body = node.body[1:] or [ast.copy_location(ast.Pass(), node.body[0])]
    compiled = compile(tree, "", "exec", dont_inherit=True)
    return marshal.dumps(_without_lines(compiled), 2), [name for name in imported if _ours(name)]


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """All statements, and what they are parts of; expressions hold none."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, field, None)
            if isinstance(inner, list):
                waiting += inner


def _without_lines(code: CodeType) -> CodeType:
    constants = tuple(_without_lines(c) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(co_consts=constants, co_linetable=b"", co_firstlineno=1)


def _ours(name: str) -> bool:
    return name.split(".")[0] == hiddenstate.__name__


def _is_docstring(body: object) -> bool:
    match body:
        case [ast.Expr(value=ast.Constant(value=str())), *_]:
            return True
    return False
