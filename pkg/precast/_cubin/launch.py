"""Launches kernels from Python by the rules of the launch protocol: one device, its context, torch's stream."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from precast._cubin import arguments, images
from precast._cubin.driver import Driver, Function, LaunchShape
from precast._load.system import after_fork_in_child
from precast.errors import KernelError, KernelUnavailable

if TYPE_CHECKING:
    from torch import Tensor


class _Turn:
    """One lock for all kernels: each is loaded only once per device."""

    lock = threading.Lock()

    @classmethod
    def renew(cls) -> None:
        """In a forked child the thread that held the lock does not exist."""
        cls.lock = threading.Lock()


after_fork_in_child(_Turn.renew)


class Kernel:
    """One entry point on every device that it was loaded for. The first launch on a device prepares it.

    ``kernel(grid, block, *arguments, shared_bytes=0, cluster=None)``: grid, block and cluster have one to three sizes.
    The arguments are tensors of one CUDA device, numbers, and bytes for structures. A tensor's address is passed
    unchanged, so strides are the caller's responsibility.
    """

    def __init__(self, name: str, owner: str, per_gpu: Mapping[int, images.Image]) -> None:
        self.__name__ = name
        self._owner = owner
        self._images = dict(per_gpu)
        self._ready: dict[int, Function] = {}

    def __call__(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        *values: Any,
        shared_bytes: int = 0,
        cluster: Sequence[int] | None = None,
    ) -> None:
        """Launches it on the current stream of the tensors' device. An empty grid or block launches nothing."""
        import torch

        device = _device(self.__name__, values)
        entry = self._entry(device)
        packed = arguments.pack(self.__name__, entry.parameters, values)
        shape = LaunchShape(arguments.sizes("grid", grid), arguments.sizes("block", block), shared_bytes, cluster)
        if shape.is_empty:
            return
        function = self.prepare(device)
        stream: int = torch.cuda.current_stream(device).cuda_stream
        function.launch(shape, packed, stream)

    def prepare(self, device: int) -> Function:
        """Loads it on a device now, so that a captured launch has nothing left to load."""
        ready = self._ready.get(device)
        if ready is not None:
            return ready
        with _Turn.lock:
            if device not in self._ready:
                image = self._image(device)
                symbol = image.entries[self.__name__].symbol
                self._ready[device] = Driver.shared().load(device, image.code, symbol, f"{self._owner}.{self.__name__}")
            return self._ready[device]

    def usage(self, device: int = 0) -> images.Usage | None:
        """The registers and spills of its image for a device, as reported by ptxas. None for PTX."""
        return self._entry(device).usage

    @property
    def parameters(self) -> tuple[str, ...]:
        """Its parameter types as named by PTX: ``u64`` (a pointer), ``f32``, ``b8[128]``."""
        return next(iter(self._images.values())).entries[self.__name__].parameters

    def __repr__(self) -> str:
        return f"<kernel {self._owner}.{self.__name__}({', '.join(self.parameters)})>"

    def _entry(self, device: int) -> images.Entry:
        return self._image(device).entries[self.__name__]

    def _image(self, device: int) -> images.Image:
        if device not in self._images:
            raise KernelUnavailable(
                f"{self._owner}.{self.__name__} was not loaded for cuda:{device}",
                found=f"code for {', '.join(f'cuda:{index}' for index in self._images) or 'no GPU'}",
                needed="a GPU that was visible when the extension was loaded",
                fix="unset CUDA_VISIBLE_DEVICES  # then start a new process",
            )
        return self._images[device]


def kernels(owner: str, per_gpu: Mapping[int, Sequence[images.Image]]) -> dict[str, Kernel]:
    """Every entry point of the images by name. Two sources with an entry point of the same name are refused."""
    found: dict[str, dict[int, images.Image]] = {}
    for gpu, ours in per_gpu.items():
        for image in ours:
            for name in image.entries:
                if gpu in found.setdefault(name, {}):
                    both = f"{found[name][gpu].source} and {image.source}"
                    raise KernelError(
                        f"{owner}: an entry point is defined twice",
                        found=f"{name!r} in {both}",
                        needed="a different name for each kernel of an extension",
                        fix="rename one of the two kernels",
                    )
                found[name][gpu] = image
    return {name: Kernel(name, owner, per_device) for name, per_device in found.items()}


def _device(name: str, values: Sequence[Any]) -> int:
    """The one CUDA device of all tensors among the arguments."""
    import torch

    tensors: list[Tensor] = [value for value in values if isinstance(value, torch.Tensor)]
    devices = {tensor.device for tensor in tensors}
    if len(devices) != 1 or next(iter(devices)).type != "cuda":
        found = f"tensors on {', '.join(sorted(map(str, devices)))}" if devices else "no tensor"
        raise ValueError(f"{name} was given {found}; needed tensors of one CUDA device")
    return next(iter(devices)).index
