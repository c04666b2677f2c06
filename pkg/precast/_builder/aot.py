"""Building ahead of time, for ``setup.py``: the binaries that a wheel contains, and the requirements of its build.

There are three modes. Pure: sources, and a manifest that says so. Release (PRECAST_LABEL): the host libraries and the
label's device code, compiled by the label's exact NVRTC or taken from finished parts of earlier jobs (PRECAST_PARTS).
Machine (CUDA_EXT=1): the host library, and device code for the GPUs here. Everything is written into the build folder,
nothing into the source tree. An editable install has no build folder, so its builds go into the user's build cache,
where the loader finds them under the same keys.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from precast._abi.settings import Settings
from precast._builder import (
    catalogue,
    descriptions,
    flags,
    headers,
    machine,
    matrix,
    packing,
    parts,
    provenance,
    stubs,
    toolchain,
)
from precast._builder.binaries import (
    Made,
    build_images,
    build_library,
    check_ceilings,
    host_tools,
    joined,
    label_nvrtc,
    make_device,
    make_host,
    manifest,
)
from precast._builder.cache import Cache, default_root
from precast._builder.machine import say
from precast._version import __version__
from precast.core import pip, probe
from precast.core.files import DIGEST
from precast.core.manifest import BuildMode, host_path, image_name
from precast.core.torch_abi import ANY_TORCH, AnyTorch, Exact
from precast.core.version import Label, Release
from precast.errors import KernelError


def mode_of(settings: Settings) -> BuildMode:
    """The mode that the environment asks for. Setting both variables is refused, as they name different wheels."""
    if settings.label is not None and settings.cuda_ext:
        raise KernelError(
            "PRECAST_LABEL and CUDA_EXT ask for different wheels",
            found=f"PRECAST_LABEL={settings.label} and CUDA_EXT=1",
            needed="only one of the two",
            fix=["unset CUDA_EXT  # for a release wheel", "unset PRECAST_LABEL  # for a build for this machine"],
        )
    if settings.label is not None:
        return BuildMode.RELEASE
    if settings.parts is not None:
        raise KernelError(
            f"PRECAST_PARTS={settings.parts} has the parts of a release wheel, and this build is not one",
            found="PRECAST_LABEL not set",
            needed="PRECAST_LABEL set to the label of that wheel, or PRECAST_PARTS not set",
            fix=["unset PRECAST_PARTS", "export PRECAST_LABEL=cu130  # if the parts are those of the cu130 wheel"],
        )
    if settings.only_torch is not None:
        raise KernelError(
            f"PRECAST_ONLY_TORCH={settings.only_torch} is for release wheels, and this build is not one",
            found="PRECAST_LABEL not set",
            needed="PRECAST_LABEL set to the label of that wheel, or PRECAST_ONLY_TORCH not set",
            fix=["unset PRECAST_ONLY_TORCH", "export PRECAST_LABEL=cu130  # for a release wheel for CUDA 13.0"],
        )
    if settings.arch not in (None, platform.machine()):
        raise KernelError(
            f"PRECAST_ARCH={settings.arch} is for release wheels, and this build is not one",
            found=f"PRECAST_LABEL not set; this machine is {platform.machine()}",
            needed=f"PRECAST_LABEL set, or PRECAST_ARCH={platform.machine()}",
            fix=["unset PRECAST_ARCH", "export PRECAST_LABEL=cpu  # for a release wheel without GPU code"],
        )
    return BuildMode.MACHINE if settings.cuda_ext else BuildMode.PURE


def version_of(settings: Settings) -> str:
    """The version of the wheel, with the label as its local part."""
    return f"{__version__}{'' if settings.label is None else settings.label.local}"


def requirements(settings: Settings, root: Path) -> list[str]:
    """The packages that a build needs beyond setuptools; none for a pure wheel from an sdist."""
    needed = []
    if mode_of(settings) is not BuildMode.PURE and settings.parts is None:
        needed.append("ninja")
    if settings.label is not None:
        known = matrix.load(root / "matrix.toml")
        promised_hosts(known, toolchain.target_machine(settings), settings.only_torch)
        exact = [source.requirement for source, _ in known.device_sources(settings.label)]
        needed += [] if settings.parts is not None else [text for text in exact if text is not None]
    builds_release = settings.label is not None and settings.parts is None
    # The hooks of a pure wheel also make the sdist.
    carries = mode_of(settings) is not BuildMode.MACHINE
    if builds_release or (carries and not headers.are_here(root / "csrc", Cache(default_root(settings)))):
        needed.append("pip")  # finds the headers on the package index; a release also needs those of older torches
    return needed


def stage_wheel(build_lib: Path, settings: Settings, root: Path) -> None:
    """Put binaries and the manifest below ``build_lib/precast``, and for a release the headers for extensions.

    An sdist carries the headers with its sources, so every wheel built from an sdist has them too.
    """
    cache = Cache(default_root(settings))
    package = build_lib / "precast"
    mode = mode_of(settings)
    if mode is BuildMode.RELEASE:
        _copy_headers(headers.pinned(cache).parent, package / "csrc" / headers.FOLDER)
    made = Made() if mode is BuildMode.PURE else _make(settings, root, cache)
    if settings.label is not None:
        for file, _ in made.host:
            check_ceilings(file)
        known = matrix.load(root / "matrix.toml")
        check_promise(made, known, settings.label, toolchain.target_machine(settings), settings.only_torch)
    info = manifest(made, mode, settings.label or Label(""), root, settings.index_url)
    _place(made, package / "_C")
    (package / "_builder" / catalogue.GATHERED.name).write_text(descriptions.gathered(root / "csrc"), encoding="utf-8")
    stubs.write(package, catalogue.FOLDERS)
    (package / "_C").mkdir(parents=True, exist_ok=True)
    (package / "_C" / "build_info.json").write_text(info.to_json(), encoding="utf-8")
    (package / "csrc" / DIGEST).write_text(f"{info.source_digest}\n", encoding="ascii")
    for path in package.rglob("*"):  # independent of the umask of the checkout or the unpacked sdist
        path.chmod(0o755 if path.is_dir() else 0o644)
    say(f"{mode.value} wheel: {len(info.host)} host files, {len(info.device)} device images")


def promised_hosts(known: matrix.Matrix, built_for: str, only: Release | None) -> tuple[AnyTorch | Exact, ...]:
    """The library of a release wheel and its adapters. KernelError if PRECAST_ONLY_TORCH selects no torch."""
    hosts = known.hosts(built_for, only)
    if hosts:
        return hosts
    minors = [str(release.release) for release in known.releases if known.hosts(built_for, release.release)]
    raise KernelError(
        f"PRECAST_ONLY_TORCH={only} selects no torch for {built_for}",
        found=f"no torch {only} for {built_for} in matrix.toml",
        needed=f"one of {', '.join(minors)}",
        fix=[f"export PRECAST_ONLY_TORCH={minors[-1]}", "unset PRECAST_ONLY_TORCH  # for all of them"],
    )


def check_promise(made: Made, known: matrix.Matrix, label: Label, built_for: str, only: Release | None) -> None:
    """KernelError unless a release wheel has exactly the library, adapters and device files that its label promises.

    For a user of the label, a wheel with missing files would look like one that does not support this machine.
    """
    hosts = {host_path(abi, built_for) for abi in promised_hosts(known, built_for, only)}
    with_code = [family.name for family in catalogue.FAMILIES if family.device is not None]
    targets = known.label(label).targets
    promised = hosts | {image_name(family, target) for family in with_code for target in targets}
    there = {path for path, (size, source) in made.files.items() if source.is_file() and source.stat().st_size == size}
    found = {file.name for file, _ in made.host if file.path in there}
    found |= {image.name for image, _ in made.device if image.path in there}
    if promised == found:
        return
    lacks, has = sorted(promised - found), sorted(found - promised)
    said = [f"no {name}" for name in lacks] + [f"{name}, which the label does not promise" for name in has]
    more = f", and {len(said) - 5} more" if len(said) > 5 else ""
    raise KernelError(
        f"the {known.label(label).name} wheel for {built_for} is not what its label promises",
        found=f"{', '.join(said[:5])}{more}",
        needed=f"exactly a library, {len(hosts) - 1} adapters and {len(promised) - len(hosts)} device images",
        fix="unset PRECAST_PARTS; export PRECAST_CACHE_DIR=$(mktemp -d)  # then build again",
    )


def stage_sdist(tree: Path, facts: provenance.Provenance, settings: Settings) -> None:
    """Copy into the sdist what its build could not get without git or the network."""
    if settings.label is not None:
        raise KernelError(
            "an sdist cannot be built for one label, because it serves all of them",
            found=f"PRECAST_LABEL={settings.label}",
            needed="PRECAST_LABEL not set",
            fix="unset PRECAST_LABEL",
        )
    include = headers.pinned(Cache(default_root(settings)))
    _copy_headers(include.parent, tree / "csrc" / headers.FOLDER)
    provenance.record(facts, tree)


def warm_cache(settings: Settings) -> None:
    """For an editable install with CUDA_EXT=1: build each family into the user's cache, under the key of a JIT."""
    if mode_of(settings) is BuildMode.RELEASE:
        raise KernelError(
            "an editable install cannot be built for a label",
            found=f"PRECAST_LABEL={settings.label}",
            needed="PRECAST_LABEL not set, or an install that is not editable",
            fix=["unset PRECAST_LABEL  # then install again", f"{pip.install_command()} --no-deps ."],
        )
    if mode_of(settings) is BuildMode.PURE:
        return
    cache = Cache(default_root(settings))
    say(machine.torch_note())
    build_for_here(catalogue.FAMILIES, settings, cache)
    say(f"built into {cache.root}: an editable install has no folder of its own")


