"""The compiled half of a wheel: host libraries and packed device images, each with its manifest entry.

Wheels, the parts that one job makes for another, and builds for this machine all use the same two functions.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from precast._abi import fixes
from precast._abi.settings import Settings
from precast._builder import catalogue, device, flags, host, installer, nvrtc, packing, provenance, sources, toolchain
from precast._builder.cache import Artifact, BuildKey, Cache, default_root
from precast._builder.machine import say
from precast._builder.matrix import LabelSpec
from precast._version import __version__
from precast.core import pip
from precast.core.capability import GpuTarget, min_driver
from precast.core.host import Compiler, Nvrtc
from precast.core.manifest import BuildInfo, BuildMode, DeviceFile, HostFile, HostKind, device_path, host_path
from precast.core.torch_abi import AnyTorch, Exact
from precast.core.version import CudaVersion, Label, Release
from precast.errors import KernelError

Binary = HostFile | DeviceFile


@dataclass(frozen=True, slots=True)
class Made:
    """Finished files, each with its manifest entry, and the compilers that made them."""

    host: tuple[tuple[HostFile, Path], ...] = ()
    device: tuple[tuple[DeviceFile, Path], ...] = ()
    compilers: tuple[tuple[str, str], ...] = ()

    @property
    def files(self) -> dict[str, tuple[int, Path]]:
        """Each file by its path in a wheel, with its size and source. Images share files."""
        hosts = {file.path: (file.bytes, source) for file, source in self.host}
        return hosts | {image.path: (image.bytes, source) for image, source in self.device}


def joined(pieces: Iterable[Made]) -> Made:
    """All of them as one, with each compiler named once."""
    known = tuple(pieces)
    return Made(
        tuple(pair for made in known for pair in made.host),
        tuple(pair for made in known for pair in made.device),
        tuple(dict.fromkeys(pair for made in known for pair in made.compilers)),
    )


def make_host(abi: AnyTorch | Exact, settings: Settings, cache: Cache) -> Made:
    """Build the library of all families, or for an exact torch the adapter to it."""
    compiler, ninja = host_tools(settings)
    built_for = toolchain.target_machine(settings)
    is_library = isinstance(abi, AnyTorch)
    if isinstance(abi, AnyTorch):
        made = build_library(catalogue.FAMILIES, compiler, ninja, cache, settings)
    else:
        made = build_adapter(abi, compiler, ninja, cache, settings)
    data = made.path.read_bytes()
    info = host.verify_library(data, built_for, torch=() if is_library else flags.TORCH)
    file = HostFile(
        path=host_path(abi, built_for),
        sha256=made.sha256,
        bytes=len(data),
        abi=abi,
        machine=info.machine,
        needed=info.needed,
        glibc=Release(*(*info.glibc, 0, 0)[:2]),
        glibcxx=".".join(map(str, info.glibcxx or (3, 4))),
        cpu_levels=tuple(level.name for level in flags.cpu_levels(built_for)) if is_library else (),
        families=tuple(family.name for family in catalogue.FAMILIES) if is_library else (),
        debug=settings.debug,
        kind=HostKind.LIBRARY if is_library else HostKind.ADAPTER,
    )
    return Made(host=((file, made.path),), compilers=((compiler.kind, compiler.version),))


def make_device(targets: Sequence[GpuTarget], found: Nvrtc, settings: Settings, cache: Cache) -> Made:
    """Build the images of every family with device code, using one NVRTC."""
    _require_lzma()
    files: list[tuple[DeviceFile, Path]] = []
    for family in catalogue.FAMILIES:
        if family.device is not None:
            built = build_images(family, targets, found, cache, settings)
            images = {target: image.path.read_bytes() for target, image in zip(targets, built, strict=True)}
            files += packed(family.name, images, found.version, cache, toolchain.default_jobs(settings))
    return Made(device=tuple(files), compilers=(("nvrtc", found.version),))


def selected(made: Made, targets: Sequence[GpuTarget], settings: Settings) -> Made:
    """The device code of these targets alone: packed again without the others, unless there are none.

    Raises NotPacked if a file does not hold the images of its entries.
    """
    if all(file.target in targets for file, _ in made.device):
        return made
    _require_lzma()
    files: list[tuple[DeviceFile, Path]] = []
    cache, jobs = Cache(default_root(settings)), toolchain.default_jobs(settings)
    by_family: dict[tuple[str, str], dict[GpuTarget, bytes]] = {}
    for file, source in made.device:
        if file.target in targets:
            image = packing.image(source.read_bytes(), file.offset, file.content_bytes, file.content_sha256)
            by_family.setdefault((file.family, file.nvrtc), {})[file.target] = image
    for (family, nvrtc_version), images in by_family.items():
        files += packed(family, images, nvrtc_version, cache, jobs)
    return Made(made.host, tuple(files), made.compilers)


def _require_lzma() -> None:
    if (why := packing.lzma_error()) is not None:
        raise KernelError(
            "device code cannot be packed for a wheel",
            found=f"a Python without lzma ({sys.executable}): {why}",
            needed="a Python that was compiled with liblzma",
            fix=[
                "apt-get install -y liblzma-dev  # then compile Python again",
                "uv venv --managed-python  # then build there",
            ],
        )


def host_tools(settings: Settings, what: str = "the host library") -> tuple[Compiler, str]:
    """The C++ compiler and ninja; otherwise a KernelError that lists the places that were searched."""
    built_for = toolchain.target_machine(settings)
    compiler, places = toolchain.find_compiler(settings, built_for)
    ninja, ninja_places = toolchain.find_ninja()
    if compiler is None or ninja is None:
        raise KernelError(
            f"{what} for {built_for} cannot be built",
            found=(*places, *ninja_places),
            needed=f"a C++ compiler for {built_for} and ninja",
            fix=_missing_tools(compiler, ninja, toolchain.package_for(built_for), settings),
        )
    return compiler, ninja


def _missing_tools(compiler: Compiler | None, ninja: str | None, package: str, settings: Settings) -> str:
    steps = [] if ninja else [f"{pip.install_command()} ninja"]
    if compiler is None:
        command = "unset CXX" if settings.cxx else installer.compiler_command().replace("g++", package)
        if not command:
            return "  # and ".join([*steps, f"install the package {package}"])
        steps.insert(0, command)
    return fixes.both(steps)


def label_nvrtc(spec: LabelSpec, settings: Settings, site_dirs: Sequence[Path] | None = None) -> Nvrtc:
    """The exact NVRTC of the label, from the packages of this interpreter or from those in ``site_dirs``."""
    found, looked_at = nvrtc.find_nvrtc(None, settings.cuda_home, spec.nvrtc, site_dirs=site_dirs)
    if found is None:
        raise KernelError(
            f"the device code of +{spec.label} needs NVRTC {spec.nvrtc}",
            found=looked_at,
            needed=f"exactly NVRTC {spec.nvrtc}, as matrix.toml says",
            fix=f'{pip.install_command()} "{spec.requirement}"',
        )
    return found


def build_library(
    families: Sequence[catalogue.Family],
    compiler: Compiler,
    ninja: str,
    cache: Cache,
    settings: Settings,
    *,
    levels: tuple[flags.CpuLevel, ...] | None = None,
) -> Artifact:
    """Build one host library, and print how it was built."""
    made = host.build_host_library(
        families,
        compiler,
        cache=cache,
        debug=settings.debug,
        jobs=toolchain.default_jobs(settings),
        ninja=ninja,
        levels=levels,
        machine=toolchain.target_machine(settings),
    )
    say(f"host library of {', '.join(family.name for family in families)}: {_how(made)}")
    return made


def build_adapter(abi: Exact, compiler: Compiler, ninja: str, cache: Cache, settings: Settings) -> Artifact:
    """Build the adapter to one torch, and print how it was built."""
    jobs, machine = toolchain.default_jobs(settings), toolchain.target_machine(settings)
    debug = settings.debug
    made = host.build_adapter(abi, compiler, cache=cache, debug=debug, jobs=jobs, ninja=ninja, machine=machine)
    say(f"adapter {abi}: {_how(made)}")
    return made


def _how(made: Artifact) -> str:
    return "from the cache" if made.cached else f"in {made.seconds:.1f} s"


def build_images(
    family: catalogue.Family, targets: Sequence[GpuTarget], found: Nvrtc, cache: Cache, settings: Settings
) -> tuple[Artifact, ...]:
    """Build one family's images, and print the time it took."""
    jobs = toolchain.default_jobs(settings)
    made = device.build_images(family, targets, found, cache=cache, debug=settings.debug, jobs=jobs)
    seconds = sum(artifact.seconds for artifact in made)
    say(f"{family.name} for {' '.join(map(str, targets))}: NVRTC {found.version}, {seconds:.1f} s of compiling")
    return made


