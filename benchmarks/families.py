"""Ops beyond rows at random shapes, for ``python -m benchmarks.shapes``: images, experts, attention, losses, sequences.

Each family says how a shape is drawn, which tensors a call takes, and what a torch user writes for it.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks import rotary

if TYPE_CHECKING:
    import torch

Shape = tuple[int, ...]
Function = Callable[..., Any]
Make = Callable[..., "torch.Tensor"]  # random numbers of a shape, on the device and in the dtype of a case
BLOCK = 16
EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Family:
    """One op. ``moved`` counts the elements that a forward reads and writes at a shape.

    A call takes the tensors that ``inputs`` makes for each set, then those of ``weights``, which have gradients too,
    then those of ``fixed``. ``functions`` gives ours and torch's.
    """

    draw: Callable[[random.Random, int], Shape]
    moved: Callable[[Shape], int]
    inputs: Callable[[Shape, Make], list[torch.Tensor]]
    functions: Callable[[Shape], tuple[Function, Function]]
    weights: Callable[[Shape, Make], list[torch.Tensor]] = lambda _, make: []
    fixed: Callable[[Shape, Make], list[torch.Tensor]] = lambda _, make: []
    learns: bool = True


def _about(numbers: random.Random, low: float, high: float) -> int:
    """As likely small as large, between powers of two."""
    return max(1, round(2 ** numbers.uniform(low, high)))


def _fitting(count: int, most: int, each: int) -> int:
    return max(1, min(count, most // max(each, 1)))


# ---- images ----


def _image(numbers: random.Random, most: int) -> Shape:
    """Half of them of odd height and width, as the discriminators of GANs have."""
    channels, side = _about(numbers, 3, 9), _about(numbers, 2.5, 9)
    height, width = side, max(4, side + numbers.choice((0, 0, 1, -1)))
    return _fitting(_about(numbers, 0, 5), most, channels * height * width), channels, height, width


def _bias_act(_: Shape) -> tuple[Function, Function]:
    import torch

    from precast import ops

    def eager(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.leaky_relu(x + b[:, None, None], 0.2) * 2**0.5

    return functools.partial(ops.bias_act, act="lrelu"), eager


def _upfirdn2d(up: int, down: int, _: Shape) -> tuple[Function, Function]:
    from precast import ops
    from precast.ops.image import reference

    pads = (2, 1, 2, 1) if down == 1 else (1, 1, 1, 1)

    def eager(x: torch.Tensor, f: torch.Tensor) -> Any:
        return reference.upfirdn2d(x, f, up, up, down, down, *pads, False, 1.0)

    return (lambda x, f: ops.upfirdn2d(x, f, up=up, down=down, padding=pads)), eager


def _filter(_: Shape, make: Make) -> list[torch.Tensor]:
    from precast import ops

    return [ops.setup_filter([1, 3, 3, 1], device=make(1).device)]


def _resampled(up: int, down: int) -> Family:
    return Family(
        _image,
        lambda shape: math.prod(shape) * (1 + up * up) // (down * down),
        lambda shape, make: [make(*shape)],
        functools.partial(_upfirdn2d, up, down),
        fixed=_filter,
    )


# ---- experts ----


def _routed(numbers: random.Random, most: int) -> Shape:
    """Tokens, width, experts of a token, and experts."""
    width, k = 64 * _about(numbers, 3, 7), numbers.choice((1, 2, 4, 6, 8, 10))
    return _fitting(_about(numbers, 0, 14), most, width * k), width, k, numbers.choice((8, 16, 60, 128, 160, 256, 512))


def _choices(shape: Shape, make: Make) -> torch.Tensor:
    import torch

    tokens, _, k, experts = shape
    return torch.rand(tokens, experts, device=make(1).device).topk(k)[1].int()


def _places(shape: Shape, make: Make) -> list[torch.Tensor]:
    from precast import ops

    ids = _choices(shape, make)
    _, positions, _ = ops.moe_permute(make(shape[0], 8), ids, shape[3])
    return [positions, positions.long()]


def _permute(shape: Shape) -> tuple[Function, Function]:
    import torch

    from precast import ops

    _, _, k, experts = shape

    def eager(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return x[torch.argsort(ids.flatten(), stable=True) // k]

    return (lambda x, ids: ops.moe_permute(x, ids, experts)[0]), eager


def _unpermute(_: Shape) -> tuple[Function, Function]:
    from precast import ops

    def eager(rows: torch.Tensor, weights: torch.Tensor, _: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return (rows[places] * weights.unsqueeze(-1)).sum(1).to(rows.dtype)

    return (lambda rows, weights, positions, _: ops.moe_unpermute(rows, positions, weights)), eager


# ---- attention ----


def _heads(numbers: random.Random, most: int) -> Shape:
    """Tokens, heads of queries, heads of keys, and their width; a third of the widths are no multiple of 8."""
    key_heads = numbers.choice((1, 2, 4, 8))
    heads, width = key_heads * numbers.choice((1, 2, 4, 8)), 8 * _about(numbers, 2, 5)
    width += 2 * numbers.choice((0, 0, 1))
    return _fitting(_about(numbers, 0, 14), most, (heads + key_heads) * width), heads, key_heads, width


def _queries_and_keys(shape: Shape, make: Make) -> list[torch.Tensor]:
    tokens, heads, key_heads, width = shape
    return [make(tokens, heads, width), make(tokens, key_heads, width)]


def _tables(shape: Shape, make: Make) -> list[torch.Tensor]:
    """Cosines and sines of half the width for ours, and of the whole one, in the dtype of the heads, for torch."""
    import torch

    some = make(shape[0], shape[3] // 2)
    halves = [some.float().cos(), some.float().sin()]
    return [*halves, *(torch.cat([table, table], -1).to(some.dtype).unsqueeze(1) for table in halves)]


def _rotated(_: Shape) -> tuple[Function, Function]:
    from precast import ops

    def ours(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *_: torch.Tensor) -> Any:
        return ops.rotary_embedding(q, k, cos, sin)

    return ours, lambda q, k, _cos, _sin, *whole: rotary.by_torch(q, k, *whole)


def _normed_and_rotated(shape: Shape) -> tuple[Function, Function]:
    import torch

    from precast import ops

    def ours(*given: torch.Tensor) -> Any:
        q, k, of_q, of_k, cos, sin, *_ = given
        return ops.rms_norm_rotary_embedding(q, k, of_q, of_k, cos, sin, eps=EPS)

    def eager(*given: torch.Tensor) -> Any:
        q, k, of_q, of_k, _, _, *whole = given
        normed = [torch.nn.functional.rms_norm(x, shape[3:], w, EPS) for x, w in ((q, of_q), (k, of_k))]
        return rotary.by_torch(*normed, *whole)

    return ours, eager


def _decoding(numbers: random.Random, most: int) -> Shape:
    """Sequences, their length, heads of queries and keys, and width."""
    key_heads, width = numbers.choice((1, 2, 4, 8, 16, 40)), numbers.choice((64, 80, 128, 128, 256))
    length = _about(numbers, 6, 13)
    count = _fitting(_about(numbers, 0, 9), most, 2 * length * key_heads * width)
    return count, length, key_heads * numbers.choice((1, 1, 2, 4, 8)), key_heads, width


def _cache(shape: Shape, make: Make) -> list[torch.Tensor]:
    sequences, length, heads, key_heads, width = shape
    blocks = sequences * -(-length // BLOCK)
    return [make(sequences, heads, width), *(make(blocks, BLOCK, key_heads, width) for _ in range(2))]


def _pages(shape: Shape, make: Make) -> list[torch.Tensor]:
    """Blocks in order, so that torch's attention over a view of the cache computes the same."""
    import torch

    sequences, length = shape[:2]
    tables = torch.arange(sequences * -(-length // BLOCK), device=make(1).device, dtype=torch.int32)
    return [tables.view(sequences, -1), torch.full((sequences,), length, device=tables.device, dtype=torch.int32)]


def _decoded(shape: Shape) -> tuple[Function, Function]:
    import torch

    from precast import ops

    sequences, length, heads, key_heads, width = shape

    def eager(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        key, value = (
            cache.view(sequences, -1, key_heads, width)[:, :length].transpose(1, 2) for cache in (keys, values)
        )
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(query.unsqueeze(2), key, value, enable_gqa=heads > key_heads).squeeze(2)

    return ops.paged_decode_attention, eager


# ---- losses ----


def _logits(numbers: random.Random, most: int) -> Shape:
    classes = _about(numbers, 8, 18)
    return _fitting(_about(numbers, 0, 13), most, classes), classes


def _targets(shape: Shape, make: Make) -> list[torch.Tensor]:
    import torch

    return [torch.randint(shape[-1], (shape[0],), device=make(1).device)]


def _loss(_: Shape) -> tuple[Function, Function]:
    import torch

    from precast import ops

    return ops.cross_entropy, lambda x, target: torch.nn.functional.cross_entropy(x.float(), target).to(x.dtype)


def _hidden(numbers: random.Random, most: int) -> Shape:
    """Tokens, width and vocabulary."""
    width, classes = 64 * _about(numbers, 2, 6), _about(numbers, 12, 17)
    return _fitting(_about(numbers, 6, 13), most, max(width, classes // 4)), width, classes


def _linear_loss(_: Shape) -> tuple[Function, Function]:
    import torch

    from precast import ops

    def eager(x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy((x @ weight.t()).float(), target).to(x.dtype)

    return ops.linear_cross_entropy, eager


# ---- sequences ----


def _sequence(numbers: random.Random, most: int) -> Shape:
    """Batch, channels and tokens."""
    channels, tokens = 8 * _about(numbers, 3, 10), _about(numbers, 3, 13)
    return _fitting(_about(numbers, 0, 5), most, channels * tokens), channels, tokens


def _convolved(_: Shape) -> tuple[Function, Function]:
    import torch

    from precast import ops

    def eager(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.conv1d(x, weight[:, None], bias, padding=weight.shape[1] - 1, groups=len(weight))
        return torch.nn.functional.silu(y[..., : x.shape[-1]])

    return functools.partial(ops.causal_conv1d, activation="silu"), eager


FAMILIES: dict[str, Family] = {
    "bias_act": Family(
        _image,
        lambda shape: 2 * math.prod(shape),
        lambda shape, make: [make(*shape)],
        _bias_act,
        weights=lambda shape, make: [make(shape[1])],
    ),
    "upfirdn2d": _resampled(1, 1),
    "upfirdn2d_up": _resampled(2, 1),
    "upfirdn2d_down": _resampled(1, 2),
    "moe_permute": Family(
        _routed,
        lambda shape: shape[0] * shape[1] * (1 + shape[2]),
        lambda shape, make: [make(*shape[:2])],
        _permute,
        fixed=lambda shape, make: [_choices(shape, make)],
    ),
    "moe_unpermute": Family(
        _routed,
        lambda shape: shape[0] * shape[1] * (1 + shape[2]),
        lambda shape, make: [make(shape[0] * shape[2], shape[1]), make(shape[0], shape[2]).float().softmax(-1)],
        _unpermute,
        fixed=_places,
    ),
    "rotary_embedding": Family(
        _heads,
        lambda shape: 2 * shape[0] * (shape[1] + shape[2]) * shape[3],
        _queries_and_keys,
        _rotated,
        fixed=_tables,
    ),
    "rms_norm_rotary_embedding": Family(
        _heads,
        lambda shape: 2 * shape[0] * (shape[1] + shape[2]) * shape[3],
        _queries_and_keys,
        _normed_and_rotated,
        weights=lambda shape, make: [make(shape[3]), make(shape[3])],
        fixed=_tables,
    ),
    "paged_decode_attention": Family(
        _decoding,
        lambda shape: 2 * shape[0] * shape[1] * shape[3] * shape[4],
        _cache,
        _decoded,
        fixed=_pages,
        learns=False,
    ),
    "cross_entropy": Family(_logits, math.prod, lambda shape, make: [make(*shape)], _loss, fixed=_targets),
    "linear_cross_entropy": Family(
        _hidden,
        lambda shape: shape[0] * shape[1] + shape[1] * shape[2],
        lambda shape, make: [make(*shape[:2])],
        _linear_loss,
        weights=lambda shape, make: [make(shape[2], shape[1]) * shape[1] ** -0.5],
        fixed=_targets,
    ),
    "causal_conv1d": Family(
        _sequence,
        lambda shape: 2 * math.prod(shape),
        lambda shape, make: [make(shape[0], shape[2], shape[1]).transpose(1, 2)],
        _convolved,
        weights=lambda shape, make: [make(shape[1], 4), make(shape[1])],
    ),
}
