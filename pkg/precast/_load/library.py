"""A host library and its C interface (csrc/host/api.cpp). Every failure becomes an exception."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING

from precast.core.capability import ComputeCapability, GpuTarget
from precast.core.verify import CannotOpen, opened
from precast.errors import REPORT, KernelError, KernelIncompatible, KernelUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_ERROR_BYTES = 4096
_NAMES_BYTES = 1 << 16


class CannotAttach(Exception):
    """A library cannot be bound to this torch; the text says what is missing or wrong."""


class _Description(ctypes.Structure):
    """``Description`` of csrc/host/direct.cpp."""

    _fields_ = (
        ("op", ctypes.c_char_p),
        ("types", ctypes.c_char_p),
        ("results", ctypes.c_int32),
        ("devices", ctypes.c_int32),
        ("written", ctypes.c_uint64),
        ("plain", ctypes.c_uint64),
        ("included", ctypes.c_uint64),
        ("excluded", ctypes.c_uint64),
        ("autograd", ctypes.c_uint64),
        ("record", ctypes.c_void_p),
        ("first", ctypes.c_void_p),
        ("otherwise", ctypes.c_void_p),
        ("registered", ctypes.c_void_p),
        ("expected", ctypes.c_uint64),
        ("dispatched", ctypes.c_void_p),
    )


class HostLibrary:
    """One mapped library. It is never unmapped: the dispatcher keeps pointers into it."""

    def __init__(self, path: Path) -> None:
        self._c = opened(path, mode=ctypes.RTLD_LOCAL)
        try:
            self._c.precast_build_id.restype = self._c.precast_families.restype = ctypes.c_char_p
        except AttributeError as error:  # it opens, but is not one of our libraries
            raise CannotOpen(str(error)) from error
        self.path = path

    def build_id(self) -> str:
        """Package version and source digest that this library was compiled from."""
        return _text(self._c.precast_build_id())

    def families(self) -> tuple[str, ...]:
        """The kernel families in this library."""
        return tuple(_text(self._c.precast_families()).split())

    def attach(self, table: int | None) -> None:
        """Bind the library to torch, by the address of an adapter's table, or None for torch's own functions.

        Raises CannotAttach if a function is missing.
        """
        try:
            self._call("precast_attach", ctypes.c_void_p(table))
        except KernelIncompatible as error:
            raise CannotAttach(str(error).splitlines()[0]) from error

    def register_proof(self, space: str) -> None:
        """Register the kernels of the ops by which a pre-release of torch is tried (csrc/host/prove.cpp)."""
        self._call("precast_register_proof", space)

    def register(self, family: str, key: str) -> None:
        """Register the family's kernels for a dispatch key, "CPU" or "CUDA"; a second call is a no-op."""
        self._call("precast_register", family, key)

    def use_level(self, name: str) -> None:
        """Make the CPU kernels of this library use one CPU level, in all threads at once."""
        try:
            self._call("precast_set_cpu_level", name)
        except KernelIncompatible as error:
            raise wrong_level(name, str(error)) from error

    def set_image(
        self, family: str, device: int, image: bytes, target: GpuTarget, capability: ComputeCapability
    ) -> None:
        """Hand over a device's cubin or PTX. The library copies it, and loads it at the first launch on the device."""
        where = (str(target), capability.major, capability.minor)
        self._call("precast_set_image", family, device, image, ctypes.c_size_t(len(image)), *where)

    def refuse(self, family: str, device: int, message: str) -> None:
        """Make every launch of the family on this device raise the message."""
        status = self._c.precast_refuse(family.encode(), device, _bytes(message))
        if status != 0:
            raise KernelError(
                f"precast_refuse({family}, {device}) of {self.path} failed",
                found=f"status {status}",
                needed="status 0",
                fix=REPORT,
            )

    def prepare(self, family: str, device: int) -> None:
        """Load the family's kernels into the device's context now, so that a captured launch has nothing to load."""
        self._call("precast_prepare", family, device)

    def thread_keys(self) -> tuple[int, int] | None:
        """The keys that this thread includes and excludes, as bits that differ from the default.

        None if the running torch or Python lacks a function that ``direct`` needs.
        """
        keys = (ctypes.c_uint64 * 2)()
        return None if self._c.precast_thread_keys(keys) else (keys[0], keys[1])

    def operator(self, name: str) -> tuple[int, int] | None:
        """Address and size of what torch's dispatcher keeps about an op; None if this torch lacks a function."""
        size = ctypes.c_uint64()
        self._c.precast_operator.restype = ctypes.c_void_p
        found = self._c.precast_operator(name.encode(), ctypes.byref(size))
        return None if found is None else (found, size.value)

    def direct(
        self,
        *,
        otherwise: Callable[..., Any],
        record: Callable[..., Any] | None,
        first: Callable[..., Any] | None,
        dispatched: Callable[..., Any],
        op: str,
        types: str,
        **numbers: int,
    ) -> Callable[..., Any] | None:
        """A Python function that calls an op's kernel without the dispatcher, or None if ``thread_keys`` is None.

        ``numbers`` are the other fields of ``Description`` in csrc/host/direct.cpp, which explains them all.
        """
        self._c.precast_direct.restype = ctypes.c_void_p
        given = [None if value is None else id(value) for value in (record, first, otherwise, dispatched)]
        description = _Description(op=op.encode(), types=types.encode(), **numbers)
        description.record, description.first, description.otherwise, description.dispatched = given
        made = self._c.precast_direct(ctypes.byref(description))
        if made is None:
            return None
        function: Callable[..., Any] = ctypes.cast(made, ctypes.py_object).value
        return function

    def entries(self, family: str) -> tuple[str, ...]:
        """The entry points of the family's device code."""
        buffer = ctypes.create_string_buffer(_NAMES_BYTES)
        if self._c.precast_entries(family.encode(), buffer, ctypes.c_size_t(_NAMES_BYTES)) != 0:
            raise KernelIncompatible(
                f"the kernels of {family} in {self.path} cannot be listed",
                found=_text(buffer.value),
                needed=f"the device code of {family}",
                fix=REPORT,
            )
        return tuple(_text(buffer.value).split())

    def _call(self, function: str, *arguments: str | bytes | int | ctypes.c_size_t | ctypes.c_void_p) -> None:
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        c_arguments = [_bytes(value) if isinstance(value, str) else value for value in arguments]
        if getattr(self._c, function)(*c_arguments, error, ctypes.c_size_t(_ERROR_BYTES)) != 0:
            raise KernelIncompatible(f"{_text(error.value)}\n  from    {function} of {self.path}")


def adapter_table(path: Path) -> int:
    """The address of the table in an adapter, which stays mapped. Raises CannotOpen if it cannot be opened."""
    try:
        function = opened(path, mode=ctypes.RTLD_LOCAL).precast_torch_table
    except AttributeError as error:
        raise CannotOpen(str(error)) from error
    function.restype = ctypes.c_void_p
    table: int = function()
    return table


def wrong_level(name: str, why: str) -> KernelUnavailable:
    """The exception for a PRECAST_CPU_LEVEL that this machine or this library does not have."""
    return KernelUnavailable(
        f"PRECAST_CPU_LEVEL={name} is not available here",
        found=why,
        needed="a level that this CPU and this library have",
        fix="unset PRECAST_CPU_LEVEL",
    )


def _bytes(text: str) -> bytes:
    """Encode for C; file names that are not valid UTF-8 keep their bytes."""
    return text.encode("utf-8", "surrogateescape")


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")
