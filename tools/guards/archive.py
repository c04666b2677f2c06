"""The guards of the wheel as an archive: its metadata, its RECORD, its size and its canonical form."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator
from pathlib import Path

from packaging.metadata import ExceptionGroup, InvalidMetadata, Metadata
from twine.commands.check import check as twine_check
from twine.exceptions import TwineException

from precast.core.manifest import BuildMode
from precast.core.reasons import Rejection
from tools.guards.subject import Audited, same
from tools.shared.wheel import Entry, NotAWheel, expected_entries, read_wheel, record_errors

# Measured on 2026-11-24: labels with the same targets differ by 3 % at most. Wheels for aarch64 are 1 % larger, that
# without device code 3.4 %.
MARGIN_PERCENT = 5
ADAPTER_BYTES = 25_000  # packed; the largest has 21 000
_TWINE = logging.getLogger("twine")


def check_metadata(a: Audited) -> Iterator[Rejection]:
    """RECORD, file name, WHEEL, METADATA and the matrix agree, and an index would accept the wheel."""
    for where, wanted, found in record_errors(a.wheel):
        yield Rejection("record", wanted, found, where)
    metadata = a.wheel.metadata("METADATA")
    yield from same("version", "METADATA", a.wheel.version, metadata.get("Version"))
    yield from same("name", "METADATA", a.wheel.name, metadata.get("Name"))
    torch = [line for line in metadata.get_all("Requires-Dist", []) if line.startswith("torch")]
    yield from same("requirement", "Requires-Dist", [f"torch>={a.matrix.torch_floor}"], torch)
    yield from same("python", "Requires-Python", f">={min(a.matrix.pythons)}", metadata.get("Requires-Python"))
    if not any(name.startswith(f"{a.wheel.dist_info}/licenses/") for name in a.wheel.files):
        yield Rejection("licence", "a licence file", "none", f"{a.wheel.dist_info}/licenses")
    yield from _index_takes_it(a)
    yield from _tags(a)


def _index_takes_it(a: Audited) -> Iterator[Rejection]:
    """The violations of `twine check --strict` and of the core metadata rules."""
    try:
        Metadata.from_email(a.wheel.files.get(f"{a.wheel.dist_info}/METADATA", b""), validate=True)
    except ExceptionGroup as group:
        for error in group.exceptions:
            field = error.field if isinstance(error, InvalidMetadata) else "METADATA"
            yield Rejection("metadata", "valid core metadata", str(error), field)
        return
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    _TWINE.addHandler(handler)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            failed = twine_check([str(a.wheel.path)], strict=True)
    except TwineException as error:
        yield Rejection("twine", "a wheel that an index takes", str(error), a.wheel.path.name)
        return
    finally:
        _TWINE.removeHandler(handler)
    if failed:
        yield Rejection("twine", "no warning of `twine check --strict`", said.getvalue().strip(), a.wheel.path.name)


def _tags(a: Audited) -> Iterator[Rejection]:
    """File name and WHEEL have the same tags, which match the mode and the policy."""
    python, abi, platform = a.wheel.tag
    tags = sorted(a.wheel.metadata("WHEEL").get_all("Tag", []))
    yield from same("tag", "WHEEL", sorted(f"{python}-{abi}-{part}" for part in platform.split(".")), tags)
    pure = a.info.mode is BuildMode.PURE
    yield from same("purelib", "WHEEL", str(pure).lower(), a.wheel.metadata("WHEEL").get("Root-Is-Purelib"))
    if pure:
        yield from same("tag", "platform", "any", platform)
        return
    machine = a.machine or "no host library"
    wanted = f"{a.matrix.policy}_{machine}" if a.asked.repaired else f"linux_{machine}"
    if wanted not in platform.split("."):
        yield Rejection("tag", wanted, platform, "platform")


def check_size(a: Audited) -> Iterator[Rejection]:
    """The wheel stays within its size budget; a release has the budget of its label.

    A slim wheel is held to it as well, with what the whole wheel would have. So the slim wheels that the tests build
    refuse a change after which the release cannot be built.
    """
    label = a.info.label
    row = f"labels.{label.text or 'default'}.max_bytes" if a.released else "wheel.max_bytes"
    budget = a.matrix.max_bytes_of(label) if a.released else a.matrix.max_bytes
    size = a.wheel.path.stat().st_size
    whole = whole_size(a, size) if a.released and a.asked.only_torch is not None else size
    if whole >= budget:
        largest = sorted(a.wheel.files, key=lambda name: len(a.wheel.files[name]), reverse=True)[:3]
        of_all = "" if whole == size else f", {whole} with the adapters to every torch"
        found = f"{size} bytes{of_all}; largest, unpacked: {', '.join(largest)}"
        yield Rejection("size", f"under {budget} bytes ({row})", found, a.wheel.path.name)


def whole_size(a: Audited, size: int) -> int:
    """The most bytes that the whole wheel can have of which this one, for one torch, has ``size``.

    Each adapter that is left out counts as much as the largest there has been. The margin is for labels of other
    compilers and for the other architecture, of which tests build no wheel.
    """
    every = max(len(a.matrix.hosts(machine)) for machine in a.matrix.machines)
    return (size + max(0, every - len(a.info.host)) * ADAPTER_BYTES) * (100 + MARGIN_PERCENT) // 100


def check_reproducible(a: Audited) -> Iterator[Rejection]:
    """The archive has the canonical form; if a second build is given, both have the same bytes."""
    if a.asked.repaired:
        for entry, wanted in zip(a.wheel.entries, expected_entries(a.wheel), strict=False):
            if entry != wanted:
                yield Rejection("form", _told(wanted, entry), _told(entry, wanted), entry.name)
                break  # one misplaced entry shifts all later ones
        else:
            yield from same("form", a.wheel.path.name, len(a.wheel.files), len(a.wheel.entries))
    if a.asked.twin is not None:
        yield from differences(a.wheel.path, a.asked.twin)


def _told(entry: Entry, other: Entry) -> str:
    """The fields of an entry that differ from the other entry."""
    parts = {name: (getattr(entry, name), getattr(other, name)) for name in Entry.__slots__}
    return ", ".join(f"{name} {mine}" for name, (mine, theirs) in parts.items() if mine != theirs)


def differences(first: Path, second: Path) -> Iterator[Rejection]:
    """The differences of two builds of a wheel: the first bytes of each file that differs, else of the archive."""
    yield from same("twin", "file name", first.name, second.name)
    if first.read_bytes() == second.read_bytes():
        return
    try:
        mine, theirs = read_wheel(first).files, read_wheel(second).files
    except NotAWheel as error:
        yield Rejection("twin", "a wheel", str(error), second.name)
        return
    names = sorted(name for name in {*mine, *theirs} if mine.get(name) != theirs.get(name))
    for name in names:
        one, other = mine.get(name), theirs.get(name)
        if one is None or other is None:
            yield Rejection("twin", "in both builds", f"in {(second if one is None else first).name} alone", name)
            continue
        pairs = enumerate(zip(one, other, strict=False))
        at = next((index for index, (x, y) in pairs if x != y), min(len(one), len(other)))
        found = f"from byte {at} on: {one[at : at + 24]!r}, {other[at : at + 24]!r}"
        yield Rejection("twin", "the same bytes in both builds", found, name)
    if not names:
        yield Rejection(
            "twin",
            "the same archive around the same files",
            "another packing: order, moments or compression",
            first.name,
        )
