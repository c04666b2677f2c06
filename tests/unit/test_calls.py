"""Calls in a wheel's Python that open a library by its path go through the copy, whatever the source looks like."""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from pathlib import Path

import pytest

from precast.build import calls
from precast.errors import KernelError
from tests.kit import spawn

LOAD = b"torch.ops.load_library(p)"
# Each source, and what the copy is asked for: the paths and specs, in the order of their lines.
SOURCES: dict[str, tuple[bytes, list[str]]] = {
    "plain": (b"import torch\n" + LOAD + b"\n", ["p"]),
    "two on a line": (LOAD + b"; torch.classes.load_library(q)  # c", ["p", "q"]),
    "a decorator": (b"@torch.ops.load_library(p)\ndef f(): pass\n", ["p"]),
    "a walrus": (b"if (y := torch.ops.load_library(p := 'a')): pass\n", ["(p := 'a')"]),
    "calls in calls": (
        b"torch.ops.load_library(str(spec_from_file_location(a, b).origin))\n",
        ["str(spec_from_file_location(a, b).origin)", "spec_from_file_location(a, b)"],
    ),
    "calls that begin together": (
        b"torch.ops.load_library(spec_from_file_location(a, b).origin)\n",
        ["spec_from_file_location(a, b).origin", "spec_from_file_location(a, b)"],
    ),
    "a spec as the path": (b"torch.ops.load_library(spec_from_file_location(a))\n", ["spec_from_file_location(a)"]),
    "keywords": (b"torch.ops.load_library(path=(p))\nCDLL(mode=1, name=q)\n", ["p", "q"]),
    "stars": (b"util.spec_from_file_location(*a, **b)\nCDLL(p, *q)\n", ["util.spec_from_file_location(*a, **b)", "p"]),
    "a comma behind it": (b"torch.ops.load_library(p,)\n", ["p"]),
    "parentheses and comments": (b"torch.ops.load_library((  # c\n  p  # d\n))\n", ["p"]),
    "an f-string as the path": (b"torch.ops.load_library(f'{d}/x.so')\n", ["f'{d}/x.so'"]),
    "text of two parts": (b"torch.ops.load_library('a'\n 'b')\n", ["'ab'"]),
    "lambda, condition, await": (
        b"async def f(): CDLL(lambda: p); CDLL(p if q else r); CDLL(await p)\n",
        ["lambda: p", "p if q else r", "await p"],
    ),
    "byte order mark": (b"\xef\xbb\xbf" + LOAD, ["p"]),
    "latin-1": ("# coding: latin-1\n'\u00e9'; torch.ops.load_library('\u00e9')\n".encode("latin-1"), ["'\u00e9'"]),
    "a cookie in line 2": (b"#!/bin/x\n# vim: set fileencoding=cp1252 :\n'\xe9'; " + LOAD, ["p"]),
    "letters of two bytes": ("# coding: shift_jis\ns = '\u8868'; CDLL('\u8868')\n".encode("shift_jis"), ["'\u8868'"]),
    "letters of four bytes": ("s = '\U0001f600'; CDLL('\U0001f600' + p)\n".encode(), ["'\U0001f600' + p"]),
    "tabs": (b"if 1:\n\ttorch.ops.load_library(\tp\t)\n", ["p"]),
    "a form feed": (b"x = 1\n\x0c" + LOAD, ["p"]),
    "a line separator": ("s = '\u2028\x0b'; CDLL(p)\n".encode(), ["p"]),
    "continued": (b"torch.ops. \\\n  load_library \\\n (p \\\n + q)\n", ["p + q"]),
    "Windows": (b"x = 1\r\ntorch.ops.load_library(\r\n  p\r\n)  # c\r\n", ["p"]),
    "an old Mac": (b"x = 1\r" + LOAD + b"\r", ["p"]),
    "an odd text": (b"x = '\\d'\n" + LOAD, ["p"]),
    "torch's names for it": (b"from torch import ops as o\no.load_library(p)\n", ["p"]),
    "a name of its own": (b"from ctypes import CDLL as C\nC(p); x.C(q)\n", ["p"]),
    "asked for by name": (b"if hasattr(torch.ops, 'load_library'): " + LOAD, ["p"]),
    "a function of that name": (
        b"from .a.ops import load_library\n__all__ = ['load_library']\ndef f(): " + LOAD + b"\nload_library(n)",
        ["p"],
    ),
}  # fmt: skip


def wheel(source: bytes, where: str = "pkg/sub/m.py", guard: str = "pkg/_ops.so") -> list[tuple[str, calls.Source]]:
    return calls.of_wheel({"pkg/__init__.py": b"", where: source}, [guard])


def through(source: bytes) -> bytes:
    ((_, read),) = wheel(source)
    return calls.through(read, "_precast", 2)


def is_resolved(node: ast.AST) -> bool:
    resolve = "__import__('_precast.opening', globals(), None, ['resolve'], 2).resolve"
    return isinstance(node, ast.Call) and ast.unparse(node.func) == resolve


def resolved(tree: ast.AST) -> list[ast.Call]:
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and is_resolved(node)]
    return sorted(found, key=lambda node: (node.lineno, node.col_offset, -(node.end_col_offset or 0)))


