"""What every op computes, in plain torch: the oracle of the tests, and the way through transforms.

These functions are differentiable to any order and work under ``torch.func``, so the ops fall back to them wherever a
tangent or a transform is present. They compute in float32, or in float64 when the input is float64: give them float64
copies of rounded inputs and they are the exact answer to compare with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor

Casting: TypeAlias = Literal["none", "llama", "gemma"]

# How the op schemas spell a casting.
CASTINGS: dict[str, int] = {"none": 0, "llama": 1, "gemma": 2}
LLAMA = CASTINGS["llama"]
GEMMA = CASTINGS["gemma"]


class GatedKind:
    """How the schemas spell a gated activation."""

    SILU_AND_MUL = 0
    GELU_AND_MUL = 1
    GELU_TANH_AND_MUL = 2
    MUL_AND_SILU = 3


GATED_KINDS = range(4)


def casting_code(casting: str) -> int:
    """The number the schemas use, or a ValueError that lists the names."""
    try:
        return CASTINGS[casting]
    except KeyError:
        raise ValueError(f"casting is {casting!r}; needed one of {', '.join(map(repr, CASTINGS))}") from None


def rms_norm(x: Tensor, weight: Tensor, eps: float, casting: int) -> Tensor:
    """``x / sqrt(mean(x**2, -1) + eps) * weight``, rounded to ``x``'s dtype where ``casting`` says so."""
    wide = _wide(x)
    normal = wide * _reciprocal_rms(wide, eps)
    if casting == LLAMA:
        return normal.to(x.dtype) * weight
    return (normal * _scale(weight, casting)).to(x.dtype)


def rms_norm_backward(grad: Tensor, x: Tensor, weight: Tensor, eps: float, casting: int) -> tuple[Tensor, Tensor]:
    """Gradients for ``x`` and ``weight``; rounding in the forward counts as the identity."""
    wide, slope = _wide(x), _wide(grad)
    rrms = _reciprocal_rms(wide, eps)
    normal = wide * rrms
    scaled = slope * _scale(weight, casting)
    grad_x = rrms * (scaled - normal * (scaled * normal).mean(-1, keepdim=True))
    return grad_x.to(x.dtype), _over_rows(slope * normal).to(weight.dtype)


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, casting: int) -> tuple[Tensor, Tensor]:
    """``(rms_norm(sum), sum)`` where ``sum`` is ``x + residual``, rounded."""
    total = x + residual
    return rms_norm(total, weight, eps, casting), total


def fused_add_rms_norm_backward(
    grad_y: Tensor, grad_sum: Tensor, total: Tensor, weight: Tensor, eps: float, casting: int
) -> tuple[Tensor, Tensor]:
    """The gradient shared by ``x`` and ``residual``, and the one for ``weight``; ``total`` is the saved sum."""
    grad_x, grad_weight = rms_norm_backward(_wide(grad_y), _wide(total), _wide(weight), eps, casting)
    return (grad_x + _wide(grad_sum)).to(total.dtype), grad_weight.to(weight.dtype)


def fused_add_rms_norm_(x: Tensor, residual: Tensor, weight: Tensor, eps: float, casting: int) -> None:
    """The same, written over ``x`` (the norm) and ``residual`` (the sum)."""
    y, total = fused_add_rms_norm(x, residual, weight, eps, casting)
    residual.copy_(total)
    x.copy_(y)


def gated_activation(x: Tensor, kind: int) -> Tensor:
    """``activation(gate) * factor`` for the two halves of the last dimension; the activation is rounded as well."""
    gate, factor = _halves(x, kind)
    return _activation(gate, kind) * factor


