"""Every constant of the CPU kernels that cuts work into parts, with sizes on both sides of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast import optim  # noqa: E402
from precast.ops import _folders, define  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

CSRC = Path(__file__).parents[3] / "csrc"
PATTERNS = ("*/cpu.cpp", "*/*_cpu.cpp", "*/cpu.h", "*/*_cpu.h", "cpu/*simd*.h", "cpu/kept_row.h")
CONSTANT = re.compile(r"^\s*constexpr int(?:64_t)? (k\w+) = (.+?);", re.MULTILINE)
Pairs = Iterator[tuple[Any, Any]]  # what a kernel gives, and what is right


def made(*shape: int, seed: int = 0) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def both(op: str, *args: Any) -> tuple[Any, Any]:
    """What an op gives, and what its reference gives in float64."""
    folder = _folders.catalogue.folder_of(op).name
    define(op)
    wide = [a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
    return getattr(torch.ops.precast, op)(*args), getattr(_folders.part(folder, "reference"), op)(*wide)


def planes(size: int) -> Pairs:
    x, bias, options = made(2, 3, size), made(3, seed=1), (1, 2, 0.3, 1.5, -1.0)
    yield both("bias_act", x, bias, *options)
    yield both("bias_act_backward", made(2, 3, size, seed=2), x, bias, *options, False, True)


def channels(size: int, rows: int = 3) -> Pairs:
    x, bias, options = made(rows, size), made(size, seed=1), (1, 8, 0.3, 1.5, -1.0)
    yield both("bias_act", x, bias, *options)
    yield both("bias_act_backward", made(rows, size, seed=2), x, bias, *options, False, True)


def image_rows(size: int) -> Pairs:
    for up, down in ((1, 1), (2, 1), (1, 2), (3, 2)):
        x = made(1, 2, 9, -(-size * down // up) + 2)
        yield both("upfirdn2d", x, made(2, 3, seed=1), up, 1, down, 1, 1, 1, 1, 0, False, 1.5)


def image_columns(size: int) -> Pairs:
    for up, down in ((1, 1), (2, 1), (1, 2), (3, 2)):
        x = made(1, 2, -(-size * down // up) + 2, 5)
        yield both("upfirdn2d", x, made(3, 2, seed=1), 1, up, 1, down, 1, 1, 1, 1, False, 1.5)


def image_taps(size: int) -> Pairs:
    row = made(size, seed=1)
    for f in (row[None], row[:, None], torch.outer(row, row), made(size, size, seed=1)):
        for up, down in ((1, 1), (2, 1), (1, 2), (2, 3)):
            yield both("upfirdn2d", made(1, 2, size + 6, size + 7), f, up, up, down, down, 2, 3, 1, -1, True, 1.5)


def image_channels(size: int) -> Pairs:
    x = made(1, size, 7, 6).contiguous(memory_format=torch.channels_last)
    for up, down in ((1, 1), (2, 1), (1, 2), (3, 2)):
        yield both("upfirdn2d", x, made(2, 3, seed=1), up, up, down, down, 1, 1, 1, 0, False, 1.5)


def gates(size: int) -> Pairs:
    yield both("gated_activation", made(3, 2 * size), 0)
    yield both("gated_activation_backward", made(3, size), made(3, 2 * size, seed=1), 0)


def scores(size: int) -> Pairs:
    yield both("scaled_softmax", made(3, size), 0.7)
    yield both("scaled_aligned_causal_softmax", made(3, size), 0.7)
    yield both("scaled_softmax_backward", made(3, size), torch.softmax(made(3, size, seed=1), -1), 0.7, False)


def many_parts(size: int) -> Pairs:
    yield both("scaled_softmax", made(2, 4096 * size), 0.7)


def logits(size: int) -> Pairs:
    weight, target = made(size, seed=1).abs() + 0.1, torch.tensor([size - 1, 0, -100])
    factors = torch.stack([torch.tensor(0.3), weight.sum()])
    yield both("cross_entropy_with_grad", made(3, size), target, weight, factors, -100, 0.1, 1e-3)


def norms(size: int, rows: int = 3) -> Pairs:
    x, grad, weight = made(rows, size), made(rows, size, seed=1), made(size, seed=2)
    yield both("rms_norm", x, weight, 1e-6, 0)
    yield both("rms_norm_backward", grad, x, weight, 1e-6, 0)
    yield both("layer_norm", x, weight, weight, 1e-6)
    yield both("layer_norm_backward", grad, x, weight, 1e-6, True, True)


def rows_with_any(size: int) -> Pairs:
    yield from norms(size)
    yield from scores(size)
    yield from logits(size)


def keys(size: int) -> Pairs:
    caches = [made(-(-size // 16), 16, 2, 64, seed=seed) for seed in (1, 2)]
    tables = torch.arange(len(caches[0]))[None]
    options = (0.125, 0, 0.0, None, None, None, None)
    yield both("paged_decode_attention", made(1, 2, 4, 64), *caches, tables, torch.tensor([size]), *options)


def tokens(size: int) -> Pairs:
    yield both("topk_gating", made(size, 24), None, 3, 1, 1, False, False, False, 1.0)


def convolved(size: int) -> Pairs:
    """So many channels, over pieces of sixteen tokens; tokens as neighbours, over pieces of sixteen times as many."""
    weight, bias = made(size, 4, seed=1), made(size, seed=2)
    for x in (made(2, 17, size).transpose(1, 2), made(2, 2, 16 * size)):
        some = weight[: x.shape[1]], bias[: x.shape[1]], made(2, x.shape[1], 3, seed=3), None, None, True
        yield both("causal_conv1d", x, *some, True)
        yield both("causal_conv1d_backward", x * 0.5, None, x, *some)


def steps(size: int) -> Pairs:
    ours, theirs = made(size), made(size).double()
    ours.grad, theirs.grad = made(size, seed=1), made(size, seed=1).double()
    optim.CPUAdam([ours], lr=0.1).step()
    torch.optim.Adam([theirs], lr=0.1).step()
    yield ours, theirs


SIDES: dict[str, Callable[[int], Pairs]] = {
    "activations/cpu.cpp kChunk": gates,
    "activations/cpu.h kPiece": gates,
    "convolution/cpu.h kTileChannels": convolved,
    "cpu_optim/cpu.cpp kBlock": steps,
    "cpu_optim/cpu.h kUnit": steps,
    "decode_attention/cpu.h kChunk": keys,
    "image/bias_act_cpu.cpp kChunk": channels,
    "image/bias_act_cpu.cpp kShort": planes,
    "image/bias_act_cpu.cpp kTerms": lambda size: channels(600, rows=64 * size),  # as there are 64 chunks at most
    "image/cpu.h kChannels": image_channels,
    "image/cpu.h kPiece": planes,
    "image/cpu.h kSpan": image_taps,
    "image/upfirdn2d_cpu.cpp kFewRows": image_columns,
    "image/upfirdn2d_cpu.cpp kMost": image_taps,
    "image/upfirdn2d_cpu.cpp kStrip": image_rows,
    "image/upfirdn2d_cpu.cpp kTogether": lambda size: (*image_rows(size), *image_rows(size // 4)),  # of kFewRows
    "moe/cpu.cpp kTokens": tokens,
    "cpu/column_simd.h kGroup": lambda size: norms(24, rows=16 * size),  # as short rows make 16 chunks
    "cpu/column_simd.h kTile": norms,
    "cpu/kept_row.h kKept": rows_with_any,
    "cpu/kept_row.h kParts": lambda size: (*many_parts(size), *logits(4096 * size)),
    "cpu/row_simd.h kRowsAtOnce": lambda size: norms(24, rows=size),
    "cpu/row_simd.h kSumBlock": rows_with_any,
}
# Constants that are no size of a call's, and why.
OTHERS = {
    "cpu/column_simd.h kGroupBytes": "kGroup and kTile are where it begins to matter",
    "cpu/simd.h kHalf": "registers for kLanes",
    "cpu/simd.h kLanes": "of a register; every width up to 49 is tried level by level",
    "cpu/simd.h kParts": "registers for kLanes",
    "cpu/simd_block.h kBlock": "two registers",
    "cpu/simd_tail.h kAll": "of a register",
    "convolution/cpu.cpp kTile": "kTileChannels",
    "cpu_optim/cpu.cpp kAhead": "prefetched",
    "cpu_optim/cpu.h kStates": "names",
    "decode_attention/cpu.cpp kAcross": "registers",
    "decode_attention/cpu.cpp kKeys": "kLanes",
    "decode_attention/cpu.cpp kMostWidth": "the checks refuse more",
    "decode_attention/cpu.cpp kRowsTogether": "registers; up to 17 rows are tried level by level",
    "decode_attention/cpu.cpp kTogether": "kAcross",
    "decode_attention/cpu.cpp kWide": "kAcross",
    "delta_rule/cpu.cpp kStride": "columns of a tile; 15 to 128 are tried level by level",
    "delta_rule/cpu.cpp kWide": "registers for kStride",
    "moe/cpu.cpp kMost": "the checks refuse more",
}


def constants() -> dict[str, str]:
    """The integers that the sources define, by file and name."""
    files = {path for pattern in PATTERNS for path in CSRC.glob(pattern)}
    return {
        f"{path.relative_to(CSRC)} {name}": value
        for path in sorted(files)
        for name, value in CONSTANT.findall(path.read_text())
    }


def test_every_constant_is_known() -> None:
    assert set(constants()) == {*SIDES, *OTHERS}


@pytest.mark.parametrize("constant", SIDES)
def test_both_sides_of_it(constant: str) -> None:
    here = int(constants()[constant])
    for size in (here - 1, here, here + 1, 2 * here + 1):
        for found, right in SIDES[constant](size):
            for one, exact in zip(*(x if isinstance(x, tuple) else (x,) for x in (found, right)), strict=True):
                scale = float(exact.abs().max().clamp(min=1)) if exact.numel() else 1.0
                torch.testing.assert_close(one.double(), exact.double(), rtol=2e-5, atol=4e-6 * scale)
