"""Attention through other packages: flash-attn, torch's scaled_dot_product_attention, torch_npu.

``load()`` returns one function. ``q``, ``k``, ``v`` and the result are ``(batch, heads, length, width)``.
``attention_mask`` is as in torch: bool, true where a column takes part, or numbers that are added to the scores.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from precast._load import verdict
from precast._load.source import Source
from precast.errors import KernelUnavailable
from precast.extension import backends
from precast.extension.base import Extension
from precast.extension.torch_reference import LOWEST

if TYPE_CHECKING:
    from torch import Tensor


class AttentionExtension(Extension):
    """Attention of an installed package; nothing is built here."""

    extension_name: ClassVar[str]
    package: ClassVar[str] = "torch"

    def __init__(self) -> None:
        super().__init__(self.extension_name, support_aot=False, support_jit=False, priority=self.priority)

    def is_available(self) -> bool:
        """Whether torch sees an NVIDIA GPU."""
        return verdict.sees_cuda_gpu()

    def assert_compatible(self) -> None:
        """Raise KernelUnavailable if the package is not installed."""
        if not backends.has_package(self.package):
            from precast.core import pip  # imported for errors alone

            name = self.package.replace("_", "-")
            raise KernelUnavailable(
                f"{self.name} is not available here",
                found=f"no package {self.package}",
                needed=f"the package {self.package}",
                fix=f"{pip.install_command()} --no-build-isolation {name}",
            )

    def build_aot(self) -> Any:
        """Raise KernelUnavailable, because the package is already built."""
        raise KernelUnavailable(
            f"{self.name} cannot be built ahead of time",
            found=f"functions of the package {self.package}, which is built already",
            needed="an extension with sources",
            fix="call load() instead",
        )

    def build_jit(self) -> Any:
        """The same as ``load``."""
        return self.load()

    def load(self) -> Callable[..., Tensor]:
        """The function; its ``source`` names the package."""
        self.assert_compatible()
        module = importlib.import_module(self.package)
        function: Any = self.function()
        version = getattr(module, "__version__", "unknown version")
        function.source = Source("package", Path(str(module.__file__)), f"{self.package} {version}")
        attention: Callable[..., Tensor] = function
        return attention

    def function(self) -> Callable[..., Tensor]:
        """Make a new function."""
        raise NotImplementedError


class FlashAttentionNpuExtension(AttentionExtension):
    """``torch_npu.npu_fusion_attention`` on Ascend."""

    backend: ClassVar[str] = "npu"
    absent: ClassVar[str] = "torch_npu is not installed"
    extension_name = "flash_attention_npu"
    package = "torch_npu"

    def is_available(self) -> bool:
        """Whether torch_npu is installed; ``load`` checks for the function."""
        return backends.has_package(self.package)

    def function(self) -> Callable[..., Tensor]:
        """A function that calls ``npu_fusion_attention``."""
        import torch

        npu = importlib.import_module("torch_npu")

        def attention(
            q: Tensor,
            k: Tensor,
            v: Tensor,
            dropout_p: float = 0.0,
            scale: float | None = None,
            attention_mask: Tensor | None = None,
            is_causal: bool = False,
            **padding: Any,
        ) -> Tensor:
            """Scaled dot-product attention; requires an ``attention_mask`` that includes the causal part."""
            if attention_mask is None:
                raise ValueError(
                    "attention_mask is None; needed a mask, for causal attention too: is_causal is ignored"
                )
            factor = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
            keep = 1.0 - dropout_p
            mask = ~attention_mask if attention_mask.dtype == torch.bool else attention_mask != 0  # true: masked out
            result = npu.npu_fusion_attention(
                q, k, v, q.shape[1], "BNSD", atten_mask=mask, scale=factor, keep_prob=keep
            )
            y: Tensor = result[0]
            return y

        return attention


class FlashAttentionDaoCudaExtension(AttentionExtension):
    """flash-attn, if it is installed."""

    backend: ClassVar[str] = "flash-attn"
    absent: ClassVar[str] = "flash-attn is not installed, or there is no NVIDIA GPU"
    extension_name = "flash_attention_dao_cuda"
    package = "flash_attn"
    priority = 10

    def is_available(self) -> bool:
        """Whether there is an NVIDIA GPU and the package is installed."""
        return backends.has_package(self.package) and verdict.sees_cuda_gpu()

    def function(self) -> Callable[..., Tensor]:
        """A function that calls ``flash_attn_func``, or its variant for rows of different lengths."""
        flash = importlib.import_module("flash_attn")

        def attention(
            q: Tensor,
            k: Tensor,
            v: Tensor,
            dropout_p: float = 0.0,
            scale: float | None = None,
            attention_mask: Tensor | None = None,
            is_causal: bool = False,
            cu_seqlens_q: Tensor | None = None,
            cu_seqlens_kv: Tensor | None = None,
            max_seqlen_q: int | None = None,
            max_seqlen_kv: int | None = None,
            q_indices: Tensor | None = None,
            kv_indices: Tensor | None = None,
        ) -> Tensor:
            """Scaled dot-product attention, causal or of padded rows; ``attention_mask`` adds nothing and is unused."""
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))  # (batch, length, heads, width)
            how = {"dropout_p": dropout_p, "softmax_scale": scale, "causal": is_causal}
            if cu_seqlens_q is None:
                y: Tensor = flash.flash_attn_func(q, k, v, **how)
                return y.transpose(1, 2)
            if q_indices is None or kv_indices is None:
                raise ValueError("cu_seqlens_q was given without q_indices and kv_indices; needed all three, or none")
            packed = [t.flatten(0, 1).index_select(0, i) for t, i in ((q, q_indices), (k, kv_indices), (v, kv_indices))]
            lengths = (cu_seqlens_q, cu_seqlens_kv, max_seqlen_q, max_seqlen_kv)
            rows: Tensor = flash.flash_attn_varlen_func(*packed, *lengths, **how)
            whole = rows.new_zeros((q.shape[0] * q.shape[1], *rows.shape[1:])).index_copy(0, q_indices, rows)
            padded: Tensor = whole.unflatten(0, q.shape[:2])
            return padded.transpose(1, 2)

        return attention


class FlashAttentionSdpaCudaExtension(AttentionExtension):
    """``scaled_dot_product_attention`` of torch on NVIDIA GPUs."""

    backend: ClassVar[str] = "torch"
    absent: ClassVar[str] = "torch sees no NVIDIA GPU"
    extension_name = "flash_attention_sdpa_cuda"

    def function(self) -> Callable[..., Tensor]:
        """A function that calls ``scaled_dot_product_attention``."""
        import torch

        def attention(
            q: Tensor,
            k: Tensor,
            v: Tensor,
            dropout_p: float = 0.0,
            scale: float | None = None,
            attention_mask: Tensor | None = None,
            is_causal: bool = False,
            cu_seqlens_q: Tensor | None = None,
            **padding: Any,
        ) -> Tensor:
            """Scaled dot-product attention; an explicit mask must include the causal part and the padding."""
            if cu_seqlens_q is not None and attention_mask is None:
                raise ValueError(
                    "attention_mask is None; needed a mask for the rows of different lengths of cu_seqlens_q"
                )
            causal = is_causal and attention_mask is None
            y: Tensor = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=attention_mask, dropout_p=dropout_p, is_causal=causal, scale=scale
            )
            return y

        return attention


class FlashAttentionTorchExtension(FlashAttentionSdpaCudaExtension):
    """The same on any device of torch."""

    reference: ClassVar[bool] = True
    extension_name = "flash_attention_torch"
    priority = LOWEST

    def is_available(self) -> bool:
        """Whether torch is installed."""
        return backends.has_package("torch")
