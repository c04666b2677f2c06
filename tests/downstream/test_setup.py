"""What happens around a build: an editable install, a name taken twice, a label that is not what is built."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from precast.build import BuildExtension, StableExtension, alone, audit, ownership
from precast.core import opening
from precast.core.manifest import BuildInfo
from precast.errors import KernelError
from precast.extension.places import Places
from tests.downstream.conftest import CHECKOUT
from tests.kit import forked, spawn

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

MODULE = 'CppExtension("{name}.fused", ["csrc/fused.cpp"])'
Setup = Callable[..., subprocess.CompletedProcess[str]]


def test_a_name_is_not_taken_twice(project: Callable[..., Path], setup_py: Setup) -> None:
    root = project("twice_ops", MODULE)
    (root / "twice_ops" / "fused.py").write_text("mine = True\n")
    done = setup_py(root, "build_ext")
    assert (
        done.returncode != 0 and "the guard of the extension twice_ops.fused would replace a Python file" in done.stderr
    )
    assert (root / "twice_ops" / "fused.py").read_text() == "mine = True\n"


CLASS_IN_SETUP = """
from precast.extension import CppExtension as Base
class Scale(Base):
    def sources_files(self): return ["csrc/fused.cpp"]
    def include_dirs(self): return []
    def cxx_flags(self): return []