def check_ceilings(file: HostFile) -> None:
    """Check that a release loads wherever its platform tag promises: fail here, not on an old system."""
    glibcxx = tuple(int(part) for part in file.glibcxx.split("."))
    if file.glibc > flags.GLIBC_CEILING or glibcxx > flags.GLIBCXX_CEILING:
        raise KernelError(
            f"{file.path} is too new for manylinux_{flags.GLIBC_CEILING.major}_{flags.GLIBC_CEILING.minor}",
            found=f"GLIBC_{file.glibc}, GLIBCXX_{file.glibcxx}",
            needed=f"at most GLIBC_{flags.GLIBC_CEILING}, GLIBCXX_{'.'.join(map(str, flags.GLIBCXX_CEILING))}",
            fix="python -m tools build --driver cibuildwheel  # builds in the image of that policy",
        )


def manifest(made: Made, mode: BuildMode, label: Label, root: Path, index_url: str | None = None) -> BuildInfo:
    """The manifest of a wheel, or of a part of one."""
    facts = provenance.of(root)
    return BuildInfo(
        version=__version__,
        label=label,
        mode=mode,
        commit=facts.commit,
        dirty=facts.dirty,
        source_digest=sources.source_digest(sources.csrc_dir()),
        compilers=made.compilers,
        host=tuple(file for file, _ in made.host),
        device=tuple(file for file, _ in made.device),
        index_url=index_url,
    )


