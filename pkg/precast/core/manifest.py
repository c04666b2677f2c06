"""The manifest of what was prebuilt, ``precast/_C/build_info.json``: one value and its strict JSON form.

The build writes it, the audit derives every claim of it again from the bytes, and the loader bases its decision on it.
It protects integrity, not authenticity.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import reader as read
from .capability import CompiledCode, DeviceCode, GpuTarget, TargetKind
from .reader import ManifestError, NewerManifest
from .torch_abi import AbiKind, TorchAbi, parse_torch_abi
from .value import Words, value
from .version import CudaVersion, Label, Release, dotted

__all__ = [
    "GUARD_MARK",
    "READERS",
    "SCHEMA",
    "BuildInfo",
    "BuildMode",
    "DeviceFile",
    "HostFile",
    "HostKind",
    "ManifestError",
    "NewerManifest",
    "by_file",
    "device_path",
    "host_path",
    "image_name",
]

# The first characters of a guard, the short text in the place of a library.
GUARD_MARK = '"""Made by precast.build'

SCHEMA = 9
# The versions of precast that read this schema. A reader of an older schema names them in its error.
READERS = ">=0.1.0"
# The most that a file of device code may unpack to. The largest of ours has 3.5 MB.
MAX_CONTENT_BYTES = 16 << 20
# The size limit of a file. The largest libraries in wheels have less than 2 GB.
MAX_FILE_BYTES = 4 << 30
# The size limit of a manifest. That of our largest wheel has 0.05 MB.
MAX_MANIFEST_BYTES = 4 << 20


class BuildMode(Words):
    """``pure``: sources only; ``machine``: for the build machine; ``release``: a labelled wheel."""

    PURE = "pure"
    MACHINE = "machine"
    RELEASE = "release"


class HostKind(Words):
    """``library``: kernels; ``adapter``: the table of one torch's functions, for a library that is for any torch.

    ``linked``: a library that others in the manifest link. It has no guard and is opened before them.
    """

    LIBRARY = "library"
    ADAPTER = "adapter"
    LINKED = "linked"


@value(frozen=True)
class HostFile:
    """A host library or an adapter, and all its requirements on a process; ``path`` is relative to ``precast/_C``.

    A library of a finished wheel stays in its folder, because it may look for files there: ``../lib/<name>.guarded``.
    ``code`` is the device code that nvcc put into the library, ``cpu`` the processor features that it always uses.
    ``links`` has the (SONAME, path) of each file of the manifest that it links, in the order in which they are opened.
    ``compiled`` has the machine code in ``code`` whose compiler can be read.
    """

    path: str
    sha256: str
    bytes: int
    abi: TorchAbi
    machine: str
    needed: tuple[str, ...]
    glibc: Release
    glibcxx: str
    cpu_levels: tuple[str, ...]
    families: tuple[str, ...]
    python: str = "none"
    cuda_major: int | None = None
    debug: bool = False
    kind: HostKind = HostKind.LIBRARY
    code: tuple[DeviceCode, ...] = ()
    cpu: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    compiled: tuple[CompiledCode, ...] = ()

    @property
    def name(self) -> str:
        """The name in decisions and messages: the path, as the library has a file of its own."""
        return self.path


@value(frozen=True)
class DeviceFile:
    """The device code of one kernel family for one target, with the version of the NVRTC that compiled it.

    The file at ``path`` is packed and holds the images of several targets. ``sha256`` and ``bytes`` describe the file.
    ``offset``, ``content_bytes`` and ``content_sha256`` describe this image in what the file unpacks to.
    """

    path: str
    sha256: str
    bytes: int
    family: str
    target: GpuTarget
    nvrtc: str
    min_driver: CudaVersion
    offset: int
    content_bytes: int
    content_sha256: str

    @property
    def name(self) -> str:
        """The name of the image in decisions and messages; ``path`` is the file that it shares with others."""
        return image_name(self.family, self.target)

    @property
    def end(self) -> int:
        """The offset behind the image."""
        return self.offset + self.content_bytes


