"""One entry of the cache: its key, its ``meta.json``, and the check that the folder matches that file.

``meta.json`` is written to disk last, before the entry becomes visible, so it marks an entry as finished. It holds all
inputs of the key, so that two entries can be compared. A reader trusts nothing in it that it cannot check, and raises
:class:`NotWhole` otherwise.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from precast.core import files, owned
from precast.core import reader as read
from precast.core.manifest import MAX_FILE_BYTES

# The form of meta.json and of the inputs of every key. A new number invalidates every build.
SCHEMA = 1
META, LOG_NAME = "meta.json", "build.log"
_META_BYTES = 1 << 24  # a hundred times the need of the largest family; a longer file was not written by us
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}")


class NotWhole(Exception):
    """A folder is not a finished entry, or not the entry of the key; the text says how it differs."""


@dataclass(frozen=True)
class BuildKey:
    """The inputs of a build. ``inputs`` is plain JSON; equal inputs give equal keys on every machine."""

    name: str
    inputs: Mapping[str, Any]

    @classmethod
    def of(cls, name: str, kind: str, inputs: Mapping[str, Any]) -> BuildKey:
        """The key of a build of one kind, with the current schema."""
        return cls(name, {"schema": SCHEMA, "kind": kind, **inputs})

    @cached_property
    def digest(self) -> str:
        """The sha256 of the canonical JSON."""
        text = json.dumps(self.inputs, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.name}/{self.digest[:16]}"


@dataclass(frozen=True)
class Meta:
    """The content of ``meta.json``: the key with all of its inputs, and the one file of the entry."""

    key: str
    payload: str
    sha256: str
    size: int  # in bytes
    seconds: float
    inputs: Mapping[str, Any]

    @classmethod
    def of(cls, key: BuildKey, payload: str, content: bytes, seconds: float) -> Meta:
        """The description of a build that has just been made."""
        sha256 = hashlib.sha256(content).hexdigest()
        return cls(key.digest, payload, sha256, len(content), round(seconds, 3), key.inputs)

    def to_json(self) -> str:
        """The text of the file."""
        fields = {"bytes" if name == "size" else name: value for name, value in vars(self).items()}
        return json.dumps({"schema": SCHEMA, **fields}, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, data: bytes) -> Meta:
        """Read the file; NotWhole for anything but the output of :meth:`to_json`."""
        if len(data) > _META_BYTES:
            raise NotWhole(f"{META} has {len(data)} bytes, more than {_META_BYTES}")
        try:
            found = read.fields(read.parse_object(data.decode()), "$", _META)
            digest = BuildKey("", found["inputs"]).digest
        except (ValueError, RecursionError) as error:
            raise NotWhole(f"{META}: {error}") from error
        if digest != found["key"]:
            raise NotWhole(f"{META} names the key {found['key'][:16]}, but its inputs have the key {digest[:16]}")
        del found["schema"]
        return cls(size=found.pop("bytes"), **found)


def verify(entry: Path, digest: str, *, owner: int | None) -> tuple[Path, Meta] | None:
    """The payload of an entry after every check; None if there is no such folder, NotWhole if a check fails.

    ``owner`` is the user that its files must belong to; None for a cache that another user fills.
    """
    try:
        meta = read_meta(entry, owner=owner)
        if meta.key != digest:
            raise NotWhole(f"{META} has the key {meta.key[:16]} of another build")
        return check_payload(entry, meta, owner=owner), meta
    except NotWhole:
        if not os.path.lexists(entry):
            return None
        raise


def read_meta(entry: Path, *, owner: int | None) -> Meta:
    """The ``meta.json`` of an entry; NotWhole for anything but the output of :meth:`Meta.to_json`."""
    judge = partial(owned.why_not_one, owner=owner)
    try:  # an administrator may have made links, which are checked with the folders
        return Meta.from_json(files.read(entry / META, _META_BYTES, links=owner is None, judge=judge))
    except OSError as error:
        raise NotWhole(f"{META}: {error.strerror or error}") from error


def check_payload(entry: Path, meta: Meta, *, owner: int | None) -> Path:
    """The payload of an entry; NotWhole if it does not match its ``meta.json``."""
    payload, judge = entry / meta.payload, partial(owned.why_not_one, owner=owner)
    try:
        size, found = files.digest(payload, meta.size, links=owner is None, judge=judge)
    except files.WrongSize as error:
        raise NotWhole(f"{meta.payload} has {error.size} bytes; {META} says {meta.size}") from error
    except OSError as error:
        raise NotWhole(f"{meta.payload}: {error.strerror or error}") from error
    if size != meta.size:
        raise NotWhole(f"{meta.payload} has {size} bytes; {META} says {meta.size}")
    if found != meta.sha256:
        raise NotWhole(f"{meta.payload} has sha256 {found[:16]}; {META} says {meta.sha256[:16]}")
    return payload


def _is_payload(name: str) -> bool:
    return _PLAIN_NAME.fullmatch(name) is not None and name not in {META, LOG_NAME}


def _seconds(value: object, where: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e9:
        raise read.ManifestError(f"{where}: needed a number of seconds from 0 on, found {value!r}")
    return float(value)


_SHA256 = read.hexadecimal(64, 64, "64 lower-case hexadecimal digits")
# How an entry is described, here and in an archive of entries.
FIELDS: Mapping[str, read.Reader[Any]] = {
    "payload": read.checked(_is_payload, "a plain file name"),
    "sha256": _SHA256,
    "bytes": read.within(MAX_FILE_BYTES),
    "seconds": _seconds,
    "inputs": read.mapping,
}
_META = {"schema": read.exactly(SCHEMA, "for this version of precast"), "key": _SHA256, **FIELDS}
