"""Rotary embedding: values, gradients, layouts and transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402

from precast import ops  # noqa: E402
from precast.ops.rotary import reference  # noqa: E402
from tests.ops.tensors import assert_same_with_any_number_of_threads, made  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.compiler,
    # torch.func.jvp of torch 2.13 warns about torch's own use of torch.jit.
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
BOTH = pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "neighbours"])
# (head_dim, rotary_dim): by vectors, with a rest, of odd sizes, with next to nothing
WIDTHS = [(128, 128), (80, 80), (64, 32), (100, 64), (256, 256), (34, 34), (7, 4), (2, 2), (5, 0)]


def tables(rows: int, half: int, device: str = "cpu", dtype: Any = torch.float32) -> tuple[Any, Any]:
    angle = torch.outer(torch.arange(rows), 10000.0 ** -torch.linspace(0, 1, half))
    return angle.cos().to(device, dtype), angle.sin().to(device, dtype)


def by_torch(x: Any, cos: Any, sin: Any, interleaved: bool) -> Any:
    """What a torch user writes, all in the dtype of ``x``."""
    rotary = 2 * cos.shape[-1]
    cos, sin = (table.to(x.dtype).unsqueeze(-2) for table in (cos, sin))
    part, rest = x[..., :rotary], x[..., rotary:]
    if interleaved:
        cos, sin = (table.repeat_interleave(2, -1) for table in (cos, sin))
        turned = torch.stack([-part[..., 1::2], part[..., ::2]], -1).flatten(-2)
    else:
        cos, sin = (torch.cat([table, table], -1) for table in (cos, sin))
        first, second = part.chunk(2, -1)
        turned = torch.cat([-second, first], -1)
    return torch.cat([part * cos + turned * sin, rest], -1)


def exactly(x: Any, cos: Any, sin: Any, interleaved: bool) -> tuple[Any, Any]:
    """In float64, and the size of what is added up."""
    wide, cos, sin = (t.detach().double().cpu() for t in (x, cos, sin))
    return by_torch(wide, cos, sin, interleaved), by_torch(wide.abs(), cos.abs(), sin.abs(), interleaved).abs().clamp(
        min=float(wide.abs().max()) if wide.numel() else 0.0
    )


@BOTH
@pytest.mark.parametrize(("width", "rotary"), WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values(
    dtype: Any, width: int, rotary: int, interleaved: bool, device: str, assert_accurate: Callable[..., None]
) -> None:
    query, key = (made(2, 5, heads, width, dtype=dtype, device=device, seed=heads) for heads in (6, 2))
    cos, sin = tables(5, rotary // 2, device)
    results = ops.rotary_embedding(query, key, cos, sin, interleaved=interleaved)
    for x, y in zip((query, key), results, strict=True):
        assert y.dtype == dtype and y.is_contiguous()
        exact, terms = exactly(x, cos, sin, interleaved)
        assert_accurate(y, exact, by_torch(x, cos, sin, interleaved), terms=terms)
        assert torch.equal(y[..., rotary:], x[..., rotary:])


@BOTH
@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_positions_take_rows_of_the_tables(dtype: Any, kind: Any, interleaved: bool, device: str) -> None:
    query = made(7, 3, 64, dtype=dtype, device=device)
    for table_dtype in (torch.float32, dtype):
        cos, sin = tables(100, 32, device, table_dtype)
        positions = torch.tensor([99, 0, 5, 5, 17, 98, 3], dtype=kind, device=device)
        ours, none = ops.rotary_embedding(query, None, cos, sin, positions=positions, interleaved=interleaved)
        rows = positions.long()
        right, _ = ops.rotary_embedding(query, None, cos[rows], sin[rows], interleaved=interleaved)
        assert none is None
        assert torch.equal(ours, right)


@pytest.mark.gpu
def test_a_position_outside_of_the_tables_makes_nan_on_a_gpu() -> None:
    query = made(4, 2, 80, device="cuda")
    for half in (32, 15):
        cos, sin = tables(3, half, "cuda")
        positions = torch.tensor([2, 3, -1, 1 << 40], device="cuda")
        ours, _ = ops.rotary_embedding(query, None, cos, sin, positions=positions)
        assert not ours[0].isnan().any()
        assert bool(ours[1:, :, : 2 * half].isnan().all())
        assert torch.equal(ours[1:, :, 2 * half :], query[1:, :, 2 * half :])


def layouts(width: int, dtype: Any, device: str) -> dict[str, Any]:
    """Tensors of shape (2, 4, 3, width) that are not plain."""

    def new(*shape: int) -> Any:
        return made(*shape, dtype=dtype, device=device)

    packed, wide = new(2, 4, 9, width), new(2, 4, 3, 2 * width + 3)
    return {
        "of a packed projection": packed[:, :, 3:6],
        "every third head": packed[:, :, ::3],
        "heads before tokens": new(2, 3, 4, width).transpose(1, 2),
        "apart": wide[..., :width],
        "unaligned": wide[..., 1 : width + 1],
        "columns apart": wide[..., : 2 * width : 2],
        "transposed": new(width, 3, 4, 2).permute(3, 2, 1, 0),
        "one head for all": packed[:, :, :1].expand(2, 4, 3, width),
        "one value for all": new(2, 4, 3, 1).expand(2, 4, 3, width),
    }


@BOTH
@pytest.mark.parametrize(("width", "rotary"), [(64, 48), (17, 10)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_layout_gives_the_bits_of_the_plain_one(
    dtype: Any, width: int, rotary: int, interleaved: bool, device: str
) -> None:
    cos, sin = tables(4, rotary // 2, device)
    for layout, x in layouts(width, dtype, device).items():
        plain = x.clone(memory_format=torch.contiguous_format)
        right, _ = ops.rotary_embedding(plain, None, cos, sin, interleaved=interleaved)
        for one in ops.rotary_embedding(x, x, cos, sin, interleaved=interleaved):
            assert torch.equal(one, right), layout
        if x.stride(-1) == 1 and 0 not in x.stride():
            ours = x if layout != "of a packed projection" else x[:]
            returned, _ = ops.rotary_embedding_(ours, None, cos, sin, interleaved=interleaved)
            assert returned is ours and torch.equal(x, right), layout


@pytest.mark.parametrize("dim", [1, 2], ids=["side by side", "in turns"])
def test_in_place_within_a_packed_projection(dim: int, device: str) -> None:
    """Query and key lie between each other, without touching; value is left alone."""
    cos, sin = tables(6, 16, device)
    packed = made(6, 3, 4, 32, device=device) if dim == 1 else made(6, 4, 3, 32, device=device)
    kept = packed.clone()
    query, key, value = packed.unbind(dim)
    right = ops.rotary_embedding(query, key, cos, sin)
    ops.rotary_embedding_(query, key, cos, sin)
    assert torch.equal(query, right[0]) and torch.equal(key, right[1])
    assert torch.equal(value, kept.unbind(dim)[2])


def test_what_is_written_in_place_counts_as_changed(device: str) -> None:
    cos, sin = tables(6, 16, device)
    query, key = made(6, 4, 32, device=device), made(6, 2, 32, device=device)
    for step in (1, 2):
        ops.rotary_embedding_(query, key, cos, sin)
        assert (query._version, key._version) == (step, step)
    ops.rotary_embedding_(query, None, cos, sin)
    assert (query._version, key._version) == (3, 2)


@pytest.mark.parametrize("shape", [(0, 3, 8), (2, 0, 8), (2, 3, 0), (0, 2, 3, 8), (2, 3, 0, 3, 8)], ids=str)
def test_nothing(shape: tuple[int, ...], device: str) -> None:
    x = made(*shape, device=device).requires_grad_()
    cos, sin = tables(shape[-3], shape[-1] // 2, device)
    y, _ = ops.rotary_embedding(x, x, cos, sin)
    assert y.shape == shape
    assert torch.autograd.grad(y.sum(), x)[0].shape == shape


def test_the_same_numbers_with_any_number_of_threads() -> None:
    query, key = made(300, 7, 96), made(300, 2, 96)
    cos, sin = tables(300, 40)
    assert_same_with_any_number_of_threads(lambda: ops.rotary_embedding(query, key, cos, sin))


# ---- derivatives ----


@BOTH
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("width", "rotary"), [(64, 48), (17, 10)])
def test_gradients(
    width: int, rotary: int, dtype: Any, interleaved: bool, device: str, assert_accurate: Callable[..., None]
) -> None:
    """The same rotation, back."""
    query, key = (made(2, 5, heads, width, dtype=dtype, device=device).requires_grad_() for heads in (4, 2))
    cos, sin = tables(5, rotary // 2, device)
    grads = [made(*x.shape, dtype=dtype, device=device, seed=1) for x in (query, key)]
    both = ops.rotary_embedding(query, key, cos, sin, interleaved=interleaved)
    for x, grad, ours in zip((query, key), grads, torch.autograd.grad(both, (query, key), grads), strict=True):
        assert ours.dtype == dtype and ours.shape == x.shape
        exact, terms = exactly(grad, cos, -sin, interleaved)
        assert_accurate(ours, exact, by_torch(grad, cos, -sin, interleaved), terms=terms)


def test_gradients_of_one_alone(device: str) -> None:
    query, key = (made(5, heads, 16, device=device).requires_grad_() for heads in (4, 2))
    grad_query, grad_key = (made(*x.shape, device=device, seed=1) for x in (query, key))
    cos, sin = tables(5, 8, device)
    turn = ops.rotary_embedding
    right = torch.autograd.grad(turn(query, key, cos, sin), (query, key), (grad_query, grad_key))
    alone = torch.autograd.grad(turn(query, None, cos, sin)[0], query, grad_query)[0]
    of_key = torch.autograd.grad(turn(query.detach(), key, cos, sin)[1], key, grad_key)[0]
    one_used = torch.autograd.grad(turn(query, key, cos, sin)[0], query, grad_query)[0]
    other_used = torch.autograd.grad(turn(query, key, cos, sin)[1], (query, key), grad_key, allow_unused=True)
    assert torch.equal(alone, right[0]) and torch.equal(of_key, right[1]) and torch.equal(one_used, right[0])
    assert other_used[0] is None and torch.equal(other_used[1], right[1])


def scalar(pair: Any) -> Any:
    return sum((y.sin() * y).sum() for y in pair)


TRANSFORMS = {
    "gradient": lambda f, x: torch.autograd.grad(scalar(f(x.requires_grad_())), x),
    "gradient of the gradient": lambda f, x: torch.autograd.grad(
        scalar(torch.autograd.grad(scalar(f(x.requires_grad_())), x, create_graph=True)), x
    ),
    "gradient of an expanded one": lambda f, x: torch.autograd.grad(f(x.requires_grad_())[1].sum(), x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (torch.ones_like(x),)),
    "grad": lambda f, x: torch.func.grad(lambda x: scalar(f(x)))(x),
    "vmap": lambda f, x: torch.vmap(f)(x),
    "per-sample gradients": lambda f, x: torch.vmap(torch.func.grad(lambda x: scalar(f(x))))(x),
    "functionalize": lambda f, x: torch.func.functionalize(f)(x),
}


@BOTH
@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_derivatives_and_transforms(transform: str, positions: bool, interleaved: bool, device: str) -> None:
    cos, sin = tables(3, 4, device)
    rows = torch.tensor([2, 0, 1], device=device) if positions else None
    taken = [table if rows is None else table[rows] for table in (cos, sin)]

    def ours(x: Any) -> Any:
        return ops.rotary_embedding(x, x[..., :1, :], cos, sin, positions=rows, interleaved=interleaved)

    def right(x: Any) -> Any:
        return tuple(by_torch(part, *taken, interleaved) for part in (x, x[..., :1, :]))

    results = [TRANSFORMS[transform](function, made(2, 3, 2, 10, device=device)) for function in (ours, right)]
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("grad_mode", [True, False])
def test_forward_mode(grad_mode: bool, device: str) -> None:
    x, tangent = made(3, 2, 8, device=device), made(3, 2, 8, device=device, seed=1)
    cos, sin = tables(3, 4, device)
    with forward_ad.dual_level(), torch.set_grad_enabled(grad_mode):
        y, _ = ops.rotary_embedding(forward_ad.make_dual(x, tangent), None, cos, sin)
        _, ours = forward_ad.unpack_dual(y)
    torch.testing.assert_close(ours, by_torch(tangent, cos, sin, False))


@BOTH
@pytest.mark.parametrize("inverse", [False, True])
def test_the_reference_is_torchs(inverse: bool, interleaved: bool) -> None:
    x = made(3, 2, 10).double().requires_grad_()
    cos, sin = tables(3, 4, dtype=torch.float64)
    right = by_torch(x, cos, -sin if inverse else sin, interleaved)

    def function(x: Any) -> Any:
        return reference.rotary_embedding(x, None, cos, sin, None, interleaved, inverse)[0]

    torch.testing.assert_close(function(x), right)
    assert torch.autograd.gradcheck(function, (x,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, (x,))


def test_outside_of_the_tables_the_reference_makes_nan() -> None:
    cos, sin = tables(3, 2)
    positions = torch.tensor([0, 3, -1])
    y = torch.vmap(lambda x: ops.rotary_embedding(x, None, cos, sin, positions=positions)[0])(made(2, 3, 1, 6))
    assert torch.equal(y[:, :, 0, :4].isnan().all(-1), torch.tensor([[False, True, True]] * 2))


# ---- the rows for packed sequences ----


def test_cos_and_sin_of_packed_sequences(device: str) -> None:
    cos, sin = tables(10, 4, device)
    lengths = torch.tensor([3, 1, 0, 4], device=device)
    rows = [0, 1, 2, 0, 0, 1, 2, 3]
    for tokens in (None, 8):
        found = ops.get_cos_and_sin(lengths, cos, sin, is_prompts=True, tokens=tokens)
        assert torch.equal(found[0], cos[rows]) and torch.equal(found[1], sin[rows])
    lengths = torch.tensor([3, 1, 10], dtype=torch.int32, device=device)
    found = ops.get_cos_and_sin(lengths, cos, sin, is_prompts=False)
    assert torch.equal(found[0], cos[[2, 0, 9]]) and torch.equal(found[1], sin[[2, 0, 9]])
