"""Building ahead of time, for ``setup.py``: what a wheel gets beside the Python files, and what building it requires.

Three modes. Pure: sources, stable headers and a manifest that says so. Release (PRECAST_LABEL): the host library and
the label's device code, by the label's exact NVRTC. Machine (CUDA_EXT=1): the host library and device code for the GPUs
here. Everything is written into the build folder, nothing into the source tree; an editable install has no build
folder, so what it builds goes into the user's build cache, where the loader finds it under the same key.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Sequence
from pathlib import Path

from precast._abi.build_info import BuildInfo, BuildMode, DeviceFile, HostFile, device_path, host_path
from precast._abi.capability import GpuTarget, min_driver
from precast._abi.host import Compiler, Nvrtc
from precast._abi.label import Label
from precast._abi.settings import Settings
from precast._abi.torch_abi import STABLE_FLOOR, Stable
from precast._abi.version import CudaVersion, Release
from precast._build import (
    catalogue,
    device,
    flags,
    headers,
    host,
    machine,
    matrix,
    nvrtc,
    provenance,
    sources,
    toolchain,
)
from precast._build.cache import Artifact, Cache, default_root
from precast._build.machine import say
from precast._version import __version__
from precast.errors import KernelError


def mode_of(settings: Settings) -> BuildMode:
    """What the environment asks for; both at once is refused, as they name different wheels."""
    if settings.label is not None and settings.cuda_ext:
        raise KernelError(
            f"PRECAST_LABEL={settings.label} and CUDA_EXT=1 ask for different wheels\n"
            f"  found   both set\n"
            f"  needed  PRECAST_LABEL for a release wheel, or CUDA_EXT=1 for a build for this machine\n"
            f"  fix     1) unset one of them"
        )
    if settings.label is not None:
        return BuildMode.RELEASE
    if settings.arch not in (None, platform.machine()):
        raise KernelError(
            f"PRECAST_ARCH={settings.arch} is the architecture of a release wheel\n"
            f"  found   no PRECAST_LABEL, and a machine that is {platform.machine()}\n"
            f"  needed  PRECAST_LABEL beside it\n"
            f"  fix     1) set PRECAST_LABEL, such as cpu   2) unset PRECAST_ARCH"
        )
    return BuildMode.MACHINE if settings.cuda_ext else BuildMode.PURE


def version_of(settings: Settings) -> str:
    """The version of the wheel: the label is its local part."""
    return f"{__version__}{'' if settings.label is None else settings.label.local}"


def requirements(settings: Settings, root: Path) -> list[str]:
    """What a build needs beyond setuptools: nothing for a pure wheel from an sdist."""
    needed = []
    if mode_of(settings) is not BuildMode.PURE:
        needed.append("ninja")
    if settings.label is not None:
        exact = matrix.load(root / "matrix.toml").label(settings.label).requirement
        needed += [] if exact is None else [exact]
    pins = headers.load_pins()
    kept = host.headers_in_cache(Cache(default_root(settings)), pins)
    if not headers.complete(root / "csrc" / "torch_stable", pins) and not headers.complete(kept, pins):
        needed.append("pip")  # asks the index where the headers lie
    return needed


def stage_wheel(build_lib: Path, settings: Settings, root: Path) -> None:
    """Put headers, binaries and manifest below ``build_lib/precast``."""
    cache = Cache(default_root(settings))
    package = build_lib / "precast"
    _copy_headers(host.stable_headers_dir(cache).parent, package / "csrc" / "torch_stable")
    mode = mode_of(settings)
    if mode is BuildMode.PURE:
        info = _manifest(settings, root, (), (), ())
    else:
        info = _build(package / "_C", settings, root, cache)
    (package / "_C").mkdir(parents=True, exist_ok=True)
    (package / "_C" / "build_info.json").write_text(info.to_json(), encoding="utf-8")
    say(f"{mode.value} wheel: {len(info.host)} host libraries, {len(info.device)} device images")


def stage_sdist(tree: Path, root: Path, settings: Settings) -> None:
    """Put what a build from the sdist cannot ask git or the network for into its tree."""
    if settings.label is not None:
        raise KernelError(f"an sdist serves every label: unset PRECAST_LABEL (found {settings.label})")
    include = host.stable_headers_dir(Cache(default_root(settings)))
    _copy_headers(include.parent, tree / "csrc" / "torch_stable")
    provenance.record(root, tree)


def warm_cache(settings: Settings) -> None:
    """An editable install with CUDA_EXT=1: each family goes into the user's cache, under the key a JIT would use."""
    if mode_of(settings) is BuildMode.RELEASE:
        raise KernelError("an editable install has no label: unset PRECAST_LABEL, or build a wheel")
    cache = Cache(default_root(settings))
    if mode_of(settings) is BuildMode.PURE:
        try:
            host.stable_headers_dir(cache)
        except KernelError as error:  # the install is sound without them; the first build will ask again
            say(str(error))
        return
    compiler, ninja = _host_tools(settings)
    say(machine.torch_note())
    level = flags.best_level(platform.machine(), toolchain.cpu_features())  # as a JIT here would choose
    for family in catalogue.FAMILIES:
        _build_library((family,), compiler, ninja, cache, settings, levels=(level,))
    found, targets = machine.targets(settings)
    for family in catalogue.FAMILIES:
        if found is not None and targets and family.device is not None:
            _build_images(family, targets, found, cache, settings)
    say(f"built into {cache.root}: an editable install has no folder of its own")


