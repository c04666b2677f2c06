"""The device code of the mixture of experts, run on the CPU: every choice, every place, every row."""

from __future__ import annotations

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast._builder import catalogue  # noqa: E402
from precast.ops import _folders  # noqa: E402
from precast.ops.moe import reference  # noqa: E402
from tests.unit.csrc.emulated import Emulated, made, unaligned  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

EMULATED = ("moe",)
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
OPS = [op for name in ("moe_routing", "moe") for op in catalogue.get(name).op_names]


def check(gpu: Emulated, op: str, *args: Any, tolerance: float = 1e-5) -> str:
    """Compares with the reference, bit by bit for integers, and returns the launches."""
    gpu.launches()
    found, wanted = getattr(gpu.ops, op)(*args), getattr(reference, op)(*args)
    launches = gpu.launches()
    assert isinstance(found, tuple) == isinstance(wanted, tuple)
    for ours, theirs in zip(*((x if isinstance(x, tuple) else (x,)) for x in (found, wanted)), strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        if ours.dtype == torch.int32:
            assert torch.equal(ours, theirs)
        else:
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    return launches


@pytest.mark.parametrize("op", OPS)
def test_examples(gpu: Emulated, op: str) -> None:
    assert check(gpu, op, *_folders.arguments(op)).startswith("moe_")


@pytest.mark.parametrize("experts", [1, 60, 256, 257, 1024])
def test_gating(gpu: Emulated, experts: int) -> None:
    """Both functions, with a bias and without, groups of every size, and more experts for a token than lanes."""
    draw = random.Random(experts)
    for tokens in (1, 5, 9):
        groups = draw.choice([g for g in (1, 2, 4, 8, 32, 64) if experts % g == 0])
        kept = draw.randint(1, groups)
        k = draw.choice([1, min(8, experts // groups * kept), experts // groups * kept])
        for kind in range(8):
            options: Any = (k, groups, kept, *(bool(kind >> bit & 1) for bit in range(3)), 2.5)
            bias = made(experts, seed=3, scale=0.1) if kind % 3 == 0 else None
            dtype = (F32, F16, BF16)[kind % 3]
            logits = 3 * made(tokens, experts + 3, dtype=dtype)[:, 1 : experts + 1]
            launches = check(gpu, "topk_gating", logits, bias, *options, tolerance=1e-5)
            assert launches == f"moe_gate<{tokens},32x1>"
            _, ids = reference.topk_gating(logits, bias, *options)
            grad = made(tokens, k, seed=7)
            tolerance = 1e-5 if dtype == F32 else 1e-2
            check(gpu, "topk_gating_backward", grad, logits, ids, *options[4:], tolerance=tolerance)


def test_many_tokens_share_blocks(gpu: Emulated) -> None:
    launches = check(gpu, "topk_gating", made(1030, 8), None, 2, 1, 1, True, False, True, 1.0)
    assert launches == "moe_gate<258,32x4>"


def test_ties_and_special_numbers(gpu: Emulated) -> None:
    """The lower index wins a tie, zeros of both signs are equal, and NaN comes first."""
    nan, inf = float("nan"), float("inf")
    rows = [[0.0, -0.0, 0.0, -1.0], [1.0, nan, 2.0, nan], [-inf, -inf, 3.0, -inf], [-inf, inf, 0.0, inf]]
    for sigmoid in (False, True):
        _, ids = gpu.ops.topk_gating(torch.tensor(rows), None, 3, 1, 1, True, sigmoid, True, 1.0)
        assert ids.tolist() == [[0, 1, 2], [1, 3, 2], [2, 0, 1], [1, 3, 2]]
        _, ids = gpu.ops.topk_gating(torch.zeros(2, 12), torch.zeros(12), 4, 4, 2, True, sigmoid, True, 1.0)
        assert ids.tolist() == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize("experts", [1, 60, 1024])
@pytest.mark.parametrize("pairs", [(0, 2), (3, 2), (70, 8), (1300, 8)], ids=str)
def test_places(gpu: Emulated, pairs: tuple[int, int], experts: int) -> None:
    """One launch, or three; ids of both widths, some left out or too large."""
    generator = torch.Generator().manual_seed(experts)
    ids = torch.randint(-1, experts + 1, pairs, generator=generator)
    for given, block_size in ((ids, 1), (ids.int(), 16), (ids, 64)):
        check(gpu, "moe_align_block_size", given, experts, block_size)
    launches = check(gpu, "moe_positions", ids.int(), experts)
    assert launches.count("<") == (1 if ids.numel() <= 4096 else 3)


@pytest.mark.parametrize("experts", [1, 60, 1024])
@pytest.mark.parametrize("pairs", [(0, 2), (1, 1), (3, 2), (9, 40), (128, 8), (1500, 3), (2, 1300)], ids=str)
def test_places_and_rows_of_few_tokens(gpu: Emulated, pairs: tuple[int, int], experts: int) -> None:
    """One launch: vectors, words and elements, rows with gaps, ids of both widths, some left out or too large."""
    ids = torch.randint(-1, experts + 1, pairs, generator=torch.Generator().manual_seed(experts))
    widths = ((ids, 8, BF16), (ids.int(), 6, BF16), (ids, 9, F32), (ids.int(), 2080, F16), (ids, 4104, F16))
    for given, width, dtype in widths:
        rows = made(pairs[0], width + 2, dtype=dtype)[:, :width] if width == 9 else made(pairs[0], width, dtype=dtype)
        assert check(gpu, "moe_permute_few", rows, given, experts, tolerance=0).count("<") == 1


def test_all_pairs_of_one_expert(gpu: Emulated) -> None:
    ids = torch.full((600, 8), 5)
    assert check(gpu, "moe_align_block_size", ids, 9, 32).count("<") == 3
    assert check(gpu, "moe_positions", ids, 9).count("<") == 3
    assert check(gpu, "moe_positions", torch.full((4, 2), -1), 9).count("<") == 1


def places(tokens: int, k: int, slots: int, *, whole: bool) -> Any:
    """Each slot once or never. Some are left out."""
    generator = torch.Generator().manual_seed(tokens)
    positions = torch.randperm(slots, generator=generator)[: tokens * k].view(tokens, k).int()
    left_out = torch.rand(tokens, k, generator=generator) < 0.2
    return torch.where(left_out, ~positions if whole else -1, positions)


@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
@pytest.mark.parametrize("width", [1, 6, 40, 1032])
def test_rows(gpu: Emulated, width: int, dtype: Any) -> None:
    """Vectors, words, elements; rows with gaps, and at any address; every slot named, or some."""
    tolerance = 1e-5 if dtype == F32 else 2e-2
    for tokens, k, whole in ((3, 1, True), (5, 3, True), (4, 2, False)):
        slots = tokens * k if whole else tokens * k + 3
        positions = places(tokens, k, slots, whole=whole)
        weights = made(tokens, k, seed=1)
        changes: tuple[Any, ...] = (lambda t: t, unaligned, lambda t: torch.cat((t, t), 1)[:, : t.shape[1]])
        for change in changes:
            rows, sorted_rows = (
                change(made(tokens, width, dtype=dtype)),
                change(made(slots, width, dtype=dtype, seed=2)),
            )
            launches = check(gpu, "moe_permute_rows", rows, positions, slots, whole, tolerance=0)
            assert ("moe_zero" in launches) != whole
            for given in (weights, None):
                check(gpu, "moe_combine_rows", sorted_rows, positions, given, whole, tolerance=tolerance)
            args = (rows, sorted_rows, positions, weights, whole)
            check(gpu, "moe_combine_rows_backward", *args, tolerance=tolerance if width < 100 else 5e-2)


def test_rows_beyond_the_registers_of_a_block_and_many_places(gpu: Emulated) -> None:
    """The gradient of the way back takes a wide row in parts, and adds up more places than fit between two barriers."""
    wide = (made(2, 4400), made(6, 4400, seed=2), places(2, 3, 6, whole=True), made(2, 3, seed=1), True)
    assert "<2,512x1>" in check(gpu, "moe_combine_rows_backward", *wide, tolerance=1e-3)
    many = (made(3, 200), made(57, 200, seed=2), places(3, 19, 57, whole=True), made(3, 19, seed=1), True)
    assert "<3,32x1>" in check(gpu, "moe_combine_rows_backward", *many, tolerance=1e-3)


def test_the_gradient_of_a_place_that_is_left_out_is_zero_whatever_came_in(gpu: Emulated) -> None:
    positions = torch.tensor([[0, ~1]], dtype=torch.int32)
    for width in (8, 3):
        grad = torch.full((1, width), float("inf"))
        rows, weights = gpu.ops.moe_combine_rows_backward(grad, made(2, width), positions, torch.ones(1, 2), True)
        assert rows[1].eq(0).all() and rows[0].isinf().all() and weights[0, 1] == 0


def test_rows_with_one_place_have_two_vectors_per_thread(gpu: Emulated) -> None:
    for k, threads in ((1, 128), (2, 64)):
        positions = torch.arange(3 * k, dtype=torch.int32).view(3, k)
        launches = check(gpu, "moe_permute_rows", made(3, 1024), positions, 3 * k, True, tolerance=0)
        assert launches == f"moe_permute<{3 if k == 1 else 2},{threads}x{128 // threads}>"


def test_few_tokens_are_shared_by_blocks(gpu: Emulated) -> None:
    """This GPU has two multiprocessors: one token takes more blocks, and three do not."""
    for k in (2, 7, 8, 9, 19):
        positions, weights = places(1, k, k, whole=True), made(1, k, seed=1)
        for dtype in (F32, BF16):
            rows = made(k, 1032, dtype=dtype)
            tolerance = 1e-5 if dtype == F32 else 2e-2
            launches = check(gpu, "moe_combine_rows", rows, positions, weights, True, tolerance=tolerance)
            name, blocks = ("f32", 5) if dtype == F32 else ("bf16", 3)
            assert launches == f"moe_combine_few_{name}<1x{blocks},64x1>"
            many = positions.expand(3, k).contiguous()
            ours = gpu.ops.moe_combine_rows(rows, many, weights.expand(3, k).contiguous(), False)
            assert gpu.launches().startswith(f"moe_combine_{name}<3,")
            assert torch.equal(ours[1:2], gpu.ops.moe_combine_rows(rows, positions, weights, True))
            gpu.launches()
        row = made(1, 1032)
        assert check(gpu, "moe_permute_rows", row, positions, k, True, tolerance=0) == "moe_permute<1x3,128x1>"
    one = torch.zeros(1, 1, dtype=torch.int32)
    assert check(gpu, "moe_combine_rows", made(1, 2080), one, None, True) == "moe_combine_f32<1x4,128x1>"


def test_no_tokens_and_no_columns(gpu: Emulated) -> None:
    none = torch.empty(0, 2, dtype=torch.int32)
    assert "moe_permute" not in check(gpu, "moe_permute_rows", made(0, 8), none, 3, False)
    assert check(gpu, "moe_combine_rows", made(3, 8), none, None, False) == ""
    check(gpu, "moe_combine_rows_backward", made(0, 8), made(3, 8), none, torch.empty(0, 2), False)
    some = torch.tensor([[1, 0]], dtype=torch.int32)
    check(gpu, "moe_combine_rows_backward", made(1, 0), made(2, 0), some, torch.ones(1, 2), True)
    check(gpu, "topk_gating", made(0, 8), None, 2, 1, 1, True, False, True, 1.0)


@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
def test_slots_of_several_pairs(gpu: Emulated, dtype: Any) -> None:
    """Their rows are sums over the pairs, wherever these are; the other slots' rows stay as they are."""
    draw = torch.Generator().manual_seed(5)
    tolerance = 1e-5 if dtype == F32 else 1e-2
    for tokens, k, slots, width in ((2, 2, 4, 8), (150, 2, 40, 24), (3, 5, 9, 131), (1, 1, 2, 8)):
        positions = torch.randint(-2, slots, (tokens, k), generator=draw).int()
        rows, weights = made(tokens, width, dtype=dtype), made(tokens, k, seed=1)
        launches = check(gpu, "moe_permute_rows", rows, positions, slots, False, tolerance=tolerance)
        assert ("moe_repeat" in launches) == (tokens * k > 1)
        back = (rows, made(slots, width, dtype=dtype, seed=2), positions, weights, False)
        check(gpu, "moe_combine_rows_backward", *back, tolerance=tolerance)


def test_a_position_that_does_not_exist_is_skipped(gpu: Emulated) -> None:
    positions = torch.tensor([[9, 0], [-(2**31), 2**31 - 1]], dtype=torch.int32)
    for whole in (False, True):
        rows = made(4 if whole else 3, 8)
        assert "moe_combine_f32" in check(gpu, "moe_combine_rows", rows, positions, None, whole)
    check(gpu, "moe_permute_rows", made(2, 8), positions, 3, False)
    check(gpu, "moe_combine_rows_backward", made(2, 8), made(3, 8), positions, torch.ones(2, 2), False)
