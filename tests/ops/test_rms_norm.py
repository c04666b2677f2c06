"""The values of the norms, on every shape and layout they take, and the words they refuse the others with."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast import ops  # noqa: E402
from precast._builder import catalogue  # noqa: E402
from precast.ops import _folders  # noqa: E402
from precast.ops.norm import casting_code, reference  # noqa: E402
from tests.ops.tensors import assert_same_with_any_number_of_threads, layouts, made  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
CASTINGS = ["none", "llama", "gemma"]
HIDDEN = [1, 7, 9, 96, 111, 197, 507, 769, 1024, 5125, 8194, 100_003]
EPS = 1e-6


def by_torch(x: Any, weight: Any, casting: str = "none", eps: float = EPS) -> Any:
    """What a torch user writes: the fused op, or a composition of torch's ops where torch has none."""
    if casting == "none":
        return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)
    normal = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
    if casting == "llama":
        return weight * normal.to(x.dtype)
    return (normal * (1 + weight.float())).to(x.dtype)


def exactly(x: Any, weight: Any, casting: str = "none", eps: float = EPS) -> Any:
    return reference.rms_norm(x.double().cpu(), weight.double().cpu(), eps, casting_code(casting))


def same(ours: Any, other: Any) -> bool:
    """Equal, as the CPU computes a row in one way only; a GPU sums rows of another alignment in another order."""
    if ours.device.type == "cpu":
        return torch.equal(ours, other)
    torch.testing.assert_close(ours, other, rtol=max(1e-6, 2 * torch.finfo(ours.dtype).eps), atol=1e-6)
    return True


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("casting", CASTINGS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rms_norm(dtype: Any, casting: str, hidden: int, device: str, assert_accurate: Callable[..., None]) -> None:
    x, weight = made(5, hidden, dtype=dtype, device=device), made(hidden, dtype=dtype, device=device, seed=1)
    y = ops.rms_norm(x, weight, EPS, casting=casting)
    assert y.dtype == dtype
    assert y.is_contiguous()
    assert_accurate(y, exactly(x, weight, casting), by_torch(x, weight, casting))


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("casting", CASTINGS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fused_add_rms_norm(
    dtype: Any, casting: str, hidden: int, device: str, assert_accurate: Callable[..., None]
) -> None:
    x, residual = (made(5, hidden, dtype=dtype, device=device, seed=seed) for seed in (0, 1))
    weight = made(hidden, dtype=dtype, device=device, seed=2)
    y, total = ops.fused_add_rms_norm(x, residual, weight, EPS, casting=casting)
    assert torch.equal(total, x + residual)  # one rounded addition: there is one right answer
    assert_accurate(y, exactly(total, weight, casting), by_torch(total, weight, casting))

    x_, residual_ = x.clone(), residual.clone()
    assert ops.fused_add_rms_norm_(x_, residual_, weight, EPS, casting=casting) == (x_, residual_)
    # In place, rows that do not begin at vectors are summed in another order.
    assert same(x_, y) if hidden * x.itemsize % 16 else torch.equal(x_, y)
    assert torch.equal(residual_, total)


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 3), (2, 1, 3, 4)], ids=str)
@pytest.mark.parametrize("hidden", [0, 1, 24])
def test_any_leading_shape(
    shape: tuple[int, ...], hidden: int, device: str, assert_accurate: Callable[..., None]
) -> None:
    x, weight = made(*shape, hidden, device=device), made(hidden, device=device, seed=1)
    y = ops.rms_norm(x, weight)
    assert y.shape == x.shape
    assert_accurate(y, exactly(x, weight))
    both = ops.fused_add_rms_norm(x, x, weight)
    assert [t.shape for t in both] == [x.shape, x.shape]
    ops.fused_add_rms_norm_(x, x.clone(), weight)
    assert torch.equal(x, both[0])


@pytest.mark.parametrize("hidden", [1, 16, 111])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_layout_gives_the_numbers_of_the_plain_one(dtype: Any, hidden: int, device: str) -> None:
    weight = made(2 * hidden + 1, dtype=dtype, device=device, seed=1)
    for weights in (weight[:hidden], weight[1 : hidden + 1], weight[: 2 * hidden : 2]):
        for name, x in layouts(made, hidden, dtype, device).items():
            plain_x, plain_weight = x.clone(memory_format=torch.contiguous_format), weights.clone()
            assert same(ops.rms_norm(x, weights), ops.rms_norm(plain_x, plain_weight)), name
            residual = made(4, 6, hidden, dtype=dtype, device=device, seed=2)
            ours = ops.fused_add_rms_norm(residual, x, weights)
            for one, other in zip(ours, ops.fused_add_rms_norm(residual, plain_x, plain_weight), strict=True):
                assert same(one, other), name


