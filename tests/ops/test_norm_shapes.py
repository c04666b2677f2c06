"""The norms over several dimensions, without a weight, with float32 parameters, and of jagged nested tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import precast  # noqa: E402
from precast import ops  # noqa: E402
from precast.ops.norm import reference  # noqa: E402
from tests.ops.tensors import layouts, made  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

EPS = 1e-5
F = torch.nn.functional
RAW = torch.ops.precast
NARROW = [torch.float16, torch.bfloat16]
WIDTHS = [1, 7, 64, 111, 1024, 5125, 10248, 22000]


def gradients(call: Callable[..., Any], tensors: list[Any], grads: list[Any]) -> tuple[Any, list[Any]]:
    leaves = [t.detach().requires_grad_() for t in tensors]
    found = call(*leaves)
    found = list(found) if isinstance(found, tuple) else [found]
    return found, list(torch.autograd.grad(found, leaves, grads))


# ---- several dimensions ----

SEVERAL: dict[str, tuple[Callable[..., Any], Callable[..., Any], int]] = {  # ours, torch's, parameters
    "rms_norm": (
        lambda x, w: ops.rms_norm(x, w, EPS, normalized_shape=w.shape),
        lambda x, w: F.rms_norm(x, w.shape, w, EPS),
        1,
    ),
    "fused_add_rms_norm": (
        lambda x, w: ops.fused_add_rms_norm(x, x.sin(), w, EPS, normalized_shape=w.shape),
        lambda x, w: (F.rms_norm(x + x.sin(), w.shape, w, EPS), x + x.sin()),
        1,
    ),
    "layer_norm": (
        lambda x, w, b: ops.layer_norm(x, w, b, EPS, normalized_shape=w.shape),
        lambda x, w, b: F.layer_norm(x, w.shape, w, b, EPS),
        2,
    ),
}


@pytest.mark.parametrize("shape", [(4, 3, 8), (2, 0, 8), (0, 3, 8), (3, 8)], ids=str)
@pytest.mark.parametrize("name", SEVERAL)
def test_several_dimensions_are_those_of_torch(name: str, shape: tuple[int, ...], device: str) -> None:
    ours, torchs, count = SEVERAL[name]
    normalized = shape[-2:]
    tensors = [made(*shape, device=device), *(made(*normalized, device=device, seed=1 + i) for i in range(count))]
    found, expected = ours(*tensors), torchs(*tensors)
    torch.testing.assert_close(found, expected)
    grads = [torch.ones_like(t) for t in (found if isinstance(found, tuple) else (found,))]
    torch.testing.assert_close(gradients(ours, tensors, grads)[1], gradients(torchs, tensors, grads)[1])


def test_rows_that_do_not_merge(device: str) -> None:
    x, weight = made(3, 8, 4, device=device).transpose(1, 2), made(4, 8, device=device)
    torch.testing.assert_close(
        ops.rms_norm(x, weight, EPS, normalized_shape=(4, 8)), F.rms_norm(x, (4, 8), weight, EPS)
    )


def test_one_dimension_may_be_named_too(device: str) -> None:
    x, weight = made(3, 8, device=device), made(8, device=device)
    for shape in (8, (8,), [8], torch.Size([8])):
        assert torch.equal(ops.rms_norm(x, weight, EPS, normalized_shape=shape), ops.rms_norm(x, weight, EPS))
        assert torch.equal(ops.layer_norm(x, weight, normalized_shape=shape), ops.layer_norm(x, weight))


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x: ops.rms_norm(x, normalized_shape=(3, 7)),
            r"x has shape \(2, 3, 8\); needed normalized_shape, \(3, 7\)",
        ),
        (lambda x: ops.layer_norm(x, normalized_shape=()), r"x has shape \(2, 3, 8\); needed normalized_shape, \(\)"),
        (lambda x: ops.layer_norm(x, normalized_shape=(1, 2, 3, 8)), r"needed normalized_shape, \(1, 2, 3, 8\)"),
        (
            lambda x: ops.rms_norm(x, x[0, 0], normalized_shape=(3, 8)),
            r"weight has shape \(8,\); needed .*\(3, 8\)",
        ),
        (lambda x: ops.layer_norm(x, x[0], x[0, 0], normalized_shape=(3, 8)), r"bias has shape \(8,\)"),
        (lambda x: ops.rms_norm(x, x[0]), r"weight has shape \(3, 8\); needed \(8,\), the last dimension of x"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    call: Callable[[Any], Any], message: str, traced: bool, device: str
) -> None:
    x = made(2, 3, 8, device=device)
    if traced:
        with torch._subclasses.FakeTensorMode() as mode, pytest.raises(RuntimeError, match=message):
            call(mode.from_tensor(x))
    else:
        with pytest.raises(RuntimeError, match=message):
            call(x)


# ---- without a weight ----


@pytest.mark.parametrize("casting", ["none", "llama", "gemma"])
@pytest.mark.parametrize("dtype", [torch.float32, *NARROW], ids=str)
def test_rms_norm_without_a_weight(casting: Any, dtype: Any, device: str) -> None:
    x, residual = made(3, 33, dtype=dtype, device=device), made(3, 33, dtype=dtype, device=device, seed=1)
    ones = (
        torch.zeros(33, dtype=dtype, device=device)
        if casting == "gemma"
        else torch.ones(33, dtype=dtype, device=device)
    )
    assert torch.equal(ops.rms_norm(x, eps=EPS, casting=casting), ops.rms_norm(x, ones, EPS, casting=casting))
    found = ops.fused_add_rms_norm(x, residual, eps=EPS, casting=casting)
    assert all(map(torch.equal, found, ops.fused_add_rms_norm(x, residual, ones, EPS, casting=casting)))
    (ours,) = gradients(lambda x: ops.rms_norm(x, eps=EPS, casting=casting), [x], [residual])[1]
    (right,) = gradients(lambda x: ops.rms_norm(x, ones, EPS, casting=casting), [x], [residual])[1]
    assert torch.equal(ours, right)


# ---- float32 parameters of narrower rows ----


def wide_parameters(width: int, device: str) -> tuple[Any, Any]:
    """Numbers that the narrow dtypes do not have."""
    return made(width, device=device, seed=3) + 1, made(width, device=device, seed=4)


@pytest.mark.parametrize("casting", ["none", "llama", "gemma"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_rms_norm_with_a_float32_weight(
    dtype: Any, width: int, casting: Any, device: str, assert_accurate: Callable[..., None]
) -> None:
    x, residual, grad = (made(5, width, dtype=dtype, device=device, seed=seed) for seed in range(3))
    weight, code = wide_parameters(width, device)[0], ["none", "llama", "gemma"].index(casting)
    total = x + residual
    wide = [t.double().cpu() for t in (x, weight, total)]
    exact = reference.rms_norm(wide[0], wide[1], EPS, 2 if code == 2 else 0)
    y = ops.rms_norm(x, weight, EPS, casting=casting)
    both = ops.fused_add_rms_norm(x, residual, weight, EPS, casting=casting)
    assert y.dtype == dtype and [t.dtype for t in both] == [dtype, dtype]
    assert torch.equal(both[1], total) and torch.equal(both[0], ops.rms_norm(total, weight, EPS, casting=casting))
    if casting != "llama":
        assert_accurate(y, exact)
    torch.testing.assert_close(y, reference.rms_norm(x, weight, EPS, code), rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
    if casting != "gemma":  # 1 + weight is rounded in the same way
        _, (grad_x, grad_weight) = gradients(lambda x, w: ops.rms_norm(x, w, EPS, casting=casting), [x, weight], [grad])
        assert grad_x.dtype == dtype and grad_weight.dtype == torch.float32
        right = reference.rms_norm_backward(grad.double().cpu(), wide[0], wide[1], EPS, 0)
        terms = (grad.double().cpu() * wide[1]).abs().amax(-1, keepdim=True).expand(5, width) * 3
        assert_accurate(grad_x, right[0], terms=terms)
        assert_accurate(grad_weight, right[1], terms=torch.full((width,), 8.0, dtype=torch.float64))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_layer_norm_with_float32_parameters(
    dtype: Any, width: int, device: str, assert_accurate: Callable[..., None]
) -> None:
    x, grad = (made(5, width, dtype=dtype, device=device, seed=seed) for seed in range(2))
    weight, bias = wide_parameters(width, device)
    wide = [t.double().cpu() for t in (x, weight, bias)]
    y = ops.layer_norm(x, weight, bias, EPS)
    assert y.dtype == dtype
    terms = (wide[1].abs() * 4 + wide[2].abs()).expand(5, width)
    assert_accurate(y, reference.layer_norm(*wide, EPS), terms=terms)
    assert_accurate(ops.layer_norm(x, weight, None, EPS), reference.layer_norm(*wide[:2], None, EPS), terms=terms)
    _, found = gradients(lambda x, w, b: ops.layer_norm(x, w, b, EPS), [x, weight, bias], [grad])
    assert [t.dtype for t in found] == [dtype, torch.float32, torch.float32]
    right = reference.layer_norm_backward(grad.double().cpu(), *wide[:2], EPS, True, True)
    size = (grad.double().cpu() * wide[1]).abs().amax(-1, keepdim=True).expand(5, width) * 4
    if width > 1:  # all of a single column is its mean: the scale of its gradient is 1 / sqrt(eps)
        assert_accurate(found[0], right[0], terms=size)
    for one, other in zip(found[1:], right[1:], strict=True):
        assert_accurate(one, other, terms=torch.full((width,), 8.0, dtype=torch.float64))


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("width", [16, 111])
def test_any_layout_gives_the_numbers_of_the_plain_one(dtype: Any, width: int, device: str) -> None:
    """Within the order of sums of the kernels that serve them."""
    weight, bias = wide_parameters(width, device)
    tolerance = {"rtol": 2 * torch.finfo(dtype).eps, "atol": 2e-3}
    for x in layouts(made, width, dtype, device).values():
        plain = x.clone(memory_format=torch.contiguous_format)
        torch.testing.assert_close(ops.rms_norm(x, weight, EPS), ops.rms_norm(plain, weight, EPS), **tolerance)
        torch.testing.assert_close(ops.layer_norm(x, weight, bias), ops.layer_norm(plain, weight, bias), **tolerance)


def test_in_place_with_a_float32_weight(device: str) -> None:
    x, residual = (made(5, 64, dtype=torch.bfloat16, device=device, seed=seed) for seed in range(2))
    weight = wide_parameters(64, device)[0]
    expected = ops.fused_add_rms_norm(x, residual, weight, EPS)
    assert all(map(torch.equal, ops.fused_add_rms_norm_(x, residual, weight, EPS), expected))


def test_no_rows(device: str) -> None:
    x, (weight, bias) = torch.empty(0, 24, dtype=torch.bfloat16, device=device), wide_parameters(24, device)
    _, found = gradients(ops.layer_norm, [x, weight, bias], [x])
    assert not found[1].any() and not found[2].any() and found[1].dtype == torch.float32
    _, found = gradients(ops.rms_norm, [x, weight], [x])
    assert not found[1].any() and found[1].dtype == torch.float32


@pytest.mark.parametrize("op", ["rms_norm", "rms_norm_backward", "layer_norm", "layer_norm_backward"])
def test_opcheck(op: str, device: str) -> None:
    x, (weight, bias) = made(4, 24, dtype=torch.bfloat16, device=device), wide_parameters(24, device)
    samples = {
        "rms_norm": (x, weight.requires_grad_(), EPS, 0),
        "rms_norm_backward": (x, x, weight.detach(), EPS, 1),
        "layer_norm": (x, weight, bias, EPS),
        "layer_norm_backward": (x, x, weight.detach(), EPS, True, True),
    }
    torch.library.opcheck(getattr(RAW, op).default, samples[op])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, w: ops.rms_norm(x.float(), w.half()), "weight is float16 and x is float32; needed one dtype"),
        (lambda x, w: ops.rms_norm(x, w.half()), "weight is float16 and x is bfloat16; needed one dtype"),
        (lambda x, w: ops.layer_norm(x, w, w.bfloat16()), "bias is bfloat16 and weight is float32; needed one dtype"),
        (lambda x, w: ops.layer_norm(x, w.bfloat16(), w), "bias is float32 and weight is bfloat16; needed one dtype"),
        (lambda x, w: ops.layer_norm(x, None, w), "bias is float32 and x is bfloat16; needed one dtype"),
        (lambda x, w: ops.rms_norm(x, w.to("meta")), "weight is on meta and x on .*; needed one device"),
    ],
)
@pytest.mark.parametrize("traced", [False, True])
def test_other_mixtures_are_refused(call: Callable[..., Any], message: str, traced: bool, device: str) -> None:
    x, weight = made(4, 24, dtype=torch.bfloat16, device=device), wide_parameters(24, device)[0]
    if traced:
        with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
            given = mode.from_tensor(x), mode.from_tensor(weight)
            with pytest.raises(RuntimeError, match=message):
                call(*given)
    else:
        with pytest.raises(RuntimeError, match=message):
            call(x, weight)


# ---- nested tensors ----


def jagged(device: str, *, seed: int = 0, last: tuple[int, ...] = (24,)) -> Any:
    rows = [made(length, *last, device=device, seed=seed + length) for length in (3, 0, 5)]
    return torch.nested.nested_tensor(rows, layout=torch.jagged)


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize("last", [(24,), (3, 8)], ids=str)
def test_nested_tensors(name: str, last: tuple[int, ...], device: str) -> None:
    x, weight = jagged(device, last=last), made(*last, device=device, seed=9)

    def ours(x: Any, weight: Any) -> Any:
        return getattr(ops, name)(x, weight, eps=EPS, normalized_shape=last if len(last) > 1 else None)

    leaf, of_weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    y = ours(leaf, of_weight)
    assert y.is_nested and y.shape == x.shape
    values, plain_weight = x.values().detach().requires_grad_(), weight.detach().requires_grad_()
    right = ours(values, plain_weight)
    assert torch.equal(y.values(), right)
    assert (y + x).shape == x.shape  # of one ragged structure
    grads = torch.autograd.grad(y.values().sin().sum(), (leaf, of_weight))
    expected = torch.autograd.grad(right.sin().sum(), (values, plain_weight))
    assert torch.equal(grads[0].values(), expected[0]) and torch.equal(grads[1], expected[1])


def test_nested_tensors_in_modules_and_with_a_residual(device: str) -> None:
    x, weight = jagged(device), made(24, device=device)
    for module in (precast.nn.LayerNorm(24, device=device), precast.nn.RMSNorm(24, device=device)):
        assert torch.equal(module(x).values(), module(x.values()))
    y, total = ops.fused_add_rms_norm(x, x * 2, weight)
    right = ops.fused_add_rms_norm(x.values(), x.values() * 2, weight)
    assert torch.equal(y.values(), right[0]) and torch.equal(total.values(), right[1])


def test_what_nested_tensors_are_refused(device: str) -> None:
    x, weight = jagged(device), made(24, device=device)
    wanted = r"fused_add_rms_norm: residual has shape .*; needed .*, as x: a nested tensor"
    with pytest.raises(RuntimeError, match=wanted):
        ops.fused_add_rms_norm(x, jagged(device), weight)
    with pytest.raises(RuntimeError, match="dimension 1 of x is ragged; needed a dimension below 1"):
        ops.rms_norm(x, normalized_shape=(5, 24))


# ---- torch.jit.trace ----


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("grad_mode", [True, False])
def test_modules_can_be_traced_and_saved(grad_mode: bool, device: str, tmp_path: Any) -> None:
    modules = {
        "LayerNorm": precast.nn.LayerNorm(24, device=device),
        "RMSNorm": precast.nn.RMSNorm((3, 8), device=device),
        "FusedScaleMaskSoftmax": torch.nn.Sequential(torch.nn.Linear(24, 24, device=device), Softmax()),
        "activation": torch.nn.Sequential(torch.nn.Linear(24, 24, device=device), Gate()),
    }
    for name, module in modules.items():
        shape = (5, 3, 8) if name == "RMSNorm" else (5, 24)
        x = made(*shape, device=device)
        with torch.set_grad_enabled(grad_mode):
            torch.jit.save(torch.jit.trace(module, x), tmp_path / f"{name}.pt")
        loaded = torch.jit.load(tmp_path / f"{name}.pt")
        other = made(7, *shape[1:], device=device, seed=1)
        assert torch.equal(loaded(other), module(other))
        loaded(other).square().sum().backward()
        assert all(parameter.grad is not None for parameter in loaded.parameters())


class Softmax(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return ops.scaled_softmax(x, 0.5)


class Gate(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return ops.silu_and_mul(ops.gelu_new(x), x) + ops.fatrelu_and_mul(torch.cat([x, x], -1))


def test_compile_of_several_dimensions(device: str) -> None:
    x, weight = made(4, 3, 8, device=device), made(3, 8, device=device)

    def function(x: Any, w: Any) -> Any:
        return ops.rms_norm(x, w, EPS, normalized_shape=(3, 8)) + ops.rms_norm(x)

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, weight), function(x, weight))
