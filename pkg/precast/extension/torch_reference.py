"""The row that is always there: the same functions in plain torch, on whatever device torch has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from precast._load import probe
from precast._load.source import Source
from precast.errors import KernelUnavailable
from precast.extension.base import Extension
from precast.extension.module import KernelModule

LOWEST = -100


class TorchExtension(Extension):
    """A subclass, or a row of the table, says the functions: ``members``. Nothing is built, and nothing is fast.

    It serves what no kernel does: other devices (ROCm, XPU, MPS), or a machine where nothing can be built. A loader
    takes it last and says so; under ``PRECAST_JIT=aot`` and ``jit``, which ask for a kernel, only by name.
    """

    backend: ClassVar[str] = "torch"
    reference: ClassVar[bool] = True
    members: ClassVar[Mapping[str, Any]] = {}
    priority = LOWEST

    def __init__(self, name: str, priority: int = LOWEST) -> None:
        super().__init__(name, support_aot=False, support_jit=False, priority=priority)

    def is_available(self) -> bool:
        """Yes: torch computes on any hardware. Whether it is there is another question."""
        return True

    def assert_compatible(self) -> None:
        """Raises KernelUnavailable without torch, or with one that is broken."""
        host = probe.probe_host(probe.read_settings(), gpus=False)
        if host.torch is None:
            raise KernelUnavailable(
                f"{self.name} cannot be had here\n  found   {host.torch_error or 'no torch'}\n"
                f"  needed  an importable torch\n  fix     1) pip install torch"
            )

    def build_aot(self) -> Any:
        """Nothing: there is nothing to compile, and ``support_aot`` is False."""
        raise KernelUnavailable(
            f"{self.name} cannot be built ahead of time\n  found   functions in plain torch\n"
            f"  needed  nothing: they are always there\n  fix     1) load it instead"
        )

    def build_jit(self) -> KernelModule:
        """The same as ``load``."""
        return self.load()

    def load(self) -> KernelModule:
        """The functions."""
        self.assert_compatible()
        import torch

        return KernelModule(
            self.name, self.members, Source("torch", Path(torch.__file__), f"torch {torch.__version__}")
        )
