"""The values and gradients of layer_norm, on every shape and layout, and the words that bad input is refused with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast import ops  # noqa: E402
from precast.ops.norm import reference  # noqa: E402
from tests.ops.tensors import assert_captured, assert_same_with_any_number_of_threads, made  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
HIDDEN = [1, 7, 9, 96, 111, 197, 507, 769, 1024, 5125, 8194, 100_003]
EPS = 1e-5
PARAMETERS = ["weight and bias", "weight", "bias", "none"]


def columns(hidden: int, parameters: str, dtype: Any, device: str) -> tuple[Any, Any]:
    """Weight and bias, or None."""
    weight = made(hidden, dtype=dtype, device=device, seed=1) if "weight" in parameters else None
    return weight, made(hidden, dtype=dtype, device=device, seed=2) if "bias" in parameters else None


def wide(*tensors: Any) -> list[Any]:
    return [None if t is None else t.detach().double().cpu() for t in tensors]


def by_torch(x: Any, weight: Any = None, bias: Any = None, eps: float = EPS) -> Any:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def exactly(x: Any, weight: Any = None, bias: Any = None, eps: float = EPS) -> Any:
    return reference.layer_norm(*wide(x, weight, bias), eps)


def sizes(x: Any, weight: Any, bias: Any) -> Any:
    """For each element the sizes of the terms it is the sum of: x, its mean, and the bias.

    The mean counts with a hundredth of the row's size beside its own: taking it from numbers of that size in float32
    rounds it to their spacing, the same way in all of them, and no summation finds those 1e-8 again.
    """
    x, weight, bias = wide(x, weight, bias)
    variance = (x - x.mean(-1, keepdim=True)).square().mean(-1, keepdim=True)
    scale = torch.rsqrt(variance + EPS) * (1 if weight is None else weight.abs())
    mean = x.mean(-1, keepdim=True).abs() + 0.01 * variance.sqrt()
    return (x.abs() + mean) * scale + (0 if bias is None else bias.abs())


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("parameters", PARAMETERS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layer_norm(
    dtype: Any, parameters: str, hidden: int, device: str, assert_accurate: Callable[..., None]
) -> None:
    x = made(5, hidden, dtype=dtype, device=device)
    weight, bias = columns(hidden, parameters, dtype, device)
    y = ops.layer_norm(x, weight, bias, EPS)
    assert y.dtype == dtype
    assert y.is_contiguous()
    exact = exactly(x, weight, bias)
    assert_accurate(y, exact, by_torch(x, weight, bias), terms=sizes(x, weight, bias))


@pytest.mark.parametrize("hidden", [1, 7, 96, 256, 769, 5125, 8194, 10_240])
@pytest.mark.parametrize("parameters", PARAMETERS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_backward(dtype: Any, parameters: str, hidden: int, device: str, assert_accurate: Callable[..., None]) -> None:
    x, grad = (made(33, hidden, dtype=dtype, device=device, seed=seed) for seed in (0, 3))
    weight, bias = columns(hidden, parameters, dtype, device)

    def gradients(function: Callable[..., Any]) -> Any:
        leaves = [None if t is None else t.detach().requires_grad_() for t in (x, weight, bias)]
        given = [t for t in leaves if t is not None]
        return torch.autograd.grad(function(*leaves), given, grad)

    ours = gradients(lambda x, weight, bias: ops.layer_norm(x, weight, bias, EPS))
    assert all(t.dtype == dtype for t in ours)
    wanted = (weight is not None, bias is not None)
    exact = reference.layer_norm_backward(*wide(grad, x, weight), EPS, *wanted)
    g, x_wide, w = wide(grad, x, weight)
    scaled = (g if w is None else g * w).abs()
    deviation = x_wide - x_wide.mean(-1, keepdim=True)
    r = torch.rsqrt(deviation.square().mean(-1, keepdim=True) + EPS)
    normal = (deviation * r).abs()
    mean = scaled.mean(-1, keepdim=True)
    terms = [r * (scaled + mean + normal * (scaled * normal).mean(-1, keepdim=True))]
    terms += [(g.abs() * normal).sum(0)] * wanted[0] + [g.abs().sum(0)] * wanted[1]
    rights = [t for t, asked in zip(exact, (True, *wanted), strict=True) if asked]
    for one, right, torchs, size in zip(ours, rights, gradients(by_torch), terms, strict=True):
        assert_accurate(one, right, torchs, terms=size)


@pytest.mark.parametrize("wanted", ["x", "weight", "bias"])
def test_only_one_input_requires_grad(wanted: str, device: str) -> None:
    x, weight, bias = made(4, 24, device=device), *columns(24, "weight and bias", torch.float32, device)
    leaf = {"x": x, "weight": weight, "bias": bias}[wanted].requires_grad_()
    ours = torch.autograd.grad(ops.layer_norm(x, weight, bias).sin().sum(), leaf)
    torch.testing.assert_close(
        ours, torch.autograd.grad(by_torch(x, weight, bias).sin().sum(), leaf), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("of_weight", [False, True])
@pytest.mark.parametrize("of_bias", [False, True])
def test_a_gradient_that_is_not_wanted_has_no_elements(of_weight: bool, of_bias: bool, device: str) -> None:
    x, grad, weight = made(4, 24, device=device), made(4, 24, device=device), made(24, device=device)
    shapes = [(4, 24), (24 * of_weight,), (24 * of_bias,)]
    for tensors in ((grad, x, weight), [t.to("meta") for t in (grad, x, weight)]):
        found = torch.ops.precast.layer_norm_backward(*tensors, 1e-5, of_weight, of_bias)
        assert [tuple(t.shape) for t in found] == shapes


@pytest.mark.parametrize("rows", [0, 1, 1000])
def test_backward_of_any_number_of_rows(rows: int, device: str) -> None:
    leaves = [made(*shape, device=device).requires_grad_() for shape in ((rows, 24), (24,), (24,))]
    ours = torch.autograd.grad(ops.layer_norm(*leaves).sin().sum(), leaves)
    exact = torch.autograd.grad(by_torch(*leaves).sin().sum(), leaves)
    torch.testing.assert_close(ours, exact, rtol=1e-5, atol=1e-4)


def test_gradients_repeat_bit_for_bit(device: str) -> None:
    x, weight, grad = made(1000, 768, device=device), made(768, device=device), made(1000, 768, device=device, seed=1)
    first, second = (torch.ops.precast.layer_norm_backward(grad, x, weight, EPS, True, True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 3), (2, 1, 3, 4)], ids=str)
@pytest.mark.parametrize("hidden", [0, 1, 24])
def test_any_leading_shape(
    shape: tuple[int, ...], hidden: int, device: str, assert_accurate: Callable[..., None]
) -> None:
    x = made(*shape, hidden, device=device)
    weight, bias = columns(hidden, "weight and bias", torch.float32, device)
    y = ops.layer_norm(x, weight, bias)
    assert y.shape == x.shape
    assert_accurate(
        y, exactly(x, weight, bias), by_torch(x, weight, bias) if hidden else None, terms=sizes(x, weight, bias)
    )


@pytest.mark.parametrize("hidden", [1, 16, 111])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_layout_gives_the_numbers_of_the_plain_one(dtype: Any, hidden: int, device: str) -> None:
    room = made(4, 6, 2 * hidden + 3, dtype=dtype, device=device)
    layouts = {
        "row-strided": room[..., :hidden],
        "row-strided, unaligned": room[..., 1 : hidden + 1],
        "every other row": made(4, 12, hidden, dtype=dtype, device=device)[:, ::2],
        "every other column": room[..., : 2 * hidden : 2],
        "transposed": made(hidden, 6, 4, dtype=dtype, device=device).permute(2, 1, 0),
        "one row for all": made(1, 1, hidden, dtype=dtype, device=device).expand(4, 6, hidden),
    }
    both = made(2, 2 * hidden + 1, dtype=dtype, device=device, seed=1)
    tolerance = 0 if device == "cpu" else max(1e-6, 2 * torch.finfo(dtype).eps)  # a GPU sums in another order
    for weight, bias in (both[:, :hidden], both[:, 1 : hidden + 1], both[:, : 2 * hidden : 2]):
        for name, x in layouts.items():
            plain = [t.clone(memory_format=torch.contiguous_format) for t in (x, weight, bias)]
            torch.testing.assert_close(
                ops.layer_norm(x, weight, bias), ops.layer_norm(*plain), rtol=tolerance, atol=4 * tolerance, msg=name
            )
            args, plain_args = (x, x, weight), (plain[0], plain[0], plain[1])
            for one, other in zip(
                torch.ops.precast.layer_norm_backward(*args, EPS, True, True),
                torch.ops.precast.layer_norm_backward(*plain_args, EPS, True, True),
                strict=True,
            ):
                torch.testing.assert_close(one, other, rtol=tolerance, atol=400 * tolerance, msg=name)


def test_special_values(device: str) -> None:
    x = made(4, 40, device=device)
    x[0, 3], x[1, 3], x[2] = float("nan"), float("inf"), 12345.678
    y = ops.layer_norm(x)
    assert y[:2].isnan().all()
    assert (y[2] == 0).all()
    assert y[3].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("hidden", [2, 7, 33, 64, 100, 1000, 4096, 20_000])
def test_a_variance_that_overflows_is_seen(device: str, dtype: Any, hidden: int) -> None:
    """Torch gives NaN or zeros, by how it divides the row. Ours is NaN wherever torch's is, and in no other row."""
    for scale in (1e20, 1e25, 1e30, 1e38):
        x = made(4, hidden, device=device)
        x[1] *= scale
        x[2] = scale  # equal numbers have no variance
        x = x.to(dtype).requires_grad_()
        y = ops.layer_norm(x)
        assert y[1].isnan().all()
        assert reference.layer_norm(x[1], None, None, 1e-5).isnan().all()
        by_torch = torch.nn.functional.layer_norm(x[1:2].detach(), (hidden,))
        assert not (by_torch.isnan() & y[1:2].isfinite()).any()
        assert y[::3].isfinite().all()
        if scale * hidden < 1e38 and device == "cpu":  # a GPU rounds the mean, and the square of the rest overflows too
            assert (y[2] == 0).all()
        (grad,) = torch.autograd.grad(y, x, torch.ones_like(y))
        assert grad[1].isnan().all() and grad[::3].isfinite().all()


