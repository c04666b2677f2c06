"""What make does: in parallel, only what changed, for a debugger, into an archive that needs no torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
CUDA_HOME = os.environ.get("CUDA_HOME", "/usr/local/cuda")
CPU_OBJECTS = ["extremes.o", "median.o", "moments.o", "ops.o"]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project."""
    return Path(
        shutil.copytree(PROJECT, tmp_path_factory.mktemp("make") / "rowstats", ignore=shutil.ignore_patterns("build"))
    )


def make(tree: Path, *words: str) -> str:
    env = {**os.environ, "PRECAST_CUDA_ARCH_LIST": "9.0"}
    command = ["make", "-j2", f"PYTHON={sys.executable}", *words]
    done = subprocess.run(
        command, cwd=tree, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def compiled(said: str) -> list[str]:
    """The objects that a make compiled, by its commands."""
    words = [line.split() for line in said.splitlines() if " -c " in line]
    return sorted(Path(line[line.index("-o") + 1]).name for line in words)


def change(path: Path) -> None:
    path.write_text(path.read_text() + "\n// A line more.\n")


def test_only_what_was_touched_is_compiled(tree: Path) -> None:
    assert compiled(make(tree)) == CPU_OBJECTS
    assert "Nothing to be done" in make(tree)
    change(tree / "csrc" / "median.cpp")
    said = make(tree)
    assert compiled(said) == ["median.o"]
    assert "ar rcs build/release/librowstats.a" in said and "-shared -o build/release/librowstats.so" in said
    change(tree / "csrc" / "rowstats.h")
    assert compiled(make(tree)) == CPU_OBJECTS, "every file includes this header"


def test_the_archive_needs_no_torch(tree: Path) -> None:
    make(tree)
    archive = tree / "build" / "release" / "librowstats.a"
    members = subprocess.run(["ar", "t", str(archive)], capture_output=True, text=True, check=True).stdout.split()
    assert sorted(members) == ["extremes.o", "median.o", "moments.o"]
    assert "3 3.5 5 0 | 1 6 5 5 | 2 5" in make(tree, "check")


def test_a_debug_build_has_a_folder_of_its_own_and_debug_information(tree: Path) -> None:
    make(tree)
    said = make(tree, "DEBUG=1")
    assert compiled(said) == CPU_OBJECTS and " -O0 -g " in said
    assert "Nothing to be done" in make(tree), "the other build is as it was"
    sections = {
        mode: subprocess.run(
            ["readelf", "-SW", str(tree / "build" / mode / "librowstats.so")],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for mode in ("release", "debug")
    }
    assert ".debug_info" in sections["debug"] and ".debug_info" not in sections["release"]


def test_device_code_for_a_debugger(tree: Path) -> None:
    nvcc_line = next(line for line in make(tree, "-n", "CUDA=1", "DEBUG=1").splitlines() if "moments_cuda.cu" in line)
    assert " -G " in nvcc_line and " -g " in nvcc_line and "code=sm_90" in nvcc_line
    assert " -G " not in make(tree, "-n", "CUDA=1")


@pytest.mark.skipif(not Path(CUDA_HOME, "bin", "nvcc").exists(), reason=f"no nvcc in {CUDA_HOME}")
@pytest.mark.parametrize("debug", ["0", "1"])
def test_the_device_code_compiles(tree: Path, debug: str) -> None:
    folder = "build/debug-cuda" if debug == "1" else "build/release-cuda"
    assert compiled(make(tree, "CUDA=1", f"DEBUG={debug}", f"{folder}/moments_cuda.o")) == ["moments_cuda.o"]
