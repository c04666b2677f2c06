"""Builds C++ and CUDA sources with a Python binding: the same setuptools extension ahead of time and at run time.

At run time a child process runs torch's ``build_ext`` on it, in a staging folder of the cache. The key of a build
covers all its inputs: the sources, every header of theirs that they include, the flags, torch, Python, the compilers.
Headers of torch and of the CUDA toolkit are covered by the versions of these.
"""

from __future__ import annotations

import dataclasses
import importlib.machinery
import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precast._abi.settings import Settings
from precast._builder import closure, failure, host, process, python, toolchain
from precast._builder.cache import BuildKey, Cache
from precast._load import jit, probe, unopened, verdict
from precast._load.progress import Progress
from precast._load.source import Source
from precast.core import dangling
from precast.core.host import Builders
from precast.core.unopened import why
from precast.errors import BuildFailed, KernelUnavailable

if TYPE_CHECKING:
    from types import ModuleType

    from setuptools import Extension as SetuptoolsExtension

_CHILD = "precast.extension.child"


@dataclasses.dataclass(frozen=True, slots=True)
class Native:
    """The input of a build. With ``nvcc_flags``, nvcc compiles the ``.cu`` files among the sources."""

    name: str
    sources: tuple[str, ...]
    include_dirs: tuple[str, ...]
    cxx_flags: tuple[str, ...]
    nvcc_flags: tuple[str, ...] | None = None


def setuptools_extension(name: str, native: Native) -> SetuptoolsExtension:
    """Torch's ``CppExtension`` or ``CUDAExtension`` with this name."""
    from torch.utils.cpp_extension import CppExtension, CUDAExtension

    closure.assert_there(native.name, native.sources)
    common: dict[str, Any] = {
        "sources": [_from_here(path) for path in native.sources],
        "include_dirs": list(native.include_dirs),
    }
    made: SetuptoolsExtension
    if native.nvcc_flags is None:
        made = CppExtension(name, extra_compile_args=list(native.cxx_flags), **common)
    else:
        cuda_home(native.name)
        flags = {"cxx": list(native.cxx_flags), "nvcc": list(native.nvcc_flags)}
        made = CUDAExtension(name, extra_compile_args=flags, **common)
    return made


def _from_here(path: str) -> str:
    """The form that setuptools needs: a path inside the folder of the setup.py is relative to it."""
    return os.path.relpath(path) if Path(path).resolve().is_relative_to(Path.cwd().resolve()) else path


def build(native: Native, why: str) -> Source:
    """The library from the cache, built on a miss; ``why`` is the reason for the build."""
    settings = probe.read_settings()
    builders = assert_can_build(native)
    key = make_key(native, builders, settings)
    compiler = builders.compiler
    assert compiler is not None  # assert_can_build has checked this
    with_what = f"{Path(compiler.path).name} {compiler.version}" + (
        " and nvcc" if native.nvcc_flags is not None else ""
    )
    with Progress(native.name, with_what, why, quiet=settings.quiet) as said:
        cache = jit.AnnouncingCache(settings, said.start)
        artifact = cache.obtain(key, lambda staging: _build(native, staging, cache, key, builders, settings))
        said.end(artifact)
    return Source("cache" if artifact.cached else "jit", artifact.path, with_what)


def assert_can_build(native: Native) -> Builders:
    """The tools of a build. Raises KernelUnavailable, with the places searched, if one is missing."""
    settings = probe.read_settings()
    builders = probe.probe_builders(settings)
    wanted = {
        "a C++ compiler": builders.compiler is not None,
        "ninja": builders.ninja is not None,
        "torch": importlib.util.find_spec("torch") is not None,
        "setuptools": importlib.util.find_spec("setuptools") is not None,
    }
    missing = [name for name, here in wanted.items() if not here]
    if missing:
        packages = [name for name in ("torch", "setuptools") if name in missing]
        places = (*builders.looked_at, *(f"{name}: not installed" for name in packages))
        fix = verdict.missing_tools(builders, settings, *packages)
        raise verdict.cannot_build(native.name, ", ".join(missing), places, fix)
    if native.nvcc_flags is not None:
        cuda_home(native.name)
    closure.assert_there(native.name, native.sources)
    return builders


