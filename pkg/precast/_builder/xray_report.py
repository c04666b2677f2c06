"""``precast.xray``: what a wheel, folder or library needs and holds, and whether it works, as values of plain text.

The command prints these values: as JSON with the names of their fields, or as lines.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from precast._builder import alternatives, torch_names, verdicts, xray_problems, xray_verdict
from precast._builder import xray as reading
from precast._builder.cpu_code import CpuUse
from precast._builder.verdicts import Machine, Verdict
from precast._builder.xray import Contents, Library
from precast.core.capability import ComputeCapability, DeviceCode
from precast.core.reasons import Rejection
from precast.core.value import value
from precast.core.version import Release, TorchVersion

# What a machine may be asked about: how its text is read, and what that is.
PARTS: Mapping[str, tuple[Callable[[str], Any], str]] = {
    "torch": (TorchVersion.parse, "2.13.0 or 2.13.0+cu130"),
    "gpu": (ComputeCapability.parse, "a compute capability, such as 9.0"),
    "driver": (verdicts.driver_version, "580, or the CUDA version that it supports"),
    "python": (Release.parse, "3.12"),
    "glibc": (Release.parse, "2.28"),
}


@value(frozen=True)
class TorchUse:
    """How a library is tied to torch: ``"classic"`` C++, the ``"stable"`` interface, or only ``"linked"``.

    ``names`` counts the names of torch that it needs. ``releases`` have them all; ``missing`` has (release, names) for
    each other one. ``cxx11`` is the C++ ABI, None if no name shows it.
    """

    kind: str
    cxx11: bool | None
    names: int
    releases: tuple[str, ...]
    missing: tuple[tuple[str, tuple[str, ...]], ...]


@value(frozen=True)
class GpuCode:
    """Device code in a library: its target, and the CUDA version of the oldest driver that loads it.

    ``compiler`` made it, such as ``"nvcc 13.0.88"``; None for PTX, and for machine code that does not note it.
    """

    target: str
    min_driver: str
    compiler: str | None


@value(frozen=True)
class XrayLibrary:
    """One library. None stands for what it does not need, and ``verdict`` is None if no machine was named."""

    path: str
    module: str | None
    machine: str
    torch: TorchUse | None
    python: str
    glibc: str | None
    glibcxx: str | None
    needed: tuple[str, ...]
    cuda_runtime: int | None
    min_driver: str | None
    gpus: tuple[GpuCode, ...]
    cpu: CpuUse
    verdict: Verdict | None


@value(frozen=True)
class Alternatives:
    """Libraries of which one is enough, and why."""

    libraries: tuple[str, ...]
    why: str


@value(frozen=True)
class Xray:
    """What was read of a file. ``answer`` is ``"yes"``, ``"no"``, ``"unknown"``, or None if no machine was named.

    ``works_by`` names the libraries that serve, where one of several is enough. ``images`` are the targets of device
    code behind a manifest. ``core`` is the version of the copy of precast's core that the wheel takes along, and
    ``patches_loader`` whether that changes torch and importlib for the whole process. ``problems`` are wrong whatever
    the machine. ``warnings`` are compilers known to be wrong about some code for a GPU.
    """

    file: str
    answer: str | None
    why: tuple[Rejection, ...]
    works_by: tuple[str, ...]
    stated_torch: str | None
    core: str | None
    patches_loader: bool
    images: tuple[str, ...]
    alternatives: tuple[Alternatives, ...]
    libraries: tuple[XrayLibrary, ...]
    problems: tuple[Rejection, ...]
    warnings: tuple[Rejection, ...]


def xray(
    path: str | os.PathLike[str],
    *,
    torch: str | None = None,
    gpu: str | None = None,
    driver: str | None = None,
    python: str | None = None,
    glibc: str | None = None,
) -> Xray:
    """Report the contents and requirements of a wheel, folder or library, and whether it works. Imports nothing.

    Args:
        path: a wheel, a folder or a shared library.
        torch: the version of the machine's torch, ``"2.13.0"`` or ``"2.13.0+cu130"``. None here and
            in the following arguments: do not check.
        gpu: the compute capability of its GPU, such as ``"9.0"``.
        driver: its NVIDIA driver, such as ``"580"``, or the CUDA version that it supports, ``"13.0"``.
        python: the release of its Python, such as ``"3.12"``.
        glibc: the release of its C library, such as ``"2.28"``.

    Returns:
        A frozen dataclass with everything that ``precast xray --json`` prints. ``answer`` is ``"yes"``, ``"no"`` or
        ``"unknown"``, with the reasons in ``why``; None if no machine was named.

    Raises:
        ValueError: an argument about the machine cannot be parsed; TypeError: it is not a string. No file was opened.
        precast.errors.KernelError: the file cannot be read, or has no library.

    Example::

        found = precast.xray("ops-1.0-cp312-cp312-linux_x86_64.whl", torch="2.13.0+cu130", gpu="9.0")
        print(found.answer, *found.why)
    """
    given = {"torch": torch, "gpu": gpu, "driver": driver, "python": python, "glibc": glibc}
    machine = Machine(**{part: _parsed(part, text) for part, text in given.items() if text is not None})
    return _examined(reading.read(Path(path)), machine)


def _parsed(part: str, text: object) -> Any:
    parse, example = PARTS[part]
    if not isinstance(text, str):
        raise TypeError(f"{part} is no text: {text!r}; needed {example}")
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{part}: {error}") from error


def _examined(contents: Contents, machine: Machine) -> Xray:
    asked = machine != Machine()
    whole = xray_verdict.overall(contents, machine) if asked else None
    infos = [info for _, info in contents.manifests]
    return Xray(
        file=contents.name,
        answer=None if whole is None else whole.answer,
        why=() if whole is None else whole.why,
        works_by=() if whole is None else whole.by,
        stated_torch=None if contents.stated is None else str(contents.stated),
        core=", ".join(sorted({info.core[0] for info in infos if info.core})) or None,
        patches_loader=any(info.patches_loader for info in infos),
        images=tuple(map(str, contents.images)),
        alternatives=tuple(
            Alternatives(tuple(one.path for one in group.libraries), group.why)
            for group in alternatives.groups(contents)
            if len(group.libraries) > 1
        ),
        libraries=tuple(_library(contents, one, machine if asked else None) for one in contents.libraries),
        problems=tuple(xray_problems.problems(contents)),
        warnings=tuple(xray_problems.warnings(contents)),
    )


def _library(contents: Contents, one: Library, machine: Machine | None) -> XrayLibrary:
    alone = one.listed is None or bool(one.listed.families)  # an adapter is judged with its library
    return XrayLibrary(
        path=one.path,
        module=one.module if one.is_module else None,
        machine=one.info.machine,
        torch=_torch(one) if one.needs_torch else None,
        python=one.python,
        glibc=".".join(map(str, one.info.glibc)) or None,
        glibcxx=".".join(map(str, one.info.glibcxx)) or None,
        needed=one.info.needed,
        cuda_runtime=one.bound.cudart,
        min_driver=str(min(code.min_driver for code in one.code)) if one.code else None,
        gpus=tuple(GpuCode(str(code.target), str(code.min_driver), _compiler(one, code)) for code in one.code),
        cpu=one.cpu,
        verdict=xray_verdict.judge(contents, one, machine) if machine is not None and alone else None,
    )


def _compiler(one: Library, code: DeviceCode) -> str | None:
    found = [f"{made.compiler} {made.version}" for made in one.compiled if made.target == code.target]
    return ", ".join(found) or None


def _torch(one: Library) -> TorchUse:
    missing = one.missing()
    return TorchUse(
        kind="classic" if one.bound.classic else "stable" if one.shims else "linked",
        cxx11=one.cxx11,
        names=sum(map(torch_names.is_recorded, one.info.undefined)),
        releases=tuple(str(release) for release, names in missing.items() if not names),
        missing=tuple((str(release), names) for release, names in missing.items() if names),
    )
