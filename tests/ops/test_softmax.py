"""The softmax ops: values on every shape and layout, masks, derivatives, and the words of their refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402

import precast  # noqa: E402
from precast import ops  # noqa: E402
from precast.ops.softmax import reference  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.compiler,
    # torch.func.jvp of torch 2.13 warns about torch's own use of torch.jit.
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]

RAW = torch.ops.precast
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
COLUMNS = [1, 17, 64, 77, 197, 256, 577, 1024, 2047, 2049, 4096, 16385, 65536, 100_003]
INFINITY = float("inf")


def made(*shape: int, dtype: Any = torch.float32, device: str = "cpu", seed: int = 0) -> Any:
    return (2 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))).to(device, dtype)


def masks(*shape: int, device: str = "cpu", seed: int = 5) -> Any:
    return (torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < 0.4).to(device)


def by_torch(x: Any, scale: float, mask: Any = None) -> Any:
    z = x.float() * scale
    return torch.softmax(z if mask is None else z.masked_fill(mask, -INFINITY), -1).to(x.dtype)


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_plain_and_masked(dtype: Any, columns: int, device: str, assert_accurate: Callable[..., None]) -> None:
    x, mask = made(5, columns, dtype=dtype, device=device), masks(5, columns, device=device)
    mask[:, 0] = False
    y = ops.scaled_softmax(x, 0.7)
    assert y.dtype == dtype
    assert_accurate(y, reference.scaled_softmax(x.double().cpu(), 0.7), by_torch(x, 0.7))
    for kind in (mask, mask.to(torch.uint8) * 3):
        y = ops.scaled_masked_softmax(x, kind, 0.7)
        assert (y[mask] == 0).all()
        exact = reference.scaled_masked_softmax(x.double().cpu(), mask.cpu(), 0.7, -INFINITY, False)
        assert_accurate(y, exact, by_torch(x, 0.7, mask))


@pytest.mark.parametrize(
    ("queries", "columns"), [(1, 1), (17, 17), (5, 3), (3, 2049), (40, 2048), (300, 256), (2, 70000)]
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_causal(dtype: Any, queries: int, columns: int, device: str, assert_accurate: Callable[..., None]) -> None:
    x = made(2, queries, columns, dtype=dtype, device=device)
    behind = reference._behind_diagonal(x)
    x[behind.expand_as(x)] = float("nan")  # never read
    y = ops.scaled_aligned_causal_softmax(x, 0.7)
    assert (y[:, behind] == 0).all()
    torchs = by_torch(x, 0.7, behind).masked_fill(behind, 0)
    assert_accurate(y, reference.scaled_aligned_causal_softmax(x.double().cpu(), 0.7), torchs)
    if queries == columns:
        assert torch.equal(ops.scaled_upper_triang_masked_softmax(x, 0.7), y)


@pytest.mark.parametrize("columns", [24, 21, 1100])
def test_masks_of_every_layout(columns: int, device: str) -> None:
    x, whole = made(2, 3, 4, columns, device=device), masks(2, 3, 4, columns + 8, device=device)
    for mask in (
        whole[..., :columns],
        whole[..., 1 : columns + 1],
        whole[:1, :, :, :columns],
        whole[:, :1, :, :columns],
        whole[:1, :1, :, :columns],
        whole[:, :1, :1, :columns],
        whole[0, 0, 0, :columns],
        whole[:, :1, :, :columns].expand(2, 3, 4, columns),
        masks(columns, 4, device=device).t(),
    ):
        exact = reference.scaled_masked_softmax(x.double(), mask, 0.7, -INFINITY, False)
        torch.testing.assert_close(ops.scaled_masked_softmax(x, mask, 0.7).double(), exact, rtol=3e-6, atol=1e-9)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("columns", [16, 111])
def test_rows_of_every_layout(columns: int, dtype: Any, device: str) -> None:
    wide = made(4, 6, 2 * columns + 3, dtype=dtype, device=device)
    for x in (
        wide[..., :columns],
        wide[..., 1 : columns + 1],
        wide[..., : 2 * columns : 2],
        wide[:, ::2, :columns],
        made(columns, 6, 4, dtype=dtype, device=device).permute(2, 1, 0),
        made(1, 1, columns, dtype=dtype, device=device).expand(4, 6, columns),
    ):
        y = ops.scaled_softmax(x, 0.7)
        assert y.is_contiguous()
        torch.testing.assert_close(y, ops.scaled_softmax(x.clone(memory_format=torch.contiguous_format), 0.7))
        causal = ops.scaled_aligned_causal_softmax(x, 0.7)
        torch.testing.assert_close(causal, reference.scaled_aligned_causal_softmax(x, 0.7))


@pytest.mark.parametrize("shape", [(0, 8), (3, 0), (2, 0, 8), (0,), (2, 2, 0, 0)], ids=str)
def test_empty(shape: tuple[int, ...], device: str) -> None:
    x = torch.empty(shape, device=device, requires_grad=True)
    results = [ops.scaled_softmax(x, 1.0), ops.scaled_masked_softmax(x, x.detach() != 0, 1.0)]
    if x.dim() > 1:
        results.append(ops.scaled_aligned_causal_softmax(x, 1.0))
    for y in results:
        assert y.shape == shape
        assert torch.autograd.grad(y.sum(), x)[0].shape == shape


def test_fully_masked_rows(device: str) -> None:
    x, mask = made(3, 40, device=device), torch.ones(3, 40, dtype=torch.bool, device=device)
    x[0] = float("nan")
    mask[2, 7] = False
    for value in ("-inf", -10000.0):
        y = ops.scaled_masked_softmax(x, mask, 1.0, masked_value=value)
        assert (y[:2] == 0).all()
        assert y[2, 7] == 1
        y = ops.scaled_masked_softmax(x, mask, 1.0, masked_value=value, fully_masked="uniform")
        torch.testing.assert_close(y[:2], torch.full_like(y[:2], 1 / 40))


def test_the_masked_value_counts(device: str) -> None:
    x = torch.tensor([[-20000.0, 0.0]], device=device)
    mask = torch.tensor([[False, True]], device=device)
    assert ops.scaled_masked_softmax(x, mask, 1.0).tolist() == [[1, 0]]
    assert ops.scaled_masked_softmax(x, mask, 1.0, masked_value=-10000.0).tolist() == [[0, 1]]


@pytest.mark.parametrize("columns", [40, 41, 40000])
def test_special_values_are_as_in_torch(columns: int, device: str) -> None:
    x = made(6, columns, device=device)
    x[0, 3], x[1, 4], x[2, 5] = float("nan"), INFINITY, -INFINITY
    x[3], x[4] = -INFINITY, torch.finfo(torch.float32).min
    ours = ops.scaled_softmax(x, 1.0)
    torch.testing.assert_close(ours, torch.softmax(x, -1), rtol=5e-6, atol=1e-30, equal_nan=True)
    mask = torch.zeros_like(x, dtype=torch.bool)
    assert torch.equal(ops.scaled_masked_softmax(x, mask, 1.0).isnan(), ours.isnan())
    mask[:2, 3:5] = True  # what is masked does not matter
    assert not ops.scaled_masked_softmax(x, mask, 1.0)[:2].isnan().any()


def functions(device: str) -> dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]]:
    """Ours and the reference, of x of shape (2, 3, 8, 8)."""
    mask = masks(2, 1, 8, 8, device=device)
    mask[0, 0, 3] = True

    def masked(value: float, uniform: bool) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
        words: Any = "uniform" if uniform else "zero"
        return (
            lambda x: ops.scaled_masked_softmax(x, mask, 0.7, masked_value=value, fully_masked=words),
            lambda x: reference.scaled_masked_softmax(x, mask, 0.7, value, uniform),
        )

    def causal(x: Any) -> Any:
        return reference.scaled_aligned_causal_softmax(x, 0.7)

    return {
        "plain": (lambda x: ops.scaled_softmax(x, 0.7), lambda x: reference.scaled_softmax(x, 0.7)),
        "masked": masked(-INFINITY, False),
        "uniform": masked(-INFINITY, True),
        "megatron": masked(-0.5, True),
        "a finite fill, and zeros for rows without a column": masked(-0.5, False),
        "upper triangle": (lambda x: ops.scaled_upper_triang_masked_softmax(x, 0.7), causal),
        "causal": (lambda x: ops.scaled_aligned_causal_softmax(x, 0.7), causal),
        "more queries": (
            lambda x: ops.scaled_aligned_causal_softmax(x[..., :5], 0.7),
            lambda x: reference.scaled_aligned_causal_softmax(x[..., :5], 0.7),
        ),
        "raw": (lambda x: RAW.scaled_softmax(x, 0.7), lambda x: reference.scaled_softmax(x, 0.7)),
    }


def scalar(y: Any) -> Any:
    return (y.sin() * y * torch.linspace(-1, 2, y.numel(), device=y.device).view_as(y)).sum()


DERIVATIVES: dict[str, Callable[..., Any]] = {
    "gradient": lambda f, x: torch.autograd.grad(scalar(f(x)), x)[0],
    "second": lambda f, x: torch.autograd.grad(
        torch.autograd.grad(scalar(f(x)), x, create_graph=True)[0].sin().sum(), x
    )[0],
    "jvp": lambda f, x: torch.func.jvp(f, (x.detach(),), (x.detach().cos(),))[1],
    "hessian": lambda f, x: torch.func.hessian(lambda x: scalar(f(x.expand(2, 3, 8, 8))))(x.detach()[:1, :1]),
    "vmap": lambda f, x: torch.vmap(f)(torch.stack([x.detach(), x.detach() + 1])),
    "func.grad": lambda f, x: torch.func.grad(lambda x: scalar(f(x)))(x.detach()),
}


@pytest.mark.parametrize("derivative", DERIVATIVES)
@pytest.mark.parametrize("name", functions("cpu"))
def test_derivative(name: str, derivative: str, device: str) -> None:
    ours, exact = functions(device)[name]
    x = made(2, 3, 8, 8, device=device).requires_grad_()
    torch.testing.assert_close(
        DERIVATIVES[derivative](ours, x), DERIVATIVES[derivative](exact, x), rtol=1e-4, atol=1e-5
    )


def test_forward_mode(device: str) -> None:
    x, tangent = made(2, 3, 8, 8, device=device), made(2, 3, 8, 8, device=device, seed=1)
    for name, (ours, exact) in functions(device).items():
        with forward_ad.dual_level():
            pushed = [forward_ad.unpack_dual(f(forward_ad.make_dual(x, tangent))) for f in (ours, exact)]
        assert pushed[0].tangent is not None, name
        torch.testing.assert_close(tuple(pushed[0]), tuple(pushed[1]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("columns", [1, 17, 2048, 16385, 40000])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_backward_against_float64(
    dtype: Any, causal: bool, columns: int, device: str, assert_accurate: Callable[..., None]
) -> None:
    x = made(3, 5, columns, dtype=dtype, device=device).requires_grad_()
    grad = made(3, 5, columns, dtype=dtype, device=device, seed=1)
    y = ops.scaled_aligned_causal_softmax(x, 0.7) if causal else ops.scaled_softmax(x, 0.7)
    (ours,) = torch.autograd.grad(y, x, grad)
    wide_y, wide_grad = y.detach().double().cpu(), grad.double().cpu()
    exact = reference.scaled_softmax_backward(wide_grad, wide_y, 0.7, causal)
    terms = 0.7 * wide_y * (wide_grad.abs() + (wide_grad * wide_y).abs().sum(-1, keepdim=True))
    assert_accurate(ours, exact, terms=terms)


def test_writing_over_the_result_raises(device: str) -> None:
    x = made(3, 8, device=device).requires_grad_()
    y = ops.scaled_softmax(x, 1.0)
    with torch.no_grad():
        y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


X, MASK = (2, 3, 4, 8), "mask has shape {} and x has \\(2, 3, 4, 8\\); needed x's last dimension"
BAD: dict[str, tuple[Callable[[Any], Any], str]] = {
    "float64": (lambda x: ops.scaled_softmax(x.double(), 1.0), "x is float64; needed float32, float16 or bfloat16"),
    "no dimension": (lambda x: ops.scaled_softmax(x[0, 0, 0, 0], 1.0), r"x has shape \(\); needed at least one"),
    "one dimension": (
        lambda x: ops.scaled_aligned_causal_softmax(x[0, 0, 0], 1.0),
        r"x has shape \(8,\); needed at least two dimensions",
    ),
    "not square": (
        lambda x: ops.scaled_upper_triang_masked_softmax(x, 1.0),
        r"x has shape \(2, 3, 4, 8\); needed the last two dimensions to be equal",
    ),
    "float mask": (lambda x: ops.scaled_masked_softmax(x, x, 1.0), "mask is float32; needed bool or uint8"),
    "heads": (lambda x: ops.scaled_masked_softmax(x, x[:, :2] > 0, 1.0), MASK.format(r"\(2, 2, 4, 8\)")),
    "batches": (
        lambda x: ops.scaled_masked_softmax(x, x.new_zeros(3, 3, 4, 8) > 0, 1.0),
        MASK.format(r"\(3, 3, 4, 8\)"),
    ),
    "one column": (lambda x: ops.scaled_masked_softmax(x, x[..., :1] > 0, 1.0), MASK.format(r"\(2, 3, 4, 1\)")),
    "longer mask": (lambda x: ops.scaled_masked_softmax(x, x[None] > 0, 1.0), MASK.format(r"\(1, 2, 3, 4, 8\)")),
    "mask elsewhere": (
        lambda x: ops.scaled_masked_softmax(x, torch.empty(8, dtype=torch.bool, device="meta"), 1.0),
        r"mask is on meta and x on (cpu|cuda:0); needed one device",
    ),
    "five dimensions": (
        lambda x: ops.scaled_masked_softmax(x[None], x > 0, 1.0),
        r"x has shape \(1, 2, 3, 4, 8\); needed at most four dimensions",
    ),
    "infinite fill": (
        lambda x: ops.scaled_masked_softmax(x, x > 0, 1.0, masked_value=INFINITY),
        "masked_value is inf; needed a finite number or -inf",
    ),
    "fill beyond float32": (
        lambda x: ops.scaled_masked_softmax(x, x > 0, 1.0, masked_value=1e308),
        r"masked_value is 1e\+308; needed a finite number or -inf",
    ),
    "NaN fill": (
        lambda x: ops.scaled_masked_softmax(x, x > 0, 1.0, masked_value=float("nan")),
        "masked_value is -?nan; needed a finite number or -inf",
    ),
    "gradient of another shape": (
        lambda x: RAW.scaled_softmax_backward(x[..., :7], x, 1.0, False),
        r"grad has shape \(2, 3, 4, 7\); needed \(2, 3, 4, 8\), as y",
    ),
}


@pytest.mark.parametrize("way", ["kernel", "traced", "tangent"])
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_error(case: str, way: str, device: str) -> None:
    call, message = BAD[case]
    x = made(*X, device=device)
    if way == "kernel":
        with pytest.raises(RuntimeError, match=message):
            call(x)
    elif way == "tangent":
        with forward_ad.dual_level(), pytest.raises(RuntimeError, match=message):
            call(x)
    elif case != "mask elsewhere":
        with torch._subclasses.FakeTensorMode() as mode, pytest.raises(RuntimeError, match=message):
            call(mode.from_tensor(x))


def test_an_unknown_word_lists_the_names() -> None:
    with pytest.raises(ValueError, match="fully_masked is 'none'; needed one of 'zero', 'uniform'"):
        ops.scaled_masked_softmax(made(2, 2), masks(2, 2), 1.0, fully_masked="none")  # type: ignore[arg-type]


def test_module(device: str) -> None:
    x, mask = made(2, 3, 4, 8, device=device), masks(2, 1, 4, 8, device=device)
    module = precast.nn.FusedScaleMaskSoftmax
    assert torch.equal(module(0.7)(x), ops.scaled_softmax(x, 0.7))
    assert torch.equal(module(0.7)(x, mask), ops.scaled_masked_softmax(x, mask, 0.7))
    assert torch.equal(module(0.7, causal=True)(x), ops.scaled_aligned_causal_softmax(x, 0.7))
    both = mask | reference._behind_diagonal(x)
    assert torch.equal(module(0.7, causal=True)(x, mask), ops.scaled_masked_softmax(x, both, 0.7))
    assert "causal=True" in repr(module(causal=True))


@pytest.mark.large
@pytest.mark.gpu
def test_more_than_two_to_the_31_elements() -> None:
    rows = (1 << 31) // 2048 + 3
    x = torch.zeros(rows, 2048, dtype=torch.bfloat16, device="cuda")
    x[-1] = made(2048, dtype=torch.bfloat16, device="cuda")
    y = ops.scaled_softmax(x, 0.7)
    assert torch.equal(y[-1], ops.scaled_softmax(x[-1].clone(), 0.7))
    assert (y[:-1] == 1 / 2048).all()
