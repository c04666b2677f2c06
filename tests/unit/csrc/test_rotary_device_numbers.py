"""The device code of rotary embedding, run on the CPU: every index and launch choice, and the values."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast.ops.rotary import reference  # noqa: E402
from tests.unit.csrc.emulated import Emulated, made  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

EMULATED = ("rotary",)
NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


def tables(rows: int, half: int, dtype: Any = torch.float32) -> tuple[Any, Any]:
    angle = made(rows, half, seed=7) * 3
    return angle.cos().to(dtype), angle.sin().to(dtype)


def assert_rotated(ours: Any, x: Any, cos: Any, sin: Any, positions: Any, *options: bool) -> None:
    """Within half a unit of the exact numbers, or float32's of what is added up."""
    exact, _ = reference.rotary_embedding(x.double(), None, cos, sin, positions, *options)
    assert ours.shape == x.shape and ours.dtype == x.dtype
    assert ours.is_contiguous()
    unit = 0 if x.dtype == torch.float32 else 0.51 * torch.finfo(x.dtype).eps
    assert bool(((ours.double() - exact).abs() <= unit * exact.abs() + 1e-6 * x.double().abs().max()).all())


# (dtype, shape of the query, heads of the key, half, kernel, blocks)
SHAPES = [
    (torch.bfloat16, (5, 4, 128), 2, 64, "", "2"),
    (torch.bfloat16, (5, 4, 128), 1, 16, "", "2"),  # the rest is more than what is rotated
    (torch.bfloat16, (3, 7, 3, 64), 3, 32, "", "2x3"),
    (torch.bfloat16, (2, 3, 5, 5, 80), 1, 40, "", "2x6"),
    (torch.bfloat16, (9, 2, 24), 1, 8, "", "1"),  # the rest is one vector
    (torch.bfloat16, (9, 2, 20), 1, 8, "8", "1"),
    (torch.bfloat16, (1, 1, 100), 0, 32, "8", "1"),  # one head: nothing but the rest says that it is not aligned
    (torch.bfloat16, (6, 3, 72), 2, 36, "8", "3"),
    (torch.float16, (6, 3, 100), 2, 50, "4", "6"),
    (torch.bfloat16, (5, 3, 74), 1, 37, "any", "6"),
    (torch.float16, (6, 4, 40), 4, 12, "8", "2"),
    (torch.float16, (1, 40, 256), 0, 128, "", "5"),
    (torch.float32, (4, 3, 66), 2, 33, "any", "6"),
    (torch.float32, (4, 3, 68), 2, 34, "8", "3"),
    (torch.float32, (4, 3, 64), 2, 32, "", "2"),
    (torch.float32, (4, 3, 7), 2, 2, "any", "1"),
    (torch.float32, (4, 3, 1), 2, 0, "any", "1"),
    (torch.float16, (200, 1, 16), 1, 8, "", "4"),
    (torch.bfloat16, (60, 9, 74), 2, 37, "any_heads", "70"),  # four heads for each thread, or one or two
    (torch.bfloat16, (20, 9, 74), 2, 37, "any_heads", "35"),  # two
    (torch.float16, (60, 9, 100), 2, 50, "4_heads", "47"),
]


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("dtype", "shape", "more", "half", "kernel", "blocks"), SHAPES, ids=str)
def test_values(
    gpu: Emulated, dtype: Any, shape: tuple[int, ...], more: int, half: int, kernel: str, blocks: str, interleaved: bool
) -> None:
    query, key = made(*shape, dtype=dtype), made(*shape[:-2], more, shape[-1], dtype=dtype, seed=1)
    cos, sin = tables(shape[-3], half)
    gpu.launches()
    ours = gpu.ops.rotary_embedding(query, key if more else None, cos, sin, None, interleaved, False)
    assert gpu.launches() == f"rotary_{NAMES[dtype]}{kernel and f'_{kernel}'}<{blocks},128x1>"
    assert_rotated(ours[0], query, cos, sin, None, interleaved, False)
    if more:
        assert_rotated(ours[1], key, cos, sin, None, interleaved, False)
    else:
        assert ours[1].numel() == 0
    if 2 * half < shape[-1]:
        assert torch.equal(ours[0][..., 2 * half :], query[..., 2 * half :])


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("half", [32, 31])
@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_tables_and_positions(gpu: Emulated, dtype: Any, half: int, wide: bool, kind: Any) -> None:
    query, key = made(2, 5, 3, 64, dtype=dtype), made(2, 5, 1, 64, dtype=dtype, seed=1)
    cos, sin = tables(11, half, torch.float32 if wide else dtype)
    positions = torch.tensor([10, 0, 3, 3, 7], dtype=kind)
    for options in ((False, True), (True, False), (True, True)):
        ours = gpu.ops.rotary_embedding(query, key, cos, sin, positions, *options)
        assert_rotated(ours[0], query, cos, sin, positions, *options)
        assert_rotated(ours[1], key, cos, sin, positions, *options)


