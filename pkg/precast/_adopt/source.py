"""What a module's ``forward`` does, as a fingerprint: a digest of its source in a form that names do not change.

Annotations, decorators, docstrings and the names of arguments and variables do not count. A global name counts as what
it refers to, so ``F.silu`` and ``torch.nn.functional.silu`` are one, and a function of the same name elsewhere is not.
Methods that ``forward`` calls on ``self`` belong to it.
"""

from __future__ import annotations

import ast
import builtins
import copy
import functools
import hashlib
import importlib
import inspect
import sys
import textwrap
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from precast.errors import KernelError


class Unreadable(KernelError):
    """The source of a forward cannot be read, or does not say what a call does."""


def fingerprint(cls: type[torch.nn.Module], method: str = "forward") -> str:
    """16 hexadecimal digits for what a method of ``cls`` does.

    Raises:
        Unreadable: with the reason: no source, a decorator that wraps the function, a closure.
    """
    return _digest(text.plain for text in _collected(cls, method).values())


def what_runs(cls: type[torch.nn.Module], method: str = "forward") -> tuple[tuple[str, ...], frozenset[str]]:
    """The methods whose sources are in a fingerprint, and the attributes of ``self`` that they read.

    Raises:
        Unreadable: as above.
    """
    texts = _collected(cls, method)
    return tuple(texts), frozenset().union(*(text.own for text in texts.values())) - texts.keys()


def fingerprint_of_functions(*functions: Any) -> str:
    """The same for functions of a module, of which one calls the others.

    Raises:
        Unreadable: as above.
    """
    return _digest(_text(function.__name__, function).plain for function in functions)


def fingerprint_of_copies(*functions: Any) -> str:
    """The same for functions of one module, of which others may have copies.

    Raises:
        Unreadable: as above.
    """
    return _digest(_text(one.__name__, one).plain.replace(f"{functions[0].__module__}.", "") for one in functions)


def plain(function: Any) -> str:
    """A function in the form that counts, for a reader.

    Raises:
        Unreadable: as above.
    """
    return _text(function.__name__, function).plain


Sources = tuple[tuple[str, str], ...]  # what was read beside a forward: names, with what they lead to


def source_of(cls: type[torch.nn.Module]) -> tuple[str, str]:
    """The name and the fingerprint of a forward, as :func:`fingerprint_of_name` finds it again.

    Raises:
        Unreadable: as above.
    """
    return f"{cls.__module__}.{cls.__qualname__}.forward", fingerprint(cls)


def fingerprint_of_name(name: str) -> str:
    """The same for the function, or the method of a class, that a dotted name leads to in this process.

    Raises:
        Unreadable: as above, or if the name leads to nothing.
    """
    parts = name.split(".")
    imported = next((n for n in range(len(parts), 0, -1) if _is_module(".".join(parts[:n]))), 0)
    value: Any = sys.modules.get(".".join(parts[:imported]))
    holder: Any = None
    for part in parts[imported:]:
        holder = value
        value = value.get(part) if isinstance(value, Mapping) else getattr(value, part, None)
    if value is None:
        raise Unreadable(f"there is no {name}")
    if isinstance(holder, type):
        return fingerprint(holder, parts[-1])
    return fingerprint_of_functions(inspect.unwrap(value))


def _is_module(name: str) -> bool:
    try:
        importlib.import_module(name)
    except (ImportError, TypeError, ValueError):  # the last two of a name that is none
        return False
    return True


def owner(cls: type[torch.nn.Module], method: str) -> type[Any]:
    """The class of the MRO that defines a method."""
    return next(base for base in cls.__mro__ if method in vars(base))


@dataclass(frozen=True)
class _Text:
    """A function in the form that counts, and the attributes of its first argument."""

    plain: str
    own: frozenset[str]


# What is cached is a function of its key: the function, its code, which can be replaced, and what its globals are.
_cached = functools.lru_cache(maxsize=1024)


def _collected(cls: type[Any], method: str) -> dict[str, _Text]:
    """The method and, after it, the methods that it calls."""
    texts: dict[str, _Text] = {}

    def collect(name: str) -> None:
        texts[name] = _text(name, inspect.getattr_static(cls, name))
        for other in sorted(texts[name].own - texts.keys()):
            if isinstance(inspect.getattr_static(cls, other, None), types.FunctionType):
                collect(other)

    collect(method)
    return texts


