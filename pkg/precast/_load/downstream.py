"""Load the prebuilt files of another package: each is proved to fit this process before it is opened, or is refused.

The other wheel was made by ``precast.build``. Its package has a folder ``_C`` like ours with the same manifest, and the
same pure functions judge it. Nothing is built here: a wheel that does not fit must be rebuilt with its ``setup.py``.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.machinery import ExtensionFileLoader
from os.path import normpath
from pathlib import Path
from types import MappingProxyType, ModuleType

from precast._abi import remedy
from precast._abi.build_info import BuildInfo, DeviceFile, HostFile, NewerManifest
from precast._abi.capability import GpuTarget
from precast._abi.decide import Case, choose_image, choose_library
from precast._abi.decision import JIT_CANDIDATE, Need, Reason, Rejection
from precast._abi.host import Host
from precast._abi.settings import JitMode, Settings
from precast._abi.torch_abi import Exact
from precast._abi.value import value
from precast._load import dangling, prebuilt, probe, proved
from precast._version import __version__
from precast.errors import KernelError, KernelIncompatible, PrebuiltRefused

FOLDER = "_C"


@value(frozen=True)
class Image:
    """The device code that serves one GPU, read and verified."""

    target: GpuTarget
    content: bytes
    path: Path
    nvrtc: str  # the version that compiled it


@value(frozen=True)
class _Wheel:
    """The manifest of one package, and the folder of its prebuilt files."""

    package: str
    folder: Path
    info: BuildInfo


def inside(package: str) -> tuple[str, ...]:
    """The manifest folder relative to the package folder. A package named ``_C`` is itself that folder."""
    return () if package.rpartition(".")[2] == FOLDER else (FOLDER,)


def guard(module: str) -> None:
    """Replace the calling Python module, which passes its ``__name__``, with the compiled module of the same name.

    A library without ``PyInit_<name>`` is not a Python module: it registers its ops, and the calling module stays, with
    the library's path as ``library``. Raises PrebuiltRefused, an ImportError with the reasons, if it does not fit.
    """
    package, _, name = module.rpartition(".")
    fitting = _fitting(_wheel_of(package or module), name)  # a module of no package has its files in one of its name
    if fitting.is_module:
        sys.modules[module] = _import(fitting, module)
    else:
        _open(fitting, module)
        vars(sys.modules[module])["library"] = fitting.path


def load_library(package: str, name: str) -> Path:
    """Open a library that registers ops, without its guard module. Returns the path of the file."""
    fitting = _fitting(_wheel_of(package), name)
    if fitting.is_module:
        raise KernelError(
            f"{package}.{name} is a module for Python",
            found=f"{fitting.path.name}, with PyInit_{name}",
            needed="a library that only registers ops",
            fix=f"import {package}.{name}",
        )
    _open(fitting, f"{package}.{name}")
    return fitting.path


def library_file(package: str, name: str) -> Path:
    """The library behind a guard, verified and known to fit this process, for callers that read it without opening."""
    return _fitting(_wheel_of(package), name).path


def library_in(folder: Path, name: str) -> Path:
    """The library of that name behind the manifest in a folder, as :func:`library_file`, but nothing is imported."""
    return _fitting(_wheel_in(folder), name).path


def library_at(folder: Path, name: str) -> Path:
    """:func:`library_in`, after what the library links is opened, so that the caller can open it."""
    fitting = _fitting(_wheel_in(folder), name)
    _open_links(fitting, name)
    return fitting.path


def _wheel_in(folder: Path) -> _Wheel:
    info = proved.manifest(folder)
    if info is None:
        raise KernelError(f"there is no {prebuilt.MANIFEST} in {folder}", needed="the files that precast.build wrote")
    return _Wheel(_package_of(folder), folder, info)


def _package_of(folder: Path) -> str:
    """The dotted name of the package that has a manifest folder, as the innermost entry of sys.path finds it."""
    home = (folder.parent if folder.name == FOLDER else folder).resolve()
    entries = [Path(entry).resolve() for entry in sys.path]
    found = [".".join(home.relative_to(entry).parts) for entry in entries if entry in home.parents]
    return min(found, key=len, default=home.name)


def images(package: str, name: str) -> Mapping[int, Image]:
    """The device code of a DeviceExtension for each visible GPU, by index. PrebuiltRefused if it serves none of them.

    Creates no CUDA context.
    """
    wheel = _wheel_of(package)
    settings = _settings()
    host = probe.probe_host(settings, gpus=True)
    found: dict[int, Image] = {}
    refused: list[Rejection] = []
    bad: dict[str, str] = {}
    for gpu in host.gpus:
        while gpu.index not in found:  # ends: each turn adds a file to `bad`
            pick = choose_image(Case(host, wheel.info, settings, Need(name, "cuda"), bad), gpu)
            if not isinstance(pick.chosen, DeviceFile):
                refused += pick.rejections
                break
            try:
                content = prebuilt.verified_bytes(pick.chosen, wheel.folder)
                found[gpu.index] = Image(
                    pick.chosen.target, content, wheel.folder / pick.chosen.path, pick.chosen.nvrtc
                )
            except prebuilt.Damaged as error:
                bad[pick.chosen.name] = str(error)
            except prebuilt.NoLzma as error:
                raise PrebuiltRefused(
                    f"{package}.{name} cannot be unpacked",
                    found=f"a Python without lzma: {error}",
                    needed="one that was compiled with liblzma",
                ) from error
    if not found:
        raise _refused(f"{package}.{name} has device code for no GPU here", wheel, host, refused)
    return MappingProxyType(found)


@value(frozen=True)
class _Fitting:
    """A library that fits this process, whether Python can import it, and what must be open before it."""

    path: Path
    is_module: bool
    links: tuple[Path, ...]


def _fitting(wheel: _Wheel, name: str) -> _Fitting:
    """The library of that name, verified and known to fit this process. Raises PrebuiltRefused otherwise."""
    settings = _settings()
    named = [file for file in wheel.info.host if name in file.families]
    own = [*named, *(linked for file in named for linked in wheel.info.linked(file))]
    host = probe.probe_host(settings, gpus=any(file.code for file in own))
    if any(file.cpu for file in own):
        from precast._builder import toolchain  # reads /proc/cpuinfo, which few libraries need

        host = replace(host, cpu_features=toolchain.cpu_features())
    what = f"{wheel.package}.{name}"
    if host.torch is None:
        raise PrebuiltRefused(remedy.needs_torch(what, host))
    pick = choose_library(Case(host, wheel.info, settings, Need(name, "cpu"), {}))
    if not isinstance(pick.chosen, HostFile):
        against = [why for why in pick.rejections if why.reason is not Reason.FAMILY] or pick.rejections
        raise _refused(f"{what} was built for another process than this one", wheel, host, against)
    file, exported = pick.chosen, list[bool]()
    files = (file, *wheel.info.linked(file))
    try:
        for file in files:
            exported.append(proved.exports(file, wheel.folder, f"PyInit_{name}", settings))
    except prebuilt.Damaged as error:
        damaged = Rejection("host", file.name, Reason.DAMAGED, "the library that was built", str(error))
        raise _refused(f"{what} is damaged", wheel, host, [damaged]) from error
    path, *links = (Path(normpath(wheel.folder / file.path)) for file in files)
    return _Fitting(path, exported[0], tuple(links))


def _wheel_of(package: str) -> _Wheel:
    """The manifest of an importable package, from whichever of its path entries has one."""
    spec = importlib.util.find_spec(package) if package else None
    if spec is None:
        raise KernelError(f"there is no package {package!r}", needed="an installed one that precast.build has built")
    folders = [Path(place, *inside(package)) for place in spec.submodule_search_locations or ()]
    for folder in folders:
        try:
            info = proved.manifest(folder)
        except KernelIncompatible as error:
            raise _bad_manifest(package, folder / prebuilt.MANIFEST, error.__cause__) from error
        if info is not None:
            return _Wheel(package, folder, info)
    raise PrebuiltRefused(
        f"{package} has nothing prebuilt",
        found=f"no {prebuilt.MANIFEST} in {', '.join(map(str, folders))}",
        needed="a wheel of it, or its setup.py with cmdclass={'build_ext': precast.build.BuildExtension}",
        fix=_again(package),
    )


def _bad_manifest(package: str, path: Path, why: BaseException | None) -> PrebuiltRefused:
    """The error for a manifest of a later precast, which an upgrade of precast reads, or for a damaged one."""
    needed, fix = f"the {prebuilt.MANIFEST} that precast.build {__version__} writes", ""
    if isinstance(why, NewerManifest):
        from precast._builder import installer

        needed = f"precast{why.readers or ' of a later version'}, as {package} was built with that"
        fix = f"{installer.install_command()} -U 'precast{why.readers}'"
    return PrebuiltRefused(
        f"the manifest of {package} cannot be used, so nothing prebuilt of it is loaded",
        found=f"{path}: {why}",
        needed=needed,
        fix=fix or _again(package),
    )


def _settings() -> Settings:
    """The settings without JIT: another package is prebuilt or refused; PRECAST_JIT governs precast's own builds."""
    return replace(probe.read_settings(), jit=JitMode.AOT)