def _build(c_dir: Path, settings: Settings, root: Path, cache: Cache) -> BuildInfo:
    """Build for the label, else for this machine, and copy the results below ``_C``."""
    compiler, ninja = _host_tools(settings)
    if settings.label is not None:
        spec = matrix.load(root / "matrix.toml").label(settings.label)
        found, targets = _label_nvrtc(spec, settings), spec.targets
    else:
        say(machine.torch_note())
        found, targets = machine.targets(settings)
    library = _build_library(catalogue.FAMILIES, compiler, ninja, cache, settings)
    host_file = _host_file(library, c_dir, settings)
    if settings.label is not None:
        check_ceilings(host_file)
    device_files: list[DeviceFile] = []
    for family in catalogue.FAMILIES:
        if found is not None and family.device is not None:
            made = _build_images(family, targets, found, cache, settings)
            device_files += (
                _device_file(artifact, c_dir, family.name, target, found)
                for target, artifact in zip(targets, made, strict=True)
            )
    used = ((compiler.kind, compiler.version), *(() if found is None else (("nvrtc", found.version),)))
    return _manifest(settings, root, used, (host_file,), tuple(device_files))


def _host_tools(settings: Settings) -> tuple[Compiler, str]:
    built_for = toolchain.target_machine(settings)
    compiler, places = toolchain.find_compiler(settings, built_for)
    ninja, ninja_places = toolchain.find_ninja()
    if compiler is None or ninja is None:
        raise KernelError(
            f"the host library for {built_for} cannot be built\n"
            + "".join(f"  found   {line}\n" for line in (*places, *ninja_places))
            + f"  needed  a C++ compiler for {built_for} and ninja\n"
            f"  fix     1) apt-get install {toolchain.package_for(built_for)}   2) pip install ninja"
        )
    return compiler, ninja


def _label_nvrtc(spec: matrix.LabelSpec, settings: Settings) -> Nvrtc | None:
    """The label's very NVRTC, which is a build requirement; None for a label without device code."""
    if spec.nvrtc is None:
        return None
    found, looked_at = nvrtc.find_nvrtc(None, settings.cuda_home, spec.nvrtc)
    if found is None:
        raise KernelError(
            f"the wheel +{spec.label} needs NVRTC {spec.nvrtc}\n"
            + "".join(f"  found   {line}\n" for line in looked_at)
            + f"  needed  exactly {spec.nvrtc}, as matrix.toml says\n"
            f'  fix     1) pip install "{spec.requirement}", or build with isolation, which does that'
        )
    return found


