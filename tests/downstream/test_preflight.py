"""What a build lacks is said before anything is compiled: the cause first, without a traceback."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from setuptools import Extension

from precast._abi.settings import Settings
from precast._builder import machine, toolchain
from precast._load import probe
from precast.build import audit, failing, preflight
from precast.core.host import TorchInfo
from precast.core.version import CudaVersion, TorchVersion
from precast.errors import KernelError
from tests.downstream.conftest import CHECKOUT, CLASSIC_MODULE, STABLE_MODULE
from tests.kit import fetched, spawn

TORCH = TorchInfo(TorchVersion.parse("2.13.0+cu130"), True, CudaVersion(13, 0))
CUDA = Extension("ops.fused", ["fused.cpp", "fused.cu"])


def refused(check: Callable[[], object]) -> str:
    with pytest.raises(KernelError) as caught:
        check()
    return str(caught.value)


def test_a_missing_source_is_named_with_the_one_that_was_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "fused.cpp").touch()
    preflight.refuse_missing([Extension("ops.fused", ["csrc/fused.cpp"])])
    said = refused(lambda: preflight.refuse_missing([Extension("ops.fused", ["csrc/fusd.cpp"])]))
    assert said.startswith(
        "ops.fused cannot be built\n  found   no file csrc/fusd.cpp\n  needed  csrc/fused.cpp, which"
    )
    assert "the path of a file" in refused(lambda: preflight.refuse_missing([Extension("ops.x", ["elsewhere/y.cpp"])]))


@pytest.mark.compiler
def test_no_torch_no_compiler_and_cuda_sources_for_a_cpu_torch_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings()
    preflight.refuse_unbuildable([], None, settings)
    preflight.refuse_unbuildable([CUDA], TORCH, settings)
    assert "found   no torch\n" in refused(lambda: preflight.refuse_unbuildable([CUDA], None, settings))
    cpu = replace(TORCH, version=TorchVersion.parse("2.13.0+cpu"), cuda=None)
    assert "torch 2.13.0+cpu, a CPU build" in refused(lambda: preflight.refuse_unbuildable([CUDA], cpu, settings))
    preflight.refuse_unbuildable([Extension("ops.fused", ["fused.cpp"])], cpu, settings)
    monkeypatch.setattr(toolchain, "find_compiler", lambda settings: (None, ("compiler: none on PATH",)))
    assert "found   compiler: none on PATH" in refused(lambda: preflight.refuse_unbuildable([CUDA], TORCH, settings))


def test_the_arch_list_is_ours_or_torchs_or_the_gpus_or_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "visible_gpus", lambda: ())
    asked = Settings.from_env({"PRECAST_CUDA_ARCH_LIST": "8.0;9.0a;9.0+PTX;compute_100"})
    assert preflight.arch_list([CUDA], asked, {}) == "8.0;9.0a;9.0+PTX;10.0+PTX"
    assert preflight.arch_list([CUDA], asked, {"TORCH_CUDA_ARCH_LIST": "7.5"}) is None
    assert preflight.arch_list([Extension("ops.fused", ["fused.cpp"])], Settings(), {}) is None
    said = refused(lambda: preflight.arch_list([CUDA], Settings(), {}))
    assert "no visible GPU" in said and 'fix     1) TORCH_CUDA_ARCH_LIST="8.0;9.0+PTX" pip wheel' in said
    monkeypatch.setattr(machine, "visible_gpus", lambda: (object(),))
    assert preflight.arch_list([CUDA], Settings(), {}) is None


@pytest.mark.torch
@pytest.mark.compiler
@pytest.mark.parametrize(
    ("module", "spoil", "said"),
    [
        (STABLE_MODULE, lambda root: (root / "csrc" / "scale.cpp").unlink(), "found   no file csrc/scale.cpp"),
        (
            CLASSIC_MODULE,
            lambda root: (root / "csrc" / "fused.cpp").write_text("int x = ;\n"),
            "found   .*csrc/fused.cpp:1",
        ),
        (STABLE_MODULE, lambda root: {"CXX": "/nonexistent"}, "found   .*/nonexistent"),
        (CLASSIC_MODULE, lambda root: {"CXX": "/nonexistent"}, "found   .*/nonexistent"),
    ],
    ids=["a missing source", "a compile error", "no compiler", "no compiler for torch"],
)
def test_setup_py_ends_with_the_text_alone(
    project: Callable[..., Path],
    setup_py: Callable[..., subprocess.CompletedProcess[str]],
    module: str,
    spoil: Callable[[Path], object],
    said: str,
) -> None:
    root = project(f"spoilt_{len(module)}", module)
    variables = spoil(root)
    done = setup_py(root, "build_ext", **(variables if isinstance(variables, dict) else {}))
    assert done.returncode != 0
    text = done.stderr[done.stderr.index("error: spoilt_") :]
    assert re.search(said, text), text
    assert "Traceback" not in text and len(text.splitlines()) < 9, text


# setup.py as it is read: by this name, and by pip's backend.
READ = "import runpy, sys, warnings; warnings.simplefilter('ignore'); sys.argv = ['setup.py', 'build_ext']\n"
NO_TORCH = """
class NoTorch:
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, NoTorch())
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("", r"error: setup\.py asks for CUDA\n  found   (torch .*, a CPU build|no CUDA toolkit).*\n  needed"),
        (NO_TORCH, r"error: setup\.py imports torch\n  found   no torch in the environment"),
    ],
    ids=["FORCE_CUDA on a machine without CUDA", "no torch"],
)
def test_what_torch_raises_before_any_command_is_one_text(before: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text(
        "from precast.build import BuildExtension\n"
        "import torch.utils.cpp_extension as of_torch\n"
        "of_torch.CUDA_HOME = None\n"
        "of_torch.CUDAExtension('forced_ops.fused', ['fused.cu'])\n"
    )
    env = spawn.environ(PYTHONPATH=CHECKOUT / "pkg", FORCE_CUDA="1")
    code = f"{READ}{before}runpy.run_path('setup.py', run_name='__main__')"
    done = spawn.python("-c", code, cwd=tmp_path, env=env, status=1)
    assert re.search(said, done.stderr) and "Traceback" not in done.stderr, done.stderr
    assert failing.explained(OSError("another")) == failing.explained(ModuleNotFoundError(name="numpy")) == ""


def test_no_cuda_toolkit_is_said_with_the_version_that_torch_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "probe_host", lambda settings, gpus: SimpleNamespace(torch=TORCH))
    said = failing.explained(OSError("CUDA_HOME environment variable is not set."))
    assert "found   no CUDA toolkit" in said and "wheels --torch 2.13 --cuda cu130" in said


