"""One command builds an unchanged package for several torches; the guard opens what was built for the torch here."""

from __future__ import annotations

import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from precast._abi.settings import Settings
from precast.build import __main__ as build_main
from precast.build import compilers, environments, planning, wheels
from precast.build.environments import Environment, Job
from precast.core.capability import GpuTarget
from precast.core.manifest import BuildInfo
from precast.core.version import Label
from precast.errors import KernelError
from tests.kit import spawn
from tests.kit.spawn import CHECKOUT

TORCHES = ("2.13", "2.14")

# As packages of ops are: C++17 by their own word, an op that torch.ops.load_library registers, a finder for its file.
OPS = """
#include <Python.h>
#include <torch/library.h>
#include <torch/csrc/api/include/torch/version.h>
PyMODINIT_FUNC PyInit__ops() {
  static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_ops", nullptr, -1, nullptr};
  return PyModule_Create(&definition);
}
TORCH_LIBRARY(NAMED, m) { m.def("built_for() -> str", []() -> std::string { return TORCH_VERSION; }); }
"""
INIT = """
import importlib.machinery, os.path, torch
spec = importlib.machinery.PathFinder().find_spec("_ops", [os.path.dirname(__file__)])
torch.ops.load_library(spec.origin)
built_for = torch.ops.NAMED.built_for
"""
SETUP = """
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension
setup(
    name="NAMED", version="1.0", packages=["NAMED"], install_requires=["torch"],
    ext_modules=[CppExtension("NAMED._ops", ["csrc/ops.cpp"], extra_compile_args=["-O0", "-std=c++17"])],
    cmdclass={"build_ext": BuildExtension},
)
"""
PYPROJECT = """
[build-system]
requires = ["scikit-build-core"]
build-backend = "scikit_build_core.build"
[project]
name = "NAMED"
version = "1.0"
dependencies = ["torch"]
"""
CMAKE = """
cmake_minimum_required(VERSION 3.20)
project(NAMED CXX)
find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)
execute_process(
  COMMAND ${Python_EXECUTABLE} -c "import os, torch; print(os.path.dirname(torch.__file__), end='')"
  OUTPUT_VARIABLE TORCH COMMAND_ERROR_IS_FATAL ANY)
Python_add_library(_ops MODULE csrc/ops.cpp WITH_SOABI)
target_compile_options(_ops PRIVATE -O0 -std=c++17)
target_include_directories(_ops SYSTEM PRIVATE ${TORCH}/include)
target_link_directories(_ops PRIVATE ${TORCH}/lib)
target_link_libraries(_ops PRIVATE -Wl,--no-as-needed torch_cpu c10)
install(TARGETS _ops DESTINATION NAMED)
"""
SETUPTOOLS = {"setup.py": SETUP}
SCIKIT_BUILD = {"pyproject.toml": PYPROJECT, "CMakeLists.txt": CMAKE}


def package(root: Path, name: str, build: dict[str, str]) -> Path:
    for where, text in {**build, f"{name}/__init__.py": INIT, "csrc/ops.cpp": OPS}.items():
        (root / where).parent.mkdir(parents=True, exist_ok=True)
        (root / where).write_text(text.replace("NAMED", name))
    return root


def asked(python: Path, site: Path, name: str) -> str:
    """What the package says in a process of this Python, which finds precast too."""
    path = [str(site), str(CHECKOUT / "pkg")]
    code = f"import sys; sys.path[:0] = {path!r}; import {name} as it; print(it.built_for())"
    done = spawn.run(python, "-W", "ignore", "-c", code, status=None, cwd=site)
    return done.stdout.strip() + done.stderr


@pytest.mark.long
@pytest.mark.torch
@pytest.mark.compiler
@pytest.mark.wheel
@pytest.mark.parametrize(("name", "build"), [("by_setuptools", SETUPTOOLS), ("by_cmake", SCIKIT_BUILD)])
def test_one_wheel_has_the_library_of_each_torch(name: str, build: dict[str, str], tmp_path: Path) -> None:
    tree = package(tmp_path / name, name, build)
    before = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    out = tmp_path / "out"
    assert build_main.main(["wheels", str(tree), "--torch", ",".join(TORCHES), "-o", str(out)]) == 0
    assert {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()} == before, "nothing is left behind"
    (wheel,) = out.glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    info = BuildInfo.from_json((site / name / "_C" / "build_info.json").read_text())
    assert [str(file.abi) for file in info.host] == [f"torch-{torch}-cxx1" for torch in TORCHES]
    assert "Requires-Dist: torch>=2.13,<2.15\n" in (site / f"{name}-1.0.dist-info" / "METADATA").read_text()
    for job in wheels.jobs_of(",".join(TORCHES), ""):
        python = environments.folder_of(job, Settings.from_env(os.environ)) / "bin" / "python"
        assert asked(python, site, name) == f"{job.torch.release}.{job.torch.patch}"
    (site / name / "_C" / info.host[-1].path).unlink()
    assert f"{name}._ops" in asked(python, site, name), "the library of the other torch is no substitute"


