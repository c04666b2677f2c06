"""The kernel families that the sources of a public name use: what the descriptions say, found another way.

It follows each name through the definitions it uses to the ops it calls: ``LayerNorm`` uses ``layer_norm``,
which registers an op.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import precast
from precast._builder import catalogue, public
from precast._builder.catalogue import FAMILIES

OPS = public.OPS
_FOLLOWED = (*public.ROOMS, "precast.compat.adam")
_FOLDER = Path(precast.__file__).resolve().parent
_FOLDERS = {name: folder for folder in catalogue.FOLDERS for name in folder.public}
_OPS = {op: family.name for family in FAMILIES for op in family.op_names}


@dataclass(frozen=True, eq=False)
class _Module:
    """The top level of one source file: its definitions and its imports."""

    definitions: Mapping[str, ast.stmt]
    imports: Mapping[str, tuple[str, str]]  # local name: (module, name in it)


@functools.cache
def families_of(name: str) -> tuple[str, ...]:
    """The families that a public name or its gradient may load, in the catalogue's order."""
    wanted = {_OPS[op] for op in _follow(public.rooms()[name], name, set())}
    if not wanted:  # a helper that calls no op belongs to the families of its folder
        wanted = {family.name for family in _FOLDERS[name].families}
    return tuple(family.name for family in FAMILIES if family.name in wanted)


def _follow(module: str, name: str, seen: set[tuple[str, str]]) -> frozenset[str]:
    if module == OPS and name in _FOLDERS:
        module = f"{OPS}.{_FOLDERS[name].name}"
    if (module, name) in seen or not module.startswith(_FOLLOWED):
        return frozenset()
    seen.add((module, name))
    ops, used = _named(module, name)
    return ops.union(*(_follow(*one, seen) for one in used))


@functools.cache
def _named(module: str, name: str) -> tuple[frozenset[str], tuple[tuple[str, str], ...]]:
    """The ops that a definition names, and the names with their modules that it uses."""
    known = _read(module)
    definition = known.definitions.get(name)
    if definition is None:
        return frozenset(), (known.imports[name],) if name in known.imports else ()
    used: list[tuple[str, str]] = []
    within = {id(node.value) for node in ast.walk(definition) if isinstance(node, ast.Attribute)}
    for node in ast.walk(definition):
        if isinstance(node, ast.Name) and node.id != name:
            used.append((module, node.id))
            whole = ".".join(known.imports.get(node.id, ("", "")))
            if id(node) not in within and _file(whole) is not None:  # a module that is a value: all that it has
                used += [(whole, one) for one in _read(whole).definitions]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            whole = ".".join(known.imports.get(node.value.id, ("", "")))
            if _file(whole) is not None:  # an imported module, so the attribute is a name in it
                used.append((whole, node.attr))
    return frozenset(_strings(definition)) & _OPS.keys(), tuple(dict.fromkeys(used))


@functools.cache
def _read(module: str) -> _Module:
    path = _file(module)
    if path is None:
        raise AssertionError(f"{module} is no module of this package")
    definitions: dict[str, ast.stmt] = {}
    imports: dict[str, tuple[str, str]] = {}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in _top_level(tree):
        for name in _defined(node):
            definitions[name] = node
        if isinstance(node, ast.ImportFrom | ast.If):  # if TYPE_CHECKING
            for one in ast.walk(node):
                if isinstance(one, ast.ImportFrom) and one.module is not None:
                    names = _read(one.module).definitions if one.names[0].name == "*" else ()
                    imports |= {name: (one.module, name) for name in names}
                    imports |= {alias.asname or alias.name: (one.module, alias.name) for alias in one.names}
    return _Module(definitions, imports)


def _top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements of a module, including those in a ``with``, where some formulas are registered."""
    for node in tree.body:
        yield from node.body if isinstance(node, ast.With) else (node,)


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _strings(node: ast.AST) -> Iterator[str]:
    return (one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str))


def _file(module: str) -> Path | None:
    """The source file of a module of this package, or None."""
    if not module.startswith(_FOLLOWED):
        return None
    base = _FOLDER.joinpath(*module.split(".")[1:])
    return next((path for path in (base / "__init__.py", base.with_suffix(".py")) if path.is_file()), None)