def test_large_half_precision_values_do_not_overflow(device: str, assert_accurate: Callable[..., None]) -> None:
    x = made(2, 512, dtype=torch.float16, device=device).sign() * 60000
    assert_accurate(ops.layer_norm(x), exactly(x))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_mean_far_from_zero(dtype: Any, device: str, assert_accurate: Callable[..., None]) -> None:
    x = made(9, 1000, dtype=dtype, device=device) + 1000
    assert_accurate(ops.layer_norm(x), exactly(x), by_torch(x))


def test_eps_is_used(device: str, assert_accurate: Callable[..., None]) -> None:
    x = made(3, 64, device=device) * 1e-3
    assert_accurate(ops.layer_norm(x, eps=1e-2), exactly(x, eps=1e-2), terms=1e-3 * sizes(x, None, None) + 1e-2)
    assert not torch.allclose(ops.layer_norm(x, eps=1e-2), ops.layer_norm(x, eps=1e-6))


def test_the_same_numbers_with_any_number_of_threads() -> None:
    x, weight = made(300, 769), made(769, seed=1)
    backward = torch.ops.precast.layer_norm_backward
    assert_same_with_any_number_of_threads(
        lambda: (ops.layer_norm(x, weight, weight), *backward(x, x, weight, EPS, True, True))
    )