@pytest.mark.parametrize(
    ("version", "project", "said"),
    [
        ("58.1.0", "", "found   setuptools 58.1.0\n  needed  setuptools 59.6 or newer\n"),
        (
            "59.6.0",
            "[project]\nname = 'x'\nversion = '1'\n",
            "found   setuptools 59.6.0, which does not read [project] in pyproject.toml\n",
        ),
        ("59.6.0", "[build-system]\nrequires = []\n", ""),
        ("61.0.0.post1", "[project]\nname = 'x'\nversion = '1'\n", ""),
    ],
)
def test_a_setuptools_that_is_too_old_is_refused(
    version: str, project: str, said: str, tmp_path: Path, setup_py: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    (tmp_path / "pyproject.toml").write_text(project)
    (tmp_path / "setup.py").write_text(
        f"import setuptools\nfrom precast.build import BuildExtension\nsetuptools.__version__ = {version!r}\n"
        "setuptools.setup(name='x', version='1', packages=[], cmdclass={'build_ext': BuildExtension})\n"
    )
    done = setup_py(tmp_path, "build_ext")
    assert (done.returncode != 0) == bool(said) and "Traceback" not in done.stderr, done.stderr
    assert said in done.stderr and (" install 'setuptools>=" in done.stderr) == bool(said)


@pytest.mark.torch
@pytest.mark.compiler
@pytest.mark.wheel
def test_the_setuptools_of_an_old_ubuntu(project: Callable[..., Path], kept_folder: Callable[[str], Path]) -> None:
    """A wheel, and the editable install that the pip of that day asks for; a later Python has no such setuptools."""
    version = "59.6.0" if sys.version_info < (3, 12) else "66.1.0"
    site = kept_folder(f"setuptools-{version}")
    if not (site / "setuptools").is_dir():
        for wanted in (f"setuptools=={version}", "wheel==0.37.1"):
            fetched.pip_install(wanted, site)
    root = project("old_ops", STABLE_MODULE, CLASSIC_MODULE)
    (root / "dev").mkdir()
    env = spawn.environ("PRECAST_LABEL", PYTHONPATH=f"{site}:{root / 'dev'}:{CHECKOUT / 'pkg'}", MAX_JOBS=2)
    for command in (("bdist_wheel",), ("develop", "--install-dir", "dev", "--no-deps")):
        spawn.python("-W", "ignore", "setup.py", "-q", *command, cwd=root, env=env)
    (wheel,) = (root / "dist").glob("*.whl")
    assert audit.audit(wheel)[0] == []
    code = (
        "import torch\nfrom old_ops import fused, scale\n"
        "print(fused.threads() > 0, torch.ops.old_ops.scale(torch.ones(2)).tolist())"
    )
    env = spawn.environ(PYTHONPATH=f"{root}:{CHECKOUT / 'pkg'}")
    assert spawn.python("-c", code, cwd=root / "dev", env=env).stdout == "True [3.0, 3.0]\n"