def _refused(headline: str, wheel: _Wheel, host: Host, rejections: Iterable[Rejection]) -> PrebuiltRefused:
    from precast._abi import explain  # imported for errors alone, as the texts and commands are many

    prebuilt_only = tuple(why for why in rejections if why.candidate != JIT_CANDIDATE)
    env = explain.environment(host, None, __version__)
    fixes = (*_other_torch(wheel.info, host, prebuilt_only), _again(wheel.package))
    return PrebuiltRefused(explain.explain(headline, prebuilt_only, env, fixes))


def _other_torch(info: BuildInfo, host: Host, rejections: Iterable[Rejection]) -> list[str]:
    """The command for the torch nearest to this one, of those that refused libraries were built for."""
    from precast._builder import installer

    bound = {why.candidate for why in rejections if why.reason is Reason.TORCH_ABI}
    releases = {one.abi.release for one in info.host if one.name in bound and isinstance(one.abi, Exact)}
    if host.torch is None or not releases:
        return []
    here = host.torch.version.release
    nearest = min(releases, key=lambda one: (one > here, abs(one.minor - here.minor)))
    return [f"{installer.install_command()} 'torch=={nearest}.*'  # the torch that it was built for"]


def _again(package: str) -> str:
    from importlib.metadata import packages_distributions  # takes 5 ms, and only an error needs it

    from precast._builder import installer

    distributions = packages_distributions().get(package.partition(".")[0], ())
    name = distributions[0] if distributions else package.partition(".")[0]
    install, sources = installer.install_command(), _sources_of(name, package)
    if sources is not None:
        return f"{install} --no-build-isolation --no-cache-dir --force-reinstall --no-deps {sources}"
    return (
        f"{install} --no-build-isolation --no-cache-dir --force-reinstall --no-deps --no-binary {name} {name}"
        "  # builds it for this torch, or: pip install . in its sources"
    )


