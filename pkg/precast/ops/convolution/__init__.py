"""Depthwise causal convolutions along a sequence, as in Mamba, gated delta nets and short convolutions.

Each channel has its own filter of 2 to 8 taps: ``y[t] = activation(bias + sum(weight[k] * x[t - width + 1 + k]))``.
Tensors are ``(batch, channels, tokens)``. Kernels are fastest for ``x`` with channels as neighbours in memory, the
transposed view of ``(batch, tokens, channels)``, and for contiguous ``x`` with tokens as neighbours; a result has the
order of ``x``. Weights and biases have the dtype of ``x``, or float32. Arithmetic is in float32, rounded once.

A state is the last ``width - 1`` tokens of a sequence, oldest first. The gradients compute activations again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from precast._dispatch import namespace
from precast._dispatch.formulas import register
from precast._dispatch.routes import Route
from precast.ops._checks import (
    CONFUSED,
    explain,
    integers,
    no_gradient,
    require,
    same_kind,
    same_kind_or_float32,
    same_shape,
)
from precast.ops._checks import rows as check_rows
from precast.ops._fx import Proxy, recorded

MOST_WIDTH = 8


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    initial_state: Tensor | None = None,
    return_final_state: bool = False,
    sequence_index: Tensor | None = None,
    starts: Tensor | None = None,
) -> Any:
    """``y[t] = bias + sum(weight[k] * x[t - width + 1 + k])`` of each channel, or ``silu`` of it. Differentiable.

    Args:
        x: ``(batch, channels, tokens)``; float32, float16 or bfloat16, on the CPU or a GPU.
        weight: ``(channels, width)`` with 2 to 8 taps, the last for the newest token; of the dtype of ``x`` or float32.
        bias: ``(channels,)``, of the dtype of ``weight``.
        activation: ``"silu"`` or its other name ``"swish"``; None: there is none.
        initial_state: ``(sequences, channels, width - 1)``, the tokens before each sequence; None: zeros.
        return_final_state: also return the last ``width - 1`` tokens of each sequence.
        sequence_index: ``(batch, tokens)``, int32 or int64: a sequence is a run of equal numbers. A negative number is
            padding, whose results are zeros. States are those before the first run of a row and after the last.
        starts: ``(sequences + 1,)``, int32 or int64, for a batch of one: where each sequence begins, and where the last
            one ends. They must not decrease. The results of tokens of no sequence are zeros.

    Returns:
        A tensor with the shape, dtype and order of ``x``; with ``return_final_state`` also the contiguous final state.

    Raises:
        RuntimeError: a tensor has another shape, dtype or device, or starts decrease (CPU).
        ValueError: ``activation`` is not one of these names.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        x, weight = torch.randn(2, 16, 64).transpose(1, 2), torch.randn(64, 4)
        y, state = precast.ops.causal_conv1d(x, weight, activation="silu", return_final_state=True)
    """
    if isinstance(x, Proxy):
        return recorded(causal_conv1d, **locals())
    try:
        silu = _is_silu(activation)
        y, state = _CONV(x, weight, bias, initial_state, sequence_index, starts, silu, return_final_state)
    except CONFUSED:
        explain(causal_conv1d, locals())
    return (y, state) if return_final_state else y


def causal_conv1d_update_(
    x: Tensor,
    state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    state_indices: Tensor | None = None,
    positions: Tensor | None = None,
) -> Tensor:
    """:func:`causal_conv1d` of the next tokens of sequences; updates their states in a pool. For inference.

    A state may be longer than ``width - 1`` tokens. Without ``positions`` its last token is the newest. With them, the
    state is a ring buffer: token ``t`` of a sequence is at ``t % length``, so that tokens can be taken back. After a
    step of ``n`` tokens at position ``p``, of which ``k`` are accepted, call the next step at position ``p + k``; the
    state needs no other repair if ``length`` is at least ``width - 1 + n``.

    Args:
        x: ``(batch, channels, tokens)``, or ``(batch, channels)`` for one token; float32, float16 or bfloat16.
        state: ``(slots, channels, length)``, of the dtype of ``x``, with any strides; written in place.
        weight: as in :func:`causal_conv1d`.
        bias: as in :func:`causal_conv1d`.
        activation: as in :func:`causal_conv1d`.
        state_indices: ``(batch,)``, int32 or int64: the slot of each sequence; None: sequence ``i`` has slot
            ``i``. A sequence with a negative slot is skipped, and its result is zero. On a GPU, so is a sequence with a
            slot that does not exist.
            If two sequences have the same slot, its new content is undefined.
        positions: ``(batch,)``, int32 or int64: how many tokens each sequence had before.

    Returns:
        A tensor with the shape, dtype and order of ``x``.

    Raises:
        RuntimeError: a tensor has another shape, dtype or device, a slot does not exist (CPU), or a gradient is
            required.
        ValueError: ``activation`` is not one of these names.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        pool, weight = torch.zeros(8, 64, 3), torch.randn(64, 4)
        y = precast.ops.causal_conv1d_update_(torch.randn(2, 64), pool, weight, state_indices=torch.tensor([5, 0]))
    """
    if isinstance(x, Proxy):
        return recorded(causal_conv1d_update_, **locals())  # type: ignore[no-any-return]
    try:
        return _UPDATE(x, state, weight, bias, state_indices, positions, _is_silu(activation))  # type: ignore[no-any-return]
    except CONFUSED:
        explain(causal_conv1d_update_, locals())


def _is_silu(activation: str | None) -> bool:
    if activation not in (None, "silu", "swish"):
        raise ValueError(f"activation is {activation!r}; needed None, 'silu' or 'swish'")
    return activation is not None


class _CausalConv1d(torch.autograd.Function):
    """``compute`` calls the kernel below autograd; it depends on where the call came from."""

    @staticmethod
    def forward(
        ctx: Any,
        compute: Callable[..., tuple[Tensor, Tensor]],
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        initial_state: Tensor | None,
        sequence_index: Tensor | None,
        starts: Tensor | None,
        silu: bool,
        final_state: bool,
    ) -> tuple[Tensor, Tensor]:
        y, state = compute(x, weight, bias, initial_state, sequence_index, starts, silu, final_state)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight, bias, initial_state, sequence_index, starts)
        ctx.silu = silu
        if not final_state:
            ctx.mark_non_differentiable(state)
        return y, state

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_state: Tensor | None) -> tuple[Any, ...]:
        x, weight, bias, initial_state, *cuts = ctx.saved_tensors
        grad = torch.zeros_like(x) if grad is None else grad
        grad_x, parameters, grad_initial = _BACKWARD(grad, grad_state, x, weight, bias, initial_state, *cuts, ctx.silu)
        grad_weight = parameters[: weight.numel()].view(weight.shape)
        grad_bias = None if bias is None else parameters[weight.numel() :]
        return None, grad_x, grad_weight, grad_bias, grad_initial if initial_state is not None else None, *[None] * 4


_refuse_gradient = no_gradient(
    "causal_conv1d_update_",
    "the state is written in place; needed precast.ops.causal_conv1d, or torch.no_grad()",
)


def _check_filter(op: str, x: Tensor, weight: Tensor, bias: Tensor | None, flat: bool) -> None:
    check_rows(op, x)
    or_flat = " or (batch, channels)" if flat else ""
    require(
        x.dim() == 3 or (flat and x.dim() == 2),
        lambda: f"{op}: x has shape {tuple(x.shape)}; needed (batch, channels, tokens){or_flat}",
    )
    same_kind_or_float32(op, "weight", weight, x)
    require(
        weight.dim() == 2 and weight.shape[0] == x.shape[1] and 2 <= weight.shape[1] <= MOST_WIDTH,
        lambda: f"{op}: weight has shape {tuple(weight.shape)}; needed ({x.shape[1]}, 2 to 8), of each channel of x",
    )
    if bias is not None:
        same_kind(op, "bias", bias, weight, "weight")
        require(
            bias.dim() == 1 and bias.shape[0] == x.shape[1],
            lambda: f"{op}: bias has shape {tuple(bias.shape)}; needed ({x.shape[1]},), the channels of x",
        )


def _check_state(op: str, name: str, state: Tensor, x: Tensor, weight: Tensor, starts: Tensor | None) -> None:
    same_kind(op, name, state, x)
    wanted = _state_shape(x, weight, starts)
    require(
        state.dim() == 3 and state.shape == wanted,
        lambda: f"{op}: {name} has shape {tuple(state.shape)}; needed {tuple(wanted)}",
    )


def _state_shape(x: Tensor, weight: Tensor, starts: Tensor | None) -> tuple[int, int, int]:
    return (x.shape[0] if starts is None else starts.shape[0] - 1), x.shape[1], weight.shape[1] - 1


def _check(
    op: str,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    sequence_index: Tensor | None,
    starts: Tensor | None,
) -> None:
    """The kernels' checks, with the same messages in the same order, except those that need data or addresses."""
    _check_filter(op, x, weight, bias, False)
    require(
        sequence_index is None or starts is None,
        lambda: f"{op}: there are sequence_index and starts; needed one of them",
    )
    if sequence_index is not None:
        integers(op, "sequence_index", sequence_index, x)
        index, batch, tokens = sequence_index, x.shape[0], x.shape[2]
        require(
            index.dim() == 2 and index.shape == (batch, tokens),
            lambda: f"{op}: sequence_index has shape {tuple(index.shape)}; needed ({batch}, {tokens})",
        )
    if starts is not None:
        integers(op, "starts", starts, x)
        require(
            starts.dim() == 1 and starts.shape[0] >= 1 and x.shape[0] == 1,
            lambda: (
                f"{op}: starts has shape {tuple(starts.shape)} and x has shape {tuple(x.shape)}; needed "
                "(sequences + 1,) and a batch of one"
            ),
        )
    if initial_state is not None:
        _check_state(op, "initial_state", initial_state, x, weight, starts)


