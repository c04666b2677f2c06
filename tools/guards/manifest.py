"""The guard of the manifest: it derives each claim again from the bytes of the wheel."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from precast._builder import headers, sources
from precast.core.files import DIGEST
from precast.core.manifest import BuildInfo, BuildMode, DeviceFile, HostFile, ManifestError, host_path
from precast.core.reasons import Rejection
from precast.core.torch_abi import AbiKind
from tools.guards.subject import Audited, same
from tools.shared import binaries
from tools.shared.binaries import LibraryFacts
from tools.shared.wheel import MANIFEST

_SOURCES = {".h", ".cpp", ".cu", ".cuh"}


def check_manifest(a: Audited) -> Iterator[Rejection]:
    """The manifest can be read, and files, libraries and sources match it."""
    if a.manifest is None:
        yield _unreadable(a)
        return
    yield from same("version", "manifest", f"{a.info.version}{a.info.label.local}", a.wheel.version)
    yield from _files(a)
    yield from _libraries(a)
    yield from _sources(a)


def check_origin(a: Audited) -> Iterator[Rejection]:
    """The sources of the wheel can be found: they are those of a commit, without local changes."""
    if a.info.commit is None:
        yield Rejection("commit", "the commit that it was made from", "unknown: made outside of a checkout", MANIFEST)
    if a.info.dirty:
        yield Rejection("commit", f"what {a.info.commit or 'a commit'} has", "changes beside it (dirty)", MANIFEST)


def _unreadable(a: Audited) -> Rejection:
    """Why ``Audited.manifest`` is None."""
    try:
        BuildInfo.from_json(a.wheel.files[MANIFEST].decode("utf-8"))
    except KeyError:
        return Rejection("manifest", "a manifest", "no such file", MANIFEST)
    except (ManifestError, UnicodeDecodeError) as error:
        return Rejection("manifest", "a manifest that can be read", str(error), MANIFEST)
    raise AssertionError("the manifest can be read")


def _files(a: Audited) -> Iterator[Rejection]:
    """The files in the binary folders are those that the manifest lists, byte for byte."""
    listed: dict[str, HostFile | DeviceFile] = {file.path: file for file in a.info.host}
    listed |= {file.path: file for file in a.info.device}
    there = a.wheel.below("precast/_C/")
    binary = {name for name in there if "/" in name and "__pycache__" not in name}
    for name in sorted({*listed, *binary}):
        if name not in there:
            yield Rejection("files", "in the wheel, as the manifest says", "not there", name)
        elif name not in listed:
            yield Rejection("files", "listed in the manifest", "not listed", name)
        else:
            yield from same("sha256", name, listed[name].sha256, hashlib.sha256(there[name]).hexdigest())
            yield from same("bytes", name, listed[name].bytes, len(there[name]))


def _libraries(a: Audited) -> Iterator[Rejection]:
    for file in a.info.host:
        data = a.wheel.files.get(f"precast/_C/{file.path}")
        if data is None:
            continue  # _files reports it
        if file.path not in a.libraries:
            try:
                binaries.read_library(data)
            except binaries.Unreadable as error:
                yield Rejection("elf", "a shared library", str(error), file.path)
            continue
        yield from _host_claims(file, a.libraries[file.path], a.info)


def _host_claims(file: HostFile, facts: LibraryFacts, info: BuildInfo) -> Iterator[Rejection]:
    """Compare a host library with its manifest entry."""
    yield from same("machine", file.path, file.machine, facts.machine)
    yield from same("needed", file.path, file.needed, facts.needed)
    yield from same("glibc", file.path, str(file.glibc), ".".join(map(str, facts.glibc[:2])))
    yield from same("glibcxx", file.path, file.glibcxx, ".".join(map(str, facts.glibcxx)))
    yield from same("families", file.path, sorted(file.families), sorted(facts.families))
    yield from same("cpu levels", file.path, file.cpu_levels, facts.cpu_levels)
    yield from same("debug", file.path, file.debug, facts.debug)
    yield from same("python", file.path, ("none", None), (file.python, file.cuda_major))
    yield from same("compiler", file.path, dict(info.compilers).get("g++", facts.compiler), facts.compiler)
    yield from same("name", file.path, host_path(file.abi, file.machine), file.path)
    yield from same("kind", file.path, "adapter" if file.abi.kind is AbiKind.EXACT else "library", file.kind.value)
    yield from same("links", file.path, (), file.links)


def _sources(a: Audited) -> Iterator[Rejection]:
    """The sources match the manifest's digest, and the headers for extensions are the pinned ones.

    A release has all headers. Another wheel has all or none, depending on whether it was built from an sdist or from a
    checkout.
    """
    ours = a.wheel.below("precast/csrc/")
    digest = sources.digest_of_pairs(
        (f"csrc/{name}", hashlib.sha256(data).hexdigest())
        for name, data in ours.items()
        if Path(name).suffix in _SOURCES and not name.startswith("torch_stable/")
    )
    yield from same("sources", "precast/csrc", a.info.source_digest, digest)
    stated = ours.get(DIGEST, b"").decode("ascii", "replace").strip()
    yield from same("sources", f"precast/csrc/{DIGEST}", a.info.source_digest, stated or "not there")
    pins = headers.load_pins()
    wanted = {f"include/{name}": sha for name, sha in pins.headers.items()} | dict(pins.notices)
    found = {
        name.removeprefix("torch_stable/"): hashlib.sha256(data).hexdigest()
        for name, data in ours.items()
        if name.startswith("torch_stable/")
    }
    if not found and a.info.mode is not BuildMode.RELEASE:
        return
    for name in sorted(set(wanted) | set(found)):
        yield from same("headers", f"precast/csrc/torch_stable/{name}", wanted.get(name), found.get(name))