@pytest.mark.parametrize("half", [32, 15])
def test_a_position_outside_of_the_tables_makes_nan_of_what_it_rotates(gpu: Emulated, half: int) -> None:
    """The tables end where memory does: reading on would be seen."""
    query = made(4, 2, 80, dtype=torch.bfloat16)
    cos, sin = tables(3, half)
    for kind in (torch.int32, torch.int64):
        positions = torch.tensor([2, 3, -1, 2_000_000_000], dtype=kind)
        ours, _ = gpu.ops.rotary_embedding(query, None, cos, sin, positions, False, False)
        assert not ours[0].isnan().any()
        assert bool(ours[1:, :, : 2 * half].isnan().all())
        assert torch.equal(ours[1:, :, 2 * half :], query[1:, :, 2 * half :])


def of_layouts(width: int, dtype: Any) -> dict[str, tuple[Any, bool]]:
    """Tensors of shape (2, 4, 3, width), and whether they are read where they lie by vectors."""
    packed = made(2, 4, 9, width, dtype=dtype)
    wide = made(2, 4, 3, 2 * width + 8, dtype=dtype)
    room = made(2 * 4 * 3 * width + 1, dtype=dtype)
    return {
        "of a packed projection": (packed[:, :, 3:6], True),
        "every other head": (packed[:, :, ::3], True),
        "heads before tokens": (made(2, 3, 4, width, dtype=dtype).transpose(1, 2), True),
        "apart": (wide[..., 8 : width + 8], True),
        "unaligned": (wide[..., 1 : width + 1], False),
        "unaligned as a whole": (room[1:].view(2, 4, 3, width), False),
        "one head for all": (packed[:, :, :1].expand(2, 4, 3, width), True),
        "one token for all": (packed[:, :1, :3].expand(2, 4, 3, width), True),
        "columns apart": (wide[..., : 2 * width : 2], True),  # copied
        "batches that do not merge": (made(4, 2, 4, 3, width, dtype=dtype)[:3, :1].expand(3, 2, 4, 3, width), True),
    }


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("layout", of_layouts(64, torch.float32))
def test_any_layout_gives_the_bits_of_the_plain_one(gpu: Emulated, layout: str, interleaved: bool) -> None:
    x, vectors = of_layouts(64, torch.bfloat16)[layout]
    cos, sin = tables(4, 24)
    plain = x.clone(memory_format=torch.contiguous_format)
    for query, key in ((x, None), (plain, x), (x, x)):
        gpu.launches()
        ours = gpu.ops.rotary_embedding(query, key, cos, sin, None, interleaved, False)
        assert ("any" in gpu.launches()) != vectors
        right = gpu.ops.rotary_embedding(plain, None if key is None else plain, cos, sin, None, interleaved, False)
        assert all(map(torch.equal, ours, right))


@pytest.mark.parametrize("interleaved", [False, True])
def test_tables_in_any_layout(gpu: Emulated, interleaved: bool) -> None:
    query = made(4, 3, 64, dtype=torch.float16)
    both = made(4, 64)
    for cos, sin, vectors in (
        (both[:, :32], both[:, 32:], True),
        (both[:, 1:33], both[:, 32:], False),
        (both[:, ::2], both[:, 1::2], True),  # copied
        (both[:1, :32].expand(4, 32), both[:, 32:], True),
    ):
        gpu.launches()
        ours, _ = gpu.ops.rotary_embedding(query, None, cos, sin, None, interleaved, False)
        assert ("any" in gpu.launches()) != vectors
        right, _ = gpu.ops.rotary_embedding(query, None, cos.contiguous(), sin.contiguous(), None, interleaved, False)
        assert torch.equal(ours, right)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("half", "width"), [(32, 64), (16, 64), (5, 13)])
