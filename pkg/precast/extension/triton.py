"""Kernels in Triton, as in Colossal-AI's ``_TritonExtension``. Triton compiles them at their first launch."""

from __future__ import annotations

from typing import Any, ClassVar

from precast._load import probe
from precast.errors import KernelUnavailable
from precast.extension import backends
from precast.extension.base import Extension

_SERVED = "a GPU that torch can use: NVIDIA, AMD (ROCm) or Intel (XPU)"


class TritonExtension(Extension):
    """Functions in Triton, which a subclass returns from ``build_jit``. Triton keeps compiled kernels in its own cache.

    This class serves ROCm and XPU builds of torch too. A subclass for one of them narrows ``devices``.
    """

    backend: ClassVar[str] = "triton"
    devices: ClassVar[tuple[str, ...]] = ("cuda", "rocm", "xpu")
    _support_jit = True

    def __init__(self, name: str, priority: int = 1) -> None:
        super().__init__(name, support_aot=False, support_jit=True, priority=priority)

    def is_available(self) -> bool:
        """Whether torch sees a GPU of ``devices``. With ``TRITON_INTERPRET=1`` Triton runs on the CPU, for tests."""
        return probe.read_settings().triton_interpret or bool(set(self.devices) & backends.gpu_kinds())

    def assert_compatible(self) -> None:
        """Raises KernelUnavailable unless Triton is installed and a GPU that it supports is here."""
        if not backends.has_package("triton"):
            from precast.core import pip  # imported for errors alone

            raise self._refusal("no package triton", "the triton of this torch", f"{pip.install_command()} triton")
        if not self.is_available():
            kinds = ", ".join(sorted(backends.gpu_kinds())) or "no GPU"
            wanted = f"{_SERVED}; this extension is for {', '.join(self.devices)}"
            raise self._refusal(kinds, wanted, "leave the choice to the loader: .load()")

    def build_aot(self) -> Any:
        """Raises an error, because a wheel cannot hold a Triton kernel for every GPU; ``support_aot`` is False."""
        raise KernelUnavailable(
            f"{self.name} cannot be built ahead of time",
            found="a Triton extension, whose support_aot is False",
            needed="an extension with sources",
            fix="call load() instead",
        )

    def load(self) -> Any:
        """Returns the result of ``build_jit``."""
        self.assert_compatible()
        return self.build_jit()

    def _refusal(self, found: str, needed: str, fix: str) -> KernelUnavailable:
        return KernelUnavailable(f"{self.name} is not available here", found=found, needed=needed, fix=fix)
