"""The Adam step itself: its values in every mix of formats, its edges, and what it refuses."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast import ops  # noqa: E402
from precast.ops.cpu_adam import reference  # noqa: E402
from tests.ops.tensors import assert_same_with_any_number_of_threads  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
NUMBERS = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1}
SIZES = (1, 7, 15, 16, 17, 31, 33, 0, 1000, 20_011)


def numbers(step: int, **changes: Any) -> dict[str, Any]:
    values = {**NUMBERS, "grad_scale": 1.0, "decoupled": True, "maximize": False, **changes}
    corrections = {f"bias_correction{i}": 1 - values[f"beta{i}"] ** step for i in (1, 2)}
    return {**values, **corrections}


def made(dtypes: tuple[Any, ...], sizes: tuple[int, ...] = SIZES, seed: int = 0) -> list[list[Any]]:
    """Parameters, gradients, moments and (if there is a fifth dtype) copies."""
    generator = torch.Generator().manual_seed(seed)
    lists = [[torch.randn(n, generator=generator).to(dtype) for n in sizes] for dtype in dtypes]
    lists[2] = [t * 0.1 for t in lists[2]]
    lists[3] = [t.square() * 0.1 for t in lists[3]]
    return [*lists, []][:5]


def exact_step(lists: list[list[Any]], values: dict[str, Any]) -> list[list[Any]]:
    """The float64 answer from the same inputs. Copies are what the exact parameters would round from."""
    wide = [[t.double() for t in tensors] for tensors in lists]
    order = ("lr", "beta1", "beta2", "eps", "weight_decay", "bias_correction1", "bias_correction2")
    rest = ("grad_scale", "decoupled", "maximize")
    reference.adam_(*wide, *(values[name] for name in (*order, *rest)))
    return wide


def assert_step(lists: list[list[Any]], values: dict[str, Any]) -> None:
    """One step of ours against float64: float32 to 1e-6 of the terms of each sum, the others to one more rounding."""
    exact = exact_step(lists, values)
    before = [[t.double() for t in tensors] for tensors in lists]
    grads = [t.clone() for t in lists[1]]
    ops.adam_(*lists, **values)
    assert all(torch.equal(grad, kept) for grad, kept in zip(lists[1], grads, strict=True))
    for index in range(len(lists[0])):
        p, g, m, v = (tensors[index] for tensors in before[:4])
        g = g.abs() * values["grad_scale"] + (0 if values["decoupled"] else values["weight_decay"] * p.abs())
        terms = {0: p.abs() + exact[0][index].abs(), 2: m.abs() + g, 3: v + g.square(), 4: p.abs()}
        for which, size in terms.items():
            if not lists[which]:
                continue
            ours, right = lists[which][index], exact[which][index]
            allowed = 1e-6 * size
            if ours.dtype != F32:
                kind = torch.finfo(ours.dtype)
                allowed = allowed + kind.eps * right.abs() + kind.smallest_normal * kind.eps
            error = (ours.double() - right).abs()
            assert bool((error <= allowed).all()), f"list {which}, tensor {index}: off by {error.max()}"


@pytest.mark.parametrize("state", ["float32", "as the parameter"])
@pytest.mark.parametrize("copy", [None, F16, BF16], ids=str)
@pytest.mark.parametrize(("param", "grad"), list(itertools.product([F32, F16, BF16], repeat=2)), ids=str)
def test_every_mix_of_formats(param: Any, grad: Any, copy: Any, state: str) -> None:
    moment = F32 if state == "float32" else param
    dtypes = (param, grad, moment, moment, *([] if copy is None else [copy]))
    assert_step(made(dtypes), numbers(3))


@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("maximize", [True, False])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("grad_scale", [1.0, 1 / 1024])
def test_every_choice(decoupled: bool, maximize: bool, weight_decay: float, grad_scale: float) -> None:
    changes = {"maximize": maximize, "weight_decay": weight_decay, "grad_scale": grad_scale}
    assert_step(made((F32, F32, F32, F32)), numbers(1, decoupled=decoupled, **changes))


@pytest.mark.parametrize("decoupled", [True, False])
def test_a_hundred_steps_stay_as_near_to_float64_as_torch(decoupled: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(5000, generator=generator)
    grads = [torch.randn(5000, generator=generator) for _ in range(100)]

    def by_torch(dtype: Any) -> Any:
        param = start.to(dtype).requires_grad_()
        kind = torch.optim.AdamW if decoupled else torch.optim.Adam
        optimizer = kind([param], lr=1e-2, weight_decay=0.1)
        for grad in grads:
            param.grad = grad.to(dtype)
            optimizer.step()
        return param.detach(), optimizer.state[param]["exp_avg"], optimizer.state[param]["exp_avg_sq"]

    ours = [start.clone(), torch.zeros(5000), torch.zeros(5000)]
    for step, grad in enumerate(grads, 1):
        ops.adam_([ours[0]], [grad], [ours[1]], [ours[2]], **numbers(step, decoupled=decoupled))
    for one, right, torchs in zip(ours, by_torch(torch.float64), by_torch(F32), strict=True):
        error, allowed = (one.double() - right).abs().max(), (torchs.double() - right).abs().max()
        assert error <= 1.5 * allowed, f"{error} against torch's {allowed}"


def test_nothing_at_all() -> None:
    ops.adam_([], [], [], [], **numbers(1))
    assert_step(made((F32, F32, F32, F32, BF16), sizes=(0, 0)), numbers(1))


def test_views_into_larger_tensors_are_updated_and_nothing_beside_them() -> None:
    backing = [torch.randn(200).abs() for _ in range(4)]
    copies = torch.zeros(200, dtype=BF16)
    kept = [t.clone() for t in (*backing, copies)]
    spans = [slice(1, 18), slice(18, 19), slice(23, 120)]  # none begins where a vector would
    lists = [[t[span] for span in spans] for t in (*backing, copies)]
    assert_step(lists, numbers(2))
    untouched = torch.ones(200, dtype=torch.bool)
    for span in spans:
        untouched[span] = False
    for now, before in zip((*backing, copies), kept, strict=True):
        assert torch.equal(now[untouched], before[untouched])


@pytest.mark.parametrize("grad_layout", [torch.channels_last, torch.contiguous_format])
def test_channels_last(grad_layout: Any) -> None:
    lists = made((F32, F32, F32, F32, BF16), sizes=(2 * 3 * 4 * 5,))
    shaped = [[t.view(2, 3, 4, 5).to(memory_format=torch.channels_last) for t in tensors] for tensors in lists]
    shaped[1] = [t.to(memory_format=grad_layout) for t in shaped[1]]
    assert_step(shaped, numbers(1))


def test_the_same_numbers_with_any_number_of_threads() -> None:
    def stepped() -> list[Any]:
        lists = made((F32, BF16, F32, F32, BF16), sizes=(70_001, 3, 50_000, 1))
        ops.adam_(*lists, **numbers(5))
        return [tensor for tensors in lists for tensor in tensors]

    assert_same_with_any_number_of_threads(stepped)


def test_what_is_not_finite_spreads_to_its_own_element_alone() -> None:
    lists = made((F32, F32, F32, F32, BF16), sizes=(40,))
    lists[1][0][3], lists[1][0][5] = float("nan"), float("inf")
    ops.adam_(*lists, **numbers(1))
    for which in (0, 2, 3, 4):
        wrong = ~lists[which][0].isfinite()
        assert set(wrong.nonzero().flatten().tolist()) <= {3, 5}
        assert lists[which][0][3].isnan()


def test_eps_zero_with_a_zero_gradient() -> None:
    """0 / 0 is NaN, as in torch; it is not hidden, and it does not spread."""
    lists = [[torch.ones(4)], [torch.tensor([0.0, 1, 0, 1])], [torch.zeros(4)], [torch.zeros(4)]]
    ops.adam_(*lists, **numbers(1, eps=0.0))
    assert lists[0][0].isnan().tolist() == [True, False, True, False]


def test_versions_are_bumped() -> None:
    lists = made((F32, F32, F32, F32, BF16), sizes=(5, 6))
    before = [[t._version for t in tensors] for tensors in lists]
    leaf = torch.ones(5, requires_grad=True)
    product = leaf * lists[0][0]
    ops.adam_(*lists, **numbers(1))
    for tensors, versions, written in zip(lists, before, (True, False, True, True, True), strict=True):
        assert [t._version > v for t, v in zip(tensors, versions, strict=True)] == [written] * 2
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def edited(which: int, change: Callable[[Any], Any]) -> list[list[Any]]:
    lists = made((F32, F32, F32, F32, BF16), sizes=(4, 6))
    lists[which][1] = change(lists[which][1])
    return lists


BAD = {
    "float64 parameter": (0, lambda t: t.double(), r"params\[1\] is float64; float32, float16 or bfloat16 is needed"),
    "complex parameter": (0, lambda t: t.cfloat(), r"params\[1\] is complex64; float32"),
    "integer gradient": (1, lambda t: t.long(), r"grads\[1\] is int64; float32"),
    "sparse gradient": (1, lambda t: t.to_sparse(), r"grads\[1\] has the layout sparse_coo; a dense tensor is needed"),
    "gradient elsewhere": (
        1,
        lambda t: t.to("meta"),
        r"(params|grads)\[\d\] is on (meta|cpu); all tensors must be on cpu",
    ),
    "longer gradient": (1, lambda t: t.repeat(2), r"grads\[1\] has shape \(12,\), params\[1\] has \(6,\)"),
    "float64 moment": (2, lambda t: t.double(), r"exp_avgs\[1\] is float64; float32, float16 or bfloat16 is needed"),
    "integer moment": (3, lambda t: t.int(), r"exp_avg_sqs\[1\] is int32; float32, float16 or bfloat16 is needed"),
    "moments of two dtypes": (2, lambda t: t.half(), r"exp_avgs\[1\] is float16 and exp_avg_sqs\[1\] is float32"),
    "shorter moment": (3, lambda t: t[:5], r"exp_avg_sqs\[1\] has shape \(5,\), params\[1\] has \(6,\)"),
    "float32 copy": (4, lambda t: t.float(), r"copies\[1\] is float32; float16 or bfloat16 is needed"),
}
# What a fake tensor does not show.
BAD_IN_MEMORY = {
    "parameter with gaps": (0, lambda t: t.repeat(2)[::2], r"params\[1\] has gaps or overlaps in memory"),
    "expanded moment": (2, lambda t: t[:1].expand(6), r"exp_avgs\[1\] and params\[1\] differ in memory layout"),
}


@pytest.mark.parametrize("case", BAD | BAD_IN_MEMORY)
def test_bad_input_is_one_clear_error_before_any_write(case: str) -> None:
    which, change, message = (BAD | BAD_IN_MEMORY)[case]
    lists = edited(which, change)
    plain = [t for tensors in lists for t in tensors if t.device.type == "cpu" and t.layout == torch.strided]
    before = [t.clone() for t in plain]
    with pytest.raises(RuntimeError, match=message):
        ops.adam_(*lists, **numbers(1))
    assert all(map(torch.equal, plain, before))


@pytest.mark.parametrize("case", BAD)
def test_tracing_refuses_in_the_same_words(case: str) -> None:
    which, change, message = BAD[case]
    with torch._subclasses.FakeTensorMode() as mode, pytest.raises(RuntimeError, match=message):
        ops.adam_(*([mode.from_tensor(t) for t in tensors] for tensors in edited(which, change)), **numbers(1))


def test_lists_of_different_lengths() -> None:
    for which, name in enumerate(("grads", "exp_avgs", "exp_avg_sqs", "copies"), 1):
        lists = made((F32, F32, F32, F32, BF16), sizes=(4, 6))
        del lists[which][0]
        with pytest.raises(RuntimeError, match=f"2 params, but 1 {name}; one for each param is needed"):
            ops.adam_(*lists, **numbers(1))


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("which", [1, 2, 3, 4])
def test_a_list_with_another_number_of_tensors_is_refused_before_any_is_read(which: int, count: int) -> None:
    lists = made((F32, F32, F32, F32, BF16), sizes=(4, 6))
    lists[which] = [lists[which][0].clone() for _ in range(count)]
    before = [t.clone() for t in lists[0]]
    if which == 4 and count == 0:  # copies are optional
        ops.adam_(*lists, **numbers(1))
        return
    name = ("", "grads", "exp_avgs", "exp_avg_sqs", "copies")[which]
    with pytest.raises(RuntimeError, match=f"2 params, but {count} {name}; one for each param is needed"):
        ops.adam_(*lists, **numbers(1))
    with pytest.raises(RuntimeError, match=f"but {count} {name}"), torch._subclasses.FakeTensorMode() as mode:
        ops.adam_(*([mode.from_tensor(t) for t in tensors] for tensors in lists), **numbers(1))
    assert all(map(torch.equal, lists[0], before))


@pytest.mark.parametrize("offset", [6, 7, 8, 9])
def test_a_gradient_may_lie_right_behind_its_parameter_and_not_in_it(offset: int) -> None:
    flat = torch.linspace(-1, 1, 20)
    param, grad = flat[:8], flat[offset : offset + 8]
    moments = [torch.zeros(8)], [torch.zeros(8)]
    alone = param.clone()
    if offset < 8:
        with pytest.raises(RuntimeError, match=r"shares? memory"):
            ops.adam_([param], [grad], *moments, **numbers(1))
        assert torch.equal(param, alone) and not moments[0][0].any()
        return
    ops.adam_([alone], [grad.clone()], [torch.zeros(8)], [torch.zeros(8)], **numbers(1))
    ops.adam_([param], [grad], *moments, **numbers(1))
    assert torch.equal(param, alone) and torch.equal(flat[8:], torch.linspace(-1, 1, 20)[8:])


def test_shared_memory_is_refused() -> None:
    lists = made((F32, F32, F32, F32), sizes=(8, 8))
    lists[0][1] = lists[0][0]
    with pytest.raises(RuntimeError, match="share memory"):
        ops.adam_(*lists, **numbers(1))


def test_a_derivative_is_refused() -> None:
    lists = made((F32, F32, F32, F32), sizes=(8,))
    lists[0][0].requires_grad_()
    with pytest.raises(RuntimeError, match=r"a derivative is wanted .* needed torch.no_grad\(\)"):
        ops.adam_(*lists, **numbers(1))
    with pytest.raises(RuntimeError, match="a derivative is wanted"):
        torch.func.vmap(lambda g: ops.adam_(lists[0], [g], lists[2], lists[3], **numbers(1)))(torch.zeros(2, 8))
    with torch.no_grad():
        ops.adam_(*lists, **numbers(1))
