"""The manifest of what was prebuilt, ``precast/_C/build_info.json``: one value and its strict JSON form.

The build writes it, the audit derives every claim of it again from the bytes, and the loader bases its decision on it.
It protects integrity, not authenticity.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from enum import Enum

from precast._abi._reader import ManifestError, NewerManifest, Reader, parse_object
from precast._abi.capability import GpuTarget, TargetKind
from precast._abi.label import Label
from precast._abi.settings import is_index_url
from precast._abi.torch_abi import AnyTorch, Exact, TorchAbi, is_git_version, parse_torch_abi
from precast._abi.value import value
from precast._abi.version import CudaVersion, Release, dotted

__all__ = [
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

SCHEMA = 6
# The versions of precast that read this schema. A reader of an older schema names them in its error.
READERS = ">=0.1.0"
# The most that a file of device code may unpack to. The largest of ours has 3.5 MB.
MAX_CONTENT_BYTES = 16 << 20
# The size limit of a file. The largest libraries in wheels have less than 2 GB.
MAX_FILE_BYTES = 4 << 30
# The size limit of a manifest. That of our largest wheel has 0.05 MB.
MAX_MANIFEST_BYTES = 4 << 20

_HEX = frozenset("0123456789abcdef")
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz")
_WORD = _LETTERS | frozenset("0123456789_")
_NAME = _WORD | frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_FILE_NAME = _NAME | frozenset(".+-")
_VERSION = r"[0-9]+(?:\.[0-9A-Za-z]+)*"
_PYTHON = r"cp3[0-9]{1,2}t?"


class BuildMode(str, Enum):
    """``pure``: sources only; ``machine``: for the build machine; ``release``: a labelled wheel."""

    PURE = "pure"
    MACHINE = "machine"
    RELEASE = "release"


class HostKind(str, Enum):
    """``library``: kernels; ``adapter``: the table of one torch's functions, for a library that is for any torch."""

    LIBRARY = "library"
    ADAPTER = "adapter"


@value(frozen=True)
class HostFile:
    """A host library or an adapter, and all its requirements on a process; ``path`` is relative to ``precast/_C``."""

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

    @property
    def name(self) -> str:
        """The name in decisions and messages: the path, as the library has a file of its own."""
        return self.path

    @property
    def needs_binding(self) -> bool:
        """Whether this calls torch through a table of functions; otherwise it is linked against torch."""
        return isinstance(self.abi, AnyTorch)


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

    ``index_url`` is the package index that the wheel is published on; None if the build was not given one.
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

    @property
    def files(self) -> dict[str, str]:
        """The SHA-256 of each file by its path, host libraries first."""
        hosts = {file.path: file.sha256 for file in self.host}
        return hosts | {image.path: image.sha256 for image in self.device}

    def to_json(self) -> str:
        """Canonical text. Raises ManifestError if :meth:`from_json` would not read the same value back."""
        document = {
            "schema": SCHEMA,
            "readers": READERS,
            "version": self.version,
            "label": self.label.text or None,
            "mode": self.mode.value,
            "commit": self.commit,
            "dirty": self.dirty,
            "source_digest": self.source_digest,
            "index_url": self.index_url,
            "compilers": [{"name": name, "version": version} for name, version in self.compilers],
            "host": [_host_document(file) for file in self.host],
            "device": [_device_document(file) for file in self.device],
        }
        text = json.dumps(document, indent=2, sort_keys=True) + "\n"
        if BuildInfo.from_json(text) != self:
            raise ManifestError("$: this build info does not survive its own JSON form")
        return text

    @classmethod
    def from_json(cls, text: str) -> BuildInfo:
        """Read a manifest. A ManifestError names the JSON path of the mistake."""
        root = parse_object(text)
        schema = root.integer("schema")
        if schema != SCHEMA:
            from precast._abi import _schemas  # most manifests are of this version

            root = _schemas.upgraded(root, schema, SCHEMA)
        if root.text("readers") != READERS:
            raise ManifestError(f"$.readers: wanted {READERS!r} in schema {SCHEMA}")
        label = root.optional("label", lambda key: root.parsed(key, Label.parse))
        info = cls(
            version=_checked(root, "version", _is_version, "a version without label, such as '1.0'"),
            label=Label("") if label is None else label,
            mode=root.parsed("mode", BuildMode),
            commit=root.optional("commit", lambda key: _checked(root, key, is_git_version, "a commit in hexadecimal")),
            dirty=root.boolean("dirty"),
            source_digest=_sha256(root, "source_digest"),
            compilers=root.objects("compilers", lambda reader: (reader.text("name"), reader.text("version"))),
            host=root.objects("host", _read_host),
            device=root.objects("device", _read_device),
            index_url=root.optional("index_url", lambda key: _checked(root, key, is_index_url, "the URL of an index")),
        )
        root.finish()
        _check_whole(info)
        return info