class Before(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        return node.args[0] if is_resolved(node) else node


def parsed(source: bytes) -> ast.AST:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compile(source, "m", "exec", ast.PyCF_ONLY_AST, dont_inherit=True)


@pytest.mark.parametrize("what", SOURCES)
def test_the_source_means_the_same_but_for_its_calls(what: str) -> None:
    source, asked = SOURCES[what]
    made = through(source)
    assert [ast.unparse(Before().visit(node.args[0])) for node in resolved(parsed(made))] == asked
    assert ast.dump(Before().visit(parsed(made))) == ast.dump(parsed(source))
    assert through(made) == made, "a second time changes nothing"
    encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    assert [line.count("\r") for line in made.decode(encoding).split("\n")] == [
        line.count("\r") for line in source.decode(encoding).split("\n")
    ], "no line is added"


def test_what_is_changed_is_told_by_number_and_text() -> None:
    made = calls.read(through(b"import torch\r\nif 1:\r\n\ttorch.ops.load_library(p)  # why\r\n"), "m.py")
    call = "torch.ops.load_library(__import__('_precast.opening', globals(), None, ['resolve'], 2).resolve(p))  # why"
    assert calls.in_place(made) == ((3, call),)


@pytest.mark.parametrize(
    "source",
    [
        b"load = torch.ops.load_library\n",
        b"getattr(torch.ops, 'load_library')(p)\n",
        b"setattr(torch.ops, 'load_library', f)\n",
        b"operator.methodcaller('load_library', p)(torch.ops)\n",
        b"from torch.ops import load_library\n",
        b"list(map(torch.ops.load_library, p))\n",
        b"torch.ops.load_library(*p)\n",
        b"torch.ops.load_library(**p)\n",
        b"torch.ops.load_library = f\n",
    ],
)
@pytest.mark.parametrize("guard", ["pkg/_ops.so", "pkg/_ops.py"])
def test_another_use_of_the_function_is_refused_by_file_and_line(source: bytes, guard: str) -> None:
    with pytest.raises(KernelError) as caught:
        wheel(b"import torch\n" + source, guard=guard)
    headline = str(caught.value).splitlines()[0]
    assert headline == f"pkg/sub/m.py:2: {source.decode().strip()} cannot be changed to open a guarded library"
    assert "--patch-loader" in str(caught.value)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (b'x = f"{torch.ops.load_library(p)}"\n', "a call inside an f-string"),  # with other quotes it could be
        (b"x = f'{CDLL(p)!r:>{w}}'\n", "a call inside an f-string"),
        (b"CDLL(p for p in q)\n", "a generator or yield expression as the path"),
        (b"def f(): CDLL((yield p))\n", "a generator or yield expression as the path"),
    ],
)
def test_a_call_that_cannot_be_changed_is_refused_by_file_and_line(source: bytes, found: str) -> None:
    with pytest.raises(KernelError) as caught:
        through(b"import torch\n" + source)
    assert str(caught.value).splitlines()[:2] == [
        f"pkg/sub/m.py:2: {source.decode().strip()} cannot be changed", f"  found   {found}",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "source",
    [LOAD + b"\0", b"print 'x'\n" + LOAD, b"# coding: nothing\n" + LOAD, b"\xff" + LOAD,
     b"\xef\xbb\xbf# coding: latin-1\n" + LOAD],
)  # fmt: skip
def test_what_is_no_python_is_refused(source: bytes) -> None:
    with pytest.raises(KernelError, match=r"^pkg/sub/m\.py cannot be changed"):
        through(source)


@pytest.mark.parametrize("where", ["m.py", "pkg-1.0.data/scripts/m.py"])
def test_a_call_where_no_copy_can_be_imported_is_refused(where: str) -> None:
    with pytest.raises(KernelError, match="a module outside a package"):
        wheel(LOAD, where)
    assert calls.of_wheel({where: b"'CDLL'", "pkg/m.py": LOAD}, ["pkg/_ops.so"]), "no call is in it"


def test_a_guard_that_no_call_opens_is_refused() -> None:
    with pytest.raises(KernelError, match=r"pkg/_ops\.so cannot be guarded\n  found   no call in the wheel"):
        wheel(b"'torch.ops.load_library(p)'  # CDLL(p)\n")
    assert wheel(b"CDLL(p)\n", guard="pkg/_ops.py") == [], "Python imports every guard"


def test_the_changed_call_asks_the_copy(tmp_path: Path) -> None:
    """The copy is found from a package inside of the one that has it, in a function and in a class."""
    (tmp_path / "pkg" / "sub").mkdir(parents=True)
    (tmp_path / "pkg" / "_precast").mkdir()
    (tmp_path / "pkg" / "_precast" / "opening.py").write_text("resolve = 'through {}'.format\n")
    source = b"def load(CDLL):\n    class Here:\n        path = CDLL('a')\n    return Here.path, CDLL(name='b')\n"
    (tmp_path / "pkg" / "sub" / "m.py").write_bytes(through(source))
    code = "from pkg.sub.m import load; print(*load(lambda name: name), sep=', ')"
    assert spawn.python("-c", code, cwd=tmp_path).stdout == "through a, through b\n"
