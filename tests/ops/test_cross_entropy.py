"""Cross entropy and its linear form: numbers against float64, gradients, graphs, and the words of their refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast import ops  # noqa: E402
from precast.ops import _folders  # noqa: E402
from precast.ops.losses import reference  # noqa: E402
from tests.ops import ranks  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.compiler,
    # torch.func.jvp of torch 2.13 warns about torch's own use of torch.jit.
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
RAW = torch.ops.precast
by_torch = torch.nn.functional.cross_entropy


def made(*shape: int, dtype: Any = torch.float32, device: str = "cpu", seed: int = 0) -> Any:
    return (3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))).to(device, dtype)


def targets(rows: int, classes: int, device: str = "cpu", ignored: bool = True) -> Any:
    found = torch.randint(classes, (rows,), generator=torch.Generator().manual_seed(rows)).to(device)
    if ignored:
        found[rows // 2] = -100
    return found


def weights(classes: int, device: str = "cpu") -> Any:
    return torch.rand(classes, generator=torch.Generator().manual_seed(classes)).to(device) + 0.1


def exact(x: Any, target: Any, weight: Any = None, *, z_loss: float = 0.0, **options: Any) -> tuple[Any, Any]:
    """Loss and gradient by torch in float64."""
    x = x.detach().double().cpu().requires_grad_()
    weight = None if weight is None else weight.double().cpu()
    loss = by_torch(x, target.cpu().long(), weight, **options)
    if z_loss:
        counted = target.cpu() != options.get("ignore_index", -100)
        squares = z_loss * torch.logsumexp(x, -1).square() * counted
        total = counted.sum() if weight is None else weight[target.cpu()[counted].long()].sum()
        loss = loss + {"none": squares, "sum": squares.sum()}.get(options.get("reduction", ""), squares.sum() / total)
    slope = torch.linspace(0.5, 2, loss.numel(), dtype=torch.float64).view(loss.shape)
    return loss.detach(), torch.autograd.grad(loss, x, slope)[0]


def ours(x: Any, *args: Any, **options: Any) -> tuple[Any, Any]:
    x = x.detach().requires_grad_()
    loss = ops.cross_entropy(x * 1 if options.get("in_place") else x, *args, **options)
    slope = torch.linspace(0.5, 2, loss.numel()).view(loss.shape).to(x.device)
    return loss.detach(), torch.autograd.grad(loss, x, slope)[0]


def assert_right(found: tuple[Any, Any], right: tuple[Any, Any], scale: float = 1.0) -> None:
    """Losses to 4e-6, gradients to one rounding, and one more where the backward pass multiplies by ``slope``."""
    (loss, grad), (exact_loss, exact_grad) = found, right
    torch.testing.assert_close(loss.double().cpu(), exact_loss, rtol=4e-6, atol=4e-6 * scale)
    unit = 5e-6 if grad.dtype == torch.float32 else 1.01 * torch.finfo(grad.dtype).eps
    tiny = 0.0 if grad.dtype != torch.float16 else 1e-7  # its smallest number
    torch.testing.assert_close(
        grad.double().cpu(), exact_grad, rtol=unit, atol=tiny + 2e-6 * float(exact_grad.abs().max())
    )


OPTIONS: dict[str, dict[str, Any]] = {
    "mean": {},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "smooth": {"label_smoothing": 0.2},
    "z": {"z_loss": 1e-2},
    "all": {"label_smoothing": 0.3, "z_loss": 1e-3, "reduction": "none"},
    "other ignored": {"ignore_index": 0, "label_smoothing": 0.1},
}


@pytest.mark.parametrize("classes", [2, 17, 33, 1000, 4099, 50257])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_option_as_in_torch(dtype: Any, classes: int, device: str) -> None:
    x = made(6, classes, dtype=dtype, device=device)
    for name, options in OPTIONS.items():
        target = targets(6, classes, device, ignored="ignore_index" not in options)
        for weight in (None, weights(classes, device)):
            right = exact(x, target, weight, **options)
            for kind in (torch.int64, torch.int32):
                assert_right(ours(x, target.to(kind), weight, **options), right, scale=3)
            assert_right(ours(x, target, weight, in_place=True, **options), right, scale=3)
        assert name


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("rows", "classes"), [(1, 262_144), (3, 128_256), (70, 151_936), (300, 32_000), (5, 262_143), (40, 65_536)]
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_wide_vocabularies_on_a_gpu(dtype: Any, rows: int, classes: int) -> None:
    x, target = made(rows, classes, dtype=dtype, device="cuda"), targets(rows, classes, "cuda", ignored=rows > 1)
    for options in (OPTIONS["mean"], OPTIONS["all"]):
        for weight in (None, weights(classes, "cuda")):
            right = exact(x, target, weight, **options)
            assert_right(ours(x, target, weight, **options), right, scale=3)
            assert_right(ours(x, target, weight, in_place=True, **options), right, scale=3)


def test_rows_of_every_layout(device: str) -> None:
    wide = made(4, 6, 83, device=device)
    target = targets(24, 40, device).view(4, 6)
    for x in (wide[..., :40], wide[..., 1:41], wide[..., :80:2], made(40, 6, 4, device=device).permute(2, 1, 0)):
        right = exact(x.reshape(24, 40), target.flatten())
        found = ours(x, target)
        assert_right((found[0], found[1].reshape(24, 40)), right)
    x = made(3, 40, device=device).expand(2, 3, 40)
    found = ops.cross_entropy(x, target[:2, :3], reduction="none")
    torch.testing.assert_close(found[0], ops.cross_entropy(x[0], target[0, :3], reduction="none"))
    assert ops.cross_entropy(made(5, device=device), torch.tensor(3, device=device)).shape == ()


@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8)], ids=str)
def test_no_rows(shape: tuple[int, ...], device: str) -> None:
    x, target = torch.empty(shape, device=device, requires_grad=True), torch.empty(shape[:-1], device=device).long()
    assert ops.cross_entropy(x, target, reduction="none").shape == shape[:-1]
    loss = ops.cross_entropy(x, target, reduction="sum")
    assert loss.item() == 0
    assert torch.autograd.grad(loss, x)[0].shape == shape
    assert ops.cross_entropy(x, target).isnan()  # as in torch
    assert ops.cross_entropy(x, target, num_items_in_batch=7).item() == 0
    weight = torch.ones(5, 8, device=device, requires_grad=True)
    loss = ops.linear_cross_entropy(x, weight, target)
    assert loss.isnan()
    assert not torch.autograd.grad(loss, weight)[0].any()


def test_a_batch_without_a_row_that_counts(device: str) -> None:
    x, target = made(3, 9, device=device).requires_grad_(), torch.full((3,), -100, device=device)
    for weight in (None, weights(9, device)):
        loss = ops.cross_entropy(x, target, weight)
        assert loss.isnan()  # as in torch
        assert (torch.autograd.grad(loss, x)[0].nan_to_num() == 0).all()
        assert ops.cross_entropy(x, target, weight, num_items_in_batch=7).item() == 0


def test_rows_without_features(device: str) -> None:
    x, weight, target = made(6, 0, device=device), made(9, 0, device=device), targets(6, 9, device)
    torch.testing.assert_close(ops.linear_cross_entropy(x, weight, target).cpu(), torch.tensor(9.0).log())


def test_num_items_in_batch(device: str) -> None:
    x, target = made(6, 9, device=device), targets(6, 9, device)
    right = exact(x, target, reduction="sum")
    for count in (13, torch.tensor(13, device=device)):
        found = ours(x, target, num_items_in_batch=count)
        assert_right((found[0] * 13, found[1] * 13 * 2), (right[0], right[1] * 2))
    with pytest.raises(ValueError, match="num_items_in_batch with reduction 'sum'; needed 'mean'"):
        ops.cross_entropy(x, target, reduction="sum", num_items_in_batch=3)


def test_special_values_are_as_in_torch(device: str) -> None:
    infinity = float("inf")
    for classes in (40, 41, 70_000):
        x, target = made(6, classes, device=device), targets(6, classes, device, ignored=False)
        x[0, 3], x[1, 4], x[2, 5], x[3], x[4, 1:] = float("nan"), infinity, -infinity, -infinity, -infinity
        target[2], target[4] = 7, 0
        found = ops.cross_entropy(x, target, reduction="none")
        torch.testing.assert_close(found, by_torch(x, target, reduction="none"), equal_nan=True)
        x[5] = torch.finfo(torch.float32).min
        torch.testing.assert_close(ops.cross_entropy(x[5:], target[5:]), by_torch(x[5:], target[5:]))


def test_a_target_that_is_no_class(device: str) -> None:
    x = made(3, 9, device=device).requires_grad_()
    for bad in (9, -1, 1 << 40):
        target = torch.tensor([0, bad, 1], device=device)
        for function in (
            lambda x, target: ops.cross_entropy(x, target, reduction="none"),
            lambda x, target: ops.linear_cross_entropy(x, torch.eye(9, device=device), target, reduction="none"),
        ):
            if device == "cpu":
                with pytest.raises(RuntimeError, match=f"target {bad} of row 1 is no class; needed 0 to 8, or ignore_"):
                    function(x, target)
                continue
            loss = function(x, target)
            assert loss.isnan().tolist() == [False, True, False]
            grad = torch.autograd.grad(loss.sum(), x)[0]
            assert grad.isnan().all(1).tolist() == [False, True, False]


def test_backward_twice_and_by_another_factor(device: str) -> None:
    x, target = made(5, 33, device=device).requires_grad_(), targets(5, 33, device)
    loss = ops.cross_entropy(x, target)
    first = torch.autograd.grad(loss * 3, x, retain_graph=True)[0]
    kept = first.clone()
    second = torch.autograd.grad(loss, x, retain_graph=True)[0]
    assert torch.equal(first, kept)
    torch.testing.assert_close(first, 3 * second)
    torch.testing.assert_close(torch.autograd.grad(loss * 0, x)[0], torch.zeros_like(second))


def test_in_place_refuses_what_is_needed(device: str) -> None:
    leaf, target = made(5, 33, device=device).requires_grad_(), targets(5, 33, device)
    before = leaf.detach().clone()
    with pytest.raises(RuntimeError, match="logits is a leaf that requires grad; needed in_place=False"):
        ops.cross_entropy(leaf, target, in_place=True)
    with pytest.raises(RuntimeError, match="logits is a view of a leaf that requires grad; needed in_place=False"):
        ops.cross_entropy(leaf[:, :], target, in_place=True)
    for function in (torch.tanh, torch.exp, lambda x: torch.log_softmax(x, -1)):
        y = function(leaf)
        values = y.detach().clone()
        with pytest.raises(RuntimeError, match="has saved logits for its own gradient; needed in_place=False"):
            ops.cross_entropy(y, target, in_place=True)
        assert torch.equal(y, values)
    y = leaf * 1
    other = (y * y).sum()  # another reader, of which torch's version counters know
    loss = ops.cross_entropy(y, target, in_place=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (loss + other).backward()
    with pytest.raises(RuntimeError, match="written in place and has shape"):
        ops.cross_entropy((leaf * 1)[:1].expand(5, 33), target, in_place=True)
    with torch.no_grad():  # without a gradient nothing is written
        ops.cross_entropy(leaf, target, in_place=True)
    assert torch.equal(leaf, before)


def test_in_place_has_one_backward_pass(device: str) -> None:
    x, target = made(5, 33, device=device).requires_grad_(), targets(5, 33, device)
    y = x * 1
    loss = ops.cross_entropy(y, target, in_place=True)
    found = torch.autograd.grad(loss, x, retain_graph=True)[0]
    assert torch.equal(y, found)
    with pytest.raises(RuntimeError, match="a second backward pass, but with in_place"):
        torch.autograd.grad(loss, x)


def linear(device: str, dtype: Any = torch.float32) -> tuple[Any, Any, Any]:
    x, weight, bias = made(21, 16, device=device), made(50, 16, device=device, seed=1) / 4, made(50, device=device)
    return tuple(t.to(dtype).requires_grad_() for t in (x, weight, bias))  # type: ignore[return-value]


def test_second_derivatives_are_refused(device: str) -> None:
    x, weight, _ = linear(device)
    target = targets(21, 50, device)
    for loss in (
        ops.cross_entropy(x @ weight.t(), target),
        ops.cross_entropy(x @ weight.t(), target, in_place=True),
        ops.linear_cross_entropy(x, weight, target),
    ):
        with pytest.raises(RuntimeError, match="cannot be differentiated again"):
            torch.autograd.grad(loss, x, create_graph=True)


def test_derivatives_of_other_kinds(device: str) -> None:
    x, target = made(5, 9, device=device), targets(5, 9, device)

    def mine(x: Any) -> Any:
        return ops.cross_entropy(x, target, label_smoothing=0.1)

    def theirs(x: Any) -> Any:
        return by_torch(x, target, label_smoothing=0.1)

    tangent = made(5, 9, device=device, seed=3)
    for derivative in (
        lambda f: torch.func.jvp(f, (x,), (tangent,))[1],
        lambda f: torch.func.grad(f)(x),
        lambda f: torch.vmap(f)(torch.stack([x, x + tangent])),
    ):
        torch.testing.assert_close(derivative(mine), derivative(theirs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", list(_folders.part("losses", "examples").EXAMPLES))
def test_opcheck(op: str, device: str) -> None:
    args = [a.to(device) if isinstance(a, torch.Tensor) else a for a in _folders.arguments(op)]
    torch.library.opcheck(getattr(RAW, op).default, tuple(args))
    if op == "cross_entropy":
        args[0].requires_grad_()
        torch.library.opcheck(RAW.cross_entropy.default, tuple(args))


@pytest.mark.parametrize("name", list(OPTIONS))
@pytest.mark.parametrize("in_float32", [True, False])
def test_linear_against_float64(name: str, in_float32: bool, device: str) -> None:
    target = targets(21, 50, device, ignored=name != "other ignored")
    for dtype in DTYPES:
        leaves = linear(device, dtype)
        exacts = [t.detach().double().cpu().requires_grad_() for t in leaves]
        logits = torch.nn.functional.linear(*exacts)
        right = exact(logits, target, weights(50, device), **OPTIONS[name])
        slopes = torch.autograd.grad(logits, exacts, right[1])
        for wanted in ((0, 1, 2), (0,), (1,)):
            used = [t if i in wanted else t.detach() for i, t in enumerate(leaves)]
            for megabytes in (1, 256):
                found = small_chunks(
                    megabytes, used, target, weight=weights(50, device), in_float32=in_float32, **OPTIONS[name]
                )
                unit = 1e-5 if dtype == torch.float32 else 6 * torch.finfo(dtype).eps
                torch.testing.assert_close(found.detach().double().cpu(), right[0], rtol=unit, atol=unit)
                slope = torch.linspace(0.5, 2, found.numel()).view(found.shape).to(device)
                grads = torch.autograd.grad(found, [leaves[i] for i in wanted], slope)
                for i, grad in zip(wanted, grads, strict=True):
                    assert grad.dtype == dtype
                    largest = float(slopes[i].abs().max())
                    torch.testing.assert_close(grad.double().cpu(), slopes[i], rtol=unit, atol=unit * largest)


def small_chunks(megabytes: int, leaves: Any, target: Any, *, in_float32: bool, **options: Any) -> Any:
    """With megabytes=1, chunks of eight rows: a row of 50 logits would leave any workspace with all rows at once."""
    from precast.ops.losses import _linear

    whole = _linear.rows_at_once
    _linear.rows_at_once = lambda *args: 8 if args[2] == 1 else whole(*args)
    try:
        x, weight, bias = leaves
        return ops.linear_cross_entropy(
            x, weight, target, linear_bias=bias, workspace_mb=megabytes, accumulate_in_float32=in_float32, **options
        )
    finally:
        _linear.rows_at_once = whole


def test_rows_at_once() -> None:
    from precast.ops.losses._linear import rows_at_once

    x, weight = (torch.empty(n, 4096, dtype=torch.bfloat16, device="meta") for n in (16384, 128_256))
    for room, wide in ((256, True), (None, True), (None, False)):
        assert rows_at_once(x, weight, room, wide) == 1024
    assert rows_at_once(x, weight, 1, True) == 4
    assert rows_at_once(x, weight.new_empty(1 << 30, 1), 1, True) == 1
    weight.requires_grad_()
    assert rows_at_once(x, weight, None, True) == 4096  # the logits are as large as the gradient
    assert rows_at_once(x[:8192], weight, None, True) == 8192  # and as large as its sum in float32
    assert rows_at_once(x[:8192], weight, None, False) == 1024


def test_linear_has_the_arguments_of_torch(device: str) -> None:
    x, weight, bias = linear(device)
    target = targets(21, 50, device)
    found = ops.linear_cross_entropy(x, weight, target, linear_bias=bias, label_smoothing=0.1)
    torchs = getattr(torch.nn.functional, "linear_cross_entropy", None)
    if torchs is None:  # before torch 2.13
        torchs = lambda x, w, t, linear_bias, **o: by_torch(torch.nn.functional.linear(x, w, linear_bias), t, **o)  # noqa: E731
    torch.testing.assert_close(found, torchs(x, weight, target, linear_bias=bias, label_smoothing=0.1))
    second = torch.autograd.grad(found * 2, (x, weight), retain_graph=True)
    again = torch.autograd.grad(found, (x, weight))
    torch.testing.assert_close(second, tuple(2 * grad for grad in again))


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_linear_without_a_gradient_computes_none(reduction: str, device: str) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        products = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.products += "mm" in func.name()
            return func(*args, **(kwargs or {}))

    x, weight, bias = linear(device)  # all require grad, as in the evaluation of a model
    target = targets(21, 50, device)
    expected = ops.linear_cross_entropy(x, weight, target, linear_bias=bias, reduction=reduction)
    for without in (torch.no_grad, torch.inference_mode):
        with without():
            with Count() as count:
                found = ops.linear_cross_entropy(x, weight, target, linear_bias=bias, reduction=reduction)
            assert count.products == 1
            assert torch.equal(found, expected)


def test_linear_losses_may_be_changed_in_place(device: str) -> None:
    x, weight, bias = linear(device)
    target, mask = targets(21, 50, device).view(3, 7), torch.linspace(0, 2, 21, device=device).view(3, 7)
    given = (x.view(3, 7, -1), weight, target)
    losses = ops.linear_cross_entropy(*given, linear_bias=bias, reduction="none")
    expected = torch.autograd.grad((losses * mask).sum(), (x, weight, bias))
    losses = ops.linear_cross_entropy(*given, linear_bias=bias, reduction="none")
    losses *= mask
    torch.testing.assert_close(torch.autograd.grad(losses.sum(), (x, weight, bias)), expected)


def test_tangents_of_the_linear_form(device: str) -> None:
    from torch.autograd import forward_ad

    x, weight, bias = (t.detach() for t in linear(device))
    target, tangent = targets(21, 50, device), made(21, 16, device=device, seed=3)
    _, expected = torch.func.jvp(
        lambda x: by_torch(torch.nn.functional.linear(x, weight, bias), target), (x,), (tangent,)
    )
    with forward_ad.dual_level():
        loss = ops.linear_cross_entropy(forward_ad.make_dual(x, tangent), weight, target, linear_bias=bias)
        torch.testing.assert_close(forward_ad.unpack_dual(loss).tangent, expected)


def test_linear_under_autocast(device: str) -> None:
    x, weight, bias = linear(device)
    target = targets(21, 50, device)
    with torch.autocast(device, torch.bfloat16):
        found = ops.linear_cross_entropy(x.bfloat16(), weight, target, linear_bias=bias)
        right = by_torch(torch.nn.functional.linear(x.bfloat16(), weight, bias), target)
    torch.testing.assert_close(found, right, rtol=1e-2, atol=1e-2)
    assert torch.autograd.grad(found, weight)[0].dtype == torch.float32


def steps(x: Any, weight: Any, target: Any) -> Any:
    logits = x @ weight.t()
    return (
        ops.cross_entropy(logits, target, label_smoothing=0.1)
        + ops.cross_entropy(logits * 2, target, reduction="sum", in_place=True)
        + ops.linear_cross_entropy(x, weight, target)
    )


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compile_with_weights_in_one_graph(device: str) -> None:
    def both(x: Any, linear: Any, weight: Any) -> Any:
        logits = x @ linear.t()
        return ops.cross_entropy(logits, target, weight) + ops.linear_cross_entropy(x, linear, target, weight=weight)

    target = targets(21, 50, device)
    x, rows, _ = linear(device)
    expected = both(x, rows, weights(50, device))
    torch._dynamo.reset()
    found = torch.compile(both, backend="aot_eager", fullgraph=True)(x, rows, weights(50, device))
    torch.testing.assert_close(found, expected)
    grads = (torch.autograd.grad(one, (x, rows)) for one in (found, expected))
    torch.testing.assert_close(*grads)


# Dynamo makes an instance of a Function that it traces.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compile(device: str) -> None:
    x, weight, _ = linear(device)
    target = targets(21, 50, device)
    torch._dynamo.reset()
    compiled = torch.compile(steps, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        found, right = compiled(x, weight, target), steps(x, weight, target)
        torch.testing.assert_close(found, right)
        torch.testing.assert_close(torch.autograd.grad(found, (x, weight)), torch.autograd.grad(right, (x, weight)))


def test_export(device: str) -> None:
    class Model(torch.nn.Module):
        def forward(self, logits: Any, target: Any) -> Any:
            return ops.cross_entropy(logits, target)

    args = (made(5, 33, device=device), targets(5, 33, device))
    torch.testing.assert_close(torch.export.export(Model(), args).module()(*args), ops.cross_entropy(*args))


X = (5, 9)
BAD: dict[str, tuple[Callable[[Any, Any], Any], type[Exception], str]] = {
    "float64": (lambda x, t: ops.cross_entropy(x.double(), t), RuntimeError, "logits is float64; needed float32, "),
    "no class": (lambda x, t: ops.cross_entropy(x[:, :0], t), RuntimeError, r"shape \(5, 0\); needed \(\.\.\., class"),
    "float target": (lambda x, t: ops.cross_entropy(x, t.float()), RuntimeError, "target is float32; needed int64 or"),
    "probabilities": (lambda x, t: ops.cross_entropy(x, x), RuntimeError, "target is float32; needed int64 or int32"),
    "classes first": (
        lambda x, t: ops.cross_entropy(x.view(1, 9, 5), t.view(1, 5)),
        RuntimeError,
        r"target has shape \(1, 5\) and logits \(1, 9, 5\); needed the shape of logits without the last",
    ),
    "weight": (lambda x, t: ops.cross_entropy(x, t, x[0, :8]), RuntimeError, r"weight has shape \(8,\); needed \(9,\)"),
    "smoothing": (lambda x, t: ops.cross_entropy(x, t, label_smoothing=1.5), RuntimeError, "label_smoothing is 1.5; "),
    "reduction": (lambda x, t: ops.cross_entropy(x, t, reduction="max"), ValueError, "reduction is 'max'; needed 'mea"),
    "features": (
        lambda x, t: ops.linear_cross_entropy(x, x[:, :8], t),
        RuntimeError,
        r"input has shape \(5, 9\) and linear_weight \(5, 8\); needed",
    ),
    "mixed": (lambda x, t: ops.linear_cross_entropy(x, x.half(), t), RuntimeError, "linear_weight is float16 and inpu"),
    "bias": (
        lambda x, t: ops.linear_cross_entropy(x, x, t, linear_bias=x[0]),
        RuntimeError,
        r"linear_bias has shape \(9,\); needed \(5,\)",
    ),
    "rows": (lambda x, t: ops.linear_cross_entropy(x, x, t[:4]), RuntimeError, r"target has shape \(4,\); needed \(5,"),
    "no class at all": (
        lambda x, t: ops.linear_cross_entropy(x, x[:0], t),
        RuntimeError,
        r"linear_weight \(0, 9\); needed .* at least one class",
    ),
    "sparse": (
        lambda x, t: ops.linear_cross_entropy(x.to_sparse(), x, t),
        RuntimeError,
        "input has the layout torch.sparse_coo; needed torch.strided",
    ),
    "ignored": (lambda x, t: ops.cross_entropy(x, t, ignore_index=1 << 99), ValueError, "needed an integer of 64 bits"),
    "group": (lambda x, t: ops.cross_entropy(x, t, group="all"), TypeError, "group is a str; needed a torch.distribut"),
    "workspace": (lambda x, t: ops.linear_cross_entropy(x, x, t, workspace_mb=0), RuntimeError, "workspace_mb is 0; "),
    "items": (
        lambda x, t: ops.cross_entropy(x, t, num_items_in_batch=torch.ones(2)),
        ValueError,
        r"num_items_in_batch has shape \(2,\); needed one number",
    ),
    "a gradient for the classes": (
        lambda x, t: ops.cross_entropy(x, t, torch.ones(9, device=x.device, requires_grad=True)),
        RuntimeError,
        r"weight requires grad, and the loss has no gradient for it; needed weight.detach\(\)",
    ),
    "scale": (
        lambda x, t: RAW.cross_entropy_scale_(x, torch.ones(3, device=x.device)),
        RuntimeError,
        r"factor has shape \(3,\); needed one element, or \(5,\)",
    ),
    "factors": (
        lambda x, t: RAW.cross_entropy(x, t, None, torch.ones(3, device=x.device), -100, 0.0, 0.0),
        RuntimeError,
        r"factors has shape \(3,\); needed \(1,\)",
    ),
    "given": (
        lambda x, t: RAW.cross_entropy_backward(x, t, torch.ones(3, 5, device=x.device), None),
        RuntimeError,
        r"given has shape \(3, 5\); needed \(4, 5\)",
    ),
    "an inner op's gradient": (
        lambda x, t: RAW.cross_entropy_with_grad(x.requires_grad_(), t, None, None, -100, 0.0, 0.0),
        RuntimeError,
        "this inner op has no gradient; needed precast.ops.cross_entropy",
    ),
    "shared memory": (
        lambda x, t: RAW.cross_entropy_with_grad_(x, t, None, x.view(-1)[:1], -100, 0.0, 0.0),
        RuntimeError,
        "factors overlaps logits in memory, which is written; needed its own",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str, device: str) -> None:
    function, kind, text = BAD[name]
    x, target = made(*X, device=device), targets(5, 5, device, ignored=False)
    before = x.clone()
    with pytest.raises(kind, match=text):
        function(x, target)
    assert torch.equal(x, before)
    meta = [t.to("meta") for t in (x, target)]
    if name not in ("shared memory", "sparse"):
        with pytest.raises(kind, match=text):  # the same words without numbers
            function(*meta)


# ---- shards of the classes over two ranks; run by tests.ops.ranks ----

KIND: list[str] = []  # what ``prepare`` was told


def prepare(kind: str, folder: Path) -> None:
    """Each rank has a GPU of its own."""
    if kind == "cuda":
        torch.cuda.set_device(torch.distributed.get_rank())
    KIND.append(kind)


def shards_are_right() -> None:
    import torch.distributed as dist

    rank, group, device = dist.get_rank(), dist.group.WORLD, KIND[-1]
    for dtype in DTYPES:
        whole, weight = made(6, 40, dtype=dtype, device=device), weights(40, device)
        mine = slice(20 * rank, 20 * rank + 20)
        for options in (*OPTIONS.values(), {"num_items_in_batch": 13}):
            target = targets(6, 40, device, ignored="ignore_index" not in options)
            wanted = {k: v for k, v in options.items() if k != "num_items_in_batch"}
            for used in (None, weight):
                right = exact(whole, target, used, **(wanted if wanted == options else {"reduction": "sum"}))
                if wanted != options:
                    right = (right[0] / 13, right[1] / 13)
                found = ours(whole[:, mine], target, None if used is None else used[mine], group=group, **options)
                assert_right(found, (right[0], right[1][:, mine]), scale=3)


def shards_refuse() -> None:
    import torch.distributed as dist

    x = made(3, 20).requires_grad_()
    with pytest.raises(RuntimeError, match="a target is no class; needed 0 to 39"):
        ops.cross_entropy(x, torch.tensor([0, 40, 1]), group=dist.group.WORLD)
    with pytest.raises(RuntimeError, match="label_smoothing is 2; needed a number from 0 to 1"):
        ops.cross_entropy(x, torch.tensor([0, 4, 1]), group=dist.group.WORLD, label_smoothing=2)
    with pytest.raises(ValueError, match="in_place is True and group is given"):
        ops.cross_entropy(x, torch.tensor([0, 4, 1]), group=dist.group.WORLD, in_place=True)
    loss = ops.cross_entropy(x, torch.tensor([0, 4, -100]), group=dist.group.WORLD)
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        torch.autograd.grad(loss, x, create_graph=True)


def test_shards_of_the_classes(tmp_path: Path) -> None:
    cases = ["shards_are_right", "shards_refuse"]
    for found in ranks.run("tests.ops.test_cross_entropy", "cpu", tmp_path, 2, cases):
        assert found == dict.fromkeys(cases, "")


@pytest.mark.gpu(2)
def test_shards_of_the_classes_on_two_gpus(tmp_path: Path) -> None:
    """Over NCCL."""
    for found in ranks.run("tests.ops.test_cross_entropy", "cuda", tmp_path, 2, ["shards_are_right"]):
        assert found == {"shards_are_right": ""}


def test_the_reference_is_right() -> None:
    x = made(4, 7, dtype=torch.float64).requires_grad_()
    target, weight = torch.tensor([1, -100, 6, 0]), weights(7).double()
    factors = torch.tensor([0.3, float(weight.sum())], dtype=torch.float64)

    def loss(x: Any) -> Any:
        return reference.cross_entropy(x, target, weight, factors, -100, 0.2, 1e-2)[0].sum()

    assert torch.autograd.gradcheck(loss, x)
    assert torch.autograd.gradgradcheck(loss, x)
    found = reference.cross_entropy_with_grad(x, target, weight, factors, -100, 0.2, 1e-2)[2]
    torch.testing.assert_close(found, torch.autograd.grad(loss(x), x)[0])
