"""What stands in for functions that a layer calls: the kernel for the calls that were proved, else the own function.

As in :mod:`precast._adopt.forwards`, what is traced or compiled is the layer's own.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from precast._adopt.instances import ours, own, run_as, served
from precast._adopt.seen import Seen, unproved
from precast._adopt.source import codes, with_attribute
from precast.ops.convolution import causal_conv1d, causal_conv1d_update_
from precast.ops.delta_rule import gated_delta_rule

Named = tuple[tuple[str, str], ...]  # of global names, which of STAND_INS each means


@ours
def with_functions(module: Any, named: Named, device: str, /, *given: Any, _proof: Seen | None, **options: Any) -> Any:
    """The own forward, in which some global names mean stand-ins."""
    if unproved(module, _proof):
        return own(module, *given, **options)
    cls: Any = type(module)
    return run_as(_calling(cls, codes(cls.forward), named, device), module, *given, **options)


@functools.lru_cache(maxsize=256)
def _calling(cls: Any, _: tuple[Any, ...], named: Named, device: str) -> Any:
    """The class of a layer with another forward, which sees the same globals. Made again for another code of it."""
    known = inspect.unwrap(cls.forward).__globals__
    changes = {name: staticmethod(functools.partial(_stand_in, known, name, kind, device)) for name, kind in named}
    forward = with_attribute(cls.forward, *(name for name, _ in named))
    return type(cls)(cls.__name__, (cls,), {**changes, "forward": forward})


def _stand_in(known: dict[str, Any], name: str, kind: str, device: str, *given: Any, **options: Any) -> Any:
    return STAND_INS[kind](known[name], device, *given, **options)


def _serves(device: str, tensors: Iterable[Any], others: dict[str, Any]) -> bool:
    """Whether a kernel does what plain torch does, which autocast would change, and which refuses packed sequences."""
    first, *_ = tensors
    packed = others.get("cu_seqlens") is not None or others.get("seq_idx") is not None
    plain = (one.data if type(one) is torch.nn.Parameter else one for one in tensors if one is not None)
    return not packed and not torch.is_autocast_enabled(device) and all(served(one, first, device) for one in plain)


def _activated(y: Tensor, activation: str | None) -> Tensor:
    return y if activation is None else torch.nn.functional.silu(y)


def _convolve(
    own_one: Own,
    device: str,
    x: Tensor,
    weight: Any,
    bias: Any = None,
    activation: str | None = None,
    once: bool = False,
    **others: Any,
) -> Any:
    """``(batch, channels, tokens)``; ``once``: the result is rounded after the activation alone."""
    if activation not in _ACTIVATIONS or not _serves(device, (x, weight, bias), others):
        return own_one(x, weight, bias, activation, **others)
    if once:
        return causal_conv1d(x, weight, bias, activation=activation)
    return _activated(causal_conv1d(x, weight, bias), activation)


def _convolve_next(
    own_one: Own,
    device: str,
    x: Tensor,
    state: Any,
    weight: Any,
    bias: Any = None,
    activation: str | None = None,
    once: bool = False,
    **others: Any,
) -> Any:
    """The same for the next tokens, which move into ``state``, ``(batch, channels, tokens)``."""
    tensors = (x, state, weight, bias)
    learns = torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in tensors)
    if activation not in _ACTIVATIONS or learns or not _serves(device, tensors, others):
        return own_one(x, state, weight, bias, activation, **others)
    if once:
        return causal_conv1d_update_(x, state, weight, bias, activation=activation)
    return _activated(causal_conv1d_update_(x, state, weight, bias), activation)


def _delta_rule(own_one: Own, device: str, *given: Any, **options: Any) -> Any:
    """Queries, keys and values of ``(batch, tokens, heads, width)``, and the rest by name."""
    g: Any = options.get("g")
    beta: Any = options.get("beta")
    state: Any = options.get("initial_state")
    wide = [one for one in (g, beta, state) if one is not None]
    fits = len(given) == 3 and g is not None and beta is not None and (state is None or state.dtype in _STATES)
    if not fits or not _serves(device, given, options) or not all(served(one, None, device) for one in wide):
        return own_one(*given, **options)
    g, beta = (one if one.dtype == given[0].dtype else one.float() for one in (g, beta))
    norm = bool(options.get("use_qk_l2norm_in_kernel"))
    q, k, v = given
    out, final = gated_delta_rule(
        q, k, v, g, beta, initial_state=None if state is None else state.float(), l2_norm=norm
    )
    return out, final if options.get("output_final_state") else None


Own = Callable[..., Any]
_ACTIVATIONS = (None, "silu", "swish")
_STATES = (torch.float32, torch.bfloat16)
STAND_INS: dict[str, Callable[..., Any]] = {
    "causal_conv1d_fn": _convolve,
    "causal_conv1d_fn, rounded once": functools.partial(_convolve, once=True),
    "causal_conv1d_update": _convolve_next,
    "causal_conv1d_update, rounded once": functools.partial(_convolve_next, once=True),
    "chunk_gated_delta_rule": _delta_rule,
    "chunk_kda": _delta_rule,
    "fused_recurrent_gated_delta_rule": _delta_rule,
    "fused_recurrent_kda": _delta_rule,
}
