"""The functions of ``precast.ops`` as members of loaders, and the same in plain torch.

Each group takes a function that finds an op, as in :mod:`precast.compat.modules`, and gives the public functions for
kernels. Those in plain torch have the same arguments, and call the references of the ops.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any

from precast.compat.modules import Find, Members, kernel

if TYPE_CHECKING:
    from torch import Tensor

    from precast.ops.image._upfirdn2d import Steps


def _either(find: Find, folder: str, plain: Members) -> Members:
    """The public functions of a folder that ``plain`` names, or ``plain`` itself."""
    if find is not kernel:
        return plain
    module = _module(folder)
    return {name: getattr(module, name) for name in plain}


def _module(name: str) -> Any:
    return importlib.import_module(f"precast.ops.{name}")


def activations(find: Find) -> Members:
    """The gated activations."""
    kinds = _module("activations").GatedKind
    plain: Members = {
        "silu_and_mul": functools.partial(_gated, kinds.SILU_AND_MUL),
        "gelu_and_mul": functools.partial(_gated, kinds.GELU_AND_MUL),
        "gelu_tanh_and_mul": functools.partial(_gated, kinds.GELU_TANH_AND_MUL),
        "mul_and_silu": functools.partial(_gated, kinds.MUL_AND_SILU),
        "fatrelu_and_mul": _fatrelu_and_mul,
        "swigluoai_and_mul": functools.partial(_gated, kinds.SWIGLUOAI_AND_MUL, alpha=1.702, limit=7.0),
        "gelu_quick": functools.partial(_alone, kinds.GELU_QUICK),
        "gelu_new": functools.partial(_alone, kinds.GELU_NEW),
    }
    return _either(find, "activations", plain)


def _gated(kind: int, x: Tensor, up: Tensor | None = None, *, alpha: float = 0.0, limit: float = 0.0) -> Tensor:
    from precast.ops.activations import reference

    if up is None:
        return reference.gated_activation(x, kind, alpha, limit)
    return reference.activation(x, up, kind, alpha, limit)


def _fatrelu_and_mul(x: Tensor, up: Tensor | None = None, *, threshold: float = 0.0) -> Tensor:
    return _gated(_module("activations").GatedKind.FATRELU_AND_MUL, x, up, alpha=threshold)


def _alone(kind: int, x: Tensor) -> Tensor:
    from precast.ops.activations import QUICK, reference

    return reference.activation(x, None, kind, QUICK)


def softmax(find: Find) -> Members:
    """The softmax functions."""
    reference = _module("softmax.reference")
    plain: Members = {
        "scaled_masked_softmax": _scaled_masked_softmax,
        "scaled_softmax": reference.scaled_softmax,
        "scaled_upper_triang_masked_softmax": reference.scaled_upper_triang_masked_softmax,
        "scaled_aligned_causal_softmax": reference.scaled_aligned_causal_softmax,
    }
    return _either(find, "softmax", plain)


def _scaled_masked_softmax(
    x: Tensor, mask: Tensor, scale: float, *, masked_value: float | str = "-inf", fully_masked: str = "zero"
) -> Tensor:
    from precast.ops.softmax import reference

    uniform = {"zero": False, "uniform": True}[fully_masked]
    return reference.scaled_masked_softmax(x, mask, scale, float(masked_value), uniform)


def layer_norm(find: Find) -> Members:
    """The layer norm."""
    return _either(find, "norm", {"layer_norm": _layer_norm})


def _layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    from precast.ops.norm import reference

    return reference.layer_norm(x, weight, bias, eps)


def rotary(find: Find) -> Members:
    """The rotary embedding."""
    plain: Members = {
        "rotary_embedding": _rotary_embedding,
        "rotary_embedding_": _rotary_embedding_,
        "get_cos_and_sin": _module("rotary").get_cos_and_sin,
    }
    return _either(find, "rotary", plain)


def _rotary_embedding(
    query: Tensor,
    key: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    *,
    positions: Tensor | None = None,
    interleaved: bool = False,
) -> tuple[Tensor, Tensor | None]:
    from precast.ops.rotary import reference

    both = reference.rotary_embedding(query, key, cos, sin, positions, interleaved, False)
    return both[0], None if key is None else both[1]


def _rotary_embedding_(query: Tensor, key: Tensor | None, *args: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    turned = _rotary_embedding(query, key, *args, **kwargs)
    query.copy_(turned[0])
    if key is not None and turned[1] is not None:
        key.copy_(turned[1])
    return query, key


def caches(find: Find) -> Members:
    """The functions that write a paged cache, and decode attention, which reads it."""
    writing: Members = {
        "reshape_and_cache": _module("kv_cache.reference").reshape_and_cache,
        "rotary_embedding_and_cache": _rotary_embedding_and_cache,
    }
    reading = {"paged_decode_attention": _paged_decode_attention}
    return {**_either(find, "kv_cache", writing), **_either(find, "decode_attention", reading)}


def _rotary_embedding_and_cache(
    query: Tensor, key: Tensor, *args: Tensor, positions: Tensor | None = None, interleaved: bool = False
) -> tuple[Tensor, Tensor]:
    from precast.ops.kv_cache import reference

    value, cos, sin, key_cache, value_cache, slots = args
    written = (key_cache, value_cache, slots)
    reference.rotary_embedding_and_cache(query, key, value, cos, sin, *written, positions, interleaved)
    return query, key


def _paged_decode_attention(
    query: Tensor,
    key_cache: Tensor,
    *args: Tensor,
    scale: float | None = None,
    window: int | None = None,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    from precast.ops.decode_attention import attend, reference

    optional = (alibi_slopes, sinks, key_scale, value_scale)
    plain, given = reference.paged_decode_attention, (query, key_cache, *args)
    return attend(plain, given, scale, window, softcap, optional, return_lse)


def moe(find: Find) -> Members:
    """Gating, alignment to blocks and the permutation of rows."""
    plain: Members = {
        "topk_softmax": functools.partial(_gating, False),
        "topk_sigmoid": functools.partial(_gating, True),
        "moe_align_block_size": _module("moe.reference").moe_align_block_size,
        "moe_permute": _moe_permute,
        "moe_unpermute": _moe_unpermute,
    }
    return _either(find, "moe", plain)


def _gating(
    sigmoid: bool,
    logits: Tensor,
    k: int,
    *,
    renormalize: bool = False,
    bias: Tensor | None = None,
    groups: int = 1,
    kept_groups: int = 1,
    group_score: str = "top2",
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    from precast.ops.moe import _top_two, reference

    top_two = _top_two(group_score)
    return reference.topk_gating(logits, bias, k, groups, kept_groups, top_two, sigmoid, renormalize, scale)


def _moe_permute(rows: Tensor, topk_ids: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    from precast.ops.moe import reference

    return reference.moe_permute_few(rows, topk_ids, experts)


def _moe_unpermute(rows: Tensor, positions: Tensor, weights: Tensor | None = None) -> Tensor:
    from precast.ops.moe import reference

    return reference.moe_combine_rows(rows, positions, weights, False)


def losses(find: Find) -> Members:
    """The ops of cross entropy, by their names in ``torch.ops.precast``."""
    _module("losses")
    return {name: find(name) for name in ("cross_entropy", "cross_entropy_with_grad", "cross_entropy_with_grad_")}


def image(find: Find) -> Members:
    """The ops of image generators."""
    plain: Members = {
        "bias_act": _bias_act,
        "fused_leaky_relu": _fused_leaky_relu,
        "setup_filter": _module("image").setup_filter,
        "upfirdn2d": _upfirdn2d,
        "filter2d": _filter2d,
        "upsample2d": _upsample2d,
        "downsample2d": _downsample2d,
    }
    return _either(find, "image", plain)


def _bias_act(
    x: Tensor,
    b: Tensor | None = None,
    dim: int = 1,
    act: str = "linear",
    alpha: float | None = None,
    gain: float | None = None,
    clamp: float | None = None,
) -> Tensor:
    from precast.ops.image import _bias_act, reference

    return reference.bias_act(*_bias_act.arguments(x, b, dim, act, alpha, gain, clamp))


def _fused_leaky_relu(
    x: Tensor, bias: Tensor | None = None, negative_slope: float = 0.2, scale: float = 2**0.5
) -> Tensor:
    return _bias_act(x, bias, act="lrelu", alpha=negative_slope, gain=scale)


def _upfirdn2d(
    x: Tensor,
    f: Tensor | None,
    up: Steps = 1,
    down: Steps = 1,
    padding: Steps = 0,
    flip_filter: bool = False,
    gain: float = 1.0,
) -> Tensor:
    from precast.ops.image import _upfirdn2d, reference

    return _upfirdn2d.through(reference.upfirdn2d, x, f, up, down, padding, flip_filter, gain)


def _filter2d(x: Tensor, f: Tensor | None, padding: Steps = 0, flip_filter: bool = False, gain: float = 1.0) -> Tensor:
    around = _module("image._upfirdn2d").around_filtered(f, padding)
    return _upfirdn2d(x, f, 1, 1, around, flip_filter, gain)


def _upsample2d(
    x: Tensor, f: Tensor | None, up: Steps = 2, padding: Steps = 0, flip_filter: bool = False, gain: float = 1.0
) -> Tensor:
    up_x, up_y = (up, up) if isinstance(up, int) else up
    around = _module("image._upfirdn2d").around_upsampled(f, up, padding)
    return _upfirdn2d(x, f, up, 1, around, flip_filter, gain * up_x * up_y)


def _downsample2d(
    x: Tensor, f: Tensor | None, down: Steps = 2, padding: Steps = 0, flip_filter: bool = False, gain: float = 1.0
) -> Tensor:
    around = _module("image._upfirdn2d").around_downsampled(f, down, padding)
    return _upfirdn2d(x, f, 1, down, around, flip_filter, gain)