def test_in_place_is_the_same(gpu: Emulated, half: int, width: int, interleaved: bool) -> None:
    """Within a packed projection; what lies between is left alone."""
    cos, sin = tables(6, half)
    packed = made(6, 8, width, dtype=torch.bfloat16)
    kept = packed.clone()
    right = gpu.ops.rotary_embedding(packed[:, :5], packed[:, 5:7], cos, sin, None, interleaved, False)
    assert gpu.ops.rotary_embedding_(packed[:, :5], packed[:, 5:7], cos, sin, None, interleaved, False) is None
    assert torch.equal(packed[:, :5], right[0]) and torch.equal(packed[:, 5:7], right[1])
    assert torch.equal(packed[:, 7:], kept[:, 7:])


def test_back_is_where_it_came_from(gpu: Emulated) -> None:
    query, key = made(6, 2, 48), made(6, 1, 48, seed=1)
    cos, sin = tables(6, 24)
    for interleaved in (False, True):
        there = gpu.ops.rotary_embedding(query, key, cos, sin, None, interleaved, False)
        back = gpu.ops.rotary_embedding(*there, cos, sin, None, interleaved, True)
        torch.testing.assert_close(back, (query, key), rtol=1e-5, atol=1e-5)


def test_nothing_is_launched_for_nothing(gpu: Emulated) -> None:
    gpu.launches()
    empty = torch.empty
    for shape, more, half in (((0, 4, 8), 2, 4), ((3, 0, 8), 0, 4), ((3, 4, 0), 2, 0), ((0, 3, 4, 8), 2, 2)):
        cos = empty(shape[-3], half)
        ours = gpu.ops.rotary_embedding(empty(shape), empty(*shape[:-2], more, shape[-1]), cos, cos, None, False, False)
        assert [tuple(one.shape) for one in ours] == [shape, (*shape[:-2], more, shape[-1])]
        gpu.ops.rotary_embedding_(empty(shape), empty(*shape[:-2], more, shape[-1]), cos, cos, None, False, False)
    x = made(3, 4, 8)
    gpu.ops.rotary_embedding_(x, None, empty(3, 0), empty(3, 0), None, False, False)  # and nothing to rotate
    assert torch.equal(x, made(3, 4, 8))
    assert gpu.launches() == ""
    ours = gpu.ops.rotary_embedding(
        empty(3, 0, 8), made(3, 2, 8), *tables(3, 4), None, False, False
    )  # a query without heads
    assert_rotated(ours[1], made(3, 2, 8), *tables(3, 4), None, False, False)


def test_many_leading_dimensions_take_several_launches(gpu: Emulated) -> None:
    x = made(65_537, 1, 1, 2)
    cos, sin = tables(1, 1)
    gpu.launches()
    ours, _ = gpu.ops.rotary_embedding(x, None, cos, sin, None, False, False)
    assert gpu.launches() == "rotary_f32_any<1x65535,128x1> rotary_f32_any<1x2,128x1>"
    assert_rotated(ours, x, cos, sin, None, False, False)


def test_a_token_wider_than_a_launch_is_refused(gpu: Emulated) -> None:
    x = torch.empty(1, 1, 2).expand(1, 1 << 29, 2)
    with pytest.raises(RuntimeError, match=r"a token has 536870912 heads of 2 elements; needed fewer than 2\^30"):
        gpu.ops.rotary_embedding(x, None, torch.ones(1, 1), torch.ones(1, 1), None, False, False)


def test_the_divisions_of_every_number_of_heads(gpu: Emulated) -> None:
    """Heads that hold their own number: each must come out where it was."""
    for heads in (1, 2, 3, 7, 12, 33):
        for units in (1, 3, 5, 20):
            x = torch.arange(3 * heads, dtype=torch.float32).view(3, heads, 1).repeat(1, 1, 8 * units)
            cos, sin = torch.ones(3, 4 * units), torch.zeros(3, 4 * units)
            ours, _ = gpu.ops.rotary_embedding(x, None, cos, sin, None, False, False)
            assert torch.equal(ours, x)


