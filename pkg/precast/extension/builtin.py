"""The extensions that come with the package: each stands for kernel families on one kind of device."""

from __future__ import annotations

import functools
import importlib
import platform
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from precast._build import catalogue
from precast._load import loader, verdict
from precast.extension import compat
from precast.extension.base import Extension
from precast.extension.module import KernelModule

if TYPE_CHECKING:
    from setuptools import Extension as SetuptoolsExtension


AFTER_A_TWIN = -1  # where a GPU has only Triton kernels, those come before the CPU's


class CatalogueExtension(Extension):
    """Families on a device type; subclasses say which. The first one is loaded by ``load``, the others when called."""

    extension_name: ClassVar[str]
    families: ClassVar[tuple[catalogue.Family, ...]]
    device: ClassVar[str] = "cpu"
    machine: ClassVar[str | None] = None  # as platform.machine() says it; None for any
    members: ClassVar[Mapping[str, Any]] = {}
    place: ClassVar[int] = 1  # its priority

    def __init__(self) -> None:
        super().__init__(self.extension_name, support_aot=True, support_jit=True, priority=self.place)

    def is_available(self) -> bool:
        """Whether this machine, and for a CUDA family a GPU that torch can use, is here."""
        if self.machine not in (None, platform.machine()):
            return False
        return self.device == "cpu" or verdict.sees_cuda_gpu()

    def assert_compatible(self) -> None:
        """Raises KernelUnavailable with every candidate and why it was passed over; loads and builds nothing."""
        if self.machine not in (None, platform.machine()):
            raise verdict.wrong_machine(self.name, self.machine, platform.machine())
        for family in self.families:
            verdict.assert_served(family, self.device)

    def build_aot(self) -> SetuptoolsExtension:
        """The extension for a setup.py, its objects compiled now; the library has the host code and CPU kernels."""
        from precast.extension import aot

        return aot.build_extension(f"precast._C.{self.name}", self.families)

    def build_jit(self) -> KernelModule:
        """The same as ``load``: what fits is loaded, and only what is missing is built."""
        return self.load()

    def load(self) -> KernelModule:
        """Loads the family for the device type and returns its functions under the names they always had."""
        self.assert_compatible()
        loaded = loader.ensure(self.families[0].name, self.device)
        return KernelModule(self.name, self.members, loaded.host, loaded.images)


class CpuAdamX86Extension(CatalogueExtension):
    """Adam on x86-64; AVX2 and AVX-512 are chosen at run time."""

    extension_name = "cpu_adam_x86"
    families = (catalogue.CPU_ADAM,)
    machine = "x86_64"
    members: ClassVar[Mapping[str, Any]] = {"CPUAdamOptimizer": compat.CPUAdamOptimizer}


class CpuAdamArmExtension(CatalogueExtension):
    """Adam on 64-bit ARM."""

    extension_name = "cpu_adam_arm"
    families = (catalogue.CPU_ADAM,)
    machine = "aarch64"
    members: ClassVar[Mapping[str, Any]] = {"CPUAdamOptimizer": compat.CPUAdamOptimizer}


_NORMS = {
    "rms_layernorm": compat.rms_layernorm,
    "fused_add_rms_layernorm": compat.fused_add_rms_layernorm,
}


class RmsNormCudaExtension(CatalogueExtension):
    """RMS norm on NVIDIA GPUs."""

    extension_name = "rms_norm_cuda"
    families = (catalogue.RMS_NORM, catalogue.RMS_NORM_BACKWARD)
    device = "cuda"
    members: ClassVar[Mapping[str, Any]] = _NORMS


class RmsNormCpuExtension(CatalogueExtension):
    """RMS norm on the CPU."""

    extension_name = "rms_norm_cpu"
    place = AFTER_A_TWIN
    families = (catalogue.RMS_NORM, catalogue.RMS_NORM_BACKWARD)
    members: ClassVar[Mapping[str, Any]] = _NORMS


def _public(*names: str) -> dict[str, Any]:
    """Functions of ``precast.ops``: a room above this one, so it is entered by name, when a function is called."""

    def call(name: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(importlib.import_module("precast.ops"), name)(*args, **kwargs)

    return {name: functools.partial(call, name) for name in names}


_LAYER_NORM = _public("layer_norm")
_ACTIVATIONS = _public("silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul", "mul_and_silu")
_SOFTMAX = _public(
    "scaled_softmax",
    "scaled_masked_softmax",
    "scaled_upper_triang_masked_softmax",
    "scaled_aligned_causal_softmax",
)


class LayerNormCudaExtension(CatalogueExtension):
    """Layer norm on NVIDIA GPUs."""

    extension_name = "layer_norm_cuda"
    families = (catalogue.LAYER_NORM, catalogue.LAYER_NORM_BACKWARD)
    device = "cuda"
    members: ClassVar[Mapping[str, Any]] = _LAYER_NORM


class LayerNormCpuExtension(CatalogueExtension):
    """Layer norm on the CPU."""

    extension_name = "layer_norm_cpu"
    place = AFTER_A_TWIN
    families = (catalogue.LAYER_NORM, catalogue.LAYER_NORM_BACKWARD)
    members: ClassVar[Mapping[str, Any]] = _LAYER_NORM


class ActivationsCudaExtension(CatalogueExtension):
    """Gated activations on NVIDIA GPUs."""

    extension_name = "activations_cuda"
    families = (catalogue.ACTIVATIONS, catalogue.ACTIVATIONS_BACKWARD)
    device = "cuda"
    members: ClassVar[Mapping[str, Any]] = _ACTIVATIONS


class ActivationsCpuExtension(CatalogueExtension):
    """Gated activations on the CPU."""

    extension_name = "activations_cpu"
    place = AFTER_A_TWIN
    families = (catalogue.ACTIVATIONS, catalogue.ACTIVATIONS_BACKWARD)
    members: ClassVar[Mapping[str, Any]] = _ACTIVATIONS


class SoftmaxCudaExtension(CatalogueExtension):
    """Scaled softmax, plain, masked and causal, on NVIDIA GPUs."""

    extension_name = "softmax_cuda"
    families = (catalogue.SOFTMAX, catalogue.SOFTMAX_BACKWARD)
    device = "cuda"
    members: ClassVar[Mapping[str, Any]] = _SOFTMAX


class SoftmaxCpuExtension(CatalogueExtension):
    """Scaled softmax, plain, masked and causal, on the CPU."""

    extension_name = "softmax_cpu"
    place = AFTER_A_TWIN
    families = (catalogue.SOFTMAX, catalogue.SOFTMAX_BACKWARD)
    members: ClassVar[Mapping[str, Any]] = _SOFTMAX


BUILTIN: tuple[type[CatalogueExtension], ...] = (
    CpuAdamX86Extension,
    CpuAdamArmExtension,
    RmsNormCudaExtension,
    RmsNormCpuExtension,
    LayerNormCudaExtension,
    LayerNormCpuExtension,
    ActivationsCudaExtension,
    ActivationsCpuExtension,
    SoftmaxCudaExtension,
    SoftmaxCpuExtension,
)
