"""Device code with the facts that callers need: entry points, their parameters, registers and spills.

One file holds an extension's images for several targets. A build leaves this file in the cache, and ``build_aot`` puts
it into a library. Its first bytes locate it there, and a digest protects the rest.
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

from precast._abi.capability import ComputeCapability, GpuTarget, TargetKind, min_driver
from precast._abi.value import value
from precast._abi.version import CudaVersion
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

    def why_not_on(self, gpu: ComputeCapability, driver: CudaVersion) -> str | None:
        """Why it cannot run on a GPU with a driver. None if it can."""
        if not self.target.runs_on(gpu):
            return f"{self.target} serves {self.target.serves}"
        oldest = min_driver(self.target, self.toolkit)
        return f"{self.target} needs a driver for CUDA {oldest}; this one is for {driver}" if driver < oldest else None


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
                        "usage": None if entry.usage is None else _numbers(entry.usage),
                    }
                    for name, entry in image.entries.items()
                },
            }
            archive.writestr(zipfile.ZipInfo(f"{number}.json"), json.dumps(head), zipfile.ZIP_DEFLATED)
            archive.writestr(zipfile.ZipInfo(f"{number}.code"), image.code, zipfile.ZIP_DEFLATED)
    content = whole.getvalue()
    return _MAGIC + _HEAD.pack(len(content), hashlib.sha256(content).digest()) + content


def unpack(data: bytes, where: str) -> tuple[Image, ...]:
    """The images in a file or library. Raises KernelIncompatible if there are none, or if they are damaged."""
    start = data.find(_MAGIC)
    if start < 0:
        raise _damaged(where, "no device code of an extension in it")
    start += len(_MAGIC)
    if start + _HEAD.size > len(data):
        raise _damaged(where, "it is cut off")
    size, digest = _HEAD.unpack_from(data, start)
    content = data[start + _HEAD.size : start + _HEAD.size + size]
    if len(content) != size or hashlib.sha256(content).digest() != digest:
        raise _damaged(where, "its bytes are not those that were built")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        count = len(archive.namelist()) // 2
        return tuple(_image(json.loads(archive.read(f"{n}.json")), archive.read(f"{n}.code")) for n in range(count))


def best(images: Iterable[Image], gpu: ComputeCapability, driver: CudaVersion) -> Image | None:
    """The best of one source's images: machine code for the GPU, then for an older GPU, then PTX."""
    fitting = [image for image in images if image.why_not_on(gpu, driver) is None]
    return max(fitting, key=lambda image: _rank(image.target), default=None)


def _rank(target: GpuTarget) -> tuple[bool, ComputeCapability, str]:
    return target.kind is not TargetKind.PTX, target.capability, target.suffix


def _image(head: dict[str, Any], code: bytes) -> Image:
    entries = {
        name: Entry(entry["symbol"], tuple(entry["parameters"]), Usage(*entry["usage"]) if entry["usage"] else None)
        for name, entry in head["entries"].items()
    }
    toolkit = CudaVersion.parse(head["toolkit"])
    return Image(head["source"], GpuTarget.parse(head["target"]), toolkit, entries, code)


def _numbers(usage: Usage) -> list[int]:
    return [usage.registers, usage.stack_bytes, usage.spill_store_bytes, usage.spill_load_bytes]


def _damaged(where: str, what: str) -> KernelIncompatible:
    return KernelIncompatible(
        f"the device code of an extension cannot be used\n  found   {where}: {what}\n"
        f"  needed  what build_aot() or a build at run time has made\n  fix     1) install the package again"
    )
