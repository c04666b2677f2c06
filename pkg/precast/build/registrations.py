"""Check the ops that C++ sources register: a misspelt implementation, or a schema that Python defines, stops the build.

This reads the sources as text, so it needs no torch. A registration by a macro is checked when the library is loaded.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precast.core import dangling
from precast.errors import KernelError

_BLOCK = re.compile(r"\b(?:STABLE_)?TORCH_LIBRARY(_IMPL|_FRAGMENT)?\s*\(\s*(\w+)\s*,")
_CALL = re.compile(r'\.\s*(def|impl)\s*\(\s*(?:TORCH_SELECTIVE_\w+\(\s*)?"(?:\w+::)?(\w+)')
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_OP = re.compile(r"(?:(\w+)::)?(\w+)")


@dataclass(frozen=True, slots=True)
class Registration:
    """A call in a registration block, or the whole block if it owns its namespace; ``name`` is then empty."""

    namespace: str
    kind: str
    name: str
    place: str


def refuse(extensions: Iterable[Any], python: Iterable[Path]) -> None:
    """Raise KernelError for the first registration that would end a process, or that no call would reach."""
    found: list[Registration] = []
    for extension in extensions:
        macros = {name: text for name, text in extension.define_macros if text}
        for source in extension.sources:
            found += _registrations(Path(source), macros)
    refuse_misspelt(found)
    _refuse_defined_twice(found, python)


def read(sources: Iterable[Path]) -> list[Registration]:
    """The registrations in C++ sources, without macros."""
    return [registration for source in sources for registration in _registrations(source, {})]


def refuse_misspelt(registrations: Iterable[Registration]) -> None:
    """Raise KernelError for the first implementation whose name is close to that of an op defined beside it."""
    every = tuple(registrations)
    for one in every:
        defined = {other.name for other in every if other.kind == "def" and other.namespace == one.namespace}
        if one.kind != "impl" or one.name in defined:
            continue
        meant = dangling.near_miss(one.name, sorted(defined))
        if meant is not None:
            library = one.place.rpartition(":")[0]
            raise KernelError(dangling.refusal(f"{one.namespace}::{one.name}", meant, one.place, library))


def _refuse_defined_twice(registrations: Iterable[Registration], python: Iterable[Path]) -> None:
    """Refuse a schema of C++ that Python defines too: torch ends a process that opens such a library."""
    theirs: dict[tuple[str, str], str] = {}
    for path in python:
        for namespace, name, line in _defined_in(path):
            theirs.setdefault((namespace, name), f"{path}:{line}")
    for one in registrations:
        twice = theirs.get((one.namespace, one.name)) if one.kind in ("def", "own") else None
        if twice is not None:
            what = f"the op {one.namespace}::{one.name}" if one.name else f"the namespace {one.namespace}"
            raise KernelError(
                f"{what} is defined twice",
                found=f"{twice}, and {one.place}",
                needed="one definition: torch ends a process that meets a second one",
                fix="define schemas in Python, and keep only TORCH_LIBRARY_IMPL blocks in C++",
            )


def _registrations(path: Path, macros: dict[str, str]) -> Iterator[Registration]:
    """The calls in each registration block of a source, and each block that owns its namespace."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return  # the compiler reports this better
    text = _COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), text)
    blocks = list(_BLOCK.finditer(text))
    ends = [*(block.start() for block in blocks[1:]), len(text)]
    for block, end in zip(blocks, ends, strict=False):
        namespace = macros.get(block[2], block[2])
        if block[1] is None:
            yield Registration(namespace, "own", "", f"{path}:{_line(text, block.start())}")
        for call in _CALL.finditer(text, block.end(), end):
            yield Registration(namespace, call[1], call[2], f"{path}:{_line(text, call.start())}")


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _defined_in(path: Path) -> Iterator[tuple[str, str, int]]:
    """Namespace, name and line of each schema that a Python file defines; the name is empty for ``Library(_, "DEF")``.

    A ``define`` of a library that the file made belongs to its namespace; the file is only read, never executed.
    """
    try:
        tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, SyntaxError, ValueError):
        return
    texts: dict[str, str] = {}
    libraries: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                texts[node.targets[0].id] = node.value.value
            elif isinstance(node.value, ast.Call) and _called(node.value) == "Library" and node.value.args:
                libraries[node.targets[0].id] = _text(node.value.args[0], texts)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        first, called = _text(node.args[0], texts), _called(node)
        if called == "Library" and [_text(word, texts) for word in node.args[1:2]] == ["DEF"]:
            yield first, "", node.lineno
        op = _OP.match(first)
        if called in ("define", "custom_op", "triton_op") and op is not None:
            owner = node.func.value if isinstance(node.func, ast.Attribute) else None
            namespace = op[1] or (libraries.get(owner.id, "") if isinstance(owner, ast.Name) else "")
            yield namespace, op[2], node.lineno


def _called(call: ast.Call) -> str:
    """The last name of what is called."""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def _text(node: ast.expr, texts: dict[str, str]) -> str:
    """A literal text, or that of a name that the file gives to one; empty for anything else."""
    if isinstance(node, ast.Name):
        return texts.get(node.id, "")
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