@pytest.mark.parametrize("name", ["row-strided", "row-strided, unaligned", "unaligned", "every other row"])
def test_in_place_in_strided_rows(name: str, device: str) -> None:
    weight = made(16, device=device, seed=1)
    x = layouts(made, 16, torch.float32, device)[name]
    residual = layouts(made, 16, torch.float32, device)[name].add_(1)
    y, total = ops.fused_add_rms_norm(x.clone(), residual.clone(), weight)
    neighbours = x._base.clone() if x._base is not None else None
    ops.fused_add_rms_norm_(x, residual, weight)
    assert same(x, y)
    assert torch.equal(residual, total)
    if neighbours is not None:  # nothing beside the rows was written
        x.copy_(layouts(made, 16, torch.float32, device)[name])
        assert torch.equal(x._base, neighbours)


def test_special_values(device: str) -> None:
    x = made(4, 40, device=device)
    x[0, 3], x[1, 3], x[2] = float("nan"), float("inf"), 0
    y = ops.rms_norm(x, torch.ones(40, device=device))
    assert y[0].isnan().all()
    assert y[1, 3].isnan()
    assert (y[1, :3] == 0).all()
    assert (y[2] == 0).all()
    assert torch.equal(y[3], ops.rms_norm(x[3], torch.ones(40, device=device)))


def test_large_half_precision_values_do_not_overflow(device: str, assert_accurate: Callable[..., None]) -> None:
    x = torch.full((2, 512), 60000.0, dtype=torch.float16, device=device)
    weight = made(512, dtype=torch.float16, device=device)
    assert_accurate(ops.rms_norm(x, weight), exactly(x, weight))


def test_eps_is_used(device: str, assert_accurate: Callable[..., None]) -> None:
    x, weight = made(3, 64, device=device) * 1e-3, made(64, device=device, seed=1)
    assert_accurate(ops.rms_norm(x, weight, 1e-2), exactly(x, weight, eps=1e-2))
    assert not torch.allclose(ops.rms_norm(x, weight, 1e-2), ops.rms_norm(x, weight, 1e-6))


def test_the_same_numbers_with_any_number_of_threads() -> None:
    x, weight = made(300, 769), made(769, seed=1)
    assert_same_with_any_number_of_threads(lambda: ops.rms_norm(x, weight))


BAD = {
    "float64": (lambda x, w: (x.double(), w.double()), r"x is float64; needed float32, float16 or bfloat16"),
    "integers": (lambda x, w: (x.long(), w), r"x is int64; needed float32, float16 or bfloat16"),
    "complex": (lambda x, w: (x.cfloat(), w), r"x is complex64; needed"),
    "two dtypes": (lambda x, w: (x, w.half()), r"weight is float16 and x is float32; needed one dtype"),
    "no dimension": (lambda x, w: (x[0, 0], w), r"x has shape \(\); needed at least one dimension"),
    "weight too short": (lambda x, w: (x, w[:7]), r"weight has shape \(7,\); needed \(8,\)"),
    "weight of one": (lambda x, w: (x, w[:1]), r"weight has shape \(1,\); needed \(8,\)"),
    "weight with two dimensions": (lambda x, w: (x, w.expand(4, 8)), r"weight has shape \(4, 8\); needed \(8,\)"),
    "two devices": (lambda x, w: (x, w.to("meta")), r"weight is on meta and x on (cpu|cuda:0); needed one device"),
    "two devices, the other way": (lambda x, w: (x.to("meta"), w), r"weight is on (cpu|cuda:0) and x on meta"),
}


@pytest.mark.parametrize("way", ["kernel", "traced", "transformed", "tangent", "gradient"])
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_error(case: str, way: str, device: str) -> None:
    """The same words whether the kernel, the fake kernel, or the way by the reference refuses."""
    make, message = BAD[case]
    x, weight = make(made(4, 8, device=device), made(8, device=device))
    if way == "kernel":
        with pytest.raises(RuntimeError, match=message):
            ops.rms_norm(x, weight)
    elif way == "gradient":
        if weight.is_floating_point():
            weight = weight.detach().requires_grad_()
        with pytest.raises(RuntimeError, match=message):
            ops.rms_norm(x, weight)
    elif way == "traced":
        if "two devices" in case:
            message = message.replace("meta", "(meta|cpu|cuda:0)").replace("(cpu|cuda:0)", "(meta|cpu|cuda:0)")
        with (
            torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode,
            pytest.raises(RuntimeError, match=message),
        ):
            ops.rms_norm(mode.from_tensor(x), mode.from_tensor(weight))
    elif way == "transformed":
        with pytest.raises(RuntimeError, match=message):
            torch.func.functionalize(ops.rms_norm)(x, weight)
    else:
        with torch.autograd.forward_ad.dual_level(), pytest.raises(RuntimeError, match=message):
            ops.rms_norm(x, weight)


