"""The arguments of a launch, checked against the compiled parameters and converted to bytes for the driver."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

_FLOATS = {"f32": ctypes.c_float, "f64": ctypes.c_double}
_BITS = {"8": 8, "16": 16, "32": 32, "64": 64}


def pack(name: str, parameters: Sequence[str], values: Sequence[Any]) -> list[Any]:
    """One ctypes value per parameter. Raises TypeError or ValueError, naming the parameter, if a value does not fit."""
    if len(parameters) != len(values):
        raise TypeError(
            f"{name} takes {len(parameters)} arguments ({', '.join(parameters)}), and {len(values)} were given"
        )
    return [
        _one(f"{name}: argument {index}", kind, value)
        for index, (kind, value) in enumerate(zip(parameters, values, strict=True))
    ]


def sizes(what: str, given: object) -> tuple[int, int, int]:
    """Pads one to three sizes to three."""
    whole = tuple(given) if isinstance(given, Sequence) else ()
    if not 1 <= len(whole) <= 3 or any(not isinstance(size, int) or size < 0 for size in whole):
        raise ValueError(f"the {what} is {given!r}; needed 1 to 3 ints from 0 on, such as (256, 1, 1)")
    x, y, z, *_ = (*whole, 1, 1)
    return x, y, z


def _one(where: str, kind: str, value: Any) -> Any:
    if kind.endswith("]"):
        return _structure(where, kind, value)
    if kind in _FLOATS:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return _FLOATS[kind](value)
        raise TypeError(f"{where} is a {kind}, and {value!r} is not a number")
    if hasattr(value, "data_ptr"):
        if kind not in ("u64", "b64"):
            raise TypeError(f"{where} is a {kind}, and a tensor was given, which needs a pointer (u64)")
        return ctypes.c_uint64(value.data_ptr())
    if value is None and kind in ("u64", "b64"):
        return ctypes.c_uint64(0)
    if not isinstance(value, int):
        raise TypeError(f"{where} is a {kind}, and {value!r} is neither a tensor nor an integer")
    bits = _BITS[kind[1:]]
    if not -(1 << (bits - 1)) <= int(value) < 1 << bits:
        raise ValueError(f"{where} is a {kind}, and {value} does not fit into {bits} bits")
    return {8: ctypes.c_uint8, 16: ctypes.c_uint16, 32: ctypes.c_uint32, 64: ctypes.c_uint64}[bits](value % (1 << bits))


def _structure(where: str, kind: str, value: Any) -> Any:
    """A parameter passed by value: its bytes, such as a TensorMap's."""
    size = int(kind[kind.index("[") + 1 : -1])
    content = bytes(value) if isinstance(value, (bytes, bytearray)) or hasattr(value, "__bytes__") else None
    if content is None or len(content) != size:
        found = f"{len(content)} bytes" if content is not None else repr(value)
        raise TypeError(f"{where} is a structure; needed bytes, {size} in all, found {found}")
    return (ctypes.c_char * size).from_buffer_copy(content)
