"""Check what a build needs before anything is compiled, so that the first line of an error is the cause.

torch's own command would end in an IndexError without an arch list, and in a search for nvcc on a CPU build.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from precast._abi.settings import Settings
from precast._builder import installer, machine, toolchain
from precast.core import dangling, pip
from precast.core.capability import GpuTarget, TargetKind
from precast.core.host import TorchInfo
from precast.errors import KernelError

ARCH_LIST = "TORCH_CUDA_ARCH_LIST"
# The setuptools of Ubuntu 22.04, and the first that reads [project]: https://setuptools.pypa.io/en/stable/history.html
_OLDEST, _READS_PROJECT = (59, 6), (61, 0)


def refuse_old(setuptools: str, pyproject: Path) -> None:
    """Raise KernelError for a setuptools that lacks what the command uses, or that would leave out ``[project]``."""
    declared = pyproject.is_file() and re.search(r"^\[project\]", pyproject.read_text(encoding="utf-8"), re.MULTILINE)
    needed = _READS_PROJECT if declared else _OLDEST
    if tuple(map(int, setuptools.split(".")[:2])) < needed:
        why = ", which does not read [project] in pyproject.toml" if declared else ""
        wanted = ".".join(map(str, needed))
        fix = f"{pip.install_command()} 'setuptools>={wanted},<82'"  # as torch 2.12 and older ask
        raise _refused("the package", f"setuptools {setuptools}{why}", f"setuptools {wanted} or newer", fix)


def refuse_missing(extensions: Iterable[Any]) -> None:
    """Raise KernelError for the first source that is not there."""
    for extension in extensions:
        for source in extension.sources:
            if not Path(source).is_file():
                beside = sorted(str(path) for path in Path(source).parent.glob("*") if path.is_file())
                meant = dangling.near_miss(source, beside)
                needed = f"{meant}, which is there, or another file" if meant else "the path of a file, from setup.py"
                raise _refused(extension.name, f"no file {source}", needed, "correct the name in setup.py")


def refuse_unbuildable(extensions: Iterable[Any], torch: TorchInfo | None, settings: Settings) -> None:
    """Raise KernelError if extensions of torch's own kind lack torch, a compiler, CUDA or a GPU to compile for."""
    every = list(extensions)
    if not every:
        return
    if torch is None:
        fix = f"{pip.install_command()} torch && {pip.install_command()} --no-build-isolation ."
        raise _refused(every[0].name, "no torch", "the torch to build for, in the environment of the build", fix)
    compiler, looked_at = toolchain.find_compiler(settings)
    if compiler is None:
        found = "\n          ".join(looked_at) or "no compiler"
        fix = "unset CXX" if settings.cxx else installer.compiler_command() or "install g++"
        raise _refused(every[0].name, found, "a C++ compiler", fix)
    device = next((one for one in every if any(source.endswith(".cu") for source in one.sources)), None)
    if device is not None and torch.cuda is None:
        needed = "a torch for CUDA, or no CUDA sources (unset FORCE_CUDA)"
        fix = f"{pip.install_command()} --force-reinstall torch --index-url https://download.pytorch.org/whl/cu130"
        raise _refused(device.name, f"CUDA sources, and torch {torch.version}, a CPU build", needed, fix)


def arch_list(extensions: Iterable[Any], settings: Settings, environ: Mapping[str, str]) -> str | None:
    """The value that TORCH_CUDA_ARCH_LIST needs for these extensions; None if it may stay as it is.

    It is made of PRECAST_CUDA_ARCH_LIST. KernelError if nothing says what to compile for: no list, and no visible GPU.
    """
    device = next((one for one in extensions if any(source.endswith(".cu") for source in one.sources)), None)
    if device is None or environ.get(ARCH_LIST):
        return None
    if settings.targets():
        return torch_form(settings.targets())
    if not machine.visible_gpus():
        fix = f'{ARCH_LIST}="8.0;9.0+PTX" pip wheel --no-build-isolation .'
        raise _refused(device.name, f"no {ARCH_LIST}, no PRECAST_CUDA_ARCH_LIST and no visible GPU", "one of them", fix)
    return None


def torch_form(targets: Iterable[GpuTarget]) -> str:
    """Targets as torch writes them, ``8.0;9.0a;9.0+PTX``. It has no PTX without machine code for the same GPU."""
    every = list(targets)
    names = {f"{one.capability}{one.suffix}": False for one in every}
    names |= {f"{one.capability}{one.suffix}": True for one in every if one.kind is TargetKind.PTX}
    return ";".join(f"{name}+PTX" if ptx else name for name, ptx in names.items())


def _refused(name: str, found: str, needed: str, fix: str) -> KernelError:
    return KernelError(f"{name} cannot be built", found=found, needed=needed, fix=fix)
