"""Build a DeviceExtension: images for the manifest, and the module that launches them or defines ops of them."""

from __future__ import annotations

import importlib.util
import pprint
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from setuptools import Extension

from precast._abi.settings import Settings
from precast._builder import binaries, closure, machine, nvrtc, toolchain
from precast._builder.cache import open_cache
from precast._cubin import launcher, programs, signature
from precast._cubin.code import DeviceCode
from precast._cubin.programs import Programs
from precast.core import pip
from precast.core.capability import GpuTarget
from precast.core.host import Nvrtc
from precast.core.manifest import DeviceFile
from precast.errors import KernelError

# The text in the place of the module. The second line is that of a guard.
_MODULE = '''"""Made by precast.build: the kernels of {name}, launched on the GPU of their tensors."""

from precast.build import launcher

launcher(
    __name__,
    entries={entries},
    ops={ops},
)
'''


@dataclass(frozen=True)
class Made:
    """The manifest entries of the images, the text of the module, and the version of NVRTC."""

    files: tuple[DeviceFile, ...]
    module: str
    nvrtc: str


def build_images(extension: DeviceCode, folder: Path, settings: Settings) -> Made:
    """Compile every source for every target into ``folder``, which has the manifest."""
    found, targets = _compiler(extension, settings)
    name = extension.name.rpartition(".")[2]
    wanted = Programs(
        name,
        tuple(str(Path(source).resolve()) for source in extension.sources),
        tuple(str(Path(place).resolve()) for place in extension.include_dirs),
        extension.defines,
        extension.instances,
        extension.flags,
    )
    ops = signature.read(extension.ops, {source: Path(source).read_text("utf-8") for source in extension.sources})
    built = programs.build(wanted, targets, found, settings, "it is built ahead of time")
    files, entries = list[DeviceFile](), dict[str, object]()
    for source in extension.sources:
        family = launcher.family_of(name, Path(source).stem, len(extension.sources))
        made = {one.image.target: one.image for one in built if one.image.source == Path(source).stem}
        codes = {target: image.code for target, image in made.items()}
        for file, packed in binaries.packed(
            family, codes, found.version, open_cache(settings), toolchain.default_jobs(settings)
        ):
            (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(packed, folder / file.path)
            files.append(file)
        entries[family] = launcher.plain(made)
    signature.refuse_unknown(extension.name, ops, {name for each in entries.values() for name in each})  # type: ignore[attr-defined]
    shown = {"entries": entries, "ops": ops}
    texts = {what: pprint.pformat(value, width=110, sort_dicts=True) for what, value in shown.items()}
    return Made(tuple(files), _MODULE.format(name=extension.name, **texts), found.version)


def sources(extension: Extension) -> list[Path]:
    """The sources and every header of the project that they include, relative to the folder of setup.py.

    The result is empty for an extension without device code.
    """
    root = Path.cwd().resolve()
    if not isinstance(extension, DeviceCode):
        return []
    reached = closure.files(extension.sources, extension.include_dirs, None)
    return sorted(path.relative_to(root) for path in reached if path.is_relative_to(root) and path.is_file())


def shipped(extensions: Iterable[Extension]) -> dict[str, bytes]:
    """Device code for the GPUs that have no image, where ``csrc_abs_path`` of an installed class looks for it."""
    found = {}
    for one in extensions:
        for path in sources(one):
            *outside, rest = f"/{path.as_posix()}".split("/csrc/")
            found[f"{one.name.partition('.')[0]}/csrc/{rest if outside else path.name}"] = path.read_bytes()
    return found


def _compiler(extension: DeviceCode, settings: Settings) -> tuple[Nvrtc, tuple[GpuTarget, ...]]:
    """Return NVRTC and the targets. No target is an error, because the wheel would be empty."""
    spec = importlib.util.find_spec("torch")
    place = next(iter(spec.submodule_search_locations or ()), None) if spec else None
    found, looked_at = nvrtc.find_nvrtc(Path(place) / "lib" if place else None, settings.cuda_home, None)
    if found is None:
        raise KernelError(
            f"{extension.name} cannot be built",
            found=looked_at,
            needed="NVRTC in the environment of the build",
            fix=f'{pip.install_command()} "nvidia-cuda-nvrtc==13.*"  # --no-build-isolation installs nothing',
        )
    visible = () if extension.targets or settings.targets() else machine.visible_gpus()
    targets = extension.targets or settings.targets() or tuple(machine.target_for(c, found.targets) for c in visible)
    if not targets:
        raise KernelError(
            f"{extension.name} has no GPU to be compiled for",
            found="no targets in setup.py, no PRECAST_CUDA_ARCH_LIST, no visible GPU",
            needed="one of them",
            fix='PRECAST_CUDA_ARCH_LIST="8.0;9.0;9.0+PTX" pip wheel --no-build-isolation .',
        )
    return found, tuple(dict.fromkeys(targets))
