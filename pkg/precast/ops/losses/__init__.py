"""Cross entropy of class numbers, except in float16 with the gradient in the same pass over the logits.

:func:`cross_entropy` reads each row of logits once and also writes the gradient, except in float16. The backward pass
then only multiplies, and skips a factor of 1. :func:`linear_cross_entropy` begins with
the rows before the last linear layer, and computes the logits in chunks of rows.

For a row ``x`` of ``C`` logits with target ``t``, weights ``w``, ``e = label_smoothing`` and ``lse =
log(sum(exp(x)))``, the loss is::

    (1 - e) * w[t] * (lse - x[t]) + e / C * sum(w * (lse - x)) + z_loss * lse**2

``"mean"`` divides the sum over all rows by the sum of ``w[t]``. A row whose target is ``ignore_index`` does
not count, and its gradient is zero; the mean over no rows is NaN, as in torch. Arithmetic is in float32, and a
gradient is rounded once. In float16 a gradient that is divided by thousands of rows would mostly be zero. So there it
is rounded in the backward pass, after the factor of a ``GradScaler``; this reads or computes the logits once more.

**A target that is no class** raises ``RuntimeError`` on the CPU before anything is written. On a GPU, the row's loss
and gradient become NaN, because an error would need to wait for the GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

from precast.ops import _checks
from precast.ops._fx import Proxy, recorded
from precast.ops._written import check_readable
from precast.ops.losses import _linear
from precast.ops.losses._ops import IN_PLACE, LOSS, check_options, class_weights, factors, reduced
from precast.ops.losses._shards import over_shards


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    num_items_in_batch: int | Tensor | None = None,
    in_place: bool = False,
    group: torch.distributed.ProcessGroup | None = None,
) -> Tensor:
    """The cross entropy of logits and class numbers. Differentiable once for ``logits``.

    Args:
        logits: ``(..., classes)``; float32, float16 or bfloat16, on the CPU or a GPU. Classes come last.
        target: the class of each row, ``(...)``; int64 or int32.
        weight: ``(classes,)``, a weight for each class; used in float32.
        ignore_index: rows with this target do not count.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        label_smoothing: from 0 to 1; the share of the target that is spread over all classes.
        z_loss: factor of ``logsumexp(logits)**2``, which keeps logits small.
        num_items_in_batch: the divisor for ``"mean"``, such as the number of tokens of all steps of gradient
            accumulation.
        in_place: write the gradient over ``logits``, which saves a tensor of their size; only if a gradient is
            recorded. Afterwards the logits are lost, and only one backward pass is possible.
        group: a process group over which the classes are sharded equally, in the order of the ranks. ``weight`` is
            then the shard of this rank, and each rank returns the whole loss.

    Returns:
        The loss in float32: a scalar, or the shape of ``target`` for ``"none"``.

    Raises:
        RuntimeError: a tensor has another shape, dtype or device; a target is not a class (CPU); ``weight`` requires
            grad; ``in_place`` and autograd needs the logits; the gradient is to be differentiated again.
        TypeError: ``reduction`` is not a string.
        ValueError: ``reduction`` is none of the three, or options contradict each other.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        logits, target = torch.randn(8, 1000), torch.randint(1000, (8,))
        loss = precast.ops.cross_entropy(logits, target, label_smoothing=0.1)
    """
    if isinstance(logits, Proxy):
        return recorded(cross_entropy, **locals())  # type: ignore[no-any-return]
    try:
        check_options("cross_entropy", reduction, num_items_in_batch, ignore_index)
        options = (ignore_index, float(label_smoothing), float(z_loss))
        if group is not None:
            if in_place:
                raise ValueError("cross_entropy: in_place is True and group is given; needed only one of the two")
            return over_shards(logits, target, weight, *options, reduction, num_items_in_batch, group)
        columns = class_weights("cross_entropy", weight, logits, logits.shape[-1:], "logits")
        check_readable("cross_entropy", target=target)
        scale = factors(target, columns, ignore_index, reduction, num_items_in_batch)
        if in_place and logits.requires_grad and torch.is_grad_enabled():
            losses = IN_PLACE(logits, target, columns, scale, *options)[0]
        else:
            losses = LOSS(logits, target, columns, scale, *options)[0]
    except _checks.CONFUSED:
        _checks.explain(cross_entropy, locals())
    return reduced(losses, target, reduction, num_items_in_batch)


def linear_cross_entropy(
    input: Tensor,  # noqa: A002 - torch's name for it
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    num_items_in_batch: int | Tensor | None = None,
    workspace_mb: int | None = None,
    accumulate_in_float32: bool = True,
) -> Tensor:
    """``cross_entropy(linear(input, linear_weight, linear_bias), target)`` without storing all logits.

    The rows are processed in chunks, with matrix products of torch. Gradients are computed chunk by chunk, in the
    forward pass, or in the backward pass for float16 and for ``reduction="none"``. Differentiable once for ``input``,
    ``linear_weight`` and ``linear_bias``. The names and the order of the arguments are those of
    ``torch.nn.functional.linear_cross_entropy`` of torch 2.13.

    Args:
        input: ``(..., features)``; float32, float16 or bfloat16.
        linear_weight: ``(classes, features)``, in the dtype of ``input``.
        target: the class of each row, ``(...)``; int64 or int32.
        linear_bias: ``(classes,)``, in the dtype of ``input``.
        weight: ``(classes,)``, a weight for each class; used in float32.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``, which computes the gradients in the backward pass.
        ignore_index: rows with this target do not count.
        label_smoothing: from 0 to 1; the share of the target that is spread over all classes.
        z_loss: factor of the squared ``logsumexp`` of each row's logits.
        num_items_in_batch: the divisor for ``"mean"``.
        workspace_mb: size of the logits that exist at a time, in units of 2**20 bytes; at least one row. None: 256. If
            the gradient of ``linear_weight`` is added up in float32, None is also what costs no more memory than that
            sum: all rows if their logits take no more than it, else as much as ``linear_weight``.
        accumulate_in_float32: add the chunks' gradients of ``linear_weight`` up in float32, in memory of its size at
            four bytes per element; False: in its dtype, rounded once per chunk. No difference for a single chunk.

    Returns:
        The loss in float32: a scalar, or the shape of ``target`` for ``"none"``.

    Raises:
        RuntimeError: a tensor has another shape, dtype or device; a target is not a class (CPU); ``weight`` requires
            grad; the gradient is to be differentiated again.
        TypeError: ``reduction`` is not a string.
        ValueError: ``reduction`` is none of the three, or options contradict each other.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        x, weight, target = torch.randn(8, 64), torch.randn(1000, 64), torch.randint(1000, (8,))
        loss = precast.ops.linear_cross_entropy(x, weight, target)
    """
    if isinstance(input, Proxy):
        return recorded(linear_cross_entropy, **locals())  # type: ignore[no-any-return]
    try:
        check_options("linear_cross_entropy", reduction, num_items_in_batch, ignore_index)
        options = (ignore_index, float(label_smoothing), float(z_loss))
        _linear.check(input, linear_weight, target, linear_bias, workspace_mb)
        columns = class_weights("linear_cross_entropy", weight, input, linear_weight.shape[:1], "input")
        scale = factors(target, columns, ignore_index, reduction, num_items_in_batch)
        inputs = _linear.as_autocast(input, linear_weight, linear_bias)
        if not torch.compiler.is_compiling() and (
            torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
        ):
            losses = LOSS(torch.nn.functional.linear(*inputs), target, columns, scale, *options)[0]
            return reduced(losses, target, reduction, num_items_in_batch)
        rows = _linear.rows_at_once(*inputs[:2], workspace_mb, accumulate_in_float32)
        plan = (*options, rows, accumulate_in_float32, reduction == "none", torch.is_grad_enabled())
        losses = _linear.Loss.apply(*inputs, target, columns, scale, *plan)  # type: ignore[no-untyped-call]
    except _checks.CONFUSED:
        _checks.explain(linear_cross_entropy, locals())
    return reduced(losses, target, reduction, num_items_in_batch)
