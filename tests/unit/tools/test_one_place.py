"""A new version is named in one place: a label, a torch and a CPU level, each added to a copy of the tree."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from precast._builder import matrix
from precast.core.capability import ComputeCapability
from tests.kit import spawn
from tests.kit.wheels import make_wheel
from tools.verbs import nvrtc, tables

ROOT = Path(__file__).resolve().parents[3]
COPIED = (
    ".github",
    "csrc",
    "docs",
    "pkg",
    "tools",
    "matrix.toml",
    "setup.py",
    "pyproject.toml",
    "README.md",
    "yanked.toml",
    "CHANGELOG.md",
)
LABEL = """
[labels.cu140]
nvrtc = "14.0.10"
package = "nvidia-cuda-nvrtc"
reports = []
isa = "10.0"
sass = ["8.0", "8.6", "9.0", "10.0", "11.0", "12.0", "13.0"]
ptx = ["9.0"]
driver = { sass = "14.0", ptx = "14.0" }
max_bytes = 6_600_000

[labels.cpu]
"""
REPORTED = ("8.0", "8.6", "8.7", "8.8", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1", "13.0")
TORCH = """
[[torch.releases]]
version = "2.16.0"
python = ["3.11", "3.15"]
cxx_standard = 20
pypi = { x86_64 = "cu132", aarch64 = "cu132" }
x86_64 = { cpu = 1, cu130 = 1, cu132 = 1 }
aarch64 = { cpu = 1, cu130 = 1, cu132 = 1 }