def by_file(device: Iterable[DeviceFile]) -> dict[str, list[DeviceFile]]:
    """The images in each file of device code, by its path."""
    files: dict[str, list[DeviceFile]] = {}
    for image in device:
        files.setdefault(image.path, []).append(image)
    return files


def host_path(abi: TorchAbi, machine: str) -> str:
    """The path in a wheel, relative to ``precast/_C``: of the library for any torch, or of the adapter to one."""
    return f"host/kernels-{machine}.so" if isinstance(abi, AnyTorch) else f"host/{abi}.so"


def image_name(family: str, target: GpuTarget) -> str:
    """The name of a family's device code for a target, in decisions and messages."""
    return f"device/{family}.{target}.{_suffix(target)}"


def device_path(family: str, targets: Sequence[GpuTarget]) -> str:
    """The path in a wheel of the file with a family's images for these targets, in the order they have in the file."""
    return f"device/{family}.{'+'.join(map(str, targets))}.{_suffix(targets[0])}.xz"


def _suffix(target: GpuTarget) -> str:
    return "cubin" if target.kind is TargetKind.SASS else "ptx"


def _host_document(file: HostFile) -> dict[str, object]:
    return {
        "path": file.path,
        "sha256": file.sha256,
        "bytes": file.bytes,
        "abi": str(file.abi),
        "machine": file.machine,
        "python": file.python,
        "cuda_major": file.cuda_major,
        "needed": list(file.needed),
        "glibc": str(file.glibc),
        "glibcxx": file.glibcxx,
        "cpu_levels": list(file.cpu_levels),
        "families": list(file.families),
        "debug": file.debug,
        "kind": file.kind.value,
    }


def _device_document(file: DeviceFile) -> dict[str, object]:
    return {
        "path": file.path,
        "sha256": file.sha256,
        "bytes": file.bytes,
        "family": file.family,
        "target": str(file.target),
        "nvrtc": file.nvrtc,
        "min_driver": str(file.min_driver),
        "offset": file.offset,
        "content_bytes": file.content_bytes,
        "content_sha256": file.content_sha256,
    }


def _read_host(reader: Reader) -> HostFile:
    return HostFile(
        path=_path(reader, "host"),
        sha256=_sha256(reader, "sha256"),
        bytes=_within(reader, "bytes", MAX_FILE_BYTES),
        abi=reader.parsed("abi", parse_torch_abi),
        machine=_checked(reader, "machine", _is_word, "a machine such as 'x86_64'"),
        needed=reader.texts("needed"),
        glibc=reader.parsed("glibc", Release.parse),
        glibcxx=reader.parsed("glibcxx", _dotted_text),
        cpu_levels=_words(reader, "cpu_levels"),
        families=_names(reader, "families"),
        python=_checked(reader, "python", _is_python, "'none', 'abi3' or one such as 'cp312'"),
        cuda_major=reader.optional("cuda_major", reader.integer),
        debug=reader.boolean("debug"),
        kind=reader.parsed("kind", HostKind),
    )


