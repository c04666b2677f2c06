"""What is compiled when: while installing, when first used, and never twice."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
USE = "import torch, image_ops; print(image_ops.fused_leaky_relu(torch.tensor([[-1.0, 2.0]]), None, 0.5, 2.0).tolist())"
ANSWER = "[[-1.0, 4.0]]"

Python = Callable[..., str]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], list[str]]:
    """Stand a script in front of the C++ compiler; gives what was compiled since the last call."""
    folder = tmp_path_factory.mktemp("compiler")
    log, script = folder / "log", folder / "c++"
    log.touch()
    script.write_text(f'#!/bin/sh\ncase " $* " in *" -c "*) echo "$*" >> {log};; esac\nexec g++ "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    os.environ["CXX"] = str(script)

    def since() -> list[str]:
        lines = log.read_text().splitlines()
        log.write_text("")
        return lines

    return since


@pytest.fixture(scope="module")
def python(compiled: Callable[[], list[str]], tmp_path_factory: pytest.TempPathFactory) -> Python:
    """Run code in a process that sees one installation, and has a folder for extensions that starts empty."""
    extensions = tmp_path_factory.mktemp("extensions")

    def run(site: Path, code: str) -> str:
        env = {**os.environ, "PYTHONPATH": str(site), "TORCH_EXTENSIONS_DIR": str(extensions)}
        done = subprocess.run([sys.executable, "-c", code], cwd=site, env=env, stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout.strip()

    return run


def install(site: Path, **variables: str) -> Path:
    """`pip install` into a folder, from the sources, in this environment."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", "--no-cache-dir"]
    env = {name: value for name, value in os.environ.items() if name != "CUDA_EXT"} | variables
    subprocess.run([*command, "--target", str(site), str(PROJECT)], env=env, check=True)
    return site


def test_built_while_installing(compiled: Callable[[], list[str]], python: Python, tmp_path: Path) -> None:
    site = install(tmp_path / "site", CUDA_EXT="1")
    assert len(compiled()) == 2
    where = "from image_ops.compiled import kernel; print(kernel('fused').__file__, kernel('upfirdn2d').__file__)"
    assert all(Path(file).is_relative_to(site) for file in python(site, where).split())
    assert python(site, USE) == ANSWER
    assert compiled() == [], "what was built while installing is compiled again"
    # `load` has a folder of its own and looks nowhere else: it compiles what setup.py has compiled already.
    assert python(site, "from image_ops import compiled; compiled.build('fused')") == ""
    assert len(compiled()) == 1


def test_built_when_first_used(compiled: Callable[[], list[str]], python: Python, tmp_path: Path) -> None:
    site = install(tmp_path / "site")
    before = sorted(site.rglob("*.so"))
    assert compiled() == [] == before
    assert python(site, USE) == ANSWER
    first = compiled()
    assert len(first) <= 1, "one module was asked for"
    assert python(site, USE) == ANSWER
    twice = "from image_ops.compiled import build; import sys; assert build('fused').__file__ == build('fused').__file__"
    python(site, twice)
    assert compiled() == [], "a second load() compiled something"
    assert sorted(site.rglob("*.so")) == before, "a build at run time wrote into site-packages"