def _sources_of(distribution: str, package: str) -> str | None:
    """Where pip got the package from, if pip recorded it."""
    from precast._builder import installer

    spec = importlib.util.find_spec(package.partition(".")[0])
    if spec is None or spec.origin is None:
        return None
    return installer.origin(distribution, Path(spec.origin).parent)[0]


def _open_links(fitting: _Fitting, what: str) -> None:
    """Open what a library links: the dynamic linker takes an open library with the SONAME that it looks for."""
    if not fitting.links:
        return
    import torch  # noqa: F401  # which they may link

    path = fitting.path
    try:
        for path in fitting.links:
            ctypes.CDLL(str(path))
    except OSError as error:
        raise _cannot_open(path, what, error) from error


def _open(fitting: _Fitting, what: str) -> None:
    """Open a library whose static objects register ops."""
    import torch

    _open_links(fitting, what)
    try:
        with dangling.refused(fitting.path):
            torch.ops.load_library(str(fitting.path))
    except OSError as error:
        raise _cannot_open(fitting.path, what, error) from error


def _import(fitting: _Fitting, module: str) -> ModuleType:
    loader = ExtensionFileLoader(module, str(fitting.path))
    spec = importlib.util.spec_from_file_location(module, fitting.path, loader=loader)
    if spec is None:
        raise AssertionError(f"no spec for {fitting.path}, though its loader is given")
    _open_links(fitting, module)
    try:
        with dangling.refused(fitting.path):
            compiled = importlib.util.module_from_spec(spec)
            loader.exec_module(compiled)
    except ImportError as error:
        raise _cannot_open(fitting.path, module, error) from error
    return compiled


def _cannot_open(path: Path, what: str, error: Exception) -> PrebuiltRefused:
    """The error for a file that matches its manifest and should fit here, but that the dynamic linker refuses."""
    from precast._load import unopened

    reason = unopened.why(path, str(error))
    if reason is not None:
        found = f"{path}: {reason.found}"
        return PrebuiltRefused(f"{what} cannot be opened now", found=found, needed=reason.wanted, fix=reason.remedy)
    return PrebuiltRefused(
        f"{what} cannot be opened, though it is what its manifest says and all of that fits",
        found=f"{path}: {error}",
        needed="a library that its author has tried: python -m precast.build --audit WHEEL",
    )
