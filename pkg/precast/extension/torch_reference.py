"""The extension that is always available: the same functions in plain torch, on any device that torch supports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from precast._abi import fixes
from precast._load import probe
from precast._load.source import Source
from precast.errors import KernelUnavailable
from precast.extension.base import Extension
from precast.extension.module import KernelModule

LOWEST = -100


class TorchExtension(Extension):
    """Functions in plain torch, which a subclass defines in ``members``. They need no build.

    It serves cases without a kernel: other devices (ROCm, XPU, MPS), or a machine where nothing can be built. A loader
    chooses it last and reports that. Under ``PRECAST_JIT=aot`` and ``jit``, which ask for a kernel, it loads only by
    name.
    """

    backend: ClassVar[str] = "torch"
    reference: ClassVar[bool] = True
    members: ClassVar[Mapping[str, Any]] = {}
    priority = LOWEST

    def __init__(self, name: str, priority: int = LOWEST) -> None:
        super().__init__(name, support_aot=False, support_jit=False, priority=priority)

    def is_available(self) -> bool:
        """True, because torch computes on any hardware. This does not say whether torch is installed."""
        return True

    def assert_compatible(self) -> None:
        """Raises KernelUnavailable if torch is missing or broken."""
        host = probe.probe_host(probe.read_settings(), gpus=False)
        if host.torch is None:
            raise KernelUnavailable(fixes.needs_torch(self.name, host))

    def build_aot(self) -> Any:
        """Raises an error, because there is nothing to compile; ``support_aot`` is False."""
        raise KernelUnavailable(
            f"{self.name} cannot be built ahead of time",
            found="functions in plain torch",
            needed="an extension with sources",
            fix="call load() instead",
        )

    def build_jit(self) -> KernelModule:
        """The same as ``load``."""
        return self.load()

    def load(self) -> KernelModule:
        """Returns the functions."""
        self.assert_compatible()
        import torch

        return KernelModule(
            self.name, self.members, Source("torch", Path(torch.__file__), f"torch {torch.__version__}")
        )
