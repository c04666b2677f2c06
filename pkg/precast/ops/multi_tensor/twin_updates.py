"""The Triton programs of the list ops. Each program processes a block of the elements of one tensor of a list.

An int64 table on the device gives each program its tensor and the addresses of the tensor, its gradient and its states.
So one launch handles all tensors of the same dtypes. The formulas are those of ``csrc/multi_tensor/device.cu``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from precast.ops.multi_tensor import (
    ADAGRAD,
    ADAM,
    ALWAYS_ADAPT,
    DECOUPLED,
    LAMB,
    MAXIMIZE,
    NESTEROV,
    SGD,
    SUMMED,
    UNCORRECTED,
)

# The columns of the table: six addresses, then other facts of a tensor. ``FIRST_PROGRAM`` counts from the beginning of
# its launch, ``SLOT`` is the index of its step and of its sums, ``GROUP`` the number of its group.
PARAM, GRAD, FIRST, SECOND, THIRD, COPY, ELEMENTS, FIRST_PROGRAM, SLOT, GROUP, COLUMNS = range(11)
COEFFICIENTS = 12  # numbers per tensor that an update needs, computed on the device

_PARAM, _GRAD, _FIRST, _SECOND, _THIRD, _COPY = (tl.constexpr(i) for i in range(6))
_ELEMENTS, _FIRST_PROGRAM, _SLOT, _GROUP = (tl.constexpr(i) for i in range(ELEMENTS, COLUMNS))
_COLUMNS, _COEFFICIENTS = tl.constexpr(COLUMNS), tl.constexpr(COEFFICIENTS)
_BY, _RATE, _DECAY, _L2, _ONE_MINUS_BETA1, _ONE_MINUS_BETA2 = (tl.constexpr(i) for i in range(6))
_ROOT, _EPS, _BIAS, _SKIP, _MOMENTUM, _IS_FIRST = (tl.constexpr(i) for i in range(6, COEFFICIENTS))
_ADAM, _SGD, _ADAGRAD, _LAMB = (tl.constexpr(kind) for kind in (ADAM, SGD, ADAGRAD, LAMB))
_MAXIMIZE, _DECOUPLED, _NESTEROV, _ALWAYS_ADAPT, _UNCORRECTED, _SUMMED = (
    tl.constexpr(flag) for flag in (MAXIMIZE, DECOUPLED, NESTEROV, ALWAYS_ADAPT, UNCORRECTED, SUMMED)
)
_LARGEST = tl.constexpr(3.4028234663852886e38)


@triton.jit  # type: ignore[untyped-decorator]
def _correction(log_beta: tl.tensor, step: tl.tensor) -> tl.tensor:
    """``1 - beta**step``, by its series near zero, where the difference would lose digits."""
    x = step * log_beta
    rest = 1 + x / 5 * (1 + x / 6 * (1 + x / 7 * (1 + x / 8)))
    series = x * (1 + x / 2 * (1 + x / 3 * (1 + x / 4 * rest)))
    return tl.where(x > -0.5, -series, 1.0 - tl.exp(x))


@triton.jit(do_not_specialize=["group", "count"])  # type: ignore[untyped-decorator]
def prepare(
    table: tl.tensor,
    coefficients: tl.tensor,
    steps: tl.tensor,
    device_lr: tl.tensor,
    found_inf: tl.tensor,
    grad_scale: tl.tensor,
    norm: tl.tensor,
    max_norm: tl.tensor,
    lr: tl.tensor,
    one_minus_beta1: tl.tensor,
    one_minus_beta2: tl.tensor,
    log_beta1: tl.tensor,
    log_beta2: tl.tensor,
    eps: tl.tensor,
    weight_decay: tl.tensor,
    extra: tl.tensor,
    group: tl.tensor,
    count: tl.tensor,
    kind: tl.constexpr,
    flags: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Count the steps of one group's tensors, unless the gradients overflowed, and write their coefficients."""
    row = tl.program_id(0) * block + tl.arange(0, block)
    entry = table + row * _COLUMNS
    mine = row < count
    mine = mine & (tl.load(entry + _GROUP, mask=mine, other=-1) == group)
    step_at = steps + tl.load(entry + _SLOT, mask=mine, other=0)
    before = tl.load(step_at, mask=mine, other=0.0)
    step = before + 1.0
    skip, counted = 0.0, step
    if found_inf is not None:
        skip = tl.load(found_inf)
        counted = tl.where(skip == 0.0, step, before)
    tl.store(step_at, counted, mask=mine)
    rate = lr
    if device_lr is not None:
        rate = tl.load(device_lr)
    by = 1.0
    if _MAXIMIZE & flags:
        by = -1.0
    if grad_scale is not None:
        by = by / tl.load(grad_scale)
    if norm is not None:
        size = tl.load(norm)
        if grad_scale is not None:
            size = size / tl.load(grad_scale)
        share = max_norm / (size + 1e-6)
        by = by * tl.where(share >= 1.0, 1.0, share)  # keeps a NaN
    decay, l2, bias, root = 0.0, weight_decay, 1.0, 1.0
    if _DECOUPLED & flags:
        decay, l2 = rate * weight_decay, 0.0
    if kind == _ADAM or kind == _LAMB:  # noqa: SIM109 - Triton has no "in"
        if (_UNCORRECTED & flags) == 0:
            bias = 1.0 / _correction(log_beta1, step)
            root = 1.0 / tl.sqrt(_correction(log_beta2, step))
        if kind == _ADAM:
            rate = rate * bias
        else:
            decay = weight_decay - l2  # zero if the decay is added to the gradient
    if kind == _ADAGRAD:
        rate = rate / (1.0 + before * extra)
    out = coefficients + row * _COEFFICIENTS
    tl.store(out + _BY, by, mask=mine)
    tl.store(out + _RATE, rate, mask=mine)
    tl.store(out + _DECAY, decay, mask=mine)
    tl.store(out + _L2, l2, mask=mine)
    tl.store(out + _ONE_MINUS_BETA1, one_minus_beta1, mask=mine)
    tl.store(out + _ONE_MINUS_BETA2, one_minus_beta2, mask=mine)
    tl.store(out + _ROOT, root, mask=mine)
    tl.store(out + _EPS, eps, mask=mine)
    tl.store(out + _BIAS, bias, mask=mine)
    tl.store(out + _SKIP, skip, mask=mine)
    tl.store(out + _MOMENTUM, extra, mask=mine)
    tl.store(out + _IS_FIRST, tl.where(before == 0.0, 1.0, 0.0), mask=mine)


