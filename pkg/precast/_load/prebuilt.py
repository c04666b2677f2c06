"""The files that came with the installation: the manifest, and the bytes it describes, verified before any use."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from pathlib import Path

import precast
from precast._version import __version__
from precast.core import files, verify
from precast.core.capability import GpuTarget, TargetKind
from precast.core.host import Host
from precast.core.manifest import BuildInfo, BuildMode, DeviceFile, HostFile
from precast.core.verify import Damaged
from precast.errors import KernelIncompatible

C_DIR = Path(precast.__file__).resolve().parent / "_C"
_DIGEST_BYTES = 100


class NoLzma(Exception):
    """This Python cannot unpack an intact device file; the text is the error of ``import lzma``."""


def load_build_info(folder: Path | None = None) -> BuildInfo | None:
    """The manifest of this installation; None for a pure wheel and for a checkout, which have no manifest."""
    try:
        return verify.read_manifest(folder or C_DIR)
    except verify.BadManifest as error:
        raise _bad_manifest(error) from error.__cause__


def judged(host: Host, info: BuildInfo | None) -> Host:
    """The host, marked stale if its prebuilt files were not made from the installed code; they are then not used.

    This happens after ``git pull`` in a checkout with prebuilt files, after one version was copied over another, and in
    a process that outlives an upgrade. Ops and arguments may then have changed.
    """
    if info is None or info.mode is BuildMode.PURE:
        return host
    here = _sources_here()
    if info.version == __version__ and here in {info.source_digest, None}:
        return host
    from precast._load import stale

    return replace(host, stale=stale.describe(info, here))


@functools.cache
def _sources_here() -> str | None:
    """The digest of the sources when this process first asked; None for an installation without sources.

    A wheel states the digest, so that a first call need not read a hundred files.
    """
    try:
        return files.read(C_DIR.parent / "csrc" / files.DIGEST, _DIGEST_BYTES).decode("ascii", "replace").strip()
    except OSError:
        from precast._load import stale

        return stale.sources_on_disk()


def verified_bytes(file: HostFile | DeviceFile, folder: Path | None = None) -> bytes:
    """A library or an image, read once and verified: size and hash of the file, then hash and header of the image.

    Raises Damaged or NoLzma. A file is unpacked only if its hash is right, and only up to the end of the image.
    """
    found = verify.content(file, folder or C_DIR)
    if not isinstance(file, DeviceFile):
        return found  # the dynamic linker reads a host library's header before any of its code runs
    image = _unpacked(found, file)
    _check_target(file.target, image)
    return image


def _unpacked(content: bytes, file: DeviceFile) -> bytes:
    from precast._builder import packing  # imported here to keep a first call on the CPU quick

    try:
        return packing.image(content, file.offset, file.content_bytes, file.content_sha256)
    except packing.NotPacked as error:
        raise Damaged(str(error)) from error
    except ImportError as error:
        raise NoLzma(str(error)) from error


def _check_target(target: GpuTarget, content: bytes) -> None:
    """Compare the target that device code states with the manifest, which can be wrong even if every hash is right."""
    if target.kind is TargetKind.SASS:
        found, wanted = _cubin_target(content), str(target)
    else:
        found, wanted = _ptx_target(content), str(target).replace("compute", "sm")
    if not _same_target(found, wanted):
        raise Damaged(f"it is built for {found} instead of {wanted}")


def _same_target(found: str, wanted: str) -> bool:
    # A cubin's header holds only the number, the same for "sm_90a" and "sm_90".
    return found == wanted or (found.startswith("sm_") and found == wanted.rstrip("af"))


def _cubin_target(content: bytes) -> str:
    from precast._builder import elf

    try:
        return str(elf.read_cubin(content).target)
    except elf.ElfError as error:
        raise Damaged(str(error)) from error


def _ptx_target(content: bytes) -> str:
    match = re.search(rb"^\.target\s+(sm_\w+)", content, re.MULTILINE)
    if match is None:
        raise Damaged("no .target line, so this is no PTX")
    return match[1].decode()


def _bad_manifest(error: verify.BadManifest) -> KernelIncompatible:
    from precast._builder import installer

    jit = "export PRECAST_JIT=jit  # builds here, and ignores what is prebuilt"
    return KernelIncompatible(
        "the list of prebuilt files cannot be read, so none of them is loaded",
        found=str(error),
        needed=f"the {verify.MANIFEST} that the build wrote",
        fix=[*filter(None, [installer.restore_command()]), jit],
    )
