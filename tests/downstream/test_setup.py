"""What happens around a build: an editable install, a name taken twice, a label that is not what is built."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

MODULE = 'CppExtension("{name}.fused", ["csrc/fused.cpp"])'
Setup = Callable[..., subprocess.CompletedProcess[str]]


def test_a_name_is_not_taken_twice(project: Callable[..., Path], setup_py: Setup) -> None:
    root = project("twice_ops", MODULE)
    (root / "twice_ops" / "fused.py").write_text("mine = True\n")
    done = setup_py(root, "build_ext")
    assert done.returncode != 0 and "twice_ops.fused has two meanings" in done.stderr
    assert (root / "twice_ops" / "fused.py").read_text() == "mine = True\n"


def test_a_label_that_is_not_built_here_is_refused(bound_wheel: Path, setup_py: Setup) -> None:
    root = bound_wheel.parents[1]
    done = setup_py(root, "build_ext", PRECAST_LABEL="cu121")
    assert done.returncode != 0 and "PRECAST_LABEL=cu121 is not what is built here" in done.stderr


def test_an_editable_install_loads_from_the_sources(bound_wheel: Path, setup_py: Setup, tmp_path: Path) -> None:
    root = bound_wheel.parents[1]
    done = setup_py(root, "build_ext", "--inplace")
    assert done.returncode == 0, done.stderr[-3000:]
    assert (root / "bound_ops" / "_C" / "build_info.json").is_file()
    code = "from bound_ops import fused; print(fused.threads(), fused.__file__)"
    where = f"import sys; sys.path[:0] = {[str(root), *sys.path]!r}\n"
    done = subprocess.run(
        [sys.executable, "-c", where + code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert str(root / "bound_ops" / "_C" / "host") in done.stdout


def test_load_reuses_nothing_of_an_installed_build_but_its_own(
    bound_wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch.utils.cpp_extension.load knows one folder: an installed module of that name does not count.

    It compiles what setup.py has compiled once more, and after that nothing.
    """
    root = bound_wheel.parents[1]
    assert list(root.glob("build/temp*/**/fused.o")), "setup.py has compiled it"
    (tmp_path / "own").mkdir()
    code = f"""
import sys
from torch.utils.cpp_extension import load
sys.path[:0] = {[str(tmp_path), *sys.path]!r}
for _ in range(2):
    module = load("fused", [{str(root / "csrc" / "fused.cpp")!r}], build_directory="{tmp_path}/own", verbose=True)
    print("LOADED", module.threads(), module.__file__, flush=True)
"""
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    first, second, _ = said.split("LOADED")
    assert "-o fused.o" in first, "compiled, though the wheel and the objects of its build are here"
    assert "-o fused.o" not in second, "a second load compiles nothing"