@pytest.mark.gpu
def test_offsets_beyond_32_bits() -> None:
    x = torch.zeros(2**31 // 4096 + 2, 4096, dtype=torch.bfloat16, device="cuda")
    x[-1] = made(4096, dtype=torch.bfloat16, device="cuda")
    assert torch.equal(ops.layer_norm(x)[-1], ops.layer_norm(x[-1]))


@pytest.mark.gpu
def test_capture_in_a_cuda_graph() -> None:
    x, weight, bias = made(64, 1024, device="cuda"), made(1024, device="cuda"), made(1024, device="cuda", seed=1)
    assert_captured(lambda: ops.layer_norm(x, weight, bias))


BAD: dict[str, tuple[Callable[[Any, Any, Any], tuple[Any, ...]], str]] = {
    "weight of another width": (lambda x, w, b: (x, w[:7], b), r"weight has shape \(7,\); needed \(8,\)"),
    "bias of another width": (lambda x, w, b: (x, w, b[:7]), r"bias has shape \(7,\); needed \(8,\)"),
    "weight of two dimensions": (lambda x, w, b: (x, w[None], b), r"weight has shape \(1, 8\); needed \(8,\)"),
    "two dtypes": (lambda x, w, b: (x, w, b.half()), "bias is float16 and weight is float32; needed one dtype"),
    "float64": (lambda x, w, b: (x.double(), w, b), "x is float64; needed float32, float16 or bfloat16"),
    "no dimension": (lambda x, w, b: (x[0, 0], w, b), r"x has shape \(\); needed at least one dimension"),
    "eps": (lambda x, w, b: (x, w, b, -1.0), "eps is -1; needed a number that is not negative"),
}


@pytest.mark.parametrize("way", ["kernel", "gradient", "traced", "transformed"])
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_error(case: str, way: str, device: str) -> None:
    """The same words whether the kernel, the fake kernel, or the way by the reference refuses."""
    make, message = BAD[case]
    args = make(made(4, 8, device=device), *columns(8, "weight and bias", torch.float32, device))
    message = f"layer_norm: {message}"
    if way == "gradient":
        args[0].requires_grad_()
    if way == "traced":
        with torch._subclasses.FakeTensorMode() as mode, pytest.raises(RuntimeError, match=message):
            ops.layer_norm(*(mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args))
        return
    function = torch.func.functionalize(ops.layer_norm) if way == "transformed" else ops.layer_norm
    with pytest.raises(RuntimeError, match=message):
        function(*args)


def test_a_gradient_of_another_shape_is_refused(device: str) -> None:
    x = made(4, 8, device=device)
    with pytest.raises(RuntimeError, match=r"layer_norm_backward: grad has shape \(3, 8\); needed \(4, 8\), as x"):
        torch.ops.precast.layer_norm_backward(x[:3], x, None, EPS, True, True)