def _check_backward(
    op: str, grad: Tensor, grad_state: Tensor | None, x: Tensor, weight: Tensor, starts: Tensor | None
) -> None:
    same_kind(op, "grad", grad, x)
    same_shape(op, "grad", grad, "x", x)
    if grad_state is not None:
        _check_state(op, "grad_state", grad_state, x, weight, starts)


def _check_update(
    op: str,
    x: Tensor,
    state: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state_indices: Tensor | None,
    positions: Tensor | None,
) -> None:
    _check_filter(op, x, weight, bias, True)
    same_kind(op, "state", state, x)
    channels, before = x.shape[1], weight.shape[1] - 1
    slots = "slots" if state_indices is not None else "the batch of x"
    require(
        state.dim() == 3
        and state.shape[1] == channels
        and state.shape[2] >= before
        and (state_indices is not None or state.shape[0] == x.shape[0]),
        lambda: f"{op}: state has shape {tuple(state.shape)}; needed ({slots}, {channels}, {before} or more)",
    )
    for name, one in (("state_indices", state_indices), ("positions", positions)):
        if one is None:
            continue
        integers(op, name, one, x)
        text = f"{op}: {name} has shape {tuple(one.shape)}; needed ({x.shape[0]},), a number for each sequence"
        require(one.dim() == 1 and one.shape[0] == x.shape[0], lambda: text)  # noqa: B023 - called at once or never