@value(frozen=True)
class BuildInfo:
    """The output of one build. ``version`` has no label; ``compilers`` are (name, version) pairs.

    ``index_url`` is the package index that the wheel is published on; None if the build was not given one. ``core`` has
    version and sha256 of the copy of these modules that a wheel takes along; None for precast's own. ``changed`` are
    the lines of the wheel's Python that open a library through the copy, each with its file and number. With
    ``patches_loader`` the copy changes torch and importlib for the whole process instead.
    """

    version: str
    label: Label
    mode: BuildMode
    commit: str | None
    dirty: bool
    source_digest: str
    compilers: tuple[tuple[str, str], ...] = ()
    host: tuple[HostFile, ...] = ()
    device: tuple[DeviceFile, ...] = ()
    index_url: str | None = None
    core: tuple[str, str] | None = None
    changed: tuple[tuple[str, str], ...] = ()
    patches_loader: bool = False

    @property
    def files(self) -> dict[str, str]:
        """The SHA-256 of each file by its path, host libraries first."""
        hosts = {file.path: file.sha256 for file in self.host}
        return hosts | {image.path: image.sha256 for image in self.device}

    def linked(self, file: HostFile) -> tuple[HostFile, ...]:
        """The files that a library links, in the order in which they are opened."""
        by_path = {one.path: one for one in self.host}
        return tuple(by_path[path] for _, path in file.links)

    def to_json(self) -> str:
        """Canonical text. Raises ManifestError if :meth:`from_json` would not read the same value back."""
        document = {"schema": SCHEMA, "readers": READERS, **_document(self), "label": self.label.text or None}
        document["compilers"] = [{"name": name, "version": version} for name, version in self.compilers]
        document["changed"] = [{"file": file, "line": line} for file, line in self.changed]
        document["core"] = None if self.core is None else {"version": self.core[0], "sha256": self.core[1]}
        document |= {"host": list(map(_host_document, self.host)), "device": list(map(_document, self.device))}
        text = json.dumps(document, indent=2, sort_keys=True) + "\n"
        if BuildInfo.from_json(text) != self:
            raise ManifestError("$: this build info does not survive its own JSON form")
        return text

    @classmethod
    def from_json(cls, text: str) -> BuildInfo:
        """Read a manifest. A ManifestError names the JSON path of the mistake."""
        root = read.parse_object(text)
        if root.get("schema") != SCHEMA:
            from . import schemas  # most manifests are of this version

            root = schemas.upgraded(root, SCHEMA)
        known = read.fields(root, "$", _MANIFEST)
        del known["schema"], known["readers"]
        info = cls(**known)
        _check_whole(info)
        return info


def is_index_url(text: str) -> bool:
    """Whether a text is the URL of an index. It is printed in commands, so the check is strict."""
    return re.fullmatch(r"(?:https?|file)://[A-Za-z0-9/._~:@%+-]+", text) is not None


def by_file(device: Iterable[DeviceFile]) -> dict[str, list[DeviceFile]]:
    """The images in each file of device code, by its path."""
    files: dict[str, list[DeviceFile]] = {}
    for image in device:
        files.setdefault(image.path, []).append(image)
    return files


def host_path(abi: TorchAbi, machine: str) -> str:
    """The path in a wheel, relative to ``precast/_C``: of the library for any torch, or of the adapter to one."""
    return f"host/kernels-{machine}.so" if abi.kind is AbiKind.TABLE else f"host/{abi}.so"


def image_name(family: str, target: GpuTarget) -> str:
    """The name of a family's device code for a target, in decisions and messages."""
    return f"device/{family}.{target}.{_suffix(target)}"


def device_path(family: str, targets: Sequence[GpuTarget]) -> str:
    """The path in a wheel of the file with a family's images for these targets, in the order they have in the file."""
    return f"device/{family}.{'+'.join(map(str, targets))}.{_suffix(targets[0])}.xz"


def _suffix(target: GpuTarget) -> str:
    return "cubin" if target.kind is TargetKind.SASS else "ptx"


def _document(file: BuildInfo | HostFile | DeviceFile) -> dict[str, object]:
    return {name: _plain(content) for name, content in vars(file).items()}


def _host_document(file: HostFile) -> dict[str, object]:
    return _document(file) | {"links": [{"soname": soname, "path": path} for soname, path in file.links]}


def _plain(content: object) -> object:
    if isinstance(content, tuple):
        return [_plain(one) for one in content]
    return content if content is None or isinstance(content, (bool, int, str)) else str(content)


def _min_driver(text: str) -> CudaVersion:
    release = Release.parse(text)
    return CudaVersion(release.major, release.minor)


