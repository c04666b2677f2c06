"""What a module's ``forward`` does, as a fingerprint: a digest of its source in a form that names do not change.

Annotations, decorators, docstrings and the names of arguments and variables do not count. A global name counts as what
it refers to, so ``F.silu`` and ``torch.nn.functional.silu`` are one, and a function of the same name elsewhere is not.
Methods that ``forward`` calls on ``self`` belong to it.
"""

from __future__ import annotations

import ast
import builtins
import functools
import hashlib
import inspect
import textwrap
import types
from collections.abc import Iterable
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
    asked: Any = cls  # modules are not hashable to mypy
    return _fingerprint(asked, method)


@functools.cache
def _fingerprint(cls: Any, method: str) -> str:
    texts: dict[str, str] = {}
    _collect(cls, method, texts)
    return _digest(texts.values())


def fingerprint_of_functions(*functions: Any) -> str:
    """The same for functions of a module, of which one calls the others.

    Raises:
        Unreadable: as above.
    """
    texts = [ast.unparse(_plain(function.__name__, function)) for function in functions]
    return _digest(texts)


def owner(cls: type[torch.nn.Module], method: str) -> type[Any]:
    """The class of the MRO that defines a method."""
    return next(base for base in cls.__mro__ if method in vars(base))


def _collect(cls: type[Any], name: str, texts: dict[str, str]) -> None:
    """Add the method's text, then those of the methods that it calls."""
    tree = _plain(name, inspect.getattr_static(cls, name))
    texts[name] = ast.unparse(tree)
    own = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_self(node.value)}
    for method in sorted(own - texts.keys()):
        if isinstance(inspect.getattr_static(cls, method, None), types.FunctionType):
            _collect(cls, method, texts)


def _digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


@functools.cache
def with_attribute(function: Any, name: str) -> Any:
    """A copy of a method in which a global ``name`` is an attribute of its first argument.

    All other globals are the same, and copies of its decorators stay around it.

    Raises:
        Unreadable: as above.
    """
    inner = getattr(function, "__wrapped__", None)
    code, cells = function.__code__, None
    if inner is None:
        code = _code_with_attribute(function, name)
    else:
        cells = tuple(
            types.CellType(with_attribute(inner, name)) if cell.cell_contents is inner else cell
            for cell in function.__closure__ or ()
        )
        if cells == (function.__closure__ or ()):
            raise Unreadable(f"a decorator of {function.__name__} does not say which function it calls")
    copied = types.FunctionType(code, function.__globals__, None, function.__defaults__, cells)
    copied.__qualname__, copied.__kwdefaults__ = function.__qualname__, function.__kwdefaults__
    return copied


def _code_with_attribute(function: Any, name: str) -> types.CodeType:
    code = function.__code__

    class Renamed(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            if node.id != name:
                return node
            owner = ast.Name(code.co_varnames[0], ast.Load())
            return ast.copy_location(ast.Attribute(owner, name, ast.Load()), node)

    tree = ast.fix_missing_locations(ast.Module([Renamed().visit(_syntax(function.__name__, function))], []))
    ast.increment_lineno(tree, code.co_firstlineno - 1)
    compiled = compile(tree, code.co_filename, "exec", dont_inherit=True)
    return next(one for one in compiled.co_consts if getattr(one, "co_name", "") == function.__name__)  # type: ignore[no-any-return]


def _plain(name: str, function: Any) -> ast.AST:
    """The function's syntax without what does not count."""
    tree = _syntax(name, function)
    return ast.fix_missing_locations(_Plain(function).visit(tree))  # type: ignore[no-any-return]


def _syntax(name: str, function: Any) -> ast.FunctionDef:
    if not isinstance(function, types.FunctionType):
        raise Unreadable(f"{name} is a {type(function).__name__}, not a function")
    if hasattr(function, "__wrapped__") or function.__closure__:
        raise Unreadable(f"{name} is wrapped by a decorator or a closure")
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, SyntaxError) as error:
        raise Unreadable(f"the source of {name} cannot be read: {error}") from error
    if not isinstance(tree, ast.FunctionDef) or tree.name != function.__name__:
        raise Unreadable(f"the source file of {name} has changed since it was imported")
    return tree


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "v0"


class _Plain(ast.NodeTransformer):
    """Renames the variables in order of appearance and spells globals as what they are."""

    def __init__(self, function: types.FunctionType) -> None:
        self._globals = function.__globals__
        self._locals = {*function.__code__.co_varnames, *function.__code__.co_cellvars}
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
        known = self._globals.get(node.id, getattr(builtins, node.id, None))
        node.id = self._renamed(node.id) if node.id in self._locals else _meaning(node.id, known)
        return node

    def _renamed(self, name: str) -> str:
        return self._names.setdefault(name, f"v{len(self._names)}")


def _meaning(name: str, value: Any) -> str:
    if isinstance(value, types.ModuleType):
        return value.__name__
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return f"{value.__module__}.{value.__qualname__}"
    return f"{name}:{type(value).__name__}"
