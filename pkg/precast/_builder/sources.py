"""Find csrc, the files that a source reaches, and their contents: the content half of every build key."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from precast.errors import KernelError

MARKER = "host/api.cpp"
INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', re.MULTILINE)


@dataclass(frozen=True)
class SourceFile:
    """One file with a name (``csrc/norm/rms_norm.cpp``) that is the same wherever the package is installed."""

    name: str
    path: Path
    data: bytes

    @cached_property
    def sha256(self) -> str:
        """The digest of the content. The file's path and time are not part of any key."""
        return hashlib.sha256(self.data).hexdigest()


def csrc_candidates() -> tuple[Path, Path]:
    """The installed copy first, then the checkout that contains this package."""
    package = Path(__file__).resolve().parents[1]
    return package / "csrc", package.parents[1] / "csrc"


def csrc_dir(candidates: Iterable[Path] | None = None) -> Path:
    """Find the sources. A marker file distinguishes them from an unrelated folder of the same name."""
    looked_at = csrc_candidates() if candidates is None else tuple(candidates)
    for candidate in looked_at:
        if (candidate / MARKER).is_file():
            return candidate
    places = ", ".join(str(path) for path in looked_at)
    raise KernelError(
        "the kernel sources are missing, so nothing can be built",
        found=f"no {MARKER} in {places}",
        needed="the csrc folder of this precast",
        fix=restore_fix(),
    )


class Tree:
    """Files under named roots, each read and scanned for includes once.

    ``roots`` maps a prefix (``csrc``) to a folder; a file's name is ``prefix/relative path``.
    """

    def __init__(self, roots: Mapping[str, Path]) -> None:
        self.roots = dict(roots)
        self._read: dict[str, tuple[SourceFile, tuple[str, ...]]] = {}

    def reachable(self, entries: Iterable[str]) -> tuple[SourceFile, ...]:
        """All files that ``entries`` include, directly or not, and ``entries`` themselves, sorted by name.

        An include is looked for in the folder of the including file, then in each root. A file found in neither belongs
        to the system, and the compiler's part of the key covers it. Conditional includes count: a key may cover a file
        too many, but never one too few.
        """
        found: dict[str, SourceFile] = {}
        todo = list(entries)
        while todo:
            name = todo.pop()
            if name not in found:
                found[name], included = self._file(name)
                todo += included
        return tuple(found[name] for name in sorted(found))

    def resolve(self, includer: str, spelled: str) -> str | None:
        """The name of an included file, or None for a system header."""
        prefix, _, relative = includer.partition("/")
        beside = _normalised(f"{relative.rpartition('/')[0]}/{spelled}")
        if beside is not None and (self.roots[prefix] / beside).is_file():
            return f"{prefix}/{beside}"
        inside = _normalised(spelled)
        for root, folder in self.roots.items():
            if inside is not None and (folder / inside).is_file():
                return f"{root}/{inside}"
        return None

    def _file(self, name: str) -> tuple[SourceFile, tuple[str, ...]]:
        if name not in self._read:
            prefix, _, relative = name.partition("/")
            file = SourceFile(name, self.roots[prefix] / relative, _read(self.roots[prefix] / relative, name))
            spelled = (text.decode("utf-8", "replace") for text in INCLUDE.findall(file.data))
            targets = (self.resolve(name, text) for text in spelled)
            self._read[name] = file, tuple(target for target in targets if target is not None)
        return self._read[name]


def digest_of(files: Iterable[SourceFile]) -> str:
    """One digest over names and contents, independent of their order."""
    return digest_of_pairs((file.name, file.sha256) for file in files)


def digest_of_pairs(pairs: Iterable[tuple[str, str]]) -> str:
    """The same digest, from known names and digests."""
    whole = hashlib.sha256()
    for name, sha256 in sorted(pairs):
        whole.update(f"{name}\0{sha256}\n".encode())
    return whole.hexdigest()


def source_digest(csrc: Path) -> str:
    """The digest of our own sources under ``csrc``, by which a manifest identifies them.

    It covers the files that compilers read, but not the descriptions (``family.toml``). A wheel has those in another
    form, which could not be compared; the manifest names the families of a binary; and a new comment or a new public
    function makes no binary stale.
    """
    known = [path for path in csrc.rglob("*") if path.is_file() and path.suffix in {".h", ".cpp", ".cu", ".cuh"}]
    ours = [path for path in known if path.relative_to(csrc).parts[0] != "torch_stable"]
    return digest_of(SourceFile(f"csrc/{path.relative_to(csrc)}", path, path.read_bytes()) for path in ours)


def _read(path: Path, name: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise KernelError(
            f"the kernel source {name} cannot be read", found=str(error), needed=f"a readable {path}", fix=restore_fix()
        ) from error


def restore_fix() -> str:
    """The command that brings missing files of this installation back, or what to do where none is known."""
    from precast._builder import installer  # needed only for an error

    return installer.restore_command() or "install precast again, from where it came"


def _normalised(relative: str) -> str | None:
    """Resolve ``..`` in a relative path; None if it climbs above its root."""
    parts: list[str] = []
    for part in relative.split("/"):
        if part in {"", "."}:
            continue
        if part == "..":
            if not parts:
                return None
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)
