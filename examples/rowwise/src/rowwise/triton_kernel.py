"""log-sum-exp of rows in one pass: each lane keeps a maximum and a sum relative to it, and joins them at the end."""

import torch
import triton
import triton.language as tl
from torch import Tensor

# The largest finite float32. Lanes start at its negative, so that no difference of infinities is ever taken.
_LARGEST = tl.constexpr(3.4028234663852886e38)
_TYPES = (torch.float32, torch.float16, torch.bfloat16)


@triton.jit
def _log_sum_exp(x, out, columns, stride, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    base = tl.full([BLOCK], -_LARGEST, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        inside = start + lanes < columns
        value = tl.load(x + row * stride + start + lanes, mask=inside, other=float("-inf")).to(tl.float32)
        above = tl.minimum(tl.maximum(base, value), _LARGEST)
        total = total * tl.exp(base - above) + tl.exp(value - above)
        base = above
    top = tl.max(base, 0)
    tl.store(out + row, top + tl.log(tl.sum(total * tl.exp(base - top), 0)))


def log_sum_exp(x: Tensor) -> Tensor:
    """For float32, float16 and bfloat16 on a GPU."""
    if x.dtype not in _TYPES:
        raise TypeError(f"log_sum_exp_triton takes {', '.join(map(str, _TYPES))}; x is {x.dtype}")
    rows = x.contiguous().flatten(0, -2) if x.dim() > 1 else x.contiguous()[None]
    out = torch.empty(rows.shape[0], dtype=x.dtype, device=x.device)
    if rows.shape[0] > 0:
        columns = rows.shape[1]
        block = min(max(triton.next_power_of_2(columns), 16), 4096)
        warps = 8 if block > 1024 else 4
        _log_sum_exp[(rows.shape[0],)](rows, out, columns, rows.stride(0), BLOCK=block, num_warps=warps)
    return out.reshape(x.shape[:-1])
