"""One token of a state-space model with one decay for each head, as Mamba 2 decodes (Dao and Gu, 2024).

For each head, with ``s = softplus(dt + dt_bias)``: the state becomes ``state * exp(s * a) + s * outer(x, b)``, and the
result is ``(state @ c + d * x) * silu(z)``. Arithmetic is in float32, and the result is computed from the state before
the state is rounded. The function is for inference and has no gradient.
"""

from __future__ import annotations

from torch import Tensor

from precast._dispatch import namespace
from precast._dispatch.formulas import register
from precast._dispatch.routes import Route
from precast.ops import _checks
from precast.ops._checks import (
    CONFUSED,
    FLOAT_TYPES,
    dtype_name,
    explain,
    integers,
    no_gradient,
    require,
    same_kind,
    same_kind_or_float32,
    same_shape,
)


def selective_state_update_(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor | None = None,
    *,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    state_indices: Tensor | None = None,
) -> Tensor:
    """``state = state * exp(dt * a) + dt * outer(x, b)``, in place, and then ``state @ c + d * x``.

    Args:
        state: ``(slots, heads, head_dim, state_size)``, of the dtype of ``x`` or float32; each head is contiguous.
        x: ``(batch, heads, head_dim)``; float32, float16 or bfloat16, on the CPU or a GPU.
        dt: ``(batch, heads)``; it and the other numbers of heads have the dtype of ``x``, or float32.
        a: ``(heads,)``, negative: the decay.
        b: ``(batch, groups, state_size)``; as many heads share each group.
        c: with the shape of ``b``.
        d: ``(heads,)``: the factor of ``x`` in the result; None: zeros.
        z: with the shape of ``x``, a gate; None: there is none.
        dt_bias: ``(heads,)``; None: zeros.
        dt_softplus: whether ``dt`` goes through softplus.
        state_indices: ``(batch,)``, int32 or int64: the slot of each sequence; None: sequence ``i`` has slot
            ``i``. A sequence with a negative slot is skipped, and its result is zero. On a GPU, so is a sequence with a
            slot that does not exist.

    Returns:
        A contiguous tensor with the shape and dtype of ``x``.

    Raises:
        RuntimeError: a tensor has another shape, dtype or device, a slot does not exist (CPU), or a gradient is
            required.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        pool, x, dt = torch.zeros(8, 4, 16, 32), torch.randn(2, 4, 16), torch.randn(2, 4)
        b, c = torch.randn(2, 2, 1, 32)
        y = precast.ops.selective_state_update_(pool, x, dt, -torch.ones(4), b, c, state_indices=torch.tensor([5, 0]))
    """
    try:
        return _UPDATE(state, x, dt, a, b, c, d, z, dt_bias, state_indices, dt_softplus)  # type: ignore[no-any-return]
    except CONFUSED:
        explain(selective_state_update_, locals())


_refuse_gradient = no_gradient("selective_state_update_", "the state is written in place; needed torch.no_grad()")


def _check(
    op: str,
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    state_indices: Tensor | None,
) -> None:
    """The kernels' checks, with the same messages in the same order, except those that need data or addresses."""
    require(x.dtype in FLOAT_TYPES, lambda: f"{op}: x is {dtype_name(x)}; needed float32, float16 or bfloat16")
    same_kind_or_float32(op, "state", state, x)
    require(
        (x.dim(), b.dim(), state.dim()) == (3, 3, 4)
        and b.shape[0] == x.shape[0]
        and b.shape[1] >= 1
        and x.shape[1] % b.shape[1] == 0
        and state.shape[1:] == (*x.shape[1:], b.shape[2]),
        lambda: (
            f"{op}: state has shape {tuple(state.shape)}, x {tuple(x.shape)} and b {tuple(b.shape)}; needed (slots, "
            "heads, head_dim, state_size), (batch, heads, head_dim) and (batch, groups, state_size), of which groups "
            "divide heads"
        ),
    )
    for name, other in (("b", b), ("c", c), ("z", z)):
        if other is not None:
            same_kind(op, name, other, x)
    same_shape(op, "c", c, "b", b)
    if z is not None:
        same_shape(op, "z", z, "x", x)
    batch, heads = x.shape[0], x.shape[1]
    _numbers(op, "dt", dt, x, (batch, heads))
    for name, other in (("a", a), ("d", d), ("dt_bias", dt_bias)):
        if other is not None:
            _numbers(op, name, other, x, (heads,))
    if state_indices is not None:
        integers(op, "state_indices", state_indices, x)
    fits = (
        state.shape[0] == batch
        if state_indices is None
        else state_indices.dim() == 1 and state_indices.shape[0] == batch
    )
    require(
        fits,
        lambda: (
            f"{op}: there are {state.shape[0]} states and {batch} sequences; needed state_indices, a number for each "
            "sequence"
        ),
    )


def _numbers(op: str, name: str, tensor: Tensor, x: Tensor, shape: tuple[int, ...]) -> None:
    same_kind_or_float32(op, name, tensor, x)
    wanted = "(heads,)" if len(shape) == 1 else "(batch, heads)"
    require(
        tensor.dim() == len(shape) and tensor.shape == shape,
        lambda: f"{op}: {name} has shape {tuple(tensor.shape)}; needed {wanted}, a number for each head",
    )


with namespace.family("selective_state_update", __package__):
    SELECTIVE_STATE_UPDATE_ = register(
        "selective_state_update_",
        check=_check,
        result=_checks.like,
        gradient=_refuse_gradient,
    )

_UPDATE = Route(SELECTIVE_STATE_UPDATE_, _refuse_gradient)
