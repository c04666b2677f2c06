"""Two packages of somebody else, built once: a module for this torch and Python, and a library for every torch."""

from __future__ import annotations

import importlib
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import SimpleNamespace

import pytest

from precast.build import trial
from tests.downstream.finished import HERE, PLATFORM, Make
from tests.kit import forked, spawn
from tests.kit.shared_core import shared_core

CHECKOUT = Path(__file__).resolve().parents[2]

# Python's own interface and one name of torch's classic C++: bound to both, and compiled without torch's headers.
CLASSIC = """
#include <Python.h>
namespace at { int get_num_threads(); }
static PyObject* threads(PyObject*, PyObject*) { return PyLong_FromLong(at::get_num_threads()); }
static PyMethodDef methods[] = {{"threads", threads, METH_NOARGS, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "fused", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};
PyMODINIT_FUNC PyInit_fused() { return PyModule_Create(&module); }
"""

STABLE = """
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include "factor.h"
using torch::stable::Tensor;
static Tensor scale(Tensor x) {
  Tensor y = torch::stable::empty_like(x);
  for (int64_t i = 0; i < x.numel(); ++i)
    static_cast<float*>(y.data_ptr())[i] = factor() * static_cast<const float*>(x.data_ptr())[i];
  return y;
}
STABLE_TORCH_LIBRARY(NAMESPACE, m) { m.def("scale(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(NAMESPACE, CPU, m) { m.impl("scale", TORCH_BOX(&scale)); }
"""

SETUP = """
from setuptools import Extension, setup
from precast.build import BuildExtension, DeviceExtension, StableExtension, ext_modules, labelled
{imports}
modules = ext_modules({modules})
setup(
    name="{name}", version=labelled("1.0", modules), packages=["{name}"], install_requires=["precast"],
    ext_modules=modules, cmdclass={{"build_ext": BuildExtension}},
)
"""

STABLE_MODULE = (
    'StableExtension("{name}.scale", ["csrc/scale.cpp", "csrc/factor.cpp"], depends=["csrc/factor.h"],'
    ' define_macros=[("NAMESPACE", "{name}")])'
)
CLASSIC_MODULE = 'CppExtension("{name}.fused", ["csrc/fused.cpp"])'


def write_project(root: Path, name: str, *modules: str) -> Path:
    """Write a project with those modules."""
    (root / name).mkdir(parents=True)
    (root / name / "__init__.py").touch()
    (root / "csrc").mkdir()
    (root / "csrc" / "fused.cpp").write_text(CLASSIC)
    (root / "csrc" / "scale.cpp").write_text(STABLE)
    (root / "csrc" / "factor.h").write_text("float factor();\n")
    (root / "csrc" / "factor.cpp").write_text('#include "factor.h"\nfloat factor() { return 3; }\n')
    listed = ", ".join(modules).format(name=name)
    imports = "from torch.utils.cpp_extension import CppExtension" if "CppExtension" in listed else ""
    (root / "setup.py").write_text(SETUP.format(imports=imports, modules=listed, name=name))
    return root


def run_setup(project: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run setup.py, as a build backend does."""
    code = (
        "import sys, runpy, warnings; warnings.simplefilter('ignore'); runpy.run_path('setup.py', run_name='__main__')"
    )
    env = spawn.environ("PRECAST_LABEL", **{"PYTHONPATH": CHECKOUT / "pkg", "MAX_JOBS": 2, **environment})
    return forked.run(code, "-q", *arguments, env=env, cwd=project, timeout=600)


def _wheel(project: Path) -> Path:
    done = run_setup(project, "bdist_wheel")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (made,) = (project / "dist").glob("*.whl")
    return made


@pytest.fixture
def quick_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel is tried in a process of its own, which need not import torch again."""
    monkeypatch.setattr(trial, "process", SimpleNamespace(run=forked.run_command))


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    def make(name: str, *modules: str) -> Path:
        return write_project(tmp_path_factory.mktemp(name), name, *modules)

    return make


@pytest.fixture(scope="session")
def setup_py() -> Callable[..., subprocess.CompletedProcess[str]]:
    return run_setup


@pytest.fixture(scope="session")
def bound_wheel(project: Callable[..., Path]) -> Path:
    """For this torch and this Python."""
    return _wheel(project("bound_ops", CLASSIC_MODULE))


@pytest.fixture(scope="session")
def free_project(project: Callable[..., Path]) -> Path:
    root = project("free_ops", STABLE_MODULE)
    _wheel(root)
    return root


@pytest.fixture(scope="session")
def free_wheel(free_project: Path) -> Path:
    """For every torch from 2.10 on and every Python."""
    (made,) = (free_project / "dist").glob("*.whl")
    return made


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], Path]]:
    """Unpack a wheel where this process finds it, and forget it afterwards."""
    packages: list[str] = []

    def install(wheel: Path) -> Path:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(tmp_path / "site")
        packages.append(wheel.name.partition("-")[0])
        monkeypatch.syspath_prepend(tmp_path / "site")
        return tmp_path / "site" / packages[-1]

    yield install
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        del sys.modules[name]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Write a wheel as a build system leaves it, into a folder of its own."""
    count = iter(range(99))

    def write(
        files: dict[str, bytes | str],
        version: str = "1.0",
        python: str = HERE,
        requires: str = "torch",
        name: str = "ops",
    ) -> Path:
        folder, version = tmp_path / f"dist{next(count)}", "1.0"
        folder.mkdir()
        path = folder / f"{name}-{version}-{python}-{python}-{PLATFORM}.whl"
        info = f"{name}-{version}.dist-info"
        with zipfile.ZipFile(path, "w") as archive:
            for where, data in files.items():
                archive.writestr(where, data)
            metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: {requires}\n"
            body = "\nText.\n" if name == "ops" else ""  # a wheel without a description ends with its headers
            archive.writestr(f"{info}/METADATA", metadata + body)
            archive.writestr(
                f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: cmake\nTag: {python}-{python}-{PLATFORM}\n"
            )
            archive.writestr(f"{info}/RECORD", "")
        return path

    return write


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], Path]]:
    """Install a wheel where this process finds it, and forget it afterwards."""
    before = set(sys.modules)
    import torch

    usual = vars(torch.ops).get("load_library")
    monkeypatch.setattr(ExtensionFileLoader, "create_module", ExtensionFileLoader.create_module)  # put back at the end

    def install(wheel: Path) -> Path:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(tmp_path / "site")
        monkeypatch.syspath_prepend(tmp_path / "site")
        importlib.invalidate_caches()
        return tmp_path / "site"

    yield install
    vars(torch.ops).pop("load_library", None)
    if usual is not None:
        vars(torch.ops)["load_library"] = usual
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("ops", "lone"):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def one_core() -> Iterator[None]:
    """Guards that a test imports look at the process through precast's own core, which it may change."""
    with shared_core():
        yield
