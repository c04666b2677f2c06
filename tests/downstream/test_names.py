"""Extensions as other projects write them: modules called ``_C``, libraries that only register, torch's options."""

from __future__ import annotations

import os
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from precast.build import audit
from tests.downstream.conftest import CHECKOUT
from tests.kit import forked

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

MODULE = """
#include <Python.h>
namespace at {{ int get_num_threads(); }}
static PyObject* threads(PyObject*, PyObject*) {{ return PyLong_FromLong(at::get_num_threads()); }}
static PyMethodDef methods[] = {{{{"threads", threads, METH_NOARGS, ""}}, {{nullptr, nullptr, 0, nullptr}}}};
static PyModuleDef module = {{PyModuleDef_HEAD_INIT, "{0}", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr}};
PyMODINIT_FUNC PyInit_{0}() {{ return PyModule_Create(&module); }}
"""

# As with pybind11's headers in a library that only registers ops: it calls Python, and Python cannot import it.
REGISTERS = """
#include <Python.h>
namespace at { int get_num_threads(); }
static const int opened = PyRun_SimpleString("import sys; sys.opened_by_test = True") + at::get_num_threads();
int value() { return opened; }
"""

NAMES = ("_C", "_ext", "CamelCase")
SETUP = """
from setuptools import setup
from precast.build import BuildExtension
from torch.utils.cpp_extension import CppExtension
names = ["_C", "_ext", "CamelCase", "_ops_cpu"]
setup(
    name="named_ops", version="1.0", packages=["named_ops"],
    ext_modules=[CppExtension("named_ops." + name, ["csrc/" + name + ".cpp"]) for name in names],
    cmdclass={"build_ext": BuildExtension.with_options(no_python_abi_suffix=True, use_ninja=False)},
)
"""
# The idiom of packages that look for their library, and give torch the path that they find.
INIT = """
from __future__ import annotations
def find(name):
    import importlib.machinery, os.path, torch
    torch.ops.load_library(importlib.machinery.PathFinder().find_spec(name, [os.path.dirname(__file__)]).origin)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, setup_py: Callable[..., subprocess.CompletedProcess[str]]) -> Path:
    root = tmp_path_factory.mktemp("named")
    (root / "named_ops").mkdir()
    (root / "named_ops" / "__init__.py").write_text(INIT)
    (root / "csrc").mkdir()
    for name in NAMES:
        (root / "csrc" / f"{name}.cpp").write_text(MODULE.format(name))
    (root / "csrc" / "_ops_cpu.cpp").write_text(REGISTERS)
    (root / "setup.py").write_text(SETUP)
    done = setup_py(root, "bdist_wheel")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (made,) = (root / "dist").glob("*.whl")
    return made


def run(site: Path, code: str) -> str:
    path = f"import sys; sys.path[:0] = [{str(site)!r}, {str(CHECKOUT / 'pkg')!r}]\n"
    done = forked.run(path + code, env=os.environ, cwd=site, options=("-W", "ignore"))
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def site(wheel: Path, tmp_path: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    return tmp_path


def test_the_wheel_passes_the_audit_and_torchs_options_reach_torch(wheel: Path) -> None:
    violations, (info,) = audit.audit(wheel)
    assert violations == []
    assert {file.families for file in info.host} == {(name,) for name in (*NAMES, "_ops_cpu")}
    assert {Path(file.path).name for file in info.host} == {f"{name}.so" for name in (*NAMES, "_ops_cpu")}


def test_the_wheel_says_what_it_requires(wheel: Path) -> None:
    """No other torch has the classic C++ of this one, and nothing in the wheel imports precast."""
    import torch

    major, minor = map(int, torch.__version__.split(".")[:2])
    with zipfile.ZipFile(wheel) as archive:
        said = archive.read("named_ops-1.0.dist-info/METADATA").decode()
        assert archive.read("named_ops/__init__.py").count(b", ['resolve'], 1).resolve(importlib.machinery.") == 1
    assert f"Requires-Dist: torch>={major}.{minor},<{major}.{minor + 1}\n" in said
    assert "precast" not in said


@pytest.mark.parametrize("name", NAMES)
def test_a_module_of_any_name_is_imported_by_way_of_its_guard(site: Path, name: str) -> None:
    said = run(site, f"from named_ops import {name} as m; print(m.threads() > 0, m.__file__)")
    assert said == f"True {site}/named_ops/_C/host/{name}.so\n"


def test_a_module_that_does_not_fit_is_refused_under_any_name(site: Path) -> None:
    (site / "named_ops" / "_C" / "host" / "_C.so").write_bytes(b"x")
    said = run(site, "try:\n    import named_ops._C\nexcept ImportError as error:\n    print(error)")
    assert said.startswith("named_ops._C is damaged")


@pytest.mark.parametrize(
    "way",
    [
        "import named_ops._ops_cpu as m; assert m.library.name == '_ops_cpu.so'",
        "from precast.build import load_library; assert load_library('named_ops', '_ops_cpu').name == '_ops_cpu.so'",
        "import named_ops; named_ops.find('_ops_cpu')",
    ],
    ids=["import", "load_library", "its path"],
)
def test_a_library_that_only_registers_is_opened(site: Path, way: str) -> None:
    assert run(site, f"import torch\n{way}\nprint(sys.opened_by_test)") == "True\n"


def test_a_module_is_no_library(site: Path) -> None:
    said = run(
        site,
        "from precast.build import load_library\nfrom precast.errors import KernelError\n"
        "try:\n    load_library('named_ops', '_C')\nexcept KernelError as error:\n    print(error)",
    )
    assert "named_ops._C is a module for Python" in said and "fix     1) import named_ops._C" in said
