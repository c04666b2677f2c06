"""Kernels in Triton: the older ``_TritonExtension``. Triton compiles them itself, at their first launch."""

from __future__ import annotations

from typing import Any, ClassVar

from precast._load import probe
from precast.errors import KernelUnavailable
from precast.extension import backends
from precast.extension.base import Extension

_SERVED = "a GPU that torch can use: NVIDIA, AMD (ROCm) or Intel (XPU)"


class TritonExtension(Extension):
    """A subclass writes ``build_jit``, which returns the functions; Triton keeps what it compiles in its own cache.

    It is the row by which ROCm and XPU builds of torch have kernels: a subclass for one of them narrows ``devices``.
    """

    backend: ClassVar[str] = "triton"
    devices: ClassVar[tuple[str, ...]] = ("cuda", "rocm", "xpu")
    _support_jit = True

    def __init__(self, name: str, priority: int = 1) -> None:
        super().__init__(name, support_aot=False, support_jit=True, priority=priority)

    def is_available(self) -> bool:
        """Whether torch sees a GPU of ``devices``; with ``TRITON_INTERPRET=1`` Triton runs on the CPU, for tests."""
        return probe.read_settings().triton_interpret or bool(set(self.devices) & backends.gpu_kinds())

    def assert_compatible(self) -> None:
        """Raises KernelUnavailable unless Triton is installed and a GPU that it serves is here."""
        if not backends.has_package("triton"):
            raise self._refusal("no package triton", "the triton of this torch", "pip install triton")
        if not self.is_available():
            kinds = ", ".join(sorted(backends.gpu_kinds())) or "none"
            wanted = f"{_SERVED}; this extension is for {', '.join(self.devices)}"
            raise self._refusal(f"GPUs of kind: {kinds}", wanted, "leave the choice to the loader: .load()")

    def build_aot(self) -> Any:
        """Nothing: Triton has no form of a kernel that a wheel could hold for every GPU; ``support_aot`` is False."""
        raise self._refusal(
            "a Triton extension, whose support_aot is False", "build_jit", f"load {self.name!r} instead"
        )

    def load(self) -> Any:
        """What ``build_jit`` returns."""
        self.assert_compatible()
        return self.build_jit()

    def _refusal(self, found: str, needed: str, fix: str) -> KernelUnavailable:
        return KernelUnavailable(
            f"{self.name} cannot be had here\n  found   {found}\n  needed  {needed}\n  fix     1) {fix}"
        )