def _build_library(
    families: Sequence[catalogue.Family],
    compiler: Compiler,
    ninja: str,
    cache: Cache,
    settings: Settings,
    *,
    levels: tuple[flags.CpuLevel, ...] | None = None,
) -> Artifact:
    made = host.build_host_library(
        families,
        Stable(STABLE_FLOOR),
        compiler,
        cache=cache,
        debug=settings.debug,
        jobs=toolchain.default_jobs(settings),
        ninja=ninja,
        levels=levels,
        machine=toolchain.target_machine(settings),
    )
    how = "from the cache" if made.cached else f"in {made.seconds:.1f} s"
    say(f"host library for {', '.join(family.name for family in families)}: {how}")
    return made


def _build_images(
    family: catalogue.Family, targets: Sequence[GpuTarget], found: Nvrtc, cache: Cache, settings: Settings
) -> tuple[Artifact, ...]:
    jobs = toolchain.default_jobs(settings)
    made = device.build_images(family, targets, found, cache=cache, debug=settings.debug, jobs=jobs)
    seconds = sum(artifact.seconds for artifact in made)
    say(f"{family.name} for {' '.join(map(str, targets))}: NVRTC {found.version}, {seconds:.1f} s of compiling")
    return made


def check_ceilings(file: HostFile) -> None:
    """A release must load wherever its platform tag promises; better to fail here than on an old system."""
    glibcxx = tuple(int(part) for part in file.glibcxx.split("."))
    if file.glibc > flags.GLIBC_CEILING or glibcxx > flags.GLIBCXX_CEILING:
        raise KernelError(
            f"{file.path} is too new for manylinux_{flags.GLIBC_CEILING.major}_{flags.GLIBC_CEILING.minor}\n"
            f"  found   GLIBC_{file.glibc}, GLIBCXX_{file.glibcxx}\n"
            f"  needed  at most GLIBC_{flags.GLIBC_CEILING}, GLIBCXX_{'.'.join(map(str, flags.GLIBCXX_CEILING))}"
        )


def _host_file(made: Artifact, c_dir: Path, settings: Settings) -> HostFile:
    data = made.path.read_bytes()
    abi = Stable(STABLE_FLOOR)
    built_for = toolchain.target_machine(settings)
    info = host.verify_library(data, abi, built_for)
    path = host_path(abi)
    _place(made, c_dir / path)
    return HostFile(
        path=path,
        sha256=made.sha256,
        bytes=len(data),
        abi=abi,
        machine=info.machine,
        needed=info.needed,
        glibc=Release(*(*info.glibc, 0, 0)[:2]),
        glibcxx=".".join(map(str, info.glibcxx or (3, 4))),
        cpu_levels=tuple(level.name for level in flags.cpu_levels(built_for)),
        families=tuple(family.name for family in catalogue.FAMILIES),
        debug=settings.debug,
    )


def _device_file(made: Artifact, c_dir: Path, family: str, target: GpuTarget, found: Nvrtc) -> DeviceFile:
    path = device_path(family, target)
    _place(made, c_dir / path)
    return DeviceFile(
        path=path,
        sha256=made.sha256,
        bytes=made.path.stat().st_size,
        family=family,
        target=target,
        nvrtc=found.version,
        min_driver=min_driver(target, CudaVersion.parse(found.version)),
    )


def _place(made: Artifact, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(made.path, path)
    path.chmod(0o644)


def _manifest(
    settings: Settings,
    root: Path,
    compilers: tuple[tuple[str, str], ...],
    host_files: tuple[HostFile, ...],
    device_files: tuple[DeviceFile, ...],
) -> BuildInfo:
    facts = provenance.of(root)
    return BuildInfo(
        version=__version__,
        label=settings.label or Label(""),
        mode=mode_of(settings),
        commit=facts.commit,
        dirty=facts.dirty,
        source_digest=sources.source_digest(sources.csrc_dir()),
        compilers=compilers,
        host=host_files,
        device=device_files,
    )


def _copy_headers(source: Path, target: Path) -> None:
    if source.resolve() == target.resolve():
        return
    pins = headers.load_pins()
    for name in (*(f"include/{header}" for header in pins.headers), *pins.notices):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, target / name)
