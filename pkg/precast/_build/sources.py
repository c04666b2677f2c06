"""Where csrc lies, which files a source reaches, and what they hold: the content half of every build key."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from precast.errors import KernelError

MARKER = "common/api.cpp"
INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file under a stable name (``csrc/rms_norm/host.cpp``) that is the same wherever the package is installed."""

    name: str
    path: Path
    data: bytes

    @property
    def sha256(self) -> str:
        """The digest of the content; neither the path nor the time of the file enters a key."""
        return hashlib.sha256(self.data).hexdigest()


def csrc_candidates() -> tuple[Path, Path]:
    """The installed copy first, then the checkout that this package lies in."""
    package = Path(__file__).resolve().parents[1]
    return package / "csrc", package.parents[1] / "csrc"


def csrc_dir(candidates: Iterable[Path] | None = None) -> Path:
    """Find the sources, told from an unrelated folder of that name by a marker file."""
    looked_at = csrc_candidates() if candidates is None else tuple(candidates)
    for candidate in looked_at:
        if (candidate / MARKER).is_file():
            return candidate
    places = ", ".join(str(path) for path in looked_at)
    raise KernelError(
        f"the kernel sources are missing, so nothing can be built\n"
        f"  found   no {MARKER} in {places}\n"
        f"  needed  the csrc folder of this precast\n"
        f"  fix     1) pip install --force-reinstall --no-deps precast"
    )


def reachable(entries: Iterable[str], roots: Mapping[str, Path]) -> tuple[SourceFile, ...]:
    """The files that ``entries`` include, directly or not, sorted by name, ``entries`` among them.

    ``roots`` maps a prefix (``csrc``) to a folder; an entry is ``prefix/relative path``. An include is looked for
    beside the file that has it, then in each root; what is found in neither belongs to the system and is the
    compiler's share of the key. Conditional includes count: a key may hold a file too many, never one too few.
    """
    found: dict[str, SourceFile] = {}
    todo = list(entries)
    while todo:
        name = todo.pop()
        if name in found:
            continue
        prefix, _, relative = name.partition("/")
        path = roots[prefix] / relative
        data = _read(path, name)
        found[name] = SourceFile(name, path, data)
        for spelled in INCLUDE.findall(data):
            target = resolve(name, spelled.decode("utf-8", "replace"), roots)
            if target is not None:
                todo.append(target)
    return tuple(found[name] for name in sorted(found))


def digest_of(files: Iterable[SourceFile]) -> str:
    """One digest over names and contents, whatever the order they come in."""
    return digest_of_pairs((file.name, file.sha256) for file in files)


def digest_of_pairs(pairs: Iterable[tuple[str, str]]) -> str:
    """The same digest from names and digests already known."""
    whole = hashlib.sha256()
    for name, sha256 in sorted(pairs):
        whole.update(f"{name}\0{sha256}\n".encode())
    return whole.hexdigest()


def source_digest(csrc: Path) -> str:
    """The digest of everything that is ours under ``csrc``: what a manifest names the sources by."""
    files = [path for path in csrc.rglob("*") if path.is_file() and path.suffix in {".h", ".cpp", ".cu", ".cuh"}]
    ours = [path for path in files if path.relative_to(csrc).parts[0] != "torch_stable"]
    return digest_of(SourceFile(f"csrc/{path.relative_to(csrc)}", path, path.read_bytes()) for path in ours)


def _read(path: Path, name: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise KernelError(
            f"the kernel source {name} cannot be read\n"
            f"  found   {error}\n"
            f"  needed  {path}\n"
            f"  fix     1) pip install --force-reinstall --no-deps precast"
        ) from error


def resolve(includer: str, spelled: str, roots: Mapping[str, Path]) -> str | None:
    """Find an include: the name of the file it means, or None for one of the system's."""
    prefix, _, relative = includer.partition("/")
    beside = _normalised(f"{relative.rpartition('/')[0]}/{spelled}")
    if beside is not None and (roots[prefix] / beside).is_file():
        return f"{prefix}/{beside}"
    for root, folder in roots.items():
        inside = _normalised(spelled)
        if inside is not None and (folder / inside).is_file():
            return f"{root}/{inside}"
    return None


def _normalised(relative: str) -> str | None:
    """Take ``..`` out of a relative path; None when it climbs above its root."""
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