def packed(
    family: str, images: Mapping[GpuTarget, bytes], nvrtc_version: str, cache: Cache, jobs: int
) -> list[tuple[DeviceFile, Path]]:
    """A family's images packed, each with its manifest entry and its file; those of one file follow each other."""
    groups = packing.arrange({target: len(image) for target, image in images.items()})
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        every = pool.map(lambda group: _pack(family, group, images, cache), groups)
    return [
        (file, made.path)
        for group, made in zip(groups, every, strict=True)
        for file in _entries(family, group, images, nvrtc_version, made)
    ]


def _entries(
    family: str, group: Sequence[GpuTarget], images: Mapping[GpuTarget, bytes], nvrtc_version: str, made: Artifact
) -> Iterator[DeviceFile]:
    """The manifest entries of one file."""
    size, offset = made.path.stat().st_size, 0
    for target in group:
        yield DeviceFile(
            path=device_path(family, group),
            sha256=made.sha256,
            bytes=size,
            family=family,
            target=target,
            nvrtc=nvrtc_version,
            min_driver=min_driver(target, CudaVersion.parse(nvrtc_version)),
            offset=offset,
            content_bytes=len(images[target]),
            content_sha256=hashlib.sha256(images[target]).hexdigest(),
        )
        offset += len(images[target])


def _pack(family: str, group: Sequence[GpuTarget], images: Mapping[GpuTarget, bytes], cache: Cache) -> Artifact:
    """The images of one file packed for a wheel, which takes a second for each megabyte."""
    content = [images[target] for target in group]
    name = PurePosixPath(device_path(family, group)).name
    kind = group[0].kind
    inputs = {"name": name, "sha256": hashlib.sha256(b"".join(content)).hexdigest(), **packing.settings(kind)}

    def build(staging: Path) -> Path:
        payload = staging / name
        payload.write_bytes(packing.pack(content, kind))
        return payload

    return cache.obtain(BuildKey.of("packed", "packed", inputs), build)
