"""Nothing in the package turns data into code: no pickle, no eval, no shell, no import by a name from a file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[3] / "pkg" / "precast"
MODULES = {"pickle", "cPickle", "dill", "marshal", "shelve", "runpy", "code", "imp"}
CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "subprocess.getoutput"}
# The syntax of a method that the process has imported, whose fingerprint is known, with one name changed. And a file of
# a wheel before and after a line is put into it: nothing of that runs.
ALLOWED = {"_adopt/source.py": ["compile"], "build/answering.py": ["compile", "compile"]}


def found_in(source: str) -> Iterator[str]:
    """Every use of what would make code of data."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (f"import {alias.name}" for alias in node.names if alias.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            yield f"from {node.module} import"
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in CALLS:
                yield name
            if any(word.arg == "shell" and ast.unparse(word.value) != "False" for word in node.keywords):
                yield f"{name} with a shell"


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_the_package_makes_no_code_of_data(path: Path) -> None:
    found = list(found_in(path.read_text(encoding="utf-8")))
    assert found == ALLOWED.get(path.relative_to(PACKAGE).as_posix(), [])


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import pickle", ["import pickle"]),
        ("from marshal import loads", ["from marshal import"]),
        ("eval(text)", ["eval"]),
        ("import subprocess as s\ns.run(text, shell=True)", ["s.run with a shell"]),
        ("import os\nos.system(text)", ["os.system"]),
        ("import re\nre.compile(text)", []),
    ],
)
def test_what_would_is_found(source: str, found: list[str]) -> None:
    assert list(found_in(source)) == found