def gated_activation_backward(grad: Tensor, x: Tensor, kind: int) -> Tensor:
    """The gradient for ``x``; rounding in the forward counts as the identity."""
    gate, factor = _halves(_wide(x), kind)
    slope = _wide(grad)
    value = _activation(gate, kind)
    both = (slope * factor * _activation_slope(gate, kind), slope * value)
    return torch.cat(both[::-1] if kind == GatedKind.MUL_AND_SILU else both, -1).to(x.dtype)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """``(x - mean(x, -1)) / sqrt(var(x, -1) + eps) * weight + bias``, rounded once to ``x``'s dtype."""
    y, _ = _normal(_wide(x), eps)
    if weight is not None:
        y = y * _wide(weight)
    if bias is not None:
        y = y + _wide(bias)
    return y.to(x.dtype)


def layer_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, eps: float, weight_grad: bool, bias_grad: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients for ``x``, ``weight`` and ``bias``; one that is not wanted has no elements."""
    slope = _wide(grad)
    normal, scale = _normal(_wide(x), eps)
    scaled = slope if weight is None else slope * _wide(weight)
    projection = normal * (scaled * normal).mean(-1, keepdim=True)
    grad_x = scale * (scaled - scaled.mean(-1, keepdim=True) - projection)
    nothing = x.new_empty(0)
    return (
        grad_x.to(x.dtype),
        _over_rows(slope * normal).to(x.dtype) if weight_grad else nothing,
        _over_rows(slope).to(x.dtype) if bias_grad else nothing.clone(),
    )


def adam_(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    copies: Sequence[Tensor],
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    bias_correction1: float,
    bias_correction2: float,
    grad_scale: float,
    decoupled: bool,
    maximize: bool,
) -> None:
    """One Adam (or, with ``decoupled``, AdamW) step over every parameter, in place."""
    for index, (param, grad, m, v) in enumerate(zip(params, grads, exp_avgs, exp_avg_sqs, strict=True)):
        p, m_wide, v_wide = _wide(param), _wide(m), _wide(v)
        g = grad.to(p.dtype) * (-grad_scale if maximize else grad_scale)
        if decoupled:
            p = p * (1 - lr * weight_decay)
        else:
            g = g + weight_decay * p
        m_wide = beta1 * m_wide + (1 - beta1) * g
        v_wide = beta2 * v_wide + (1 - beta2) * g * g
        denominator = v_wide.sqrt() / math.sqrt(bias_correction2) + eps
        p = p - lr / bias_correction1 * m_wide / denominator
        param.copy_(p)
        m.copy_(m_wide)
        v.copy_(v_wide)
        if copies:
            copies[index].copy_(p)


def optimize_(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    first: Sequence[Tensor],
    second: Sequence[Tensor],
    third: Sequence[Tensor],
    steps: Sequence[Tensor],
    copies: Sequence[Tensor],
    plan: Tensor,
    numbers: Tensor,
    grad_scale: float,
    rule: int,
) -> None:
    """One step of Adam (0), SGD (1), Adagrad (2) or Lion (3) over every parameter, in place."""
    rows = [row for row in numbers.view(-1, 9).tolist() for _ in range(int(row[-1]))]
    for i, (param, grad, row) in enumerate(zip(params, grads, rows, strict=True)):
        lr, beta1, beta2, eps, decay, extra, flag, maximize, _ = row
        p = _wide(param)
        m, v, greatest = (_wide(list_[i]) if list_ and list_[i].numel() else None for list_ in (first, second, third))
        g = grad.to(p.dtype) * (-grad_scale if maximize else grad_scale)
        if rule == 3 or (rule == 0 and flag):
            p = p * (1 - lr * decay)
        else:
            g = g + decay * p
        count = float(steps[i]) + 1 if steps else 1.0
        direction = g
        if rule == 0 and m is not None and v is not None:
            m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
            greatest = None if greatest is None else torch.maximum(greatest, v)
            root = (v if greatest is None else greatest).sqrt() / math.sqrt(1 - beta2**count)
            direction = m / (root + eps) / (1 - beta1**count)
        elif rule == 1 and m is not None:
            m = beta1 * m + (1 - extra) * g
            direction = g + beta1 * m if flag else m
        elif rule == 2 and v is not None:
            v = v + g * g
            direction = g / (v.sqrt() + eps) / (1 + (count - 1) * extra)
        elif rule == 3 and m is not None:
            signs = beta1 * m + (1 - beta1) * g
            direction, m = torch.where(signs.isnan(), signs, signs.sign()), beta2 * m + (1 - beta2) * g
        p = p - lr * direction
        targets = [
            (param, p),
            *((list_[i], t) for list_, t in ((first, m), (second, v), (third, greatest)) if t is not None),
        ]
        if copies and copies[i].numel():
            targets.append((copies[i], p))
        for target, values in targets:
            target.copy_(values)
    for step in steps:
        step.add_(1)


def _wide(t: Tensor) -> Tensor:
    return t if t.dtype == torch.float64 else t.float()


def _halves(x: Tensor, kind: int) -> tuple[Tensor, Tensor]:
    """What goes through the activation, and what it is multiplied by."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    return (second, first) if kind == GatedKind.MUL_AND_SILU else (first, second)


