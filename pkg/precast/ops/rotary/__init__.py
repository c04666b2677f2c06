"""Rotary position embedding: rotate pairs of elements of each head by an angle of their token (Su and others, 2021).

``query`` is ``(..., tokens, heads, head_dim)``; ``key`` is the same with any number of heads, or None. The first
``rotary_dim`` elements of a head are rotated, the others are unchanged. ``cos`` and ``sin`` have ``rotary_dim / 2``
columns and a row for each token, or, with ``positions`` (int32 or int64, one for each token), a row for each position.
They are float32 or of the dtype of ``query``. Pair ``i`` consists of elements ``i`` and ``i + rotary_dim / 2``
(GPT-NeoX, Llama), or with ``interleaved`` of elements ``2 * i`` and ``2 * i + 1`` (GPT-J). Arithmetic is in float32,
rounded once.

A position outside the tables is refused on the CPU. On a GPU, such a position reads nothing out of bounds, and the
elements that it would rotate become NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from precast._dispatch import namespace
from precast._dispatch.formulas import register
from precast._dispatch.routes import Route
from precast.ops import _checks, _rotation
from precast.ops._fx import Proxy, recorded
from precast.ops.norm import RMS_NORM_BACKWARD, Casting, casting_code

Both = tuple[Tensor, Tensor]
Rounding: TypeAlias = Literal["once", "each"]


def rotary_embedding(
    query: Tensor,
    key: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    *,
    positions: Tensor | None = None,
    interleaved: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """``query`` and ``key`` with each pair rotated. Differentiable in both, to any order.

    A pair ``(a, b)`` becomes ``(a * cos - b * sin, b * cos + a * sin)``.

    Args:
        query: ``(..., tokens, heads, head_dim)``; float32, float16 or bfloat16, on the CPU or a GPU.
        key: the same with any number of heads, or None.
        cos: ``(tokens, rotary_dim / 2)``, or with ``positions`` a row for each position; float32 or as ``query``.
        sin: as ``cos``.
        positions: int32 or int64, the row of ``cos`` and ``sin`` for each token.
        interleaved: pairs are neighbours (GPT-J) instead of ``i`` and ``i + rotary_dim / 2`` (GPT-NeoX, Llama).

    Returns:
        New contiguous tensors for ``query`` and ``key``; None for a key that is None.

    Raises:
        RuntimeError: a tensor has another shape, dtype or device, or ``cos`` or ``sin`` requires grad.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        query, cos, sin = torch.randn(16, 4, 64), torch.randn(16, 32), torch.randn(16, 32)
        rotated, _ = precast.ops.rotary_embedding(query, None, cos, sin)
    """
    try:
        both: Both = _ROTARY(query, key, cos, sin, positions, interleaved, False)
    except _checks.CONFUSED:
        _checks.explain(rotary_embedding, locals())
    return both[0], None if key is None else both[1]


def rotary_embedding_(
    query: Tensor,
    key: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    *,
    positions: Tensor | None = None,
    interleaved: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """:func:`rotary_embedding` in place, for inference. Both may be parts of one packed projection.

    Args:
        query: ``(..., tokens, heads, head_dim)``; float32, float16 or bfloat16, on the CPU or a GPU.
        key: the same with any number of heads, or None.
        cos: ``(tokens, rotary_dim / 2)``, or with ``positions`` a row for each position; float32 or as ``query``.
        sin: as ``cos``.
        positions: int32 or int64, the row of ``cos`` and ``sin`` for each token.
        interleaved: pairs are neighbours (GPT-J) instead of ``i`` and ``i + rotary_dim / 2`` (GPT-NeoX, Llama).

    Returns:
        ``(query, key)``.

    Raises:
        RuntimeError: a tensor has another shape, dtype or device, or a gradient is required.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        query, cos, sin = torch.randn(16, 4, 64), torch.randn(16, 32), torch.randn(16, 32)
        precast.ops.rotary_embedding_(query, None, cos, sin)
    """
    try:
        _ROTARY_IN_PLACE(query, key, cos, sin, positions, interleaved, False)
    except _checks.CONFUSED:
        _checks.explain(rotary_embedding_, locals())
    return query, key


def rms_norm_rotary_embedding(
    query: Tensor,
    key: Tensor | None,
    query_weight: Tensor | None,
    key_weight: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    *,
    eps: float = 1e-6,
    casting: Casting = "llama",
    positions: Tensor | None = None,
    interleaved: bool = False,
    rounding: Rounding = "once",
) -> tuple[Tensor, Tensor | None]:
    """The RMS norm of each head of ``query`` and ``key``, then :func:`rotary_embedding`, in one launch. Differentiable.

    The norm is rounded to the dtype of ``query``, as :func:`rms_norm` rounds it. So Qwen 3 takes ``casting="llama"``
    and Gemma 3 ``casting="gemma"``; with ``rounding="each"`` every step is rounded as by the modules of transformers.

    Args:
        query: ``(..., tokens, heads, head_dim)``; float32, float16 or bfloat16, on the CPU or a GPU.
        key: the same with any number of heads, or None.
        query_weight: ``(head_dim,)``, float32 or as ``query``; None: no head is normalised.
        key_weight: as ``query_weight``; None if that or ``key`` is None.
        cos: as in :func:`rotary_embedding`, or ``(tokens, head_dim)`` as transformers makes it: the second half of the
            columns is for the second elements of pairs.
        sin: as ``cos``.
        eps: added to the mean square; 0 or more.
        casting: as in :func:`rms_norm`.
        positions: int32 or int64, the row of ``cos`` and ``sin`` for each token.
        interleaved: pairs are neighbours (GPT-J) instead of ``i`` and ``i + rotary_dim / 2`` (GPT-NeoX, Llama).
        rounding: ``"once"`` rotates in float32; ``"each"`` rounds each product to the dtype of ``query``, as
            ``x * cos + rotate_half(x) * sin`` in torch does.

    Returns:
        New contiguous tensors for ``query`` and ``key``; None for a key that is None.

    Raises:
        RuntimeError: a tensor has another shape, dtype or device, or ``cos`` or ``sin`` requires grad.
        TypeError: ``rounding`` is not a string.
        ValueError: ``casting`` or ``rounding`` is none of the names.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        query, weight, cos, sin = torch.randn(16, 4, 64), torch.ones(64), torch.randn(16, 32), torch.randn(16, 32)
        turned, _ = precast.ops.rms_norm_rotary_embedding(query, None, weight, None, cos, sin)
    """
    if isinstance(query, Proxy):
        return recorded(rms_norm_rotary_embedding, **locals())  # type: ignore[no-any-return]
    try:
        both: Both = _NORM_ROTARY(
            *(query, key, query_weight, key_weight, cos, sin, positions, eps),
            *(casting_code(casting), interleaved, rounds_each(rounding), False),
        )
    except _checks.CONFUSED:
        _checks.explain(rms_norm_rotary_embedding, locals())
    return both[0], None if key is None else both[1]


def rounds_each(rounding: str) -> bool:
    """Whether each product of a rotation is rounded, or a ValueError that lists the names."""
    if not isinstance(rounding, str):
        raise TypeError(f"rounding is a {type(rounding).__name__}; needed 'once' or 'each'")
    if rounding not in ("once", "each"):
        raise ValueError(f"rounding is {rounding!r}; needed one of 'once', 'each'")
    return rounding == "each"


def get_cos_and_sin(
    lengths: Tensor, cos_table: Tensor, sin_table: Tensor, *, is_prompts: bool, tokens: int | None = None
) -> Both:
    """The ``cos`` and ``sin`` of :func:`rotary_embedding` for packed sequences, taken from tables.

    Args:
        lengths: int32 or int64, the length of each sequence in tokens.
        cos_table: ``(positions, rotary_dim / 2)``.
        sin_table: as ``cos_table``.
        is_prompts: take all tokens of each sequence, from position 0 on; otherwise only its last token.
        tokens: the sum of ``lengths``, if you know it; reading it from a GPU waits for the GPU.

    Returns:
        ``(cos, sin)``, a row for each token.

    Raises:
        TypeError: a table is not of a floating-point dtype.
        IndexError: a sequence is longer than the tables.

    Example::

        table, lengths = torch.randn(128, 32), torch.tensor([3, 5])
        cos, sin = precast.ops.get_cos_and_sin(lengths, table, table, is_prompts=True)
    """
    if isinstance(lengths, Proxy):
        return recorded(get_cos_and_sin, **locals())  # type: ignore[no-any-return]
    try:
        if is_prompts:
            total = int(lengths.sum()) if tokens is None else tokens
            starts = lengths.cumsum(0) - lengths
            starts = torch.repeat_interleave(starts, lengths, output_size=total)
            positions = torch.arange(total, device=lengths.device) - starts
        else:
            positions = lengths - 1
        for name, table in (("cos_table", cos_table), ("sin_table", sin_table)):
            if not table.is_floating_point():
                raise TypeError(
                    f"get_cos_and_sin: {name} is {_checks.dtype_name(table)}; needed a floating-point dtype"
                )
        return cos_table[positions], sin_table[positions]
    except _checks.CONFUSED:
        _checks.explain(get_cos_and_sin, locals())


class _Rotary(torch.autograd.Function):
    """``compute`` calls the kernel below autograd; it depends on where the call came from."""

    @staticmethod
    def forward(
        ctx: Any,
        compute: Callable[..., Both],
        query: Tensor,
        key: Tensor | None,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor | None,
        interleaved: bool,
        inverse: bool,
    ) -> Both:
        _refuse_tables("rotary_embedding", cos, sin)
        ctx.set_materialize_grads(False)  # autograd's zeros are plain tensors, even if the results are DTensors
        ctx.save_for_backward(cos, sin, positions)
        ctx.options = (interleaved, not inverse)
        both = compute(query, key, cos, sin, positions, interleaved, inverse)
        if key is None:
            ctx.mark_non_differentiable(both[1])
        return both

    @staticmethod
    def backward(ctx: Any, grad_query: Tensor | None, grad_key: Tensor | None) -> tuple[Any, ...]:
        # Rotates back with the op itself, so that the gradient of a gradient is recorded as well.
        query = grad_query if ctx.needs_input_grad[1] else None
        key = grad_key if ctx.needs_input_grad[2] else None
        found = _given(query, key, lambda *both: _ROTARY(*both, *ctx.saved_tensors, *ctx.options))
        return None, *found, *(None,) * 5


class _NormRotary(torch.autograd.Function):
    """As above. The gradient is rotated back, then that of the norm is taken."""

    @staticmethod
    def forward(
        ctx: Any,
        compute: Callable[..., Both],
        query: Tensor,
        key: Tensor | None,
        query_weight: Tensor | None,
        key_weight: Tensor | None,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor | None,
        eps: float,
        casting: int,
        interleaved: bool,
        each_product: bool,
        inverse: bool,
    ) -> Both:
        _refuse_tables("rms_norm_rotary_embedding", cos, sin)
        ctx.set_materialize_grads(False)  # as above
        normed = query_weight is not None
        ctx.save_for_backward(*(query, key) if normed else (None, None), query_weight, key_weight, cos, sin, positions)
        ctx.options = (eps, casting, interleaved, each_product, not inverse)
        given = (query, key, query_weight, key_weight, cos, sin, positions)
        both = compute(*given, eps, casting, interleaved, each_product, inverse)
        if key is None:
            ctx.mark_non_differentiable(both[1])
        return both

    @staticmethod
    def backward(ctx: Any, grad_query: Tensor | None, grad_key: Tensor | None) -> tuple[Any, ...]:
        *heads, query_weight, key_weight, cos, sin, positions = ctx.saved_tensors
        _, of_query, of_key, of_query_weight, of_key_weight, *_ = ctx.needs_input_grad
        turned = _given(
            grad_query if of_query or of_query_weight else None,
            grad_key if of_key or of_key_weight else None,
            lambda *both: _NORM_ROTARY(*both, None, None, cos, sin, positions, *ctx.options),
        )
        if query_weight is None:
            return None, *turned, *(None,) * 10
        found: list[Both | tuple[None, None]] = [
            (None, None) if grad is None else RMS_NORM_BACKWARD(grad, x, weight, *ctx.options[:2])
            for grad, x, weight in zip(turned, heads, (query_weight, key_weight), strict=True)
        ]
        return None, found[0][0], found[1][0], found[0][1], found[1][1], *(None,) * 8


def _given(query: Tensor | None, key: Tensor | None, turn: Callable[..., Both]) -> tuple[Tensor | None, Tensor | None]:
    """Turn those that are not None, in one call."""
    if query is not None:
        both = turn(query, key)
        return both[0], None if key is None else both[1]
    return None, None if key is None else turn(key, None)[0]


def _refuse_tables(op: str, cos: Tensor, sin: Tensor) -> None:
    if cos.requires_grad or sin.requires_grad:
        name = "cos" if cos.requires_grad else "sin"
        raise RuntimeError(
            f"{op}: {name} requires grad, and the tables have no gradient; needed cos.detach() and sin.detach()"
        )


_refuse_gradient = _checks.no_gradient(
    "rotary_embedding_",
    "the inputs would be written over; needed precast.ops.rotary_embedding, or torch.no_grad()",
)


def _both_like(query: Tensor, key: Tensor | None) -> Both:
    return _checks.like(query), query.new_empty(0) if key is None else _checks.like(key)


def _over_heads(query: Any, key: Any, cos: Any, sin: Any, positions: Any, *_: Any) -> Any:
    """The sharding rule: shard tokens, heads or leading dimensions, and with them tables that have a row per token."""
    from torch.distributed.tensor import Replicate, Shard

    def placed(place: Any, table: Any, position: Any) -> Any:
        beside = Replicate() if key is None else place  # the result for a key that is None has no elements
        given = [place, None if key is None else place, table, table, None if positions is None else position]
        return [place, beside], [*given, None, None]

    whole = Replicate()
    tokens = len(query.shape) - 3
    choices = [placed(whole, whole, whole)]
    for dim in range(len(query.shape) - 1):
        follows = Shard(0) if dim == tokens else whole
        choices.append(placed(Shard(dim), whole if positions is not None else follows, follows))
    return choices


def _over_normed_heads(
    query: Any, key: Any, query_weight: Any, key_weight: Any, cos: Any, sin: Any, positions: Any, *_: Any
) -> Any:
    """As :func:`_over_heads`; every shard has the whole weights."""
    from torch.distributed.tensor import Replicate

    weights = [None if weight is None else Replicate() for weight in (query_weight, key_weight)]
    return [
        (results, [*given[:2], *weights, *given[2:5], *(None,) * 5])
        for results, given in _over_heads(query, key, cos, sin, positions)
    ]


with namespace.family("rotary", __package__):
    RMS_NORM_ROTARY_EMBEDDING = register(
        "rms_norm_rotary_embedding",
        check=_rotation.normed_inputs,
        result=_both_like,
        gradient=_NormRotary.apply,
        sharding=_over_normed_heads,
    )
    ROTARY_EMBEDDING = register(
        "rotary_embedding",
        check=_rotation.inputs,
        result=_both_like,
        gradient=_Rotary.apply,
        sharding=_over_heads,
    )
    ROTARY_EMBEDDING_ = register(
        "rotary_embedding_",
        check=_rotation.inputs,
        result=None,
        gradient=_refuse_gradient,
    )

_NORM_ROTARY = Route(RMS_NORM_ROTARY_EMBEDDING, _NormRotary)
_ROTARY = Route(ROTARY_EMBEDDING, _Rotary)
_ROTARY_IN_PLACE = Route(ROTARY_EMBEDDING_, _refuse_gradient)
