"""The files that came with the installation: the manifest, and the bytes it speaks of, verified before any use."""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import replace
from pathlib import Path

import precast
from precast._abi.build_info import MAX_MANIFEST_BYTES, BuildInfo, BuildMode, DeviceFile, HostFile, ManifestError
from precast._abi.capability import GpuTarget, TargetKind
from precast._abi.host import Host
from precast._builder import files
from precast._version import __version__
from precast.errors import KernelIncompatible

C_DIR = Path(precast.__file__).resolve().parent / "_C"
MANIFEST = "build_info.json"
_DIGEST_BYTES = 100


class Damaged(Exception):
    """A file is not what the manifest says; the text says how it differs."""


class NoLzma(Exception):
    """An intact device file cannot be unpacked by this Python; the text is what it says to ``import lzma``."""


def load_build_info(folder: Path | None = None) -> BuildInfo | None:
    """The manifest of this installation; None for a pure wheel and a checkout, which have no such file."""
    path = (folder or C_DIR) / MANIFEST
    try:
        text = files.read(path, MAX_MANIFEST_BYTES).decode()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _bad_manifest(path, error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise _bad_manifest(path, str(error)) from error
    try:
        return BuildInfo.from_json(text)
    except ManifestError as error:
        raise _bad_manifest(path, str(error)) from error


def judged(host: Host, info: BuildInfo | None) -> Host:
    """The host, and whether its prebuilt files were made from the code beside them; otherwise they are not used.

    They were not after ``git pull`` in a checkout that holds some, after one version was copied over another, and in a
    process that outlives an upgrade: ops and arguments may have changed.
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
    """The digest of the sources as this process met them; None for an installation without any.

    A wheel states it, so that a first call need not read a hundred files.
    """
    try:
        return files.read(C_DIR.parent / "csrc" / files.DIGEST, _DIGEST_BYTES).decode("ascii", "replace").strip()
    except OSError:
        from precast._load import stale

        return stale.sources_on_disk()


def verified_bytes(file: HostFile | DeviceFile, folder: Path | None = None) -> bytes:
    """The file's content, read once, or Damaged: size and hash, then what a device file holds, then its own header.

    Nothing is unpacked whose hash is not in order, and never to more than the manifest says. NoLzma where nothing is.
    """
    path = (folder or C_DIR) / file.path
    try:
        content = files.read(path, file.bytes)
    except FileNotFoundError:
        raise Damaged("missing") from None
    except files.WrongSize as error:
        raise Damaged(f"it has {error.size} bytes instead of {file.bytes}") from error
    except OSError as error:
        raise Damaged(f"unreadable: {error.strerror or error}") from error
    if len(content) != file.bytes:
        raise Damaged(f"it has {len(content)} bytes instead of {file.bytes}")
    digest = hashlib.sha256(content).hexdigest()
    if digest != file.sha256:
        raise Damaged("checksum mismatch")
    if not isinstance(file, DeviceFile):
        return content  # a host library's header is read by the dynamic linker before anything runs
    image = _unpacked(content, file)
    _check_target(file.target, image)
    return image


def _unpacked(content: bytes, file: DeviceFile) -> bytes:
    from precast._builder import packing  # a first call on the CPU is to be quick

    try:
        return packing.unpack(content, file.content_bytes)
    except packing.NotPacked as error:
        raise Damaged(str(error)) from error
    except ImportError as error:
        raise NoLzma(str(error)) from error


def _check_target(target: GpuTarget, content: bytes) -> None:
    """What device code says of itself against the manifest: a manifest can lie with every hash in order."""
    if target.kind is TargetKind.SASS:
        found, wanted = _cubin_target(content), str(target)
    else:
        found, wanted = _ptx_target(content), str(target).replace("compute", "sm")
    if not _same_target(found, wanted):
        raise Damaged(f"it is built for {found} instead of {wanted}")


def _same_target(found: str, wanted: str) -> bool:
    # A cubin's header holds the number only: "sm_90a" and "sm_90" look alike in it.
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


def _bad_manifest(path: Path, what: str) -> KernelIncompatible:
    from precast._builder import installer

    again = installer.restore_command()
    fixes = [*([again] if again else []), "export PRECAST_JIT=jit  # builds here, and ignores what is prebuilt"]
    return KernelIncompatible(
        f"the list of prebuilt files cannot be read, so none of them is loaded\n"
        f"  found   {path}: {what}\n"
        f"  needed  the {MANIFEST} that the build wrote\n"
        f"  fix     1) " + "\n          2) ".join(fixes)
    )