def test_a_job_says_which_torch_it_needs() -> None:
    cpu, cuda, other = *wheels.jobs_of("2.13", ""), *wheels.jobs_of("2.13.0", "cu130,cu126")
    assert (cpu.name, cuda.name) == ("torch2.13.0-cpu", "torch2.13.0-cu130")
    assert cpu.requirements == ("torch==2.13.0",) and cuda.requirements == ("torch===2.13.0",)
    assert other.requirements[0] == "torch==2.13.0+cu126" and other.requirements[-1].endswith("/whl/cu126")
    assert [job.standard for job in wheels.jobs_of("2.12,2.13", "")] == [17, 20]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--torch", "2.99"], "not a torch that is known: 2.99.0; there are 2.4, 2.5"),
        (["--torch", "new"], "not a torch version"),
        (["--torch", ","], "names no release"),
        (["--torch", "2.13", "--cuda", "cu125"], "not a CUDA label: 'cu125'; there are cu121"),
    ],
)
def test_a_word_that_is_not_understood_is_refused(
    arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        build_main.main(["wheels", *arguments])
    assert caught.value.code == 2 and why in capsys.readouterr().err


def test_a_folder_without_a_package_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build_main.main(["wheels", str(tmp_path), "--torch", "2.13"]) == 1
    assert "found   no setup.py, no pyproject.toml" in capsys.readouterr().err


def test_an_sdist_is_unpacked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = package(tmp_path / "named-1.0", "named", SETUPTOOLS)
    with tarfile.open(tmp_path / "named-1.0.tar.gz", "w:gz") as archive:
        archive.add(tree, tree.name)
    assert build_main.main(["wheels", str(tmp_path / "named-1.0.tar.gz"), "--torch", "2.9", "--plan"]) == 0
    assert "named-1.0: about\n  torch2.9.1-cpu: 1 library" in capsys.readouterr().out
    for data in (b"no archive", (tmp_path / "named-1.0.tar.gz").read_bytes()[:300]):
        (tmp_path / "bad.tar.gz").write_bytes(data)
        assert build_main.main(["wheels", str(tmp_path / "bad.tar.gz"), "--torch", "2.9", "--plan"]) == 1
        assert "bad.tar.gz is not an sdist\n  found   " in capsys.readouterr().err


def test_no_nvcc_of_cuda_12_is_said_before_anything_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(environments, "run", lambda *arguments: pytest.fail("a command was run"))
    (job,) = wheels.jobs_of("2.10", "cu121")
    with pytest.raises(KernelError, match=r"no nvcc 12.1 on this machine; the package index has none before CUDA 13"):
        environments.environment(job, Settings(cache_dir=str(tmp_path)))


def test_a_failed_command_says_its_first_error(tmp_path: Path) -> None:
    with pytest.raises(
        KernelError, match=r"the package: a command failed\n  found   error: no such thing\n          its last"
    ):
        environments.run(["sh", "-c", "echo fine; echo error: no such thing; exit 3"], tmp_path, {}, "the package")


def test_the_variables_of_a_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "echo")
    monkeypatch.setenv("FORCE_CUDA", "1")
    here = Environment(tmp_path / "env", tmp_path / "site", None, True)
    (job,), (older,) = wheels.jobs_of("2.13", ""), wheels.jobs_of("2.12", "")
    found = environments.variables(job, here, tmp_path / "requires", tmp_path, Settings())
    assert found["FORCE_CUDA"] == "0" and "CUDA_HOME" not in found
    said = spawn.run(found["CXX"], "-O2", "-std=gnu++17", "a b")
    assert said.stdout.startswith("-O2 -std=c++20 a b -g0 -ffile-prefix-map=")
    (tmp_path / "older").mkdir()
    found = environments.variables(older, here, tmp_path / "requires", tmp_path / "older", Settings())
    said = spawn.run(found["CXX"], "-std=gnu++17", "-std=c++14")
    assert said.stdout.startswith("-std=gnu++17 -std=c++17 ")


def test_a_build_with_cuda_has_a_toolkit_and_a_list_of_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, asked = Settings(cache_dir=str(tmp_path)), list[str]()
    (job,) = wheels.jobs_of("2.13", "cu130")
    folder = environments.folder_of(job, settings)
    home = folder / "lib" / "python3.x" / "site-packages" / "nvidia" / "cu13"
    (home / "lib").mkdir(parents=True)
    (home / "lib" / "libcudart.so.13").touch()
    (folder / ".ready").touch()
    monkeypatch.setattr(environments, "_toolkit", lambda cuda: None)
    monkeypatch.setattr(environments, "run", lambda command, *where: asked.extend(command) or "")
    for _ in range(2):
        here = environments.environment(job, settings)
    assert here.cuda_home == home and here.kept and "nvidia-cuda-nvcc==13.0.88" in asked, "torch alone was there"
    assert (home / "lib64" / "libcudart.so").resolve().name == "libcudart.so.13"
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    found = environments.variables(job, here, tmp_path, tmp_path, Settings())
    assert found["TORCH_CUDA_ARCH_LIST"] == "7.5;8.0;8.6;9.0+PTX;10.0;12.0" and found["FORCE_CUDA"] == "1"
    assert found["NVCC_APPEND_FLAGS"] == "-std=c++20" and found["CUDACXX"].endswith("cu13/bin/nvcc")
    own = environments.targets_of(Label("cu130"), Settings(arch_list="8.0"))
    assert own == (GpuTarget.parse("sm_80"),)