def _like(x: Tensor) -> Tensor:
    """An uninitialised result in the order of ``x``."""
    if x.dim() == 3 and x.stride(1) == 1:
        return x.new_empty((x.shape[0], x.shape[2], x.shape[1])).transpose(1, 2)
    return x.new_empty(x.shape)


def _backward_result(
    x: Tensor, weight: Tensor, bias: Tensor | None, initial_state: Tensor | None, starts: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    parameters = weight.new_empty(weight.shape[0] * (weight.shape[1] + (bias is not None)))
    state = (0,) if initial_state is None else _state_shape(x, weight, starts)
    return _like(x), parameters, x.new_empty(state)


def _by_batch(starts: int, whole: tuple[int, ...], results: Callable[..., str]) -> Callable[..., Any]:
    """Everything replicated, or the batch sharded except for the arguments ``whole``, unless there are starts.

    ``results`` says of each result whether it is sharded, partial, or replicated because it is empty: "s", "p" or "r".
    """

    def rule(*args: Any) -> Any:
        from torch.distributed.tensor import Partial, Replicate, Shard  # needed only for a DTensor

        given = [hasattr(arg, "shape") for arg in args]
        words = results(*args)
        choices: list[Any] = [([Replicate()] * len(words), [Replicate() if one else None for one in given])]
        if args[starts] is None:
            found = [{"s": Shard(0), "p": Partial(), "r": Replicate()}[word] for word in words]
            choices.append(
                (found, [(Replicate() if i in whole else Shard(0)) if one else None for i, one in enumerate(given)])
            )
        return choices

    return rule


with namespace.family("causal_conv1d", __package__), namespace.family("causal_conv1d_backward", __package__):
    CAUSAL_CONV1D = register(
        "causal_conv1d",
        check=_check,
        result=lambda x, weight, starts, final_state: (
            _like(x),
            x.new_empty(_state_shape(x, weight, starts) if final_state else (0,)),
        ),
        gradient=_CausalConv1d.apply,
        sharding=_by_batch(5, (1, 2), lambda *args: "ss" if args[-1] else "sr"),
    )
    # No gradient formula: the reference computes the gradient of a gradient.
    CAUSAL_CONV1D_BACKWARD = register(
        "causal_conv1d_backward",
        check=(_check, _check_backward),
        result=_backward_result,
        sharding=_by_batch(7, (3, 4), lambda *args: "sp" + ("r" if args[5] is None else "s")),
    )
    CAUSAL_CONV1D_UPDATE_ = register(
        "causal_conv1d_update_",
        check=_check_update,
        result=_like,
        gradient=_refuse_gradient,
    )

_CONV = Route(CAUSAL_CONV1D, _CausalConv1d)
_BACKWARD = Route(CAUSAL_CONV1D_BACKWARD)
_UPDATE = Route(CAUSAL_CONV1D_UPDATE_, _refuse_gradient)