_VERSION = read.valid(dotted)
_SHA256 = read.hexadecimal(64, 64, "64 lower-case hexadecimal digits")
_HOST: Mapping[str, read.Reader[Any]] = {
    "path": read.path_in("host", around=True),
    "sha256": _SHA256,
    "bytes": read.within(MAX_FILE_BYTES),
    "abi": read.parsed(parse_torch_abi),
    "machine": read.checked(read.is_word, "a machine such as 'x86_64'"),
    "needed": read.texts(),
    "glibc": read.parsed(Release.parse),
    "glibcxx": _VERSION,
    "cpu_levels": read.texts(read.is_word, "lower-case words"),
    "families": read.texts(read.is_name, "names of letters, digits and underscores"),
    "python": read.checked(read.is_python, "'none', 'abi3' or one such as 'cp312'"),
    "cuda_major": read.optional(read.integer),
    "debug": read.boolean,
    "kind": read.parsed(HostKind),
    "code": read.each(read.parsed(DeviceCode.parse)),
    "cpu": read.texts(read.is_word, "lower-case words"),
    "links": read.each(read.pair("soname", "path")),
    "compiled": read.each(read.parsed(CompiledCode.parse)),
}
_DEVICE: Mapping[str, read.Reader[Any]] = {
    "path": read.path_in("device"),
    "sha256": _SHA256,
    "bytes": read.within(MAX_FILE_BYTES),
    "family": read.checked(read.is_name, "a family such as 'rms_norm'"),
    "target": read.parsed(GpuTarget.parse),
    "nvrtc": _VERSION,
    "min_driver": read.parsed(_min_driver),
    "offset": read.within(MAX_CONTENT_BYTES),
    "content_bytes": read.within(MAX_CONTENT_BYTES),
    "content_sha256": _SHA256,
}
_MANIFEST: Mapping[str, read.Reader[Any]] = {
    "schema": read.integer,
    "readers": read.exactly(READERS, f"in schema {SCHEMA}"),
    "version": read.checked(read.is_version, "a version without label, such as '1.0'"),
    "label": read.optional(read.parsed(Label), Label("")),
    "mode": read.parsed(BuildMode),
    "commit": read.optional(read.hexadecimal(7, 64, "a commit in hexadecimal")),
    "dirty": read.boolean,
    "source_digest": _SHA256,
    "compilers": read.each(read.pair("name", "version")),
    "host": read.each(read.record(HostFile, _HOST)),
    "device": read.each(read.record(DeviceFile, _DEVICE)),
    "index_url": read.optional(read.checked(is_index_url, "the URL of an index")),
    "core": read.optional(read.pair("version", "sha256")),
    "changed": read.each(read.pair("file", "line")),
    "patches_loader": read.boolean,
}


def _check_whole(info: BuildInfo) -> None:
    """Check the manifest as a whole: no duplicates, and no files that the mode or the label rules out."""
    _refuse_repeats("path", (file.path for file in info.host))
    _refuse_repeats("device code", (f"{file.family} {file.target}" for file in info.device))
    for index, image in enumerate(info.device):
        if image.end > MAX_CONTENT_BYTES:
            where = f"$.device[{index}].offset"
            raise ManifestError(f"{where}: needed an image within {MAX_CONTENT_BYTES} bytes, found {image.end}")
    for images in by_file(info.device).values():
        _check_file(images)
    for file in info.host:
        if file.kind is HostKind.ADAPTER and file.abi.kind is not AbiKind.EXACT:
            raise ManifestError(f"$.host: {file.path!r} is an adapter for {file.abi}; needed an exact torch")
        listed = {one.path for one in info.host if one is not file and one.kind is not HostKind.ADAPTER}
        for soname, path in file.links:
            if path not in listed:
                raise ManifestError(f"$.host: {file.path!r} links {soname}, and {path!r} is not another listed library")
    if info.mode is BuildMode.PURE and (info.host or info.device):
        raise ManifestError("$.mode: a pure build lists no files")
    if info.label.text == "cpu" and info.device:
        raise ManifestError("$.device: the label 'cpu' has no device code")


def _check_file(images: Sequence[DeviceFile]) -> None:
    """Check the entries of one file: they agree about it, and each image begins where the one before it ends."""
    first, end = images[0], 0
    for image in images:
        about = (image.family, image.target.kind, image.sha256, image.bytes)
        if about != (first.family, first.target.kind, first.sha256, first.bytes):
            raise ManifestError(f"$.device: the entries of {first.path!r} differ in family, kind, sha256 or bytes")
        if image.offset != end:
            raise ManifestError(
                f"$.device: {image.name!r} needed at offset {end} of {first.path!r}, found {image.offset}"
            )
        end = image.end


def _refuse_repeats(what: str, items: Iterable[str]) -> None:
    seen: set[str] = set()
    for item in items:
        if item in seen:
            raise ManifestError(f"$: {what} {item!r} is listed twice")
        seen.add(item)