def test_the_plan_counts_libraries_and_says_what_makes_them_fewer(tmp_path: Path) -> None:
    tree = package(tmp_path / "named", "named", SETUPTOOLS)
    (tree / "csrc" / "more.h").write_text("#include <torch/extension.h>\n")
    (tree / "csrc" / "gpu.cu").write_text('#include "more.h"\n')
    (tree / "tests").mkdir()
    (tree / "tests" / "other.cpp").write_text(OPS)
    sources = planning.read(tree)
    assert [(one.path.name, one.library, one.torch) for one in sources] == [
        ("gpu.cu", False, "all"), ("ops.cpp", True, "some"),
    ]  # fmt: skip
    settings = Settings(cache_dir=str(tmp_path / "cache"), max_jobs=2)
    said = planning.plan(tree, wheels.jobs_of("2.13,2.14", "cu130"), settings)
    assert "in all: 2 libraries" in said and "by 2 processors" in said
    assert "fewer: 1 library for all torches from 2.10 on" in said and "1 .cu files include all of torch" in said
    assert 'TORCH_CUDA_ARCH_LIST="8.0;9.0+PTX"' in said
    assert "fewer" not in planning.plan(tree, wheels.jobs_of("2.9", ""), settings)


def test_the_plan_offers_the_stable_abi_only_to_code_that_it_has_everything_for(tmp_path: Path) -> None:
    tree = package(tmp_path / "named", "named", SETUPTOOLS)
    jobs, settings = wheels.jobs_of("2.13,2.14", ""), Settings(cache_dir=str(tmp_path / "cache"))
    for name in ("at::CUDAGeneratorImpl", "torch::autograd", "torch::CustomClassHolder"):
        (tree / "csrc" / "random.cpp").write_text(f"#include <torch/library.h>\nvoid f({name}* g);\n")
        said = planning.plan(tree, jobs, settings)
        assert "library for all torches" not in said
        assert "fewer: not by torch's stable ABI, which has no " in said and name.rpartition("::")[2] in said


def test_a_list_of_gpus_replaces_that_of_a_package(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for part in ("bin/nvcc", "bin/ptxas", "include/cuda.h"):
        (home / part).parent.mkdir(parents=True, exist_ok=True)
        (home / part).write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
        (home / part).chmod(0o755)
    assert compilers.write_cuda_home(tmp_path / "unused", home, ()) == home
    targets = [GpuTarget.parse(text) for text in ("sm_80", "sm_90a", "compute_90")]
    made = compilers.write_cuda_home(tmp_path / "made", home, targets)
    assert (made / "include" / "cuda.h").is_file() and (made / "bin" / "ptxas").is_file()
    wanted = "-gencode|arch=compute_80,code=sm_80|-gencode|arch=compute_90a,code=sm_90a|"
    wanted += "-gencode|arch=compute_90,code=compute_90|"
    own = ["-gencode", "arch=compute_75,code=sm_75", "--generate-code=arch=compute_70,code=sm_70"]
    assert spawn.run(made / "bin" / "nvcc", "-O3", *own, "a b.cu").stdout == f"-O3|a b.cu|{wanted}"
    assert spawn.run(made / "bin" / "nvcc", "--version").stdout == "--version|"
    assert (home / "bin" / "nvcc").read_text().startswith("#!/bin/sh\nprintf"), "the toolkit itself stays"


def test_only_what_builds_left_at_the_top_is_left_out(tmp_path: Path) -> None:
    names = ["build", "dist", "a.so", "a.cpp", "x.egg-info"]
    assert wheels._left(tmp_path, str(tmp_path), names) & set(names) == {"build", "dist", "a.so", "x.egg-info"}
    assert wheels._left(tmp_path, str(tmp_path / "pkg"), names) == {"a.so", "x.egg-info"}


@pytest.mark.parametrize("cache", [".cache", ".ci/deep/cache", "."])
def test_a_cache_within_the_package_is_not_copied(cache: str, tmp_path: Path) -> None:
    tree = tmp_path / "ops"
    (tree / "ops").mkdir(parents=True)
    (tree / "ops" / "__init__.py").touch()
    os.mkfifo(tree / "ops" / "waits")  # neither is a file that would never end
    settings, job = Settings(cache_dir=str(tree / cache)), Job(environments.parse_torch("2.13"), Label("cpu"))
    (environments.folder_of(job, settings) / "lib").mkdir(parents=True)
    before = wheels._digest(tree, wheels._caches(settings))
    with wheels._going_on(tree, job, settings, {}) as place:
        copied = [path.relative_to(place / "source") for path in (place / "source").rglob("*") if path.is_file()]
        assert copied == [Path("ops/__init__.py")]
        assert wheels._digest(tree, wheels._caches(settings)) == before