def build_for_here(families: Sequence[catalogue.Family], settings: Settings, cache: Cache) -> None:
    """Put the builds that a JIT on this machine would make into the cache, under the same keys."""
    compiler, ninja = host_tools(settings)
    for family in families:
        build_library((family,), compiler, ninja, cache, settings, levels=(level_here(),))
    with_device = [family for family in families if family.device is not None]
    found, targets = machine.targets(settings) if with_device else (None, ())
    if found is None or not targets:
        return
    with ThreadPoolExecutor(max_workers=toolchain.default_jobs(settings)) as pool:
        list(pool.map(lambda family: build_images(family, targets, found, cache, settings), with_device))


def level_here() -> flags.CpuLevel:
    """The CPU level that a JIT build on this machine chooses."""
    return flags.best_level(platform.machine(), probe.cpu_features())


def _make(settings: Settings, root: Path, cache: Cache) -> Made:
    """For a label: take its finished parts, or build its files. Without a label: build for this machine."""
    if settings.label is None:
        say(machine.torch_note())
        found, targets = machine.targets(settings)
        if found is not None and (why := packing.lzma_error()) is not None:
            say(f"no device code is built ahead of time, as this Python could not unpack it: {why}")
            found = None
        made = [make_host(ANY_TORCH, settings, cache)]
        return joined([*made, *([] if found is None else [make_device(targets, found, settings, cache)])])
    built_for = toolchain.target_machine(settings)
    known = matrix.load(root / "matrix.toml")
    spec = known.label(settings.label)
    if settings.arch_list is not None:
        say(f"PRECAST_CUDA_ARCH_LIST and TORCH_CUDA_ARCH_LIST are not used: the label {spec.name} has its own targets")
    if settings.parts is not None:
        return parts.take(Path(settings.parts), known, spec, built_for, root, settings, settings.only_torch)
    compilers = [(label_nvrtc(source, settings), targets) for source, targets in known.device_sources(spec.label)]
    hosts = [make_host(abi, settings, cache) for abi in promised_hosts(known, built_for, settings.only_torch)]
    return joined([*hosts, *(make_device(targets, found, settings, cache) for found, targets in compilers)])


def _place(made: Made, c_dir: Path) -> None:
    for path, (_, source) in made.files.items():
        (c_dir / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, c_dir / path)


def _copy_headers(source: Path, target: Path) -> None:
    if source.resolve() == target.resolve():
        return
    pins = headers.load_pins()
    for name in (*(f"include/{header}" for header in pins.headers), *pins.notices):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, target / name)
