"""A wheel's label and tag, and the guard that takes the place of each module."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from precast._builder import archives, sources, xray
from precast.core.host import TorchInfo
from precast.core.manifest import GUARD_MARK, BuildInfo, DeviceFile, HostFile
from precast.core.torch_abi import AbiKind
from precast.core.version import CudaVersion, Label, Release
from precast.errors import KernelError

# The first characters of the module that is made of a DeviceExtension; the rest of its first line is that of a guard.
MODULE_MARK = f"{GUARD_MARK}: the kernels of "


def is_made(text: str) -> bool:
    """Whether a file is a guard or the module of device code, also one that another version of precast wrote."""
    return text.startswith(GUARD_MARK)


def is_guard(text: str) -> bool:
    """Whether a file is a guard, also one that another version of precast wrote."""
    return is_made(text) and not text.startswith(MODULE_MARK)


# The oldest Python that precast supports: the tag of a wheel for the limited API.
_OLDEST = "cp310"


def label_of(hosts: Iterable[HostFile], images: Sequence[DeviceFile], torch: TorchInfo | None) -> Label:
    """The CUDA version that a wheel is bound to, "cpu" if it is bound only to one torch, else the empty label."""
    every = list(hosts)
    if any(file.cuda_major is not None for file in every):
        return label_of_torch(torch)
    if images:
        cuda = CudaVersion.parse(images[0].nvrtc)
        return Label(f"cu{cuda.major}{cuda.minor}")
    return Label("cpu" if any(file.abi.kind is AbiKind.EXACT for file in every) else "")


def local_of(label: Label, torch: Release) -> str:
    """The local part of the version of a wheel for one torch: ``cu130.torch2.13``."""
    return f"{label}.torch{torch}"


def label_of_torch(torch: TorchInfo | None) -> Label:
    """``cu130``, ``cpu``, or no label without torch."""
    cuda = None if torch is None else torch.cuda
    return Label(f"cu{cuda.major}{cuda.minor}" if cuda is not None else "cpu" if torch is not None else "")


def tag_of(infos: Iterable[BuildInfo]) -> tuple[str, str]:
    """The Python and ABI tags of the most restrictive module; of several Pythons those that every module has.

    KernelError if no Python has every module.
    """
    modules: dict[tuple[int, str], set[str]] = {}
    for index, info in enumerate(infos):
        for file in info.host:
            for family in file.families:
                modules.setdefault((index, family), set()).add(file.python)
    pythons = set[str]().union(*modules.values())
    exact = [some for some in modules.values() if not some & {"none", "abi3"}]
    if exact:
        common = sorted(set.intersection(*exact), key=lambda tag: (len(tag), tag))
        if not common:
            each = "; ".join(f"{name}: {', '.join(sorted(some))}" for (_, name), some in sorted(modules.items()))
            raise KernelError(
                "there is no Python for which every module was built",
                found=each,
                needed="one Python that every module of the wheel was built for",
                fix="build all modules with one Python",
            )
        return ".".join(dict.fromkeys(tag.removesuffix("t") for tag in common)), ".".join(common)
    return (_OLDEST, "abi3") if "abi3" in pythons else ("py3", "none")


def tag_within(infos: Sequence[BuildInfo], given: Iterable[str]) -> tuple[str, str]:
    """:func:`tag_of` of wheels tagged for the Pythons ``given``: with the limited API none older than those."""
    python, abi = tag_of(infos)
    minors = [int(word[3:]) for text in given for word in text.split(".") if word[:3] == "cp3" and word[3:].isdigit()]
    return (f"cp3{max(10, *minors)}" if abi == "abi3" and minors else python), abi


def describe(distribution: Any, tag: tuple[str, str], metadata: Callable[[str], str]) -> None:
    """Give the wheel under construction, if any, the tag of its contents, and change its METADATA.

    setuptools still sets the platform tag. It writes WHEEL as the last file, when METADATA is there.
    """
    command = distribution.get_command_obj("bdist_wheel", create=False)
    if command is None:
        return
    tag_of_setuptools, write = command.get_tag, command.write_wheelfile

    def write_both(folder: str, *rest: Any) -> None:
        path = Path(folder, "METADATA")
        path.write_text(metadata(path.read_text(encoding="utf-8")), encoding="utf-8")
        write(folder, *rest)

    command.get_tag = lambda: (*tag, tag_of_setuptools()[2])
    command.write_wheelfile = write_both


def write_changed(path: Path, content: bytes) -> None:
    """Write a file only if its content differs, because build tools compare modification times."""
    if not path.is_file() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def digest(paths: Iterable[str]) -> str:
    """One digest over all compiled sources, by their names relative to the project."""
    known = sorted(set(paths))
    return sources.digest_of(sources.SourceFile(name, Path(name), Path(name).read_bytes()) for name in known)


def metadata(path: Path) -> bytes:
    """METADATA of a finished wheel. KernelError if the file is no wheel."""
    with xray.opened(path) as archive:
        found = [one for one in archive.files if re.fullmatch(r"[^/]+\.dist-info/METADATA", one.filename)]
        if len(found) != 1:
            raise archives.BadArchive(f"{len(found)} files .dist-info/METADATA, not exactly one")
        return archive.read(found[0])
