"""The gated delta rule (Yang and others, 2024, arXiv 2412.06464), and that of KDA: a gate for each element of a key.

A value head has a state of ``(key_dim, value_dim)``. For each token, the state decays, is corrected for the token's
key, and is read. ``g`` is the logarithm of the decay::

    S = exp(g) * S
    S = S + outer(k, beta * (v - S.mT @ k))
    out = scale * S.mT @ q

``q`` and ``k`` are ``(batch, length, key_heads, key_dim)``, ``v`` is ``(batch, length, value_heads, value_dim)``, all
of one dtype: float32, float16 or bfloat16. ``value_heads`` is a multiple of ``key_heads``: value head ``h`` has key
head ``h // (value_heads / key_heads)``. ``key_dim`` is at most 256. ``g`` and ``beta`` are ``(batch, length,
value_heads)``, float32 or as ``q``; ``g`` may also be ``(batch, length, value_heads, key_dim)``. None means no decay,
and a ``beta`` of 1. States are float32 or bfloat16, and arithmetic is in float32. On a GPU from compute capability 8.0
on, a prefill of 16 bits with ``key_dim`` 64 or 128 rounds the factors of its matrix products to that dtype, as FLA.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from precast._dispatch import namespace
from precast._dispatch.formulas import register
from precast._dispatch.routes import Route
from precast.ops import _checks
from precast.ops._checks import FLOAT_TYPES, dtype_name, integers, no_gradient, require, same_device, same_kind
from precast.ops._fx import Proxy, recorded
from precast.ops._reference import without_autocast
from precast.ops.delta_rule import reference

MOST_KEY_DIM = 256


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    starts: Tensor | None = None,
    l2_norm: bool = False,
) -> tuple[Tensor, Tensor]:
    """``S = exp(g) * S; S += outer(k, beta * (v - S.mT @ k)); out = scale * S.mT @ q`` for each token. Differentiable.

    The gradient is computed by plain torch, from chunks of 64 tokens.

    Args:
        q: ``(batch, length, key_heads, key_dim)``; float32, float16 or bfloat16, on the CPU or a GPU.
        k: as ``q``.
        v: ``(batch, length, value_heads, value_dim)``.
        g: ``(batch, length, value_heads)`` or ``(batch, length, value_heads, key_dim)``, the logarithms of decays;
            None for none.
        beta: ``(batch, length, value_heads)``; None for 1.
        scale: factor of the outputs; by default ``key_dim ** -0.5``.
        initial_state: ``(sequences, value_heads, key_dim, value_dim)``, float32 or bfloat16; None for zeros.
        starts: int32 or int64, ``(sequences + 1,)``: where each sequence of a batch of one starts, and the end of the
            last one. None: each row of the batch is a sequence.
        l2_norm: divide ``q`` and ``k`` by the square root of 1e-6 plus the sum of their squares.

    Returns:
        A contiguous tensor like ``v``, and the final states, in the dtype of ``initial_state`` or float32.

    Raises:
        RuntimeError: a tensor has another shape, dtype or device, or ``starts`` are in no order or end elsewhere (CPU;
            on a GPU nothing is read out of bounds, and outputs are undefined).
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        q, k, v = torch.randn(3, 1, 100, 2, 64)
        g, beta = -torch.rand(1, 100, 2), torch.rand(1, 100, 2)
        out, state = precast.ops.gated_delta_rule(q, k, v, g, beta, l2_norm=True)
        assert out.shape == (1, 100, 2, 64) and state.shape == (1, 2, 64, 64)
    """
    if isinstance(q, Proxy):
        return recorded(gated_delta_rule, **locals())  # type: ignore[no-any-return]
    try:
        both: tuple[Tensor, Tensor] = _rule(q, k, v, g, beta, initial_state, starts, _scale(q, scale), l2_norm)
    except _checks.CONFUSED:
        _checks.explain(gated_delta_rule, locals())
    return both


def gated_delta_rule_update_(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    states: Tensor,
    indices: Tensor,
    *,
    accepted: Tensor | None = None,
    scale: float | None = None,
    l2_norm: bool = False,
) -> Tensor:
    """``gated_delta_rule`` of a few new tokens; states in a pool are updated in place. For inference.

    Args:
        q: ``(sequences, tokens, key_heads, key_dim)``, or ``(sequences, key_heads, key_dim)`` for one token each.
        k: as ``q``.
        v: ``(sequences, tokens, value_heads, value_dim)``, or without ``tokens`` as ``q``; so are ``g`` and ``beta``.
        g: as in :func:`gated_delta_rule`.
        beta: as in :func:`gated_delta_rule`.
        states: ``(slots, value_heads, key_dim, value_dim)``, float32 or bfloat16, written in place; any strides with a
            contiguous last dimension.
        indices: int32 or int64, ``(sequences,)``: the slot of each sequence; a negative one leaves the sequence out and
            its outputs are zero. Or ``(sequences, tokens)``, for speculative decoding: the state after each token is
            written to a slot of its own, unless that is negative, and the first state is read from that of token 0.
        accepted: int32 or int64, ``(sequences,)``, with such a table: the first state is read from the slot of token
            ``accepted - 1``, the last token of the step before that was accepted.
        scale: as in :func:`gated_delta_rule`.
        l2_norm: as in :func:`gated_delta_rule`.

    Returns:
        A contiguous tensor like ``v``.

    Raises:
        RuntimeError: a tensor has another shape, dtype or device, a slot does not exist (CPU; a GPU leaves it out), or
            a gradient is wanted.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        q, k, v = torch.randn(3, 4, 2, 64)
        states, slots = torch.zeros(9, 2, 64, 64), torch.tensor([3, 0, 7, -1])
        out = precast.ops.gated_delta_rule_update_(q, k, v, None, torch.rand(4, 2), states, slots)
        assert out.shape == (4, 2, 64) and (out[3] == 0).all()
    """
    if isinstance(q, Proxy):
        return recorded(gated_delta_rule_update_, **locals())  # type: ignore[no-any-return]
    try:
        options = (states, indices, accepted, _scale(q, scale), l2_norm)
        if q.dim() != 3:
            return _update(q, k, v, g, beta, *options)  # type: ignore[no-any-return]
        tokens = (None if one is None else one.unsqueeze(1) for one in (q, k, v, g, beta))
        out: Tensor = _update(*tokens, *options)
    except _checks.CONFUSED:
        _checks.explain(gated_delta_rule_update_, locals())
    return out.squeeze(1)


def _scale(q: Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else scale


# ---- the gradient: the chunked form in plain torch, computed again in the backward pass ----


class _Rule(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, compute: Any, *given: Any) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(*given[:7])
        ctx.options = given[7:]
        out, state = compute(*given)
        return out, state

    @staticmethod
    @without_autocast
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Any, ...]:
        again = torch.is_grad_enabled()  # create_graph: the gradient will be differentiated itself
        wanted = ctx.needs_input_grad[1:]
        with torch.enable_grad():
            given = [
                one if one is None or not needed else one.view_as(one) if again else one.detach().requires_grad_()
                for one, needed in zip(ctx.saved_tensors, wanted, strict=False)
            ]
            results = reference.by_chunks(*given, *ctx.options)
            inputs = [one for one, needed in zip(given, wanted, strict=False) if needed]
            # States do not depend on q, which may be all that requires grad. Without tokens nothing does.
            used = [i for i, one in enumerate(results) if one.requires_grad]
            of = [results[i] for i in used], inputs, [slopes[i] for i in used]
            found = iter(
                torch.autograd.grad(*of, create_graph=again, allow_unused=True) if used else [None] * len(inputs)
            )
        return None, *(next(found) if needed else None for needed in wanted)


_refuse_gradient = no_gradient(
    "gated_delta_rule_update_",
    "the states are written in place; needed torch.no_grad(), or gated_delta_rule",
)


# ---- checks that need only metadata, with the kernels' messages in the same order ----


def _check_tokens(op: str, q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor | None) -> None:
    require(q.dtype in FLOAT_TYPES, lambda: f"{op}: q is {dtype_name(q)}; needed float32, float16 or bfloat16")
    same_kind(op, "k", k, q, "q")
    same_kind(op, "v", v, q, "q")
    fits = q.dim() == 4 and k.shape == q.shape and v.dim() == 4 and v.shape[:2] == q.shape[:2]
    require(
        fits and q.shape[2] > 0 and v.shape[2] > 0 and v.shape[2] % q.shape[2] == 0,
        lambda: (
            f"{op}: q has shape {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)}; needed (batch, length, "
            "key_heads, key_dim) twice, and (batch, length, value_heads, value_dim) with a multiple of key_heads"
        ),
    )
    require(
        1 <= q.shape[3] <= MOST_KEY_DIM and v.shape[3] >= 1,
        lambda: (
            f"{op}: heads have {q.shape[3]} elements in keys and {v.shape[3]} in values; needed 1 to {MOST_KEY_DIM}, "
            "and 1 or more"
        ),
    )
    for name, one, each in (("g", g, q.shape[3]), ("beta", beta, None)):
        if one is not None:
            _check_gates(op, name, one, q, v, each)


def _check_gates(op: str, name: str, gates: Tensor, q: Tensor, v: Tensor, each: int | None) -> None:
    require(
        gates.dtype in (torch.float32, q.dtype),
        lambda: f"{op}: {name} is {dtype_name(gates)} and q is {dtype_name(q)}; needed float32 or one dtype",
    )
    same_device(op, name, gates, q, "q")
    more = "" if each is None else ", or one for each element of a key"
    require(
        gates.dim() in (3, 4) and gates.shape[:3] == v.shape[:3] and (gates.dim() == 3 or gates.shape[3] == each),
        lambda: f"{op}: {name} has shape {tuple(gates.shape)}; needed (batch, length, value_heads){more}",
    )


def _check_states(op: str, name: str, states: Tensor, q: Tensor, v: Tensor, sequences: int | None) -> None:
    require(
        states.dtype in (torch.float32, torch.bfloat16),
        lambda: f"{op}: {name} is {dtype_name(states)}; needed float32 or bfloat16",
    )
    same_device(op, name, states, q, "q")
    inner = (v.shape[2], q.shape[3], v.shape[3])
    first = "slots" if sequences is None else "sequences"
    require(
        states.dim() == 4 and states.shape[1:] == inner and (sequences is None or states.shape[0] == sequences),
        lambda: f"{op}: {name} has shape {tuple(states.shape)}; needed ({first}, {inner[0]}, {inner[1]}, {inner[2]})",
    )


def _check_scale(op: str, scale: float) -> None:
    require(math.isfinite(scale), lambda: f"{op}: scale is {scale:g}; needed a finite number")


def _check_rule(op: str, q: Tensor, v: Tensor, initial_state: Tensor | None, starts: Tensor | None) -> None:
    if starts is not None:
        integers(op, "starts", starts, q, "q")
        least = 2 if q.shape[1] > 0 else 1
        require(
            starts.dim() == 1 and starts.shape[0] >= least and q.shape[0] == 1,
            lambda: (
                f"{op}: starts has shape {tuple(starts.shape)} and q {tuple(q.shape)}; needed (sequences + 1,), and a "
                "batch of one"
            ),
        )
    if initial_state is not None:
        _check_states(op, "initial_state", initial_state, q, v, reference.sequences_of(q, starts))


def _check_update(op: str, q: Tensor, v: Tensor, states: Tensor, indices: Tensor, accepted: Tensor | None) -> None:
    integers(op, "indices", indices, q, "q")
    require(
        indices.dim() in (1, 2) and indices.shape == q.shape[: indices.dim()] and q.shape[1] >= 1,
        lambda: (
            f"{op}: indices has shape {tuple(indices.shape)} and q {tuple(q.shape)}; needed (batch,) or (batch, "
            "length), and a token"
        ),
    )
    if accepted is not None:
        integers(op, "accepted", accepted, q, "q")
        require(
            indices.dim() == 2 and accepted.shape == q.shape[:1],
            lambda: (
                f"{op}: accepted has shape {tuple(accepted.shape)} and indices {tuple(indices.shape)}; needed "
                "(batch,), and (batch, length)"
            ),
        )
    _check_states(op, "states", states, q, v, None)


def _results(q: Tensor, v: Tensor, initial_state: Tensor | None, starts: Tensor | None) -> tuple[Tensor, Tensor]:
    sizes = (reference.sequences_of(q, starts), v.shape[2], q.shape[3], v.shape[3])
    dtype = torch.float32 if initial_state is None else initial_state.dtype
    return _checks.like(v), q.new_empty(sizes, dtype=dtype)


with namespace.family("delta_rule", __package__):
    GATED_DELTA_RULE = register(
        "gated_delta_rule",
        check=(_check_tokens, _check_rule, _check_scale),
        result=_results,
        gradient=_Rule.apply,
    )
    GATED_DELTA_RULE_UPDATE_ = register(
        "gated_delta_rule_update_",
        check=(_check_tokens, _check_update, _check_scale),
        result="v",
        gradient=_refuse_gradient,
    )

_rule = Route(GATED_DELTA_RULE, _Rule)
_update = Route(GATED_DELTA_RULE_UPDATE_, _refuse_gradient)
