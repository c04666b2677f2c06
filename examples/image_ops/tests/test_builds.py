"""What is compiled when: while installing, when first used, and never twice."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
USE = "import torch, image_ops; print(image_ops.fused_leaky_relu(torch.tensor([[-1.0, 2.0]]), None, 0.5, 2.0).tolist())"
ANSWER = "[[-1.0, 4.0]]"
LOAD = "from image_ops import compiled; module = compiled.build('fused')"
PREBUILT = importlib.util.find_spec("image_ops.compiled.fused") is not None

Compiled = Callable[[], list[str]]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """Stand a script in front of the C++ compiler; gives what was compiled since the last call."""
    folder = tmp_path_factory.mktemp("compiler")
    log, script = folder / "log", folder / "c++"
    log.touch()
    script.write_text(f'#!/bin/sh\ncase " $* " in *" -c "*) echo "$*" >> {log};; esac\nexec g++ "$@"\n')
    script.chmod(0o755)
    os.environ["CXX"] = str(script)

    def since() -> list[str]:
        lines = log.read_text().splitlines()
        log.write_text("")
        return lines

    return since


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, compiled: Compiled) -> Path:
    """A folder with what `pip install .` installs without CUDA_EXT=1."""
    site = tmp_path_factory.mktemp("plain")
    tree = shutil.copytree(PROJECT, site.with_name("sources"), ignore=shutil.ignore_patterns("build", "*.egg-info"))
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", "--no-cache-dir"]
    env = {name: value for name, value in os.environ.items() if name != "CUDA_EXT"}
    subprocess.run([*command, "--target", str(site), str(tree)], env=env, check=True)
    return site


def python(code: str, site: Path | None = None) -> str:
    """Run code in a fresh process, which sees the installation of this environment, or one in a folder."""
    paths = [*([] if site is None else [str(site)]), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=site, env=env, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.skipif(not PREBUILT, reason="installed without CUDA_EXT=1")
def test_what_was_built_while_installing_is_used(compiled: Compiled) -> None:
    where = "from image_ops.compiled import kernel; print(kernel('fused').__file__)"
    assert [Path(file).parts[-3:-1] for file in python(where).split()] == [("_C", "host")]
    assert python(USE) == ANSWER
    assert compiled() == []


def test_a_second_load_compiles_nothing(compiled: Compiled) -> None:
    python(LOAD)
    # Also where setup.py has compiled the module: `load` has a folder of its own, and looks nowhere else.
    assert len(compiled()) == 1
    python(f"{LOAD}; {LOAD}")
    assert compiled() == []
    assert python(f"{LOAD}; print(module.__file__)").startswith(os.environ["TORCH_EXTENSIONS_DIR"])


def test_load_is_asked_where_nothing_was_built_while_installing(compiled: Compiled, plain: Path) -> None:
    assert compiled() == [] and list(plain.rglob("*.so")) == []
    code = "from image_ops import compiled; compiled.build = 'built {}'.format; print(compiled.kernel('fused'))"
    assert python(code, plain) == "built fused"