def _activation(gate: Tensor, kind: int) -> Tensor:
    if kind == GatedKind.GELU_AND_MUL:
        return torch.nn.functional.gelu(gate)
    if kind == GatedKind.GELU_TANH_AND_MUL:
        return torch.nn.functional.gelu(gate, approximate="tanh")
    return torch.nn.functional.silu(gate)


def _activation_slope(gate: Tensor, kind: int) -> Tensor:
    """The derivative, in differentiable ops."""
    if kind == GatedKind.GELU_AND_MUL:
        density = torch.exp(gate.square() * -0.5) * math.sqrt(0.5 / math.pi)
        return 0.5 * (1 + torch.erf(gate * math.sqrt(0.5))) + gate * density
    if kind == GatedKind.GELU_TANH_AND_MUL:
        scale, cubic = math.sqrt(2 / math.pi), 0.044715
        t = torch.tanh(scale * (gate + cubic * gate.pow(3)))
        return 0.5 * (1 + t) + 0.5 * gate * (1 - t.square()) * scale * (1 + 3 * cubic * gate.square())
    s = torch.sigmoid(gate)
    return s * (1 + gate * (1 - s))


def _reciprocal_rms(wide: Tensor, eps: float) -> Tensor:
    return torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)


def _normal(wide: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    deviation = wide - wide.mean(-1, keepdim=True)
    scale = _reciprocal_rms(deviation, eps)
    return deviation * scale, scale


def _over_rows(terms: Tensor) -> Tensor:
    """The sum over all dimensions but the last; of one row alone, a tensor of its own."""
    return terms.flatten(0, -2).sum(0) if terms.dim() > 1 else terms.clone()


def _scale(weight: Tensor, casting: int) -> Tensor:
    return 1 + _wide(weight) if casting == GEMMA else _wide(weight)


def multi_tensor_l2norm(tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The root of the sum of all squares, and the sum of squares of each tensor; float32 or wider."""
    squares = torch.stack([_wide(tensor).square().sum() for tensor in tensors])
    return squares.sum().sqrt(), squares


def multi_tensor_axpby_(
    outs: Sequence[Tensor],
    xs: Sequence[Tensor],
    ys: Sequence[Tensor],
    a: float,
    b: float,
    factor: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    """``outs = a * factor * xs + b * ys``; ``found_inf`` becomes 1 where an x or y is not finite."""
    for index, (out, x) in enumerate(zip(outs, xs, strict=True)):
        read = [x, ys[index]] if ys else [x]
        result = _wide(x) * (a if factor is None else a * factor)
        if found_inf is not None and not all(bool(tensor.isfinite().all()) for tensor in read):
            found_inf.fill_(1.0)
        out.copy_(result + b * _wide(ys[index]) if ys else result)