@triton.jit  # type: ignore[untyped-decorator]
def _begin(entry: tl.tensor, member: tl.constexpr, like: tl.tensor, aligned: tl.constexpr) -> tl.tensor:
    """The address of a tensor of a row, as a pointer of the type of ``like``."""
    address = tl.load(entry + member).to(like.dtype)
    if aligned:
        address = tl.multiple_of(address, 16)
    return address


@triton.jit  # type: ignore[untyped-decorator]
def _read(
    entry: tl.tensor,
    member: tl.constexpr,
    like: tl.tensor,
    here: tl.tensor,
    inside: tl.tensor,
    aligned: tl.constexpr,
) -> tl.tensor:
    return tl.load(_begin(entry, member, like, aligned) + here, mask=inside, other=0.0).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _write(
    entry: tl.tensor,
    member: tl.constexpr,
    like: tl.tensor,
    here: tl.tensor,
    value: tl.tensor,
    inside: tl.tensor,
    aligned: tl.constexpr,
) -> None:
    tl.store(_begin(entry, member, like, aligned) + here, value.to(like.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["owners"])  # type: ignore[untyped-decorator]
def update(
    table: tl.tensor,
    owners: tl.tensor,
    coefficients: tl.tensor,
    grad_scale: tl.tensor,
    param: tl.tensor,
    grad: tl.tensor,
    first: tl.tensor,
    second: tl.tensor,
    third: tl.tensor,
    copy: tl.tensor,
    kind: tl.constexpr,
    flags: tl.constexpr,
    aligned: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """One step of any optimizer; for LAMB, its direction. The tensor arguments only give dtypes, or None if absent."""
    row = tl.load(table + owners + tl.program_id(0))
    entry, c = table + row * _COLUMNS, coefficients + row * _COEFFICIENTS
    here = (tl.program_id(0) - tl.load(entry + _FIRST_PROGRAM)) * block + tl.arange(0, block)
    inside = here < tl.where(tl.load(c + _SKIP) == 0.0, tl.load(entry + _ELEMENTS), 0)
    rate, decay = tl.load(c + _RATE), tl.load(c + _DECAY)
    p = _read(entry, _PARAM, param, here, inside, aligned)
    g = _read(entry, _GRAD, grad, here, inside, aligned)
    if grad_scale is not None:
        _write(entry, _GRAD, grad, here, g / tl.load(grad_scale), inside, aligned)
    g = g * tl.load(c + _BY) + tl.load(c + _L2) * p
    if kind == _ADAM or kind == _LAMB:  # noqa: SIM109 - Triton has no "in"
        m = _read(entry, _FIRST, first, here, inside, aligned)
        v = _read(entry, _SECOND, second, here, inside, aligned)
        if kind == _LAMB and (_SUMMED & flags) != 0:
            m = tl.load(c + _MOMENTUM) * m + g
        else:
            m += (g - m) * tl.load(c + _ONE_MINUS_BETA1)
        v += (g * g - v) * tl.load(c + _ONE_MINUS_BETA2)
        _write(entry, _FIRST, first, here, m, inside, aligned)
        _write(entry, _SECOND, second, here, v, inside, aligned)
        if kind == _ADAM and third is not None:
            largest = _read(entry, _THIRD, third, here, inside, aligned)
            v = tl.where(largest >= v, largest, v)  # as torch's maximum, this keeps a NaN
            _write(entry, _THIRD, third, here, v, inside, aligned)
        scale = tl.sqrt(v) * tl.load(c + _ROOT) + tl.load(c + _EPS)
        along = m / scale
        if kind == _LAMB:
            p = m * tl.load(c + _BIAS) / scale + decay * p
    elif kind == _SGD:
        if first is not None:
            momentum = tl.load(c + _MOMENTUM)
            m = _read(entry, _FIRST, first, here, inside, aligned)
            next_m = momentum * m + tl.load(c + _ONE_MINUS_BETA1) * g
            m = tl.where(tl.load(c + _IS_FIRST) != 0.0, g, next_m)
            _write(entry, _FIRST, first, here, m, inside, aligned)
            if _NESTEROV & flags:
                g += momentum * m
            else:
                g = m
        along = g
    elif kind == _ADAGRAD:
        m = _read(entry, _FIRST, first, here, inside, aligned) + g * g
        _write(entry, _FIRST, first, here, m, inside, aligned)
        along = g / (tl.sqrt(m) + tl.load(c + _EPS))
    else:  # Lion
        m = _read(entry, _FIRST, first, here, inside, aligned)
        between = m + (g - m) * tl.load(c + _ONE_MINUS_BETA1)
        m += (g - m) * tl.load(c + _ONE_MINUS_BETA2)
        _write(entry, _FIRST, first, here, m, inside, aligned)
        along = tl.where(between > 0.0, 1.0, tl.where(between < 0.0, -1.0, between))  # keeps a NaN
    if kind == _LAMB:
        _write(entry, _THIRD, third, here, p, inside, aligned)
    else:
        p -= tl.where(decay != 0.0, decay * p, 0.0)  # without decay an infinite parameter stays what it is
        p -= rate * along
        _write(entry, _PARAM, param, here, p, inside, aligned)
        if copy is not None:
            _write(entry, _COPY, copy, here, p, inside, aligned)


@triton.jit(do_not_specialize=["owners"])  # type: ignore[untyped-decorator]
def step_along(
    table: tl.tensor,
    owners: tl.tensor,
    coefficients: tl.tensor,
    sizes: tl.tensor,
    lengths: tl.tensor,
    param: tl.tensor,
    third: tl.tensor,
    copy: tl.tensor,
    flags: tl.constexpr,
    aligned: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """LAMB's step along its direction, scaled to the parameter's norm, from the sums of squares of both."""
    row = tl.load(table + owners + tl.program_id(0))
    entry, c = table + row * _COLUMNS, coefficients + row * _COEFFICIENTS
    here = (tl.program_id(0) - tl.load(entry + _FIRST_PROGRAM)) * block + tl.arange(0, block)
    inside = here < tl.where(tl.load(c + _SKIP) == 0.0, tl.load(entry + _ELEMENTS), 0)
    slot = tl.load(entry + _SLOT)
    size, length = tl.load(sizes + slot), tl.load(lengths + slot)
    ratio = tl.where(size > 0.0, tl.where(length > 0.0, tl.sqrt(size) / tl.sqrt(length), 1.0), 1.0)
    if (_ALWAYS_ADAPT & flags) == 0:
        ratio = tl.where(tl.load(c + _DECAY) != 0.0, ratio, 1.0)
    ratio = ratio * tl.load(c + _RATE)
    p = _read(entry, _PARAM, param, here, inside, aligned)
    p -= ratio * _read(entry, _THIRD, third, here, inside, aligned)
    _write(entry, _PARAM, param, here, p, inside, aligned)
    if copy is not None:
        _write(entry, _COPY, copy, here, p, inside, aligned)


@triton.jit(do_not_specialize=["owners"])  # type: ignore[untyped-decorator]
def squares(
    table: tl.tensor,
    owners: tl.tensor,
    parts: tl.tensor,
    like: tl.tensor,
    member: tl.constexpr,
    aligned: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """The sum of squares of a block."""
    entry = table + tl.load(table + owners + tl.program_id(0)) * _COLUMNS
    here = (tl.program_id(0) - tl.load(entry + _FIRST_PROGRAM)) * block + tl.arange(0, block)
    x = _read(entry, member, like, here, here < tl.load(entry + _ELEMENTS), aligned)
    tl.store(parts + tl.program_id(0), tl.sum(x * x, 0))


@triton.jit(do_not_specialize=["first_row"])  # type: ignore[untyped-decorator]
def add_parts(
    table: tl.tensor,
    parts: tl.tensor,
    sums: tl.tensor,
    first_row: tl.tensor,
    block: tl.constexpr,
    width: tl.constexpr,
) -> None:
    """Add the block sums of one tensor in a fixed order."""
    entry = table + (first_row + tl.program_id(0)) * _COLUMNS
    begin, count = tl.load(entry + _FIRST_PROGRAM), tl.cdiv(tl.load(entry + _ELEMENTS), block)
    total = tl.zeros((width,), tl.float32)
    for start in range(0, count, width):
        part = start + tl.arange(0, width)
        total += tl.load(parts + begin + part, mask=part < count, other=0.0)
    tl.store(sums + tl.load(entry + _SLOT), tl.sum(total, 0))


@triton.jit(do_not_specialize=["owners"])  # type: ignore[untyped-decorator]
def axpby(
    table: tl.tensor,
    owners: tl.tensor,
    factor: tl.tensor,
    found_inf: tl.tensor,
    a: tl.tensor,
    b: tl.tensor,
    out: tl.tensor,
    x: tl.tensor,
    y: tl.tensor,
    aligned: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """``out = a * factor * x + b * y``; sets ``found_inf`` to 1 if an x or y is not finite."""
    entry = table + tl.load(table + owners + tl.program_id(0)) * _COLUMNS
    here = (tl.program_id(0) - tl.load(entry + _FIRST_PROGRAM)) * block + tl.arange(0, block)
    inside = here < tl.load(entry + _ELEMENTS)
    p = _read(entry, _GRAD, x, here, inside, aligned)
    finite = tl.abs(p) <= _LARGEST
    if factor is not None:
        a = a * tl.load(factor)
    result = a * p
    if y is not None:
        q = _read(entry, _FIRST, y, here, inside, aligned)
        finite = finite & (tl.abs(q) <= _LARGEST)
        result += b * q
    _write(entry, _PARAM, out, here, result, inside, aligned)
    if found_inf is not None:
        tl.store(found_inf, 1.0, mask=tl.min(finite.to(tl.int32), 0) == 0)
