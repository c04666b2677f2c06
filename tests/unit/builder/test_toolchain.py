"""Finding a compiler and ninja, and how many of them to run."""

from __future__ import annotations

import importlib.util
import os
import platform
from pathlib import Path
from types import SimpleNamespace

import pytest

from precast._abi.settings import Settings
from precast._builder import toolchain
from precast.core import probe


def program(folder: Path, name: str, answer: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{answer}\n")
    path.chmod(0o755)
    return path


GCC = 'case $1 in --version) echo "g++ (Distribution) 12.2.0";; *) echo 12.2.0;; esac'
CROSS = GCC.replace("*)", "-dumpmachine) echo aarch64-linux-gnu;; *)", 1)
CLANG = 'case $1 in --version) echo "Distribution clang version 16.0.6";; *) echo 16.0.6;; esac'


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(toolchain, "_COMPILERS", ("fake-g++", "fake-clang++"))
    return tmp_path / "bin"


def test_the_first_compiler_of_path_that_answers(path: Path) -> None:
    program(path, "fake-g++", "exit 1")
    program(path, "fake-clang++", CLANG)
    found, looked_at = toolchain.find_compiler(Settings())
    assert found is not None and (found.kind, found.version) == ("clang++", "16.0.6")
    assert looked_at[0] == "compiler: fake-g++ on PATH: does not say its version"


def test_cxx_is_taken_or_refused_but_never_replaced(path: Path) -> None:
    program(path, "fake-g++", GCC)
    mine = program(path, "mine", GCC)
    found, _ = toolchain.find_compiler(Settings(cxx="mine"))
    assert found is not None and found.path == str(mine) and (found.kind, found.version) == ("g++", "12.2.0")
    found, _ = toolchain.find_compiler(Settings(cxx="ccache mine"))
    assert found is not None and found.path == str(mine)
    for bad in ("gone", "mine -m32", "mine '"):
        found, looked_at = toolchain.find_compiler(Settings(cxx=bad))
        assert found is None and repr(bad) in looked_at[0]


def test_another_machine_gets_its_cross_compiler(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert toolchain.target_machine(Settings()) == "x86_64"
    assert toolchain.target_machine(Settings(arch="aarch64")) == "aarch64"
    program(path, "fake-g++", GCC)
    assert toolchain.find_compiler(Settings(), "aarch64") == (
        None,
        ("compiler: aarch64-linux-gnu-g++ on PATH: not there",),
    )
    cross = program(path, "aarch64-linux-gnu-g++", CROSS)
    found, _ = toolchain.find_compiler(Settings(), "aarch64")
    assert found is not None and (found.path, found.version) == (str(cross), "12.2.0")
    assert toolchain.libc_version(found, "aarch64") == "unknown libc"
    assert toolchain.package_for("aarch64") == "g++-aarch64-linux-gnu"


def test_a_compiler_for_the_wrong_machine_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    mine = program(path, "mine", CROSS.replace("aarch64", "x86_64"))
    found, looked_at = toolchain.find_compiler(Settings(cxx="mine"), "aarch64")
    assert found is None
    assert looked_at == (f"compiler: CXX='mine': {mine} compiles for x86_64, not for aarch64",)
    assert toolchain.find_compiler(Settings(cxx="mine"), "x86_64")[0] is not None


@pytest.mark.parametrize(
    ("machine", "length", "found"),
    [
        ("aarch64", 32 | 1 << 17, {"sve256"}),  # inherited by what the process starts (prctl(2))
        ("aarch64", 16, {"sve128"}),
        ("aarch64", -1, set()),  # Linux knows no vector length without SVE
        ("x86_64", 32, set()),
    ],
)
def test_the_vector_length_of_sve_is_a_feature(
    monkeypatch: pytest.MonkeyPatch, machine: str, length: int, found: set[str]
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(probe.ctypes, "CDLL", lambda name: SimpleNamespace(prctl=lambda option: length))
    assert {feature for feature in probe.cpu_features() if feature.startswith("sve")} == found


def test_without_a_compiler_every_place_is_named() -> None:
    found, looked_at = toolchain.find_compiler(Settings())
    assert found is None
    assert looked_at == (
        "compiler: fake-g++ on PATH: not there",
        "compiler: fake-clang++ on PATH: not there",
    )


def test_the_ninja_of_the_package_comes_before_the_one_on_path(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert toolchain.find_ninja() == (None, ("ninja: the ninja package is not installed", "ninja: not on PATH"))
    on_path = program(path, "ninja", "")
    assert toolchain.find_ninja()[0] == str(on_path)
    package = tmp_path / "lib" / "python3" / "site-packages" / "ninja"
    package.mkdir(parents=True)
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: SimpleNamespace(submodule_search_locations=[str(package)])
    )
    assert toolchain.find_ninja()[0] == str(on_path), "a package without a program"
    brought = program(tmp_path / "bin", "ninja", "")
    assert toolchain.find_ninja()[0] == str(brought)
    old = program(package / "data" / "bin", "ninja", "")
    assert toolchain.find_ninja()[0] == str(old)


def test_jobs_are_what_the_user_says_else_what_may_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert toolchain.default_jobs(Settings(max_jobs=7)) == 7
    assert 1 <= toolchain.default_jobs(Settings()) <= len(os.sched_getaffinity(0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    for text, wanted in (("150000 100000\n", 2), ("max 100000\n", None), ("not a quota\n", None)):
        (tmp_path / "cpu.max").write_text(text)
        assert toolchain._cgroup_cpus(tmp_path / "cpu.max") == wanted
    assert toolchain._cgroup_cpus(tmp_path / "gone") is None


def test_jobs_fit_into_the_memory_that_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo, cgroup = tmp_path / "meminfo", tmp_path / "cgroup"
    (cgroup / "job" / "step").mkdir(parents=True)
    (tmp_path / "membership").write_text("0::/job/step\n")
    groups = toolchain.cgroups(tmp_path / "membership", cgroup)
    assert groups == (cgroup / "job/step", cgroup / "job", cgroup)
    assert toolchain.cgroups(tmp_path / "nowhere", cgroup) == ()
    assert toolchain.free_memory(meminfo, groups) is None
    meminfo.write_text("MemTotal: 9000000 kB\nMemAvailable:    4000000 kB\n")
    assert toolchain.free_memory(meminfo, groups) == 4_096_000_000, "without a cgroup the machine's own"
    files = {
        "memory.max": "max\n",
        "memory.current": "1500000000\n",
        "memory.stat": "anon 1\ninactive_file 500000000\n",
    }
    for name, text in files.items():
        (cgroup / "job" / name).write_text(text)
    assert toolchain.free_memory(meminfo, groups) == 4_096_000_000
    (cgroup / "job/memory.max").write_text("2000000000\n")
    assert toolchain.free_memory(meminfo, groups) == 1_000_000_000
    (cgroup / "job/memory.max").write_text("100\n")
    assert toolchain.free_memory(meminfo, groups) == 0

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    monkeypatch.setattr(toolchain, "_cgroup_cpus", lambda path: None)
    for free, jobs in ((1_000_000_000, 2), (0, 1), (10**12, 64), (None, 64)):
        monkeypatch.setattr(toolchain, "free_memory", lambda *_, free=free: free)
        assert toolchain.default_jobs(Settings()) == jobs
    assert toolchain.default_jobs(Settings(max_jobs=7)) == 7, "MAX_JOBS wins"
