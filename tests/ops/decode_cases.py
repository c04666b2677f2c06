"""Generated calls of attention over a paged cache, what they must give in float64, and how far off a result may be."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch

from precast.ops.decode_attention import WIDTHS, reference, value_dims

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
NARROW = (torch.float8_e4m3fn, torch.float8_e5m2)
# Of the sum of |weight * value|: rounding of the weights and of the result, or of float32 sums.
ALLOWED = {torch.float32: 2e-5, torch.float16: 2**-9, torch.bfloat16: 2**-7 * 1.25}


@dataclass
class Case:
    """The tensors and the options of one call, on the CPU."""

    tensors: list[Any]  # query, key_cache, value_cache, block_tables, lengths
    options: dict[str, Any] = field(default_factory=dict)

    def on(self, device: str) -> Case:
        """The same on another device, with the strides that the tensors have."""
        return Case([moved(t, device) for t in self.tensors], {k: moved(v, device) for k, v in self.options.items()})

    def exact(self) -> tuple[Any, Any, Any]:
        """The result in float64, the logarithms, and the sums of |weight * value|."""
        query, key_cache, value_cache, tables, lengths = self.tensors
        single = query.dim() == 3
        query = query.unsqueeze(1) if single else query
        given = {"scale": query.shape[-1] ** -0.5, "window": 0, "softcap": 0.0} | self.options
        names = ("scale", "window", "softcap", "alibi_slopes", "sinks", "key_scale", "value_scale")
        options = [given.get(name) for name in names]
        args = (query.double(), key_cache.double(), value_cache.double(), tables, lengths, *options)
        result, lse = reference.paged_decode_attention(*args)
        terms, _ = reference.paged_decode_attention(*args[:2], value_cache.double().abs(), *args[3:])
        if single:
            result, lse, terms = result.squeeze(1), lse.squeeze(1), terms.squeeze(1)
        return result, lse, terms.abs()


def moved(value: Any, device: str) -> Any:
    if not isinstance(value, torch.Tensor) or device == "cpu":
        return value
    made = torch.empty(1, dtype=value.dtype, device=device)
    room = value.untyped_storage()
    storage = torch.empty(len(room), dtype=torch.uint8, device=device).untyped_storage()
    storage.copy_(room)
    return made.set_(storage, value.storage_offset(), value.shape, value.stride())


def assert_right(case: Case, result: Any, lse: Any) -> None:
    exact, exact_lse, terms = case.exact()
    assert result.shape == exact.shape and result.dtype == case.tensors[0].dtype
    assert lse.shape == exact_lse.shape and lse.dtype == torch.float32
    off = (result.cpu().double() - exact).abs() - ALLOWED[result.dtype] * terms
    assert (off <= 1e-6).all(), f"off by {off.max()} more than allowed; {described(case)}"
    finite = torch.isfinite(exact_lse)
    assert torch.equal(torch.isfinite(lse.cpu()), finite) and (lse.cpu()[~finite] == -torch.inf).all()
    away = (lse.cpu() - exact_lse)[finite].abs() / (1 + exact_lse[finite].abs())
    assert away.numel() == 0 or away.max() < 3e-5, f"lse off by {away.max()}; {described(case)}"


def described(case: Case) -> str:
    return ", ".join(f"{t.dtype} {tuple(t.shape)}" for t in case.tensors) + f", {sorted(case.options)}"


def generated(seed: int, *, most_keys: int = 700) -> Case:
    """A call with sizes, layouts and options drawn from everything that is served."""
    draw = random.Random(seed)
    numbers = torch.Generator().manual_seed(seed)

    def some(*shape: int) -> Any:
        return torch.randn(*shape, generator=numbers)

    dtype = draw.choice(DTYPES)
    kind = dtype if draw.random() < 0.8 else draw.choice(NARROW)
    width, value_width = draw.choice(WIDTHS), draw.choice(WIDTHS)
    if draw.random() < 0.7:
        value_width = width
    kv_heads, group = draw.choice([1, 1, 2, 3, 8]), draw.choice([1, 1, 2, 4, 5, 8, 17])
    queries = draw.choice([1, 1, 1, 2, 3, 5, 16])
    block_size = draw.choice([1, 2, 3, 8, 16, 16, 32, 64, 100, 256])
    sequences = draw.choice([1, 1, 2, 3, 7])
    lengths = [draw.choice([0, 1, queries, draw.randint(1, 70), draw.randint(1, most_keys)]) for _ in range(sequences)]
    columns = max(1, -(-max(lengths) // block_size)) + draw.randint(0, 2)
    blocks = sum(-(-length // block_size) for length in lengths) + draw.randint(1, 4)
    order = torch.randperm(blocks, generator=numbers).tolist()
    tables = torch.full((sequences, columns), -7, dtype=draw.choice([torch.int32, torch.int64]))
    for row, length in enumerate(lengths):
        for column in range(-(-length // block_size)):
            tables[row, column] = order.pop()
    if draw.random() < 0.4:
        x = draw.choice([x for x in (1, 4, 8, 16) if width % x == 0])
        keys = some(blocks, kv_heads, width // x, block_size, x).to(kind)
        values = some(blocks, kv_heads, block_size, value_width).to(kind)
        if draw.random() < 0.4:
            values = by_element(values)
    else:
        keys, values = strided(draw, some, (blocks, block_size, kv_heads), width, value_width, kind)
    if draw.random() < 0.3:  # what lies behind the lengths may be anything
        spoil(keys, values, tables, lengths, block_size)
    query = some(sequences, queries, kv_heads * group, width)
    if draw.random() < 0.2:
        query = some(sequences, queries, kv_heads * group, 2 * width)[..., :width]
    query = query.to(dtype)
    if queries == 1 and draw.random() < 0.5:
        query = query.squeeze(1)
    case = Case([query, keys, values, tables, torch.tensor(lengths, dtype=draw.choice([torch.int32, torch.int64]))])
    heads = kv_heads * group
    possible = {
        "scale": lambda: draw.choice([0.05, 0.3, 1.0]),
        "window": lambda: draw.choice([1, 5, 64, 100]),
        "softcap": lambda: draw.choice([1.0, 20.0]),
        "alibi_slopes": lambda: some(heads).abs() * 0.1,
        "sinks": lambda: some(heads) * 3,
        "key_scale": lambda: some(draw.choice([1, kv_heads])).abs(),
        "value_scale": lambda: some(draw.choice([1, kv_heads])).abs(),
    }
    case.options = {name: make() for name, make in possible.items() if draw.random() < 0.25}
    return case


def strided(
    draw: random.Random, some: Any, shape: tuple[int, int, int], width: int, value_width: int, kind: Any
) -> tuple[Any, Any]:
    """Keys and values by position, as they are, by head, side by side, or one element off."""
    blocks, size, heads = shape
    way = draw.choice(["plain", "plain", "by head", "side by side", "one off"])
    if way == "by head":
        return tuple(some(blocks, heads, size, w).to(kind).transpose(1, 2) for w in (width, value_width))
    if way == "side by side":
        return tuple(some(*shape, width + value_width).to(kind).split((width, value_width), -1))
    if way == "one off":
        return tuple(some(*shape, w + 1).to(kind)[..., 1:] for w in (width, value_width))
    return tuple(some(*shape, w).to(kind) for w in (width, value_width))


def by_element(values: Any) -> Any:
    """The same in memory by element; the shape says so unless it could mean both."""
    same_bits = {1: torch.int8, 2: torch.int16, 4: torch.int32}[values.itemsize]  # 8-bit floats have no copies of views
    turned = values.view(same_bits).mT.contiguous().view(values.dtype)
    return turned.mT if turned.shape[2] == turned.shape[3] else turned


def spoil(keys: Any, values: Any, tables: Any, lengths: list[int], block_size: int) -> None:
    """NaN in every position that no sequence has."""
    taken = set()
    for row, length in enumerate(lengths):
        taken |= {(int(tables[row, at // block_size]), at % block_size) for at in range(length)}
    nan = torch.tensor(torch.nan).to(keys.dtype)
    by_position = keys.movedim(3, 1) if keys.dim() == 5 else keys
    head, position, element = value_dims(keys, values)
    values_by_position = values.permute(0, position, head, element)
    for block in range(keys.shape[0]):
        for position in range(block_size):
            if (block, position) not in taken:
                by_position[block, position] = nan
                values_by_position[block, position] = nan