def _read_device(reader: Reader) -> DeviceFile:
    file = DeviceFile(
        path=_path(reader, "device"),
        sha256=_sha256(reader, "sha256"),
        bytes=_within(reader, "bytes", MAX_FILE_BYTES),
        family=_checked(reader, "family", _is_name, "a family such as 'rms_norm'"),
        target=reader.parsed("target", GpuTarget.parse),
        nvrtc=reader.parsed("nvrtc", _dotted_text),
        min_driver=CudaVersion(*_min_driver(reader)),
        offset=_within(reader, "offset", MAX_CONTENT_BYTES),
        content_bytes=_within(reader, "content_bytes", MAX_CONTENT_BYTES),
        content_sha256=_sha256(reader, "content_sha256"),
    )
    if file.end > MAX_CONTENT_BYTES:
        raise ManifestError(
            f"{reader.at('offset')}: wanted an image within {MAX_CONTENT_BYTES} bytes, found {file.end}"
        )
    return file


def _dotted_text(text: str) -> str:
    """Return the text unchanged if it is a dotted version."""
    dotted(text)
    return text


def _min_driver(reader: Reader) -> tuple[int, int]:
    release = reader.parsed("min_driver", Release.parse)
    return release.major, release.minor


def _checked(reader: Reader, key: str, is_right: Callable[[str], bool], wanted: str) -> str:
    text = reader.text(key)
    if not is_right(text):
        raise ManifestError(f"{reader.at(key)}: wanted {wanted}, found {text!r}")
    return text


def _is_version(text: str) -> bool:
    return re.fullmatch(_VERSION, text) is not None


def _is_python(text: str) -> bool:
    return text in ("none", "abi3") or re.fullmatch(_PYTHON, text) is not None


def _is_word(text: str) -> bool:
    return text[0] in _LETTERS and _WORD.issuperset(text)


def _is_name(text: str) -> bool:
    """Whether this can name a family, or a module of another package such as ``_C``."""
    return text[0] in _NAME and not text[0].isdigit() and _NAME.issuperset(text)


def _is_sha256(text: str) -> bool:
    return len(text) == 64 and _HEX.issuperset(text)


def _sha256(reader: Reader, key: str) -> str:
    return _checked(reader, key, _is_sha256, "64 lower-case hexadecimal digits")


def _words(reader: Reader, key: str) -> tuple[str, ...]:
    for word in (words := reader.texts(key)):
        if not _is_word(word):
            raise ManifestError(f"{reader.at(key)}: wanted lower-case words, found {word!r}")
    return words


def _names(reader: Reader, key: str) -> tuple[str, ...]:
    for name in (names := reader.texts(key)):
        if not _is_name(name):
            raise ManifestError(f"{reader.at(key)}: wanted names of letters, digits and underscores, found {name!r}")
    return names


def _within(reader: Reader, key: str, most: int) -> int:
    size = reader.integer(key)
    if not 0 <= size <= most:
        raise ManifestError(f"{reader.at(key)}: wanted 0 to {most}, found {size}")
    return size


def _path(reader: Reader, folder: str) -> str:
    """A path directly inside the folder: one check refuses absolute paths, ``..``, backslashes and NUL."""
    path = reader.text("path")
    first, _, name = path.partition("/")
    if first != folder or not name or name[0] in ".+-" or not _FILE_NAME.issuperset(name):
        raise ManifestError(f"{reader.at('path')}: wanted '{folder}/<file name>', found {path!r}")
    return path


def _check_whole(info: BuildInfo) -> None:
    """Check the manifest as a whole: no duplicates, and no files that the mode or the label rules out."""
    _refuse_repeats("path", (file.path for file in info.host))
    _refuse_repeats("device code", (f"{file.family} {file.target}" for file in info.device))
    for images in by_file(info.device).values():
        _check_file(images)
    for file in info.host:
        if file.kind is HostKind.ADAPTER and not isinstance(file.abi, Exact):
            raise ManifestError(f"$.host: {file.path!r} is an adapter for {file.abi}, wanted one torch")
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
                f"$.device: {image.name!r} wanted at offset {end} of {first.path!r}, found {image.offset}"
            )
        end = image.end


def _refuse_repeats(what: str, items: Iterable[str]) -> None:
    seen: set[str] = set()
    for item in items:
        if item in seen:
            raise ManifestError(f"$: {what} {item!r} is listed twice")
        seen.add(item)