def _digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def with_attribute(function: Any, *names: str) -> Any:
    """A copy of a method in which global ``names`` are attributes of its first argument.

    Raises:
        Unreadable: as above.
    """

    class Renamed(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            return attribute(function, node.id) if node.id in names else node

    return rewritten(function, Renamed())


def attribute(function: Any, name: str) -> ast.expr:
    """The expression for an attribute of a method's instance."""
    owner = inspect.unwrap(function).__code__.co_varnames[0]
    return ast.Attribute(ast.Name(owner, ast.Load()), name, ast.Load())


def rewritten(function: Any, change: ast.NodeTransformer) -> Any:
    """A copy of a method with another body. Its globals are the same, and copies of its decorators stay around it.

    Raises:
        Unreadable: as above.
    """
    inner = getattr(function, "__wrapped__", None)
    code, cells = function.__code__, None
    if inner is None:
        code = _rewritten_code(function, change)
    else:
        cells = tuple(
            types.CellType(rewritten(inner, change)) if cell.cell_contents is inner else cell
            for cell in function.__closure__ or ()
        )
        if cells == (function.__closure__ or ()):
            raise Unreadable(
                f"a decorator of {function.__name__} does not hold the function that it wraps in its closure"
            )
    copied = types.FunctionType(code, function.__globals__, None, function.__defaults__, cells)
    copied.__qualname__, copied.__kwdefaults__ = function.__qualname__, function.__kwdefaults__
    return copied


def codes(function: Any) -> tuple[Any, ...]:
    """What a function does, as objects: itself and those that its decorators call, each with its code."""
    found: list[Any] = []
    while function is not None and function not in found:
        found += (function, getattr(function, "__code__", None))
        function = getattr(function, "__wrapped__", None)
    return tuple(found)


def _rewritten_code(function: Any, change: ast.NodeTransformer) -> types.CodeType:
    code = function.__code__
    body = change.visit(copy.deepcopy(syntax(function)))
    tree = ast.fix_missing_locations(ast.Module([body], []))
    ast.increment_lineno(tree, code.co_firstlineno - 1)
    compiled = compile(tree, code.co_filename, "exec", dont_inherit=True)
    return next(one for one in compiled.co_consts if getattr(one, "co_name", "") == function.__name__)  # type: ignore[no-any-return]


def _text(name: str, function: Any) -> _Text:
    syntax(function, name)
    known, used = function.__globals__, _names_in(function, function.__code__)
    meanings = tuple((one, _meaning(one, known.get(one, getattr(builtins, one, None)))) for one in used)
    return _text_of(function, function.__code__, meanings)


@_cached
def _names_in(function: Any, code: types.CodeType) -> list[str]:
    return sorted({node.id for node in ast.walk(_parsed(function, code)) if isinstance(node, ast.Name)})


@_cached
def _text_of(function: Any, code: types.CodeType, meanings: tuple[tuple[str, str], ...]) -> _Text:
    tree = _Plain({*code.co_varnames, *code.co_cellvars}, dict(meanings)).visit(copy.deepcopy(_parsed(function, code)))
    own = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_self(node.value)}
    return _Text(ast.unparse(ast.fix_missing_locations(tree)), frozenset(own))


def syntax(function: Any, name: str = "forward") -> ast.FunctionDef:
    """The function's syntax, which is not the caller's to change. Errors call what is no function by ``name``.

    Raises:
        Unreadable: as above.
    """
    name = getattr(function, "__name__", name)
    if not isinstance(function, types.FunctionType):
        raise Unreadable(f"{name} is a {type(function).__name__}, not a function")
    if hasattr(function, "__wrapped__") or function.__closure__:
        raise Unreadable(f"{name} is wrapped by a decorator or a closure")
    try:
        tree = _parsed(function, function.__code__)
    except (OSError, SyntaxError) as error:
        raise Unreadable(f"the source of {name} cannot be read: {error}") from error
    if not isinstance(tree, ast.FunctionDef) or tree.name != function.__name__:
        raise Unreadable(f"the source file of {name} has changed since it was imported")
    return tree


@_cached
def _parsed(function: Any, _: types.CodeType) -> ast.AST:
    return ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "v0"


class _Plain(ast.NodeTransformer):
    """Renames the variables in order of appearance and spells globals as what they are."""

    def __init__(self, local: set[str], meanings: dict[str, str]) -> None:
        self._locals, self._meanings = local, meanings
        self._names: dict[str, str] = {}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.decorator_list, node.returns = [], None
        if isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant) and node.body[1:]:
            node.body = node.body[1:]
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation, node.arg = None, self._renamed(node.arg)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self._renamed(node.id) if node.id in self._locals else self._meanings[node.id]
        return node

    def _renamed(self, name: str) -> str:
        return self._names.setdefault(name, f"v{len(self._names)}")


def _meaning(name: str, value: Any) -> str:
    if isinstance(value, types.ModuleType):
        return value.__name__
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return f"{value.__module__}.{value.__qualname__}"
    return f"{name}:{type(value).__name__}"
