"""Manifests of other schemas: those since the first release's are brought up to date, newer ones say who reads them.

A change of the form takes three lines: the next ``SCHEMA`` and its ``READERS`` in ``build_info.py``, and here the
function that turns a document of the last schema into one of the next. It refuses keys that its schema did not have,
and fills in what an older build could not say. The strict reader of ``build_info.py`` then reads the result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from .reader import ManifestError, NewerManifest, integer

# A requirement as pip takes it, without a character that a shell would read: it is printed in a command.
_READERS = re.compile(r">=[0-9]+(?:\.[0-9A-Za-z]+)*")

Document = dict[str, object]


def is_readers(text: str) -> bool:
    """Whether a text names the versions of precast that read a manifest, as ``>=1.0`` does."""
    return _READERS.fullmatch(text) is not None


def upgraded(document: Document, current: int) -> Document:
    """A manifest, as a document of the current schema."""
    if "schema" not in document:
        raise ManifestError("$.schema: missing")
    found, first = integer(document["schema"], "$.schema"), min(UPGRADES)
    if found > current:
        readers = document.get("readers")
        known = readers if isinstance(readers, str) and is_readers(readers) else ""
        whose = f"for precast{known}" if known else "for a later precast"
        raise NewerManifest(f"$.schema: needed {first} to {current}, found {found}, {whose}", known)
    if found < first:
        raise ManifestError(f"$.schema: needed {first} to {current}, found {found}, older than the first release")
    for schema in range(found, current):
        document = UPGRADES[schema](document)
    return document | {"schema": current}


def _to_5(document: Document) -> Document:
    """Schema 5 names the versions that read it."""
    return _with(document, readers=">=0.1.0")


def _to_6(document: Document) -> Document:
    """Schema 6 tells libraries from adapters. Before, there were only libraries."""
    return _with_hosts(document, kind="library")


def _to_7(document: Document) -> Document:
    """Schema 7 lists the device code inside of a library, and the processor features that it needs."""
    return _with_hosts(document, code=[], cpu=[])


def _to_8(document: Document) -> Document:
    """Schema 8 lists the libraries of the wheel that a library links."""
    return _with_hosts(document, links=[])


def _to_9(document: Document) -> Document:
    """Schema 9 names the copy of the core in a wheel, what opens libraries by path, and the compilers of their code."""
    return _with(_with_hosts(document, compiled=[]), core=None, changed=[], patches_loader=False)


def _with_hosts(document: Document, **added: object) -> Document:
    """The document with keys in each host file that its own schema did not have."""
    hosts = document.get("host")
    if not isinstance(hosts, list) or not all(isinstance(host, dict) for host in hosts):
        return document  # the strict reader says what is wrong
    return document | {"host": [_with(host, **added) for host in hosts]}


def _with(document: Document, **added: object) -> Document:
    """The document with keys that its own schema did not have."""
    strange = sorted(document.keys() & added.keys())
    if strange:
        raise ManifestError(f"$: unknown keys {strange}")
    return document | added


# From each schema to the next, since the first release's.
UPGRADES: Mapping[int, Callable[[Document], Document]] = {4: _to_5, 5: _to_6, 6: _to_7, 7: _to_8, 8: _to_9}
