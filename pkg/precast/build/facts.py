"""Makes the manifest entry of a library from its bytes, after a compile or from a finished wheel."""

from __future__ import annotations

import sys
import sysconfig
from dataclasses import replace

from precast._builder import bindings, elf, xray, xray_verdict
from precast.core import pip
from precast.core.host import TorchInfo
from precast.core.manifest import HostFile
from precast.core.torch_abi import Exact, Stable, is_git_version
from precast.core.version import Label
from precast.errors import REPORT, KernelError


def compiled(name: str, suffix: str, data: bytes, *, limited: bool) -> xray.Library:
    """A library that was compiled for this Python. ``limited``: it uses only Python's limited API."""
    threads = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    try:
        tag = (python, "abi3" if limited else f"{python}{threads}", "")
        return xray.library(f"{name.replace('.', '/')}{suffix}", data, tag)
    except elf.ElfError as error:
        raise KernelError(
            f"{name}: the compiler made no usable library", found=str(error), needed="a shared library", fix=REPORT
        ) from error


def torch_abi(torch: TorchInfo) -> Exact:
    """The classic ABI of this torch: its minor release, or its commit for a prerelease."""
    if not torch.version.is_prerelease:
        return Exact(torch.version.release, torch.cxx11)
    if not is_git_version(torch.version.git):
        raise KernelError(
            f"the commit of torch {torch.version} is unknown, so no module can be matched to it",
            found=f"a pre-release whose git version is {torch.version.git or 'not known'}",
            needed="a release of torch, or a pre-release that states its commit",
            fix=f"{pip.install_command()} --force-reinstall torch  # a release; then build again",
        )
    return Exact(torch.version.release, torch.cxx11, torch.version.git)


def entry(library: xray.Library, torch: Exact | None, label: Label, floor: Stable | None = None) -> HostFile:
    """The manifest entry of a library. KernelError if it cannot be loaded safely, or contradicts its declaration.

    ``torch`` built it, if it has classic C++, and ``label`` is the CUDA of that torch. ``floor`` is the oldest torch
    that it was compiled for on the stable ABI; None if nothing says so.
    """
    name, bound = library.module, library.bound
    if library.error:
        raise KernelError(
            f"{name} cannot be read",
            found=library.error,
            needed="an undamaged shared library",
            fix=["build it again, if the file is damaged", REPORT],
        )
    if bindings.brings_runtime(library.info):
        raise KernelError(
            f"{name} has a C++ runtime of its own",
            found=f"{', '.join(sorted(bindings.OF_A_RUNTIME & library.info.exported))}: libstdc++ is linked statically",
            needed="the runtime that torch has, libstdc++.so.6: with two, a failed check of torch crashes",
            fix=(
                "CC=gcc CXX=g++ pip install --no-build-isolation .  # without -static-libstdc++, and with a "
                "compiler that has a libstdc++.so next to its libstdc++.a"
            ),
        )
    if floor is not None and (bound.classic or bound.cudart):
        found = ", ".join(bound.classic[:3]) or f"libcudart.so.{bound.cudart}"
        raise KernelError(
            f"{name} is not on torch's stable ABI",
            found=f"uses {found}",
            needed="uses only what torch/csrc/stable and the C shims offer, without a CUDA runtime",
            fix="make it a CppExtension or CUDAExtension, which fits one torch",
        )
    cuda = None if label.cuda is None else label.cuda.major
    if bound.cudart is not None and label.text and bound.cudart != cuda:
        raise KernelError(
            f"{name} mixes two CUDA runtimes",
            found=f"libcudart.so.{bound.cudart}, and a torch {f'with CUDA {cuda}' if cuda else 'without CUDA'}",
            needed=f"libcudart.so.{cuda}" if cuda else f"a torch with CUDA {bound.cudart}",
            fix=f"CUDA_HOME=/usr/local/cuda-{cuda} pip install --no-build-isolation ."
            if cuda
            else f"install a torch with CUDA {bound.cudart}, and build again",
        )
    file = xray_verdict.host_file(library, torch)
    if file is None:
        named = (*bound.classic, *library.info.needed)[0]
        raise KernelError(
            f"{name} needs {named}, and nothing says which torch has it",
            found=f"no {named} in any torch that precast knows, and no --torch for {name}",
            needed=f"the torch that built {name}",
            fix="repeat the command with --torch 2.13.0  # or the torch that built it",
        )
    return replace(
        file,
        abi=floor if floor is not None and library.needs_torch else file.abi,
        cuda_major=cuda if bound.cudart is None and bound.torch_cuda else file.cuda_major,
    )
