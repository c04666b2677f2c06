"""Descriptors for the tensor memory accelerator (sm_90 and newer): a kernel takes one as a ``__grid_constant__``."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

from precast._cubin.driver import Driver

if TYPE_CHECKING:
    from torch import Tensor

_BYTES, _ALIGNMENT = 128, 64  # CUtensorMap
_MOST_DIMENSIONS = 5
# CUtensorMapDataType, by the name of torch's type.
_TYPES = {
    "uint8": 0,
    "uint16": 1,
    "uint32": 2,
    "int32": 3,
    "uint64": 4,
    "int64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}
_SWIZZLES = {None: 0, 32: 1, 64: 2, 128: 3}  # bytes
_L2 = {None: 0, 64: 1, 128: 2, 256: 3}


class TensorMap:
    """The 128 bytes of a parameter ``const __grid_constant__ CUtensorMap``. They keep the tensor alive."""

    def __init__(self, content: bytes, tensor: Tensor) -> None:
        self._content, self.tensor = content, tensor

    def __bytes__(self) -> bytes:
        return self._content


def tensor_map(
    tensor: Tensor, box: Sequence[int], *, swizzle_bytes: int | None = None, l2_bytes: int | None = None
) -> TensorMap:
    """The descriptor with which TMA copies boxes of ``box`` elements of a CUDA tensor, in the order of its shape.

    Parts of a box beyond an edge are read as zero and not written. The last dimension must be dense.
    """
    if tensor.device.type != "cuda" or not 1 <= tensor.dim() <= _MOST_DIMENSIONS or len(box) != tensor.dim():
        raise ValueError(
            f"tensor has shape {tuple(tensor.shape)} on {tensor.device} and box is {box}; needed a CUDA tensor of 1 to "
            f"{_MOST_DIMENSIONS} dimensions, and a size in box for each of them"
        )
    kind = str(tensor.dtype).removeprefix("torch.")
    options = ("swizzle_bytes", swizzle_bytes, _SWIZZLES), ("l2_bytes", l2_bytes, _L2)
    for name, found, known in (("the dtype of tensor", kind, _TYPES), *options):
        if found not in known:
            raise ValueError(f"{name} is {found}; needed one of {', '.join(map(str, known))}")
    if tensor.stride(-1) != 1:
        raise ValueError(f"the last dimension of tensor has stride {tensor.stride(-1)}; needed stride 1")
    rank, width = tensor.dim(), tensor.element_size()
    sizes = (ctypes.c_uint64 * rank)(*reversed(tensor.shape))
    strides = (ctypes.c_uint64 * rank)(*(stride * width for stride in reversed(tensor.stride()[:-1])))
    boxes, steps = (ctypes.c_uint32 * rank)(*reversed(box)), (ctypes.c_uint32 * rank)(*([1] * rank))
    memory = ctypes.create_string_buffer(_BYTES + _ALIGNMENT)
    place = -(-ctypes.addressof(memory) // _ALIGNMENT) * _ALIGNMENT
    driver = Driver.shared()
    with driver.on(tensor.device.index or 0):
        where = ctypes.c_void_p(tensor.data_ptr())
        head = (ctypes.c_void_p(place), _TYPES[kind], rank, where, sizes, strides, boxes, steps)
        driver.call("cuTensorMapEncodeTiled", *head, 0, _SWIZZLES[swizzle_bytes], _L2[l2_bytes], 0, what=" for TMA")
    return TensorMap(ctypes.string_at(place, _BYTES), tensor)
