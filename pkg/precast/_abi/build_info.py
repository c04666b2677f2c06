"""The manifest of what was prebuilt, ``precast/_C/build_info.json``: one value and its strict JSON form.

The build writes it, the audit derives every claim of it again from the bytes, and the loader bases its decision on it.
It protects integrity, not authenticity.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from enum import Enum

from precast._abi._reader import ManifestError, Reader, parse_object
from precast._abi.capability import GpuTarget, TargetKind
from precast._abi.label import Label
from precast._abi.settings import is_index_url
from precast._abi.torch_abi import TorchAbi, is_git_version, parse_torch_abi
from precast._abi.value import value
from precast._abi.version import CudaVersion, Release, dotted

__all__ = ["SCHEMA", "BuildInfo", "BuildMode", "DeviceFile", "HostFile", "ManifestError", "device_path", "host_path"]

SCHEMA = 3
# The most that device code may unpack to. The largest image has 0.65 MB.
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


@value(frozen=True)
class HostFile:
    """A host library and all its requirements on a process; ``path`` is relative to ``precast/_C``."""

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


@value(frozen=True)
class DeviceFile:
    """The device code of one kernel family for one target, with the version of the NVRTC that compiled it.

    The file is packed: ``sha256`` and ``bytes`` describe the file, ``content_bytes`` is the size of the image in it.
    """

    path: str
    sha256: str
    bytes: int
    family: str
    target: GpuTarget
    nvrtc: str
    min_driver: CudaVersion
    content_bytes: int


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

    def to_json(self) -> str:
        """Canonical text. Raises ManifestError if :meth:`from_json` would not read the same value back."""
        document = {
            "schema": SCHEMA,
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
            raise ManifestError(
                f"$.schema: wanted {SCHEMA}, found {schema}; it was written by another version of precast"
            )
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


def host_path(abi: TorchAbi) -> str:
    """The path of an ABI's host library in a wheel, relative to ``precast/_C``."""
    return f"host/{abi}.so"


def device_path(family: str, target: GpuTarget) -> str:
    """The path in a wheel of a family's device code for a target, relative to ``precast/_C``."""
    return f"device/{family}.{target}.{'cubin' if target.kind is TargetKind.SASS else 'ptx'}.xz"


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
        "content_bytes": file.content_bytes,
    }


def _read_host(reader: Reader) -> HostFile:
    return HostFile(
        path=_path(reader, "host"),
        sha256=_sha256(reader, "sha256"),
        bytes=_size(reader),
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
    )


def _read_device(reader: Reader) -> DeviceFile:
    return DeviceFile(
        path=_path(reader, "device"),
        sha256=_sha256(reader, "sha256"),
        bytes=_size(reader),
        family=_checked(reader, "family", _is_name, "a family such as 'rms_norm'"),
        target=reader.parsed("target", GpuTarget.parse),
        nvrtc=reader.parsed("nvrtc", _dotted_text),
        min_driver=CudaVersion(*_min_driver(reader)),
        content_bytes=_content_size(reader),
    )


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


def _size(reader: Reader) -> int:
    size = reader.integer("bytes")
    if not 0 <= size <= MAX_FILE_BYTES:
        raise ManifestError(f"{reader.at('bytes')}: wanted 0 to {MAX_FILE_BYTES}, found {size}")
    return size


def _content_size(reader: Reader) -> int:
    size = reader.integer("content_bytes")
    if not 0 <= size <= MAX_CONTENT_BYTES:
        raise ManifestError(f"{reader.at('content_bytes')}: wanted 0 to {MAX_CONTENT_BYTES}, found {size}")
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
    _refuse_repeats("path", [*(f.path for f in info.host), *(f.path for f in info.device)])
    _refuse_repeats("device code", (f"{file.family} {file.target}" for file in info.device))
    if info.mode is BuildMode.PURE and (info.host or info.device):
        raise ManifestError("$.mode: a pure build lists no files")
    if info.label.text == "cpu" and info.device:
        raise ManifestError("$.device: the label 'cpu' has no device code")


def _refuse_repeats(what: str, items: Iterable[str]) -> None:
    seen: set[str] = set()
    for item in items:
        if item in seen:
            raise ManifestError(f"$: {what} {item!r} is listed twice")
        seen.add(item)
