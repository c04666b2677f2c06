"""Open the compiled files of a package: each is proved to fit this process before it is opened, or is refused.

A guard, the short text in the place of a library, calls this. The package has a folder ``_C`` with a manifest and takes
along a copy of these modules. Nothing is built here: a wheel that does not fit must be built again.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from os.path import normpath
from pathlib import Path
from types import ModuleType
from typing import Any

from . import choose, dangling, probe, verify
from .errors import KernelError, PrebuiltRefused
from .host import Host
from .manifest import GUARD_MARK, BuildInfo, HostFile
from .reasons import Reason, Rejection, damaged
from .value import value
from .verify import CannotOpen, opened

FOLDER = "_C"
_NOT_A_NAME = re.compile(r"\W")


@value(frozen=True)
class Wheel:
    """The manifest of one package, and the folder of its prebuilt files."""

    package: str
    folder: Path
    info: BuildInfo


@value(frozen=True)
class Fitting:
    """A library that fits this process, whether Python can import it, and what must be open before it."""

    path: Path
    is_module: bool
    links: tuple[Path, ...]


def inside(package: str) -> tuple[str, ...]:
    """The manifest folder relative to the package folder. A package named ``_C`` is itself that folder."""
    return () if package.rpartition(".")[2] == FOLDER else (FOLDER,)


def guard(module: str) -> None:
    """Replace the calling Python module, which passes its ``__name__``, with the compiled module of the same name.

    A library without ``PyInit_<name>`` is not a Python module: it registers its ops, and the calling module stays, with
    the library's path as ``library``. Raises PrebuiltRefused, an ImportError with the reasons, if it does not fit.
    """
    package, _, name = module.rpartition(".")
    fitting = fit(wheel_of(package or module), name)  # a module of no package has its files in one of its name
    if fitting.is_module:
        sys.modules[module] = _import(fitting, module)
    else:
        _open(fitting, module)
        vars(sys.modules[module])["library"] = fitting.path


def load_library(package: str, name: str) -> Path:
    """Open a library that registers ops, without its guard module. Returns the path of the file."""
    fitting = fit(wheel_of(package), name)
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
    return fit(wheel_of(package), name).path


def resolve(path: Any) -> Any:
    """The library behind a guard, after what it links is opened; any other path unchanged. So is the spec of a module.

    A package that opens a library by its path passes the path through here. PrebuiltRefused if no library fits.
    """
    if isinstance(path, ModuleSpec):
        path.origin = resolve(path.origin)
        return path
    try:
        place = Path(path)
        with place.open("rb") as file:
            is_guard = file.read(len(GUARD_MARK)) == GUARD_MARK.encode()
    except (OSError, TypeError):
        return path  # torch says what is wrong with it
    if not is_guard:
        return path
    name, folder = name_of(place.name), place.resolve().parent
    name = folder.name if name == "__init__" else name
    fitting = fit(wheel_in(manifest_of(folder, name)), name)
    _open_links(fitting, name)
    return str(fitting.path)


def manifest_of(folder: Path, name: str) -> Path:
    """The folder of the manifest that lists a library: beside its guard, or of a package around that."""
    around = [place for one in (folder, *folder.parents) for place in (one / FOLDER, one)]
    there = [place for place in around if (place / verify.MANIFEST).is_file()]
    for place in there:
        if any(name in file.families for file in wheel_in(place).info.host):
            return place
    return there[0] if there else folder


def name_of(file: str) -> str:
    """The name in a manifest of a library with that file name: its first part, with letters, digits and underscores."""
    return _NOT_A_NAME.sub("_", file.partition(".")[0])


# ---- the manifest of a package ----


def wheel_of(package: str) -> Wheel:
    """The manifest of an importable package, from whichever of its path entries has one."""
    spec = importlib.util.find_spec(package) if package else None
    if spec is None:
        from . import pip  # imported for errors alone

        raise KernelError(
            f"there is no package {package!r}",
            found="no module of that name on sys.path",
            needed="an installed package that precast.build has built",
            fix=f"{pip.install_command()} {package.partition('.')[0]}",
        )
    folders = [Path(place, *inside(package)) for place in spec.submodule_search_locations or ()]
    for folder in folders:
        info = _manifest(folder, package)
        if info is not None:
            return Wheel(package, folder, info)
    from . import refusals

    raise refusals.nothing_prebuilt(package, folders)


def wheel_in(folder: Path) -> Wheel:
    """The manifest in a folder, of which nothing is imported."""
    package = _package_of(folder)
    info = _manifest(folder, package)
    if info is None:
        raise KernelError(
            f"no library can be opened from {folder}",
            found=f"no {verify.MANIFEST} in the folder",
            needed="the files that precast.build wrote",
            fix="install the package again, from its wheel",
        )
    return Wheel(package, folder, info)


def _manifest(folder: Path, package: str) -> BuildInfo | None:
    try:
        return verify.manifest(folder)
    except verify.BadManifest as error:
        from . import refusals

        raise refusals.bad_manifest(package, error) from error


def _package_of(folder: Path) -> str:
    """The dotted name of the package that has a manifest folder, as the innermost entry of sys.path finds it."""
    home = (folder.parent if folder.name == FOLDER else folder).resolve()
    entries = [Path(entry).resolve() for entry in sys.path]
    found = [".".join(home.relative_to(entry).parts) for entry in entries if entry in home.parents]
    return min(found, key=len, default=home.name)


# ---- the library that fits ----


def fit(wheel: Wheel, name: str) -> Fitting:
    """The library of that name, verified and known to fit this process. Raises PrebuiltRefused otherwise."""
    named = [file for file in wheel.info.host if name in file.families]
    own = [*named, *(linked for file in named for linked in wheel.info.linked(file))]
    host = probe.host(with_gpus=any(file.code for file in own))
    if any(file.cpu for file in own):
        host = replace(host, cpu_features=probe.cpu_features())
    what = f"{wheel.package}.{name}"
    if host.torch is None:
        from . import refusals

        raise refusals.no_torch(what, wheel, host)
    pick = choose.library(choose.Asked(host, wheel.info, name, {}))
    if pick.chosen is None:
        against = [why for why in pick.rejections if why.reason is not Reason.FAMILY] or pick.rejections
        raise _refused(f"{what} does not fit this process", wheel, host, against)
    file, exported = pick.chosen, list[bool]()
    files = (file, *wheel.info.linked(file))
    for code, row in (pair for one in files for pair in choose.bad_code(one, host)):
        import warnings

        warnings.warn(f"{what} may be wrong on this GPU: {row.against(code)}", stacklevel=2)
    try:
        for file in files:
            _stay_within(wheel, file)
            exported.append(verify.exports(file, wheel.folder, f"PyInit_{name}"))
    except verify.Damaged as error:
        why = damaged(str(error)).at("host", file.name)
        raise _refused(f"{what} is damaged", wheel, host, [why]) from error
    path, *links = (Path(normpath(wheel.folder / file.path)) for file in files)
    return Fitting(path, exported[0], tuple(links))


def _stay_within(wheel: Wheel, file: HostFile) -> None:
    """Damaged if a manifest names a file outside of the folder that holds the whole package."""
    depth = wheel.package.count(".") + 1 + len(inside(wheel.package))
    if file.path.split("/").count("..") > depth:
        raise verify.Damaged(f"{file.path} lies outside of where {wheel.package} is installed")


def _refused(headline: str, wheel: Wheel, host: Host, rejections: Iterable[Rejection]) -> PrebuiltRefused:
    from . import refusals  # imported for errors alone, as the texts and commands are many

    return refusals.refused(headline, wheel, host, tuple(rejections))


# ---- opening it ----


def _open_links(fitting: Fitting, what: str) -> None:
    """Open what a library links: the dynamic linker takes an open library with the SONAME that it looks for."""
    if not fitting.links:
        return
    import torch  # noqa: F401  # which they may link

    path = fitting.path
    try:
        for path in fitting.links:
            opened(path)
    except CannotOpen as error:
        raise _cannot_open(path, what, error) from error


def _open(fitting: Fitting, what: str) -> None:
    """Open a library whose static objects register ops."""
    import torch

    _open_links(fitting, what)
    try:
        with dangling.refused(fitting.path):
            torch.ops.load_library(str(fitting.path))
    except OSError as error:
        raise _cannot_open(fitting.path, what, error) from error


def _import(fitting: Fitting, module: str) -> ModuleType:
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
    from . import refusals

    return refusals.cannot_open(path, what, error)
