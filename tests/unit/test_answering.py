"""The line by which a package lets torch open its guards: put between statements, whatever the source looks like."""

from __future__ import annotations

import ast

import pytest

from precast.build import answering
from precast.core.manifest import GUARD_MARK
from precast.errors import KernelError

SOURCES = {
    "nothing": b"",
    "a cookie alone": b"#!/usr/bin/python\n# coding: utf-8",
    "a byte order mark": b"\xef\xbb\xbfx = 1\n",
    "a mark and a docstring": b"\xef\xbb\xbf'''doc'''\nx = 1\n",
    "latin-1": "# -*- coding: latin-1 -*-\n'''\u00e9'''; x = '\u00e9'\n".encode("latin-1"),
    "a cookie in line 2": b"#!/bin/x\n# vim: set fileencoding=cp1252 :\nimport os  # \xe9\n",
    "a statement beside the docstring": b'"""doc"""; L = 1; M = 2\n',
    "one below it, on its line": b'"""doc"""; \\\n L = 1\n',
    "a semicolon and a comment": b'"""doc""" ;  # c\nL = 1\n',
    "an expression behind it": b'"""doc"""\n"""more"""\n1 + 1\n',
    "no docstring but text": b'f"text"\n',
    "future imports": b'"""d"""\nfrom __future__ import annotations; from __future__ import division; x=1\n',
    "a future import at the end": b'"""d""" ; from __future__ import annotations ;',
    "a decorator": b'"""d"""\n# c\n@staticmethod\ndef f(): pass\n',
    "Windows": b'"""d\r\n"""\r\nimport os\r\n',
    "an old Mac": b'"""d"""\rimport os\r',
    "a form feed": b'"""d"""\n\x0c\nimport os\n',
    "a line separator": '"""d\u00e9\u2028\u00fc"""; L = "\u00e9"\n'.encode(),
    "a backslash first": b"\\\nx = 1\n",
    "a docstring of two parts": b'("a"\n "b")\nx = 1\n',
}


@pytest.mark.parametrize("what", SOURCES)
def test_the_source_means_the_same_with_the_line(what: str) -> None:
    source = SOURCES[what]
    made = answering.answering(source, what)
    assert answering.why_not(made, what) is None and answering.answering(made, what) == made
    before, after = compile(source, what, "exec", ast.PyCF_ONLY_AST), compile(made, what, "exec", ast.PyCF_ONLY_AST)
    asks = [index for index, node in enumerate(after.body) if ast.unparse(node).endswith(".patch_loader()")]
    del after.body[asks[0]]
    assert len(asks) == 1 and ast.dump(after) == ast.dump(before)
    assert all(b"patch_loader()" not in line or line.startswith((b"\xef\xbb\xbf__", b"__"))
               for line in made.splitlines())  # fmt: skip
    assert answering.why_not(source, what) == "no such statement"


@pytest.mark.parametrize(
    "source", [b"x = ", b"# coding: nothing\n", b"\xff", b"\xef\xbb\xbf# coding: latin-1\n", b"\0"]
)
def test_what_is_no_python_is_refused(source: bytes) -> None:
    with pytest.raises(KernelError, match="here cannot be changed"):
        answering.answering(source, "here")
    assert answering.why_not(source, "here")


def test_the_audit_sees_a_line_in_a_wrong_place() -> None:
    line = answering.LINE.encode()
    assert answering.why_not(b"import os\n" + line, "x") == "another statement before it"
    assert "from __future__" in str(answering.why_not(line + b"\nfrom __future__ import annotations\n", "x"))


def test_the_outermost_package_answers() -> None:
    guard, call = GUARD_MARK.encode(), b"import torch\ntorch.ops.load_library(x)\n"
    files = {"ns/ops/lib/_ops.so": guard, "ns/ops/__init__.py": b"", "ns/ops/lib/__init__.py": b""}
    assert answering.asking(files) == ["ns/ops/__init__.py"], "a namespace package has none of its own"
    assert answering.asking({**files, "other/a/b.py": call, "other/__init__.py": b""}) == [
        "ns/ops/__init__.py", "other/__init__.py",
    ]  # fmt: skip
    assert answering.asking({"other/b.py": call, "other/__init__.py": b""}) == [], "a wheel without a guard"
