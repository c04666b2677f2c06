"""Look at the machine for a decision of ours: the settings, the process, and what could build here.

Nothing here creates a CUDA context, writes a file, or raises for a missing thing: that is a fact of the host.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from precast._abi.settings import FORMER_MODES, Settings
from precast.core import probe
from precast.core.host import Builders, Host, Installer
from precast.errors import KernelError


def read_settings(environ: Mapping[str, str] | None = None, *, building: bool = False) -> Settings:
    """The settings of this process; only ``building`` reads build settings.

    A bad value is an error that names it. A former value is a FutureWarning with its name of today.
    """
    env = os.environ if environ is None else environ
    former = env.get("PRECAST_JIT", "").lower()
    if former in FORMER_MODES:
        text = (
            f"PRECAST_JIT={former} is now called PRECAST_JIT={FORMER_MODES[former].value}: no kernel is loaded, "
            f"prebuilt or not. To forbid compiling only, set PRECAST_JIT=aot"
        )
        warnings.warn(text, FutureWarning, stacklevel=2)
    try:
        return Settings.from_env(env, at_run=not building)
    except ValueError as error:
        name, setting, _ = str(error).partition("=")
        what, _, needed = str(error).partition("; needed ")
        raise KernelError(
            f"the value of {name} is not accepted" if setting else what,
            found=what.removesuffix(" is not accepted"),
            needed=needed,
            fix=f"unset {name}" if setting else "",
        ) from error


def probe_host(settings: Settings, *, gpus: bool, certain: bool = False) -> Host:
    """The current host, without its builders. ``certain`` may initialise torch.cuda where NVML cannot tell."""
    host = probe.host(with_gpus=gpus, certain=certain)
    return host if settings.cpu_level is None else replace(host, cpu_levels=_cpu_levels())


def probe_builders(settings: Settings) -> Builders:
    """The tools that can build here (C++ compiler, ninja, NVRTC), and where each was looked for."""
    from precast._builder import nvrtc, toolchain  # not needed while a prebuilt file fits

    compiler, compiler_places = toolchain.find_compiler(settings)
    ninja, ninja_places = toolchain.find_ninja()
    found, nvrtc_places = nvrtc.find_nvrtc(torch_lib_dir(), settings.cuda_home, None)
    places = (*compiler_places, *ninja_places, *nvrtc_places)
    return Builders(compiler, ninja, found, looked_at=places)


def probe_installer() -> Installer:
    """How packages are installed in this environment, and where this precast came from."""
    from precast._builder import installer  # needed only for an error

    return installer.find()


def current_gpu() -> int | None:
    """The current GPU of torch, which this call initialises; None if torch can use no GPU."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    return torch.cuda.current_device() if torch.cuda.is_available() else None


def _cpu_levels() -> tuple[str, ...]:
    from precast._builder import flags  # only a setting that names a level asks

    machine = platform.machine()
    if machine not in flags.CPU_LEVELS:
        return ()
    return tuple(level.name for level in flags.levels_of(machine, probe.cpu_features()))


def torch_lib_dir() -> Path | None:
    """The folder of torch's own libraries, found without importing torch."""
    spec = importlib.util.find_spec("torch")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return Path(folders[0]) / "lib" if folders else None
