"""The CUDA driver through ctypes, for kernels launched from Python. Enumerators and structures are those of cuda.h."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from precast._cubin.arguments import sizes
from precast.errors import KernelError, KernelUnavailable

_PLAIN_SHARED_BYTES = 48 * 1024  # each function must opt in to more, once
_PORTABLE_CLUSTER = 8  # blocks; more must be requested, and not every GPU supports it
_MAX_DYNAMIC_SHARED, _NON_PORTABLE_CLUSTER = 8, 14  # CU_FUNC_ATTRIBUTE_...
_CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: an identifier, and a union of 64 bytes at offset 8."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_uint32 * 16))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


class LaunchShape:
    """The numbers of blocks and threads, a block's dynamic shared memory, and the blocks per cluster."""

    __slots__ = ("block", "cluster", "grid", "shared_bytes")

    def __init__(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int = 0,
        cluster: Sequence[int] | None = None,
    ) -> None:
        self.grid, self.block, self.shared_bytes = grid, block, shared_bytes
        self.cluster = None if cluster is None else sizes("cluster", cluster)
        if shared_bytes < 0:
            raise ValueError(f"shared_bytes is {shared_bytes}; needed 0 or more")
        uneven = self.cluster and [g for g, c in zip(grid, self.cluster, strict=True) if c == 0 or g % c]
        if uneven:
            raise ValueError(f"the grid is {grid}; needed a multiple of the cluster {self.cluster} in each dimension")

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to launch."""
        return 0 in self.grid or 0 in self.block

    def config(self, stream: int) -> _Config:
        """The structure that the driver expects."""
        attributes, count = None, 0
        if self.cluster is not None:
            attributes, count = ctypes.pointer(_Attribute(id=_CLUSTER_DIMENSION)), 1
            attributes.contents.value[:3] = list(self.cluster)
        three = ctypes.c_uint * 3
        return _Config(three(*self.grid), three(*self.block), self.shared_bytes, stream, attributes, count)


class Driver:
    """libcuda.so.1. Every failure raises an exception with the driver's message."""

    def __init__(self, path: str = "libcuda.so.1") -> None:
        try:
            self._c = ctypes.CDLL(path)
        except OSError as error:
            raise KernelUnavailable(
                "there is no CUDA driver here",
                found=str(error),
                needed=f"{path}, which the NVIDIA driver brings",
                fix="install the NVIDIA driver (https://www.nvidia.com/drivers); in a container: docker run --gpus all",
            ) from error
        self._contexts: dict[int, int] = {}
        self._modules: dict[tuple[int, str], int] = {}
        self.call("cuInit", 0)

    @staticmethod
    @functools.cache
    def shared() -> Driver:
        """The instance of this process."""
        return Driver()

    def call(self, function: str, *arguments: Any, what: str = "") -> None:
        """Calls a function of the driver. Raises KernelError with the name and text of an error."""
        found = getattr(self._c, function, None)
        if found is None:
            raise KernelUnavailable(
                f"this CUDA driver is too old{what}",
                found=f"no {function} in it",
                needed=f"a driver with the function {function}",
                fix="install a newer NVIDIA driver (https://www.nvidia.com/drivers)",
            )
        status = found(*arguments)
        if status:
            name, text = ctypes.c_char_p(), ctypes.c_char_p()
            self._c.cuGetErrorName(status, ctypes.byref(name))
            self._c.cuGetErrorString(status, ctypes.byref(text))
            words = f"{(name.value or b'an unknown error').decode()} ({(text.value or b'').decode()})"
            raise KernelError(
                f"{function} failed{what}",
                found=words,
                needed="CUDA_SUCCESS",
                fix=f"compute-sanitizer {shlex.join(sys.orig_argv)}  # names the first error of this program",
            )

    def load(self, device: int, code: bytes, symbol: str, name: str) -> Function:
        """An entry point of a cubin or PTX on a device. The module is loaded once and never unloaded."""
        what = f" for {name} on cuda:{device}"
        with self.on(device):
            key = device, hashlib.sha256(code).hexdigest()
            if key not in self._modules:
                module = ctypes.c_void_p()
                self.call("cuModuleLoadData", ctypes.byref(module), code + b"\0", what=what)  # PTX ends with a NUL
                self._modules[key] = module.value or 0
            function = ctypes.c_void_p()
            module = ctypes.c_void_p(self._modules[key])
            self.call("cuModuleGetFunction", ctypes.byref(function), module, symbol.encode(), what=what)
            return Function(self, device, function, name)

    @contextmanager
    def on(self, device: int) -> Iterator[None]:
        """Makes the primary context of a device current, and restores the previous context afterwards."""
        wanted = self._context(device)
        before = ctypes.c_void_p()
        self.call("cuCtxGetCurrent", ctypes.byref(before))
        if before.value == wanted:
            yield
            return
        self.call("cuCtxSetCurrent", ctypes.c_void_p(wanted))
        try:
            yield
        finally:
            self.call("cuCtxSetCurrent", before)

    def _context(self, device: int) -> int:
        if device not in self._contexts:
            ordinal, context = ctypes.c_int(), ctypes.c_void_p()
            self.call("cuDeviceGet", ctypes.byref(ordinal), device)
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ordinal)
            self._contexts[device] = context.value or 0
        return self._contexts[device]


class Function:
    """An entry point in one device's context."""

    def __init__(self, driver: Driver, device: int, handle: ctypes.c_void_p, name: str) -> None:
        self._driver, self._device, self._handle = driver, device, handle
        self._what = f" for {name} on cuda:{device}"
        self._told = {_MAX_DYNAMIC_SHARED: _PLAIN_SHARED_BYTES, _NON_PORTABLE_CLUSTER: 0}

    def launch(self, shape: LaunchShape, values: Sequence[Any], stream: int) -> None:
        """Launches it. ``values`` has one ctypes value per parameter."""
        addresses = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        with self._driver.on(self._device):
            if shape.shared_bytes > self._told[_MAX_DYNAMIC_SHARED]:
                self._tell(_MAX_DYNAMIC_SHARED, shape.shared_bytes)
            cluster = shape.cluster
            blocks = 1 if cluster is None else cluster[0] * cluster[1] * cluster[2]
            if blocks > _PORTABLE_CLUSTER and not self._told[_NON_PORTABLE_CLUSTER]:
                self._tell(_NON_PORTABLE_CLUSTER, 1)
            if cluster is None:  # every driver has this function; the other one came with CUDA 11.8
                grid, block = map(ctypes.c_uint, shape.grid), map(ctypes.c_uint, shape.block)
                shared, on = ctypes.c_uint(shape.shared_bytes), ctypes.c_void_p(stream)
                self._call("cuLaunchKernel", self._handle, *grid, *block, shared, on, addresses, None)
            else:
                config = shape.config(stream)
                self._call("cuLaunchKernelEx", ctypes.byref(config), self._handle, addresses, None)

    def attribute(self, number: int) -> int:
        """An attribute of this function, from cuFuncGetAttribute."""
        found = ctypes.c_int()
        with self._driver.on(self._device):
            self._call("cuFuncGetAttribute", ctypes.byref(found), number, self._handle)
        return found.value

    def _tell(self, attribute: int, number: int) -> None:
        self._call("cuFuncSetAttribute", self._handle, attribute, number)
        self._told[attribute] = number

    def _call(self, function: str, *arguments: Any) -> None:
        self._driver.call(function, *arguments, what=self._what)