# (dtype, shape of the query, heads of the key, columns of the tables, kernel, blocks)
NORMED = [
    (torch.bfloat16, (5, 4, 128), 2, 64, "", "2"),
    (torch.bfloat16, (5, 4, 128), 1, 128, "", "2"),  # whole tables
    (torch.bfloat16, (3, 7, 3, 64), 3, 32, "", "2x3"),
    (torch.bfloat16, (2, 3, 5, 5, 80), 1, 40, "", "2x6"),  # five units, of eight
    (torch.bfloat16, (9, 2, 24), 1, 8, "", "1"),  # the rest is one vector
    (torch.float16, (3, 2, 512), 1, 256, "", "3"),  # all lanes of a warp
    (torch.float16, (3, 2, 1024), 1, 256, "any", "3"),
    (torch.bfloat16, (9, 2, 20), 1, 8, "any", "7"),
    (torch.bfloat16, (5, 3, 74), 1, 74, "any", "5"),
    (torch.float32, (4, 3, 66), 2, 33, "any", "5"),
    (torch.float32, (4, 3, 64), 2, 64, "", "2"),
    (torch.float32, (4, 3, 7), 2, 2, "any", "5"),
    (torch.float32, (4, 3, 1), 0, 0, "any", "3"),
    (torch.float16, (200, 1, 16), 1, 8, "", "4"),
    (torch.bfloat16, (30, 9, 74), 2, 74, "any", "30"),  # up to four heads for each warp
]


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize(("dtype", "shape", "more", "columns", "kernel", "blocks"), NORMED, ids=str)
def test_heads_that_are_normalised(
    gpu: Emulated, dtype: Any, shape: tuple[int, ...], more: int, columns: int, kernel: str, blocks: str, normed: bool,
    inverse: bool,
) -> None:  # fmt: skip
    """Rounded like the reference, but where the order of a sum decides."""
    query, key = made(*shape, dtype=dtype), made(*shape[:-2], more, shape[-1], dtype=dtype, seed=1)
    for casting in (0, 1, 2):
        for each, interleaved, wide in ((True, False, False), (False, columns < shape[-1], True)):
            kind = torch.float32 if wide else dtype
            cos, sin = tables(shape[-3], columns, kind)
            weights = [made(shape[-1], dtype=kind, seed=seed) if normed else None for seed in (3, 4)]
            given = (query, key if more else None, weights[0], weights[1] if more else None, cos, sin, None, 1e-6)
            options = (casting, interleaved, each, inverse)
            gpu.launches()
            ours = gpu.ops.rms_norm_rotary_embedding(*given, *options)
            last = kernel or "each" * (each and dtype != torch.float32)
            assert gpu.launches() == f"norm_rotary_{NAMES[dtype]}{last and f'_{last}'}<{blocks},128x1>"
            right = reference.rms_norm_rotary_embedding(*given, *options)
            for one, other in zip(ours, right, strict=True):
                assert one.shape == other.shape
                torch.testing.assert_close(one.float(), other.float(), rtol=0, atol=16 * torch.finfo(dtype).eps)
                unlike = (one != other).double().mean() if one.numel() else 0.0
                assert unlike < (0.6 if dtype == torch.float32 else 0.02 if each else 0.05)


@pytest.mark.parametrize("width", [64, 20])
def test_normalised_heads_outside_of_the_tables_are_nan(gpu: Emulated, width: int) -> None:
    query, weight = made(3, 2, width, dtype=torch.bfloat16), made(width, dtype=torch.bfloat16)
    cos, sin = tables(4, width // 4)
    rows = torch.tensor([3, 4, -1])
    ours, _ = gpu.ops.rms_norm_rotary_embedding(query, None, weight, None, cos, sin, rows, 1e-6, 1, False, True, False)
    turned = 2 * (width // 4)
    assert ours[1:, :, :turned].isnan().all() and not ours[0].isnan().any() and not ours[..., turned:].isnan().any()