def cuda_home(name: str) -> str:
    """The CUDA toolkit that torch would compile with. Raises KernelUnavailable if there is none."""
    from torch.utils.cpp_extension import CUDA_HOME

    if CUDA_HOME is None or shutil.which(str(Path(CUDA_HOME) / "bin" / "nvcc")) is None:
        raise KernelUnavailable(
            f"{name} cannot be built: there is no CUDA toolkit",
            found="no nvcc on PATH, and no CUDA_HOME" if CUDA_HOME is None else f"no nvcc in {CUDA_HOME}/bin",
            needed="the nvcc of a toolkit of torch's CUDA major",
            fix="export CUDA_HOME=/usr/local/cuda  # where NVIDIA's installer puts the toolkit",
        )
    return str(CUDA_HOME)


def make_key(native: Native, builders: Builders, settings: Settings) -> BuildKey:
    """The key of a build, over all its inputs."""
    import torch

    compiler = builders.compiler
    assert compiler is not None
    inputs: dict[str, Any] = {
        "name": native.name,
        "sources": closure.reachable(native.sources, native.include_dirs, settings.cuda_home),
        "cxx_flags": list(native.cxx_flags),
        "debug": settings.debug,
        "torch": f"{torch.__version__} {torch.version.git_version} cxx11={torch.compiled_with_cxx11_abi()}",
        "python": sysconfig.get_config_var("SOABI"),
        "machine": platform.machine(),
        "compiler": f"{compiler.kind} {compiler.version}",
        "libc": toolchain.libc_version(compiler, platform.machine()),
    }
    if native.nvcc_flags is not None:
        inputs |= {
            "nvcc_flags": list(native.nvcc_flags),
            "nvcc": _nvcc_version(cuda_home(native.name)),
            "targets": arch_list(settings),
        }
    return BuildKey.of(native.name, "extension", inputs)


def arch_list(settings: Settings) -> str:
    """The targets in the notation of torch: those that were configured, else those of the visible GPUs."""
    if settings.arch_list is not None:
        return settings.arch_list
    gpus = probe.probe_host(settings, gpus=True).gpus
    return ";".join(sorted({str(gpu.capability) for gpu in gpus}))


def import_from(name: str, path: Path) -> ModuleType:
    """Loads an extension module from a file under a name, even if another module has that name."""
    import torch  # noqa: F401 - its libraries have to be there

    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None  # a file with a loader always has one
    try:
        with dangling.refused(path):
            module = importlib.util.module_from_spec(spec)
            loader.exec_module(module)
    except ImportError as error:
        reason = why(path, str(error))
        if reason is None:
            raise
        raise (unopened.passing if reason.passing else unopened.of_cache)(path, reason) from error
    return module


def _nvcc_version(home: str) -> str:
    said = subprocess.run([f"{home}/bin/nvcc", "--version"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"\bV(\d+(?:\.\d+)+)", said)
    return match[1] if match else said.strip()


def _build(native: Native, staging: Path, cache: Cache, key: BuildKey, builders: Builders, settings: Settings) -> Path:
    """Runs ``build_ext`` in a child process and returns the library among its results."""
    assert builders.compiler is not None and builders.ninja is not None
    spec = staging / "spec.json"
    spec.write_text(json.dumps(dataclasses.asdict(native)), encoding="utf-8")
    command = python.command(_CHILD, str(spec), str(staging / "lib"), str(staging / "tmp"))
    environment = process.clean(python.environment())
    environment |= {
        "CXX": builders.compiler.path,
        "MAX_JOBS": str(toolchain.default_jobs(settings)),
        "PATH": os.pathsep.join([str(Path(builders.ninja).parent), os.environ.get("PATH") or os.defpath]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if native.nvcc_flags is not None and (targets := arch_list(settings)):
        environment["TORCH_CUDA_ARCH_LIST"] = targets
    status, log = process.run(command, log=staging / "build.log", environment=environment)
    if status:
        tool = f"{builders.compiler.kind} {builders.compiler.version}"
        shown = host.failed_command(log) or shlex.join(["python", "-m", *command[command.index(_CHILD) :]])
        raise failure.build_failed(native.name, log, shown, cache.failure_log(key), tool=tool)
    built = sorted((staging / "lib").rglob("*.so"))
    if len(built) != 1:
        raise BuildFailed(
            f"{native.name}: the build did not make one library",
            found=", ".join(path.name for path in built) or "no library",
            needed="exactly one .so file",
            fix="change build_aot() of the extension, so that it describes one library",
        )
    return Path(shutil.move(built[0], staging / built[0].name))