@pytest.mark.parametrize(
    ("residual", "message"),
    [
        (torch.zeros(4, 7), r"residual has shape \(4, 7\); needed \(4, 8\)"),
        (torch.zeros(8), r"residual has shape \(8,\); needed \(4, 8\)"),
        (torch.zeros(4, 8).half(), r"residual is float16 and x is float32; needed one dtype"),
        (torch.zeros(4, 8, device="meta"), r"residual is on meta and x on cpu; needed one device"),
    ],
    ids=["narrower", "broadcast", "half", "meta"],
)
def test_residual_must_match(residual: Any, message: str) -> None:
    x, weight = made(4, 8), made(8)
    before = x.clone()
    for function in (ops.fused_add_rms_norm, ops.fused_add_rms_norm_):
        with pytest.raises(RuntimeError, match=message):
            function(x, residual, weight)
    assert torch.equal(x, before)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda t: (t[0], t[0]), "x and residual overlap in memory"),
        (lambda t: (t.view(-1)[:32].view(4, 8), t.view(-1)[16:48].view(4, 8)), "x and residual overlap in memory"),
        (lambda t: (t[0].t().contiguous().t(), t[1]), "x is written in place and has shape"),
        (lambda t: (t[0], t[1].t().contiguous().t()), "residual is written in place and has"),
        (lambda t: (t[0, :1].expand(4, 8), t[1]), "x is written in place .* do not overlap"),
        (lambda t: (t[0], t[1, :1].expand(4, 8)), "residual is written in place .* do not overlap"),
    ],
    ids=["the same", "halfway", "x transposed", "residual transposed", "x expanded", "residual expanded"],
)
def test_in_place_refuses_before_it_writes(make: Callable[[Any], tuple[Any, Any]], message: str, device: str) -> None:
    tensors = made(2, 4, 8, device=device)
    x, residual = make(tensors)
    x_before, residual_before = x.clone(), residual.clone()
    with pytest.raises(RuntimeError, match=message):
        ops.fused_add_rms_norm_(x, residual, made(8, device=device))
    assert torch.equal(x, x_before)
    assert torch.equal(residual, residual_before)


NORM_OPS = [op for family in catalogue.folder_of("rms_norm").families for op in family.op_names]


@pytest.mark.parametrize("eps", [-1.0, -1e-30, float("nan")])
@pytest.mark.parametrize("op", NORM_OPS)
def test_every_norm_refuses_an_eps_that_is_negative_or_no_number(op: str, eps: float) -> None:
    ops.define(op)
    call = getattr(torch.ops.precast, op).default
    names = [argument.name for argument in call._schema.arguments]
    args = [eps if name == "eps" else arg for name, arg in zip(names, _folders.arguments(op), strict=False)]
    with pytest.raises(RuntimeError, match=f"{op}: eps is -?(1|1e-30|nan); needed a number that is not negative"):
        call(*args)


@pytest.mark.parametrize("case", range(60))
def test_rows_in_one_buffer_that_share_an_element_are_refused(case: int, device: str) -> None:
    """Rows of one distance, or of two; those of one distance that are apart are taken."""
    draw = random.Random(case)
    room, rows, width = made(200, device=device), draw.randint(1, 4), draw.randint(1, 6)
    strides = [draw.randint(width, 20), draw.randint(width, 20)]
    strides[1] = strides[0] if case % 2 else strides[1]
    starts = [draw.randint(0, 60), draw.randint(0, 60)]
    x, residual = (room.as_strided((rows, width), (s, 1), at) for s, at in zip(strides, starts, strict=True))
    taken = [{at + s * i + j for i in range(rows) for j in range(width)} for s, at in zip(strides, starts, strict=True)]
    before, refusal = room.clone(), ""
    try:
        ops.fused_add_rms_norm_(x, residual, made(width, device=device))
    except RuntimeError as error:
        refusal = str(error)
    assert not refusal or "x and residual overlap in memory" in refusal
    assert torch.equal(room, before) == bool(refusal)
    if taken[0] & taken[1] or strides[0] == strides[1]:
        assert bool(refusal) == bool(taken[0] & taken[1])


def test_unknown_casting_lists_the_names() -> None:
    x, weight = made(4, 8), made(8)
    with pytest.raises(ValueError, match="casting is 'gemma3'; needed one of 'none', 'llama', 'gemma'"):
        ops.rms_norm(x, weight, casting="gemma3")  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="casting is 3; needed 0, 1 or 2"):
        torch.ops.precast.rms_norm(x, weight, EPS, 3)