# A label's NVRTC compiles
"""
Changed = Callable[[Mapping[str, tuple[str, str]]], Path]


@pytest.fixture
def changed(tmp_path: Path) -> Changed:
    """A copy of the tree in which one text of each named file is another."""

    def copy(edits: Mapping[str, tuple[str, str]]) -> Path:
        tree = tmp_path / "tree"
        tree.mkdir()
        for name in COPIED:
            if (ROOT / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.xz", "build_info.json", "*.egg-info")
                shutil.copytree(ROOT / name, tree / name, ignore=ignored)
            else:
                shutil.copyfile(ROOT / name, tree / name)
        for name, (old, new) in edits.items():
            text = (tree / name).read_text(encoding="utf-8")
            assert text.count(old) == 1, (name, old)
            (tree / name).write_text(text.replace(old, new), encoding="utf-8")
        return tree

    return copy


def said(tree: Path, *arguments: str, **settings: str) -> str:
    """What a program of the copy prints."""
    ours = {"PYTHONPATH": f"{tree / 'pkg'}:{tree}", "PYTHONDONTWRITEBYTECODE": 1, **settings}
    done = spawn.python(*arguments, cwd=tree, env=spawn.environ("PRECAST_", **ours))
    return done.stdout


def with_label(changed: Changed) -> Path:
    """The copy with the table of cu140, in which a stand-in for NVRTC has answered, and what follows from it."""
    tree = changed({"matrix.toml": ("\n[labels.cpu]\n", LABEL)})
    path = tree / "matrix.toml"
    answer = {"cu140": tuple(map(ComputeCapability.parse, REPORTED))}
    path.write_text(nvrtc.with_answers(path.read_text(encoding="utf-8"), answer), encoding="utf-8")
    said(tree, "-m", "tools", "tables")
    return tree


def test_a_label_is_one_table(changed: Changed, tmp_path: Path) -> None:
    tree = with_label(changed)
    for page in ("README.md", "docs/guides/install.md"):
        (row,) = (line for line in (tree / page).read_text().splitlines() if line.startswith("| `cu140` |"))
        assert "CUDA 14" in row and row.endswith("| 8.0, 8.6, 9.0, 10.0, 11.0, 12.0, 13.0 |")
    assert "| device code | CUDA label | 8 | 8 |" in (tree / "docs/concepts/wheels.md").read_text()
    known = (
        "from precast._abi.served import *; from precast.core.version import *; from precast.core.capability import *;"
        "print(LABELS[-1], sass_floor(CudaVersion(14, 0)), label_for(ComputeCapability(13, 0), None),"
        "label_for(ComputeCapability(7, 5), None))"
    )
    assert said(tree, "-c", known) == "cu140 8.0 cu140 cu132\n"

    outputs = tmp_path / "outputs"
    cells = json.loads(said(tree, "-m", "tools", "plan", "--json", "--outputs", str(outputs)))["matrices"]
    (device,) = (cell for cell in cells["device"]["include"] if cell["label"] == "cu140")
    assert device["requirement"] == "nvidia-cuda-nvrtc==14.0.10" and "sm_130" in device["targets"]
    wheels = [cell["name"] for cell in cells["wheel"]["include"] if cell["label"] == "cu140"]
    assert wheels == ["wheel-cu140-x86_64", "wheel-cu140-aarch64"]
    tested = {cell["wheel"] for name in cells if name.startswith("test-") for cell in cells[name]["include"]}
    assert tested.issuperset(wheels)
    assert "device-cu140" in outputs.read_text() and "wheel-cu140-x86_64" in outputs.read_text()
    said(tree, "-m", "tools", "audit")  # the workflows name no label that the matrix does not have


def test_the_index_and_the_wheels_follow_the_label(changed: Changed, tmp_path: Path) -> None:
    tree, house, site = with_label(changed), tmp_path / "house", tmp_path / "site"
    for machine in ("x86_64", "aarch64"):
        make_wheel(house, version="1.0+cu140", tag=f"py3-none-manylinux_2_28_{machine}")
    printed = said(tree, "-m", "tools", "index", str(house), "--out", str(site), "--version", "1.0")
    assert "cu140/precast" in printed
    assert sorted(path.name for path in (site / "cu140" / "precast").glob("*.whl")) == [
        f"precast-1.0+cu140-py3-none-manylinux_2_28_{machine}.whl" for machine in ("aarch64", "x86_64")
    ]
    data = json.loads((site / "selector.json").read_text())
    assert list(data["labels"]) == ["cu140"] and "cu140" in (site / "index.html").read_text()
    asked = "from precast._abi.settings import Settings; import os; from pathlib import Path;"
    asked += "from precast._builder import aot; s = Settings.from_env(os.environ);"
    asked += "print(aot.version_of(s), aot.requirements(s, Path()))"
    version, _, requirements = said(tree, "-c", asked, PRECAST_LABEL="cu140").partition(" ")
    assert version.endswith("+cu140") and "nvidia-cuda-nvrtc==14.0.10" in requirements


def test_a_torch_is_one_table(changed: Changed) -> None:
    tree = changed({"matrix.toml": ("\n# A label's NVRTC compiles ", TORCH.removesuffix("\n") + " ")})
    said(tree, "-m", "tools", "tables")
    assert "every torch from 2.4 to 2.16" in (tree / "docs/concepts/wheels.md").read_text()
    cells = json.loads(said(tree, "-m", "tools", "plan", "--json"))["matrices"]
    tested = [cell for cell in cells["test-x86_64"]["include"] if cell["torch"] == "2.16.0"]
    assert tested and {cell["abi"] for cell in tested} == {"torch-table-1"}
    said(tree, "-m", "tools", "audit")


FEATURES = '"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx2", "fma", "f16c"'
FLAGS = f"""        _x86("avx512", _FMA_512, {FEATURES}),
"""
LEVELS = """ f(avx512, a, b) f(avx10, a, b)
#define PRECAST_HAS_avx10 (PRECAST_HAS_avx512 && __builtin_cpu_supports("avx512vnni"))
#define PRECAST_WIDTH_OF_avx10 16
"""
LEVEL = {
    "csrc/cpu/cpu_level.h": (" f(avx512, a, b)\n", LEVELS),
    "pkg/precast/_builder/flags.py": (
        FLAGS,
        FLAGS + FLAGS.replace('"avx512", _FMA_512', r'"avx10", rb"\x62.{3}\x50", "avx512vnni"'),
    ),
}
USER = """
#include "cpu/cpu_level.h"
#include "host/checks.h"
#include <stdexcept>
#define DEFINED(level) namespace family::level { const char* name() { return #level; } }
namespace precast { PRECAST_EACH_CPU_LEVEL(DEFINED)
void fail(const char* format, ...) { throw std::runtime_error(format); } }
extern "C" __attribute__((visibility("default"))) const char* chosen() { return PRECAST_AT_CPU_LEVEL(family, name)(); }
"""


@pytest.mark.compiler
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the level is one of x86_64")
def test_a_cpu_level_is_two_files(changed: Changed, tmp_path: Path) -> None:
    tree = changed(LEVEL)
    asked = (
        "from precast._builder import flags; from tools.shared import binaries;"
        "everything = frozenset(f for level in flags.cpu_levels('x86_64') for f in level.features);"
        "level = flags.best_level('x86_64', everything); code = b'\\x62abc\\x50' * 16;"
        "print(level.name, binaries._cpu_levels(code, 'EM_X86_64'), *flags.cpu_options(level, debug=False))"
    )
    name, options = said(tree, "-c", asked).split(" ('baseline', 'avx10') ")
    assert name == "avx10" and options.startswith("-DPRECAST_CPU_LEVEL=avx10 ") and "-mavx512vnni" in options
    compiler = shutil.which(os.environ.get("CXX", "g++")) or "clang++"
    common = [compiler, "-std=c++17", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden"]
    unit = [*options.split(), "-O1", "-c", str(tree / "csrc" / "rotary" / "cpu.cpp"), "-o", str(tmp_path / "unit.o")]
    spawn.run(*common, *unit)
    assert "precast::rotary::avx10::rotate_heads" in spawn.run("nm", "--demangle", tmp_path / "unit.o").stdout

    (tmp_path / "user.cpp").write_text(USER)
    sources = [str(tmp_path / "user.cpp"), str(tree / "csrc" / "cpu" / "cpu_level.cpp")]
    library = tmp_path / "levels.so"
    spawn.run(*common, f"-I{tree / 'csrc'}", "-shared", *sources, "-o", library)
    loaded = ctypes.CDLL(str(library))
    loaded.chosen.restype = ctypes.c_char_p
    has_it = "avx512_vnni" in Path("/proc/cpuinfo").read_text() and "avx512dq" in Path("/proc/cpuinfo").read_text()
    assert (loaded.chosen() == b"avx10") == has_it
    assert loaded.precast_set_cpu_level(b"baseline", None, 0) == 0 and loaded.chosen() == b"baseline"
    assert (loaded.precast_set_cpu_level(b"avx10", None, 0) == 0) == has_it


def test_what_repeats_the_matrix_agrees_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tables.main(["--check"]) == 0
    monkeypatch.setitem(tables.FILES, "README.md", lambda known, text: text + "more")  # type: ignore[arg-type]
    assert tables.main(["--check"]) == 1


def test_a_page_without_its_table_is_refused() -> None:
    known = matrix.load(ROOT / "matrix.toml")
    with pytest.raises(tables.KernelError, match=r"needed one table below '\| Label \| For"):
        tables.readme(known, "# A page\n")
    with pytest.raises(tables.KernelError, match="needed one place with"):
        tables.wheels(known, (ROOT / "docs/concepts/wheels.md").read_text().replace("ways to have torch", "hosts"))


def test_an_answer_of_nvrtc_needs_its_line() -> None:
    with pytest.raises(nvrtc.KernelError, match=r"no reports = \[...\] on one line of \[labels.cu140\]"):
        nvrtc.with_answers('[labels.cu140]\nnvrtc = "14.0.10"\n[labels.cpu]\nreports = []\n', {"cu140": ()})
