"""Build the images of a DeviceExtension, with the same builder as precast's own device code."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

from precast._abi.build_info import DeviceFile
from precast._abi.capability import GpuTarget
from precast._abi.host import Nvrtc
from precast._abi.settings import Settings
from precast._builder import binaries, device, machine, nvrtc, toolchain
from precast._builder.cache import open_cache
from precast.build.extensions import DeviceExtension
from precast.errors import KernelError


def build_images(extension: DeviceExtension, folder: Path, settings: Settings) -> tuple[list[DeviceFile], str]:
    """Compile for every target into ``folder``; return the manifest entries and the NVRTC version."""
    found, targets = _compiler(extension, settings)
    name = extension.name.rpartition(".")[2]
    program = device.read_source(name, Path(extension.sources[0]), [Path(place) for place in extension.include_dirs])
    cache, jobs = open_cache(settings), toolchain.default_jobs(settings)
    made = device.build_program(
        program, targets, found, cache=cache, debug=settings.debug, jobs=jobs, defines=extension.defines
    )
    files = []
    images = {target: image.path.read_bytes() for target, image in zip(targets, made, strict=True)}
    for file, packed in binaries.packed(name, images, found.version, cache, jobs):
        (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(packed, folder / file.path)
        files.append(file)
    return files, found.version


def _compiler(extension: DeviceExtension, settings: Settings) -> tuple[Nvrtc, tuple[GpuTarget, ...]]:
    """Return NVRTC and the targets. No target is an error, because the wheel would be empty."""
    spec = importlib.util.find_spec("torch")
    place = next(iter(spec.submodule_search_locations or ()), None) if spec else None
    found, looked_at = nvrtc.find_nvrtc(Path(place) / "lib" if place else None, settings.cuda_home, None)
    if found is None:
        raise KernelError(
            f"{extension.name} cannot be built\n"
            + "".join(f"  found   {line}\n" for line in looked_at)
            + '  needed  NVRTC\n  fix     1) "nvidia-cuda-nvrtc==13.*" in build-system.requires of its pyproject.toml'
        )
    visible = () if extension.targets or settings.targets() else machine.visible_gpus()
    targets = extension.targets or settings.targets() or tuple(machine.target_for(c, found.targets) for c in visible)
    if not targets:
        raise KernelError(
            f"{extension.name} has no GPU to be compiled for\n"
            f"  found   no targets in setup.py, no PRECAST_CUDA_ARCH_LIST, no visible GPU\n"
            f"  needed  one of them\n"
            f'  fix     1) PRECAST_CUDA_ARCH_LIST="8.0;9.0;9.0+PTX" pip wheel .'
        )
    return found, tuple(dict.fromkeys(targets))
