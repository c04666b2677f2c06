"""The compile and link options of precast.build, for use in a Makefile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from precast._abi.settings import Settings
from precast._builder import flags, headers, installer, machine, toolchain
from precast._load import probe
from precast.core import pip
from precast.core.capability import GpuTarget, TargetKind
from precast.core.torch_abi import STABLE_FLOOR
from precast.errors import KernelError


def include(settings: Settings, *, classic: bool) -> tuple[str, ...]:
    """The include options: the headers of the stable ABI, or all headers of the installed torch."""
    if not classic:
        return ("-isystem", str(headers.for_extensions()))
    root = _torch_libraries().parent / "include"
    return ("-isystem", str(root), "-isystem", str(root / "torch" / "csrc" / "api" / "include"))


def cflags(settings: Settings, *, classic: bool) -> tuple[str, ...]:
    """The options for a C++ file; with PRECAST_DEBUG=1, those for a debugger."""
    found, looked_at = toolchain.find_compiler(settings)
    if found is None:
        raise KernelError(
            "no C++ compiler was found, so its options are not known",
            found=looked_at,
            needed="g++ or clang++",
            fix="unset CXX" if settings.cxx else installer.compiler_command() or "install g++",
        )
    options = flags.host_options(found.kind, debug=settings.debug)
    return (*options, *_defines(classic=classic), *include(settings, classic=classic))


def ldflags(settings: Settings, *, classic: bool) -> tuple[str, ...]:
    """The link options, after the objects: the library must name the libraries of torch."""
    names = ("torch", "torch_cpu", "c10") if classic else ("torch_cpu",)
    libraries = (f"-l{name}" for name in names)
    searched = (f"-L{_torch_libraries()}", "-Wl,--no-as-needed", *libraries, "-Wl,--as-needed", "-ldl")
    return (*flags.link_options(debug=settings.debug), *searched)


def cuda_flags(settings: Settings, *, classic: bool) -> tuple[str, ...]:
    """The nvcc options for a ``.cu`` file, for PRECAST_CUDA_ARCH_LIST or the visible GPUs."""
    targets = settings.targets() or tuple(
        dict.fromkeys(GpuTarget(TargetKind.SASS, capability) for capability in machine.visible_gpus())
    )
    how = ("-O0", "-g", "-G") if settings.debug else ("-O3", "-lineinfo")
    host_side = ("-Xcompiler", "-fPIC,-fvisibility=hidden")
    codes = tuple(part for target in targets for part in gencode(target))
    return ("-std=c++17", *how, *host_side, *codes, *_defines(classic=classic), *include(settings, classic=classic))


def gencode(target: GpuTarget) -> Sequence[str]:
    """The nvcc options for one target."""
    virtual = str(target).replace("sm_", "compute_")
    return ("-gencode", f"arch={virtual},code={target}")


def _defines(*, classic: bool) -> tuple[str, ...]:
    if not classic:
        return (flags.torch_target_version(STABLE_FLOOR),)
    torch = probe.probe_host(Settings(), gpus=False).torch
    return () if torch is None else (f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.cxx11)}",)


def _torch_libraries() -> Path:
    found = probe.torch_lib_dir()
    if found is None:
        fix = f"{pip.install_command()} torch"
        raise KernelError("no torch is installed", found="no torch/lib", needed="torch", fix=fix)
    return found
