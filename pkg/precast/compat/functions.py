"""The functions of ``precast.ops`` as members of loaders, and the same in plain torch.

Each group takes a function that finds an op, as in :mod:`precast.compat.modules`, and gives the public functions. Those
in plain torch are the same functions, whose calls of ops become calls of the references.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from precast._load.handover import NAMESPACE
from precast.compat.modules import Find, Members, kernel, reference


def _group(*names: str) -> Callable[[Find], Members]:
    """The public functions with these names."""

    def give(find: Find) -> Members:
        from precast import ops

        found = {name: getattr(ops, name) for name in names}
        return found if find is kernel else {name: plainly(function) for name, function in found.items()}

    return give


activations = _group(
    *("silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul", "mul_and_silu"),
    *("fatrelu_and_mul", "swigluoai_and_mul", "gelu_quick", "gelu_new"),
)
softmax = _group(
    *("scaled_masked_softmax", "scaled_softmax"),
    *("scaled_upper_triang_masked_softmax", "scaled_aligned_causal_softmax"),
)
layer_norm = _group("layer_norm")
rotary = _group("rotary_embedding", "rotary_embedding_", "get_cos_and_sin")
caches = _group("reshape_and_cache", "rotary_embedding_and_cache", "paged_decode_attention")
moe = _group("topk_softmax", "topk_sigmoid", "moe_align_block_size", "moe_permute", "moe_unpermute")
image = _group(
    *("bias_act", "fused_leaky_relu", "setup_filter"),
    *("upfirdn2d", "filter2d", "upsample2d", "downsample2d"),
)


def losses(find: Find) -> Members:
    """The ops of cross entropy, by their names in ``torch.ops.precast``."""
    return {name: find(name) for name in ("cross_entropy", "cross_entropy_with_grad", "cross_entropy_with_grad_")}


def plainly(function: Callable[..., Any]) -> Callable[..., Any]:
    """A public function that computes in plain torch: torch differentiates it, and no kernel is loaded."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _in_plain_torch()():
            return function(*args, **kwargs)

    return call


@functools.cache
def _in_plain_torch() -> type[Any]:
    """A mode of torch in which each op of ours is its reference."""
    import torch
    from torch.overrides import TorchFunctionMode

    class PlainTorch(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            ours = isinstance(func, torch._ops.OpOverload) and func.namespace == NAMESPACE
            return reference(func._opname)(*args) if ours else func(*args, **(kwargs or {}))

    return PlainTorch
