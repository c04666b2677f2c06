"""Device code with the facts that callers need: entry points, their parameters, registers and spills.

A build leaves one image with these facts as a file in the cache; a digest protects it.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import struct
import zipfile
from collections.abc import Iterable, Mapping
from typing import Any

from precast.core.capability import GpuTarget
from precast.core.value import value
from precast.core.version import CudaVersion
from precast.errors import KernelIncompatible

_MAGIC = b"\x89precast images\n"
_HEAD = struct.Struct("<Q32s")  # the number of bytes that follow, and their SHA-256
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\(([^)]*)\)")
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)(?:\s+\.ptr(?:\s+\.\w+)*(?:\s+\.align\s+\d+)?)?\s+[\w$]+(?:\[(\d+)\])?"
)
_USAGE = re.compile(
    r"Compiling entry function '([\w$]+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
    r".*?Used (\d+) registers",
    re.DOTALL,
)


@value(frozen=True)
class Usage:
    """The resources of one entry point per thread, as reported by ptxas."""

    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int


@value(frozen=True)
class Entry:
    """One entry point: its symbol, its parameters as in PTX (``u64``, ``f32``, ``b8[128]``), and its resources.

    ``usage`` is None for PTX, which the driver compiles on the user's machine.
    """

    symbol: str
    parameters: tuple[str, ...]
    usage: Usage | None = None


@value(frozen=True)
class Image:
    """The code of one source for one target. ``entries`` maps the names that callers use to the entry points."""

    source: str
    target: GpuTarget
    toolkit: CudaVersion  # of the NVRTC that compiled it
    entries: Mapping[str, Entry]
    code: bytes


def read_entries(ptx: str, log: str, names: Mapping[str, str]) -> dict[str, Entry]:
    """The entry points of a program by their C++ names (``names`` maps these to symbols), else by their symbols."""
    said = _USAGE.findall(log)
    usage = {symbol: Usage(*map(int, (registers, *bytes_))) for symbol, *bytes_, registers in said}
    spelled = {symbol: name for name, symbol in names.items()}
    entries = {}
    for symbol, parameters in _ENTRY.findall(ptx):
        kinds = tuple(kind + (f"[{count}]" if count else "") for kind, count in _PARAMETER.findall(parameters))
        entries[spelled.get(symbol, symbol)] = Entry(symbol, kinds, usage.get(symbol))
    return entries


def pack(images: Iterable[Image]) -> bytes:
    """The images as one file. The same images give the same bytes."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, image in enumerate(images):
            head = {
                "source": image.source,
                "target": str(image.target),
                "toolkit": str(image.toolkit),
                "entries": {
                    name: {
                        "symbol": entry.symbol,
                        "parameters": entry.parameters,
                        "usage": None if entry.usage is None else numbers(entry.usage),
                    }
                    for name, entry in image.entries.items()
                },
            }
            archive.writestr(zipfile.ZipInfo(f"{number}.json"), json.dumps(head), zipfile.ZIP_DEFLATED)
            archive.writestr(zipfile.ZipInfo(f"{number}.code"), image.code, zipfile.ZIP_DEFLATED)
    content = whole.getvalue()
    return _MAGIC + _HEAD.pack(len(content), hashlib.sha256(content).digest()) + content


def unpack(data: bytes, where: str) -> tuple[Image, ...]:
    """The images in a file. Raises KernelIncompatible if there are none, or if they are damaged."""
    start = len(_MAGIC)
    if not data.startswith(_MAGIC):
        raise _damaged(where, "no device code of an extension in it")
    if start + _HEAD.size > len(data):
        raise _damaged(where, "it is cut off")
    size, digest = _HEAD.unpack_from(data, start)
    content = data[start + _HEAD.size : start + _HEAD.size + size]
    if len(content) != size or hashlib.sha256(content).digest() != digest:
        raise _damaged(where, "its bytes are not those that were built")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        count = len(archive.namelist()) // 2
        return tuple(_image(json.loads(archive.read(f"{n}.json")), archive.read(f"{n}.code")) for n in range(count))


def _image(head: dict[str, Any], code: bytes) -> Image:
    entries = {
        name: Entry(entry["symbol"], tuple(entry["parameters"]), Usage(*entry["usage"]) if entry["usage"] else None)
        for name, entry in head["entries"].items()
    }
    toolkit = CudaVersion.parse(head["toolkit"])
    return Image(head["source"], GpuTarget.parse(head["target"]), toolkit, entries, code)


def numbers(usage: Usage) -> list[int]:
    """The fields in their order, as plain data."""
    return [usage.registers, usage.stack_bytes, usage.spill_store_bytes, usage.spill_load_bytes]


def _damaged(where: str, what: str) -> KernelIncompatible:
    return KernelIncompatible(
        "the device code of an extension cannot be used",
        found=f"{where}: {what}",
        needed="the file as a build wrote it",
        fix="precast cache clear",
    )