"""


@pytest.mark.parametrize(
    ("modules", "before", "said"),
    [
        # As setup.py files in the wild write them: a list, without ext_modules().
        (
            '[CppExtension("_p", ["csrc/fused.cpp"])]',
            "",
            "_p cannot be built into a wheel\n  found   a name without a package",
        ),
        ('ext_modules(Scale("scale"))', CLASS_IN_SETUP, "found   class Scale in __main__, which is not in a package"),
    ],
    ids=["top-level", "class in setup.py"],
)
def test_only_a_package_of_its_own_is_written_to(
    project: Callable[..., Path], setup_py: Setup, modules: str, before: str, said: str
) -> None:
    root = project("owned_ops", MODULE)
    text = (root / "setup.py").read_text()
    text = re.sub(r"^modules = .*$", lambda _: f"{before}\nmodules = {modules}", text, flags=re.MULTILINE)
    (root / "setup.py").write_text(text)
    done = setup_py(root, "build_ext")
    assert done.returncode != 0 and said in done.stderr, done.stderr[-2000:]
    assert not list(root.glob("build/lib*/**/*"))


@pytest.mark.parametrize(
    ("module", "found"),
    [
        ("_C._p", "a package '_C' at the root of site-packages"),
        ("precast._C.p", "precast belongs to another distribution"),
        ("other._p", "no package that holds other\n"),
        ("ours._C._p", None),
        ("ours.deep._p", None),
    ],
)
def test_an_extension_of_a_package_that_the_wheel_does_not_own_is_refused(module: str, found: str | None) -> None:
    ownership.refuse_unowned("precast._C.p", ["precast"], "precast")
    if found is None:
        ownership.refuse_unowned(module, ["ours", "precast"], "ours-ops")  # fails if this raises
        return
    with pytest.raises(KernelError, match=f"{module} cannot be built into a wheel\n  found   {found}"):
        ownership.refuse_unowned(module, ["ours", "precast"], "ours-ops")


def test_a_label_that_is_not_built_here_is_refused(bound_wheel: Path, setup_py: Setup) -> None:
    root = bound_wheel.parents[1]
    done = setup_py(root, "build_ext", PRECAST_LABEL="cu121")
    assert done.returncode != 0 and "PRECAST_LABEL=cu121 does not match what is built here (" in done.stderr


PRINTS = """
#include <Python.h>
#include <sstream>
static PyObject* text(PyObject*, PyObject*) {
  std::ostringstream text;
  text << "a number: " << 5L;
  return PyUnicode_FromString(text.str().c_str());
}
static PyMethodDef methods[] = {{"text", text, METH_NOARGS, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "fused", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};
PyMODINIT_FUNC PyInit_fused() { return PyModule_Create(&module); }
"""


def test_a_module_with_a_runtime_of_its_own_is_refused(
    project: Callable[..., Path], setup_py: Setup, tmp_path: Path
) -> None:
    """Imported after torch, it would print no number, or crash."""
    root = project("printing_ops", MODULE)
    (root / "csrc" / "fused.cpp").write_text(PRINTS)
    compiler = tmp_path / "g++"
    compiler.write_text('#!/bin/sh\nexec g++ -static-libstdc++ "$@"\n')
    compiler.chmod(0o755)
    done = setup_py(root, "build_ext", CXX=str(compiler))
    assert done.returncode != 0, "it was built"
    assert "printing_ops.fused has a C++ runtime of its own\n  found   __cxa_throw" in done.stderr
    assert "fix     1) CC=gcc CXX=g++ pip install" in done.stderr
    assert setup_py(root, "build_ext", CXX="g++").returncode == 0


def test_a_subclass_that_a_plugin_of_setuptools_made_is_torchs_command_as_well() -> None:
    from setuptools import Distribution, Extension
    from torch.utils.cpp_extension import BuildExtension as OfTorch

    class OfPlugin(BuildExtension):
        pass

    for_one_torch = Distribution({"ext_modules": [Extension("ops.fused", ["fused.cpp"])]})
    for_every_torch = Distribution({"ext_modules": [StableExtension("ops.scale", ["scale.cpp"])]})
    for command in (BuildExtension, OfPlugin):
        made = command(for_one_torch)
        assert isinstance(made, command) and isinstance(made, OfTorch)
        assert type(command(for_every_torch)) is command


def test_an_editable_install_loads_from_the_sources(bound_wheel: Path, setup_py: Setup, tmp_path: Path) -> None:
    root = bound_wheel.parents[1]
    done = setup_py(root, "build_ext", "--inplace")
    assert done.returncode == 0, done.stderr[-3000:]
    assert (root / "bound_ops" / "_C" / "build_info.json").is_file()
    code = "from bound_ops import fused; print(fused.threads(), fused.__file__)"
    where = f"import sys; sys.path[:0] = {[str(root), *sys.path]!r}\n"
    said = forked.run(where + code, env=os.environ, cwd=tmp_path)
    assert str(root / "bound_ops" / "_C" / "host") in said.stdout and "older" not in said.stderr
    later = (root / "bound_ops" / "fused.py").stat().st_mtime + 1
    os.utime(root / "csrc" / "fused.cpp", (later, later))
    said = forked.run(where + code, env=os.environ, cwd=tmp_path)
    assert f"bound_ops.fused is older than {root}/csrc/fused.cpp" in said.stderr, said.stderr
    assert f"pip install --no-build-isolation --no-deps --editable {root}" in said.stderr
    assert setup_py(root, "bdist_wheel").returncode == 0
    (made,) = (root / "build").glob("lib*/bound_ops/fused.py")
    assert made.read_text() == alone.text("x/y.py", {"x/__init__.py"}), (
        "a wheel has none of what an editable install adds"
    )


# What a build would do that names its wheels after torch by itself.
NAMED_BY_ITSELF = """
from setuptools.command.bdist_wheel import bdist_wheel
class Named(bdist_wheel):
    def run(self):
        self.distribution.metadata.version = labelled("1.0", modules)
        super().run()
"""


def test_pip_refuses_a_wheel_of_another_version_than_its_metadata(bound_wheel: Path, tmp_path: Path) -> None:
    """So setup.py says labelled(): the metadata, which pip asks for first, then have the version of the wheel."""
    root = tmp_path / "project"
    shutil.copytree(bound_wheel.parents[1], root, ignore=shutil.ignore_patterns("dist", "*.egg-info"))
    text = (root / "setup.py").read_text()
    env = spawn.environ("PRECAST_LABEL", PYTHONPATH=CHECKOUT / "pkg", MAX_JOBS=2)
    command = ("-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-w", tmp_path / "dist", root)
    spawn.python(*command, env=env, cwd=tmp_path)
    (made,) = (tmp_path / "dist").iterdir()
    assert made.name == bound_wheel.name and ".torch2." in made.name

    named = text.replace('version=labelled("1.0", modules)', 'version="1.0"')
    named = named.replace("setup(", f"{NAMED_BY_ITSELF}\nsetup(", 1)
    (root / "setup.py").write_text(named.replace("cmdclass={", 'cmdclass={"bdist_wheel": Named, '))
    said = spawn.python(*command, env=env, cwd=tmp_path, status=1)
    assert "Wheel has unexpected file name: expected '1.0', got '1.0+" in said.stdout + said.stderr


def test_a_module_of_the_folder_itself_needs_no_second_one(
    project: Callable[..., Path], setup_py: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the classes of precast.extension name what they build; this one names neither torch nor Python."""
    root = project("inside_ops", 'Extension("{name}._C.data", ["csrc/data.cpp"])')
    (root / "csrc" / "data.cpp").write_text('extern "C" int data = 5;\n')
    done = setup_py(root, "build_ext", "--inplace")
    assert done.returncode == 0, done.stderr[-3000:]
    monkeypatch.syspath_prepend(root)
    folder = root / "inside_ops" / "_C"
    (file,) = BuildInfo.from_json((folder / "build_info.json").read_text()).host
    assert (str(file.abi), file.python) == ("torch-stable-2.4", "none")
    assert opening.library_file("inside_ops._C", "data") == folder / file.path
    assert Inside("data").prebuilt_file() == folder / file.path, "the library, not its guard"
    (folder / file.path).write_bytes(b"damaged")
    assert Inside("data").prebuilt_file() is None


LIMITED = """
#include <Python.h>
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "small", nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};
PyMODINIT_FUNC PyInit_small() { return PyModule_Create(&module); }
"""


def test_the_limited_api_is_for_every_python_from_the_oldest_on(project: Callable[..., Path], setup_py: Setup) -> None:
    options = 'py_limited_api=True, define_macros=[("Py_LIMITED_API", "0x030a0000")]'
    root = project("limited_ops", f'Extension("{{name}}.small", ["csrc/small.cpp"], {options})')
    (root / "csrc" / "small.cpp").write_text(LIMITED)
    done = setup_py(root, "bdist_wheel")
    assert done.returncode == 0, done.stderr[-3000:]
    (wheel,) = (root / "dist").glob("*.whl")
    assert "-cp310-abi3-linux_" in wheel.name
    violations, (info,) = audit.audit(wheel)
    assert not violations and info.host[0].python == "abi3" and info.host[0].path == "host/small.abi3.so"


class Inside(Places):
    """What a class of precast.extension knows of its prebuilt module."""

    prebuilt_module_path = "inside_ops._C"  # type: ignore[assignment]

    def __init__(self, name: str) -> None:
        self.name = name


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
    first, second, _ = forked.run(code, env=os.environ, cwd=tmp_path).stdout.split("LOADED")
    assert "-o fused.o" in first, "compiled, though the wheel and the objects of its build are here"
    assert "-o fused.o" not in second, "a second load compiles nothing"
