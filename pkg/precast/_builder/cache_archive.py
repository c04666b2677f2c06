"""Carry builds to another machine in a tar with a manifest. The export takes undamaged entries; the import trusts none.

The first member is the manifest, ``precast-cache.json``; the files that it names follow, and nothing else. The import
checks the whole archive before it writes anything, and checks each file again while copying it. The hashes prove that
nothing changed on the way, not that the author meant well: import only archives whose code you would run.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shlex
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precast._builder import trust
from precast._builder.archives import BadArchive, Tar, open_tar
from precast._builder.cache import BuildKey, Cache
from precast._builder.cache_tools import Entry
from precast._builder.entry import FIELDS
from precast.core import reader as read
from precast.errors import KernelError

MANIFEST = "precast-cache.json"
SCHEMA = 1
_MANIFEST_BYTES = 8 << 20  # a manifest needs a few kilobytes for each entry
_MODES = {".gz": "w:gz", ".tgz": "w:gz", ".xz": "w:xz", ".tar": "w"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_]*")
_ENTRY = {"name": read.checked(lambda name: _NAME.fullmatch(name) is not None, "the name of a build"), **FIELDS}
_ARCHIVE = {
    "schema": read.exactly(SCHEMA, "for this version of precast"),
    "entries": read.each(read.record(dict, _ENTRY)),
}


@dataclass(frozen=True, slots=True)
class Item:
    """One entry of an archive, as described by the manifest."""

    key: BuildKey
    payload: str
    sha256: str
    bytes: int
    seconds: float

    @property
    def member(self) -> str:
        """Its only name in the archive. The name follows from the key, so a manifest cannot choose another."""
        return f"{self.key.name}/{self.key.digest[:16]}/{self.payload}"


def export_cache(entries: Iterable[Entry], archive: Path) -> tuple[Item, ...]:
    """Write the undamaged ones of these entries. The archive appears only when it is complete."""
    mode = _MODES.get(archive.suffix)
    if mode is None:
        raise KernelError(
            f"{archive}: no archive can be written under this name",
            found=f"the suffix {archive.suffix!r}",
            needed="a name that ends in .tar, .tar.gz, .tgz or .tar.xz",
            fix=f"python -m precast export-cache {shlex.quote(f'{archive}.tar.gz')}",
        )
    chosen = {item.member: (item, path) for item, path in map(_item, entries) if path is not None}
    items = tuple(item for _, (item, _) in sorted(chosen.items()))
    manifest = {"schema": SCHEMA, "entries": [_to_json(item) for item in items]}
    text = json.dumps(manifest, indent=1, sort_keys=True).encode()
    try:
        _write(archive, mode, text, [(item.member, chosen[item.member][1]) for item in items])
    except (OSError, tarfile.CompressionError) as error:
        plain = isinstance(error, tarfile.CompressionError)  # this Python lacks the compression
        other = f"{archive}.tar" if plain else str(Path(tempfile.gettempdir(), archive.name))
        raise KernelError(
            f"{archive}: the archive cannot be written",
            found=str(error),
            needed="a Python with this compression, or an archive without compression"
            if plain
            else "a folder that this user can write, with space left, and builds that can be read",
            fix=f"python -m precast export-cache {shlex.quote(other)}",
        ) from error
    return items


def _write(archive: Path, mode: str, manifest: bytes, files: list[tuple[str, Path]]) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{archive.name}-", dir=archive.absolute().parent)
    os.close(handle)
    try:
        with tarfile.open(name, mode) as tar:  # type: ignore[call-overload]  # the mode comes from a table
            _add(tar, MANIFEST, manifest)
            for member, path in files:
                _add(tar, member, path.read_bytes())
        Path(name).rename(archive)
    finally:
        Path(name).unlink(missing_ok=True)


def import_cache(archive: Path, cache: Cache) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
    """Import an archive; returns the added and the existing items. A bad archive raises KernelError before writing."""
    try:
        with open_tar(archive) as tar:
            items = _checked(archive, tar)
        added = {item.member: item for item in items if cache.lookup(item.key) is None}
        with open_tar(archive) as tar, tempfile.TemporaryDirectory(prefix="precast-import-") as folder:
            for member in tar:
                if member.name in added:
                    _store(archive, tar, member, added[member.name], cache, Path(folder))
    except (BadArchive, OSError) as error:
        raise _refusal(archive, str(error), "an archive that export-cache wrote") from error
    return tuple(added.values()), tuple(item for item in items if item.member not in added)


def _checked(archive: Path, tar: Tar) -> tuple[Item, ...]:
    """The items of an archive, after checking that every member is one of them, a plain file, and has its hash."""
    members = iter(tar)
    first = next(members, None)
    if first is None or first.name != MANIFEST or not first.isreg() or first.size > _MANIFEST_BYTES:
        needed = f"{MANIFEST}, a file of at most {_MANIFEST_BYTES} bytes, as its first member"
        raise _refusal(archive, f"{first.name if first else 'nothing'} as its first member", needed)
    items = _parse(archive, b"".join(tar.pieces(first)))
    wanted = dict(items)
    for member in members:
        item = wanted.pop(member.name, None)
        if item is None:
            raise _refusal(archive, f"the member {member.name!r}", "only files that its manifest names, each once")
        if not member.isreg():
            raise _refusal(archive, f"{member.name!r}, which is a link, a folder or a device", "plain files")
        if member.size != item.bytes or _hash(tar.pieces(member)) != item.sha256:
            raise _refusal(archive, f"{member.name!r} with another content than its manifest says", "its size and hash")
    if wanted:
        raise _refusal(archive, f"no {min(wanted)!r}", "every file that its manifest names")
    return tuple(items.values())


def _parse(archive: Path, text: bytes) -> Mapping[str, Item]:
    """The items of a manifest by their names in the archive. Inputs that no key can have, such as NaN, are refused."""
    try:
        entries = read.fields(read.parse_object(text.decode()), "$", _ARCHIVE)["entries"]
        items = [Item(BuildKey(entry.pop("name"), entry.pop("inputs")), **entry) for entry in entries]
        named: dict[str, Item] = {}
        for item in items:
            if named.setdefault(item.member, item) is not item:
                raise ValueError(f"the entry {item.member!r} comes twice")
    except (ValueError, RecursionError) as error:
        raise _refusal(archive, f"a manifest that cannot be read: {error}", f"{MANIFEST} from export-cache") from error
    return named


def _store(archive: Path, tar: Tar, member: tarfile.TarInfo, item: Item, cache: Cache, folder: Path) -> None:
    file, digest = folder / item.payload, hashlib.sha256()
    with file.open("wb") as copy:
        for piece in tar.pieces(member) if member.size == item.bytes else ():
            digest.update(piece)
            copy.write(piece)
    if digest.hexdigest() != item.sha256:  # the archive was replaced between the two passes
        raise _refusal(archive, f"{item.member!r} changed while it was imported", "a file that stays as it is")
    try:
        cache.store(item.key, file, item.seconds)
    except OSError as error:
        raise KernelError(
            f"{archive} cannot be imported",
            found=str(error),
            needed="a cache that this user can write, with space left",
            fix=trust.another(cache.root),
        ) from error
    file.unlink()


def _hash(pieces: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _item(entry: Entry) -> tuple[Item, Path | None]:
    """An entry as an item; the path is None for a damaged entry, which is not exported."""
    key = BuildKey(entry.name, entry.inputs)
    if entry.payload is None or entry.problem is not None:
        return Item(key, "", "", 0, 0.0), None
    data = entry.payload.read_bytes()
    return Item(key, entry.payload.name, hashlib.sha256(data).hexdigest(), len(data), entry.seconds), entry.payload


def _to_json(item: Item) -> Mapping[str, Any]:
    return {
        "name": item.key.name,
        "inputs": item.key.inputs,
        "payload": item.payload,
        "sha256": item.sha256,
        "bytes": item.bytes,
        "seconds": item.seconds,
    }


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o644
    tar.addfile(info, io.BytesIO(data))


def _refusal(archive: Path, found: str, needed: str) -> KernelError:
    return KernelError(
        f"{archive} is not a usable cache archive; nothing was changed",
        found=found,
        needed=needed,
        fix=f"precast export-cache {shlex.quote(archive.name)}  # on the machine with the builds",
    )
