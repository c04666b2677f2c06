"""SGD, Adagrad and Lion on the CPU: the numbers and the states of torch's, where torch has them, in every format."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.optim.optimizer import (  # noqa: E402
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from precast.optim import CPUSGD, CPUAdagrad, CPUAdam, CPULion, HybridAdam  # noqa: E402
from tests.ops.plain_optimizers import Lion  # noqa: E402
from tests.ops.tensors import assert_same_with_any_number_of_threads  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
SIZES = ((5, 33), (33,), (0,), (1,), (1029,))


Pair = tuple[Any, Any, dict[str, Any], set[str]]
CASES: dict[str, Pair] = {
    "sgd": (CPUSGD, torch.optim.SGD, {"lr": 0.1}, set()),
    "sgd with decay": (CPUSGD, torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.1}, set()),
    "momentum": (
        CPUSGD,
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1},
        {"momentum_buffer"},
    ),
    "nesterov": (CPUSGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}, {"momentum_buffer"}),
    "adagrad": (CPUAdagrad, torch.optim.Adagrad, {"lr": 0.1}, {"step", "sum"}),
    "adagrad with decays": (
        CPUAdagrad,
        torch.optim.Adagrad,
        {"lr": 0.1, "lr_decay": 0.2, "weight_decay": 0.1, "initial_accumulator_value": 0.5, "eps": 1e-3},
        {"step", "sum"},
    ),
    "lion": (CPULion, Lion, {"lr": 0.01, "betas": (0.9, 0.99), "weight_decay": 0.1}, {"exp_avg"}),
}


def made(dtype: Any = F32) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=generator).to(dtype).requires_grad_() for size in SIZES]


def steps(optimizer: Any, params: list[Any], count: int, first: int = 0) -> list[Any]:
    for number in range(first, first + count):
        generator = torch.Generator().manual_seed(number + 1)
        for param in params:
            param.grad = torch.randn(param.shape, generator=generator).to(param.dtype)
        optimizer.step()
    return [param.detach() for param in params]


def assert_near(ours: list[Any], theirs: list[Any]) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("maximize", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_the_numbers_are_torchs(case: str, maximize: bool) -> None:
    ours, theirs, options, _ = CASES[case]
    one, other = made(), made()
    wanted = steps(theirs(other, **options, maximize=maximize), other, 20)
    assert_near(steps(ours(one, **options, maximize=maximize), one, 20), wanted)


@pytest.mark.parametrize("case", [case for case in CASES if case != "lion"])
def test_states_are_exchanged_with_torch(case: str) -> None:
    ours, theirs, options, names = CASES[case]
    params, straight = made(), made()
    before = theirs(params, **options)
    steps(before, params, 3)
    middle = ours(params, lr=5.0)
    middle.load_state_dict(before.state_dict())
    steps(middle, params, 3, first=3)
    state = middle.state_dict()["state"]
    assert {name for values in state.values() for name, value in values.items() if value is not None} == names
    after = theirs(params, lr=7.0)
    after.load_state_dict(middle.state_dict())
    assert_near(steps(after, params, 3, first=6), steps(theirs(straight, **options), straight, 9))


def test_a_state_before_the_first_step_is_one_that_torch_takes() -> None:
    params, straight = made(), made()
    fresh = CPUAdagrad(params, initial_accumulator_value=0.25)
    theirs = torch.optim.Adagrad(params)
    theirs.load_state_dict(fresh.state_dict())
    wanted = steps(torch.optim.Adagrad(straight, initial_accumulator_value=0.25), straight, 2)
    assert_near(steps(theirs, params, 2), wanted)
    more = torch.ones(3, requires_grad=True)
    fresh.add_param_group({"params": [more]})
    fresh.step(grads={more: torch.ones(3)})
    assert fresh.state[more]["sum"].tolist() == [1.25] * 3


MAKERS: dict[str, Callable[..., Any]] = {
    "adam": lambda params, **more: CPUAdam(params, lr=1e-2, weight_decay=0.1, **more),
    "amsgrad": lambda params, **more: CPUAdam(params, lr=1e-2, amsgrad=True, decoupled=False, **more),
    "sgd": lambda params, **more: CPUSGD(params, lr=1e-2, **more),
    "momentum": lambda params, **more: CPUSGD(params, lr=1e-2, momentum=0.9, weight_decay=0.1, **more),
    "adagrad": lambda params, **more: CPUAdagrad(params, lr=1e-2, weight_decay=0.1, **more),
    "lion": lambda params, **more: CPULion(params, lr=1e-2, weight_decay=0.1, **more),
}


@pytest.mark.parametrize(("param", "grad", "low"), list(itertools.product([F32, F16, BF16], [F32, F16, BF16], [BF16])))
@pytest.mark.parametrize("rule", MAKERS)
def test_a_mix_of_formats_is_the_float32_step_with_rounded_ends(rule: str, param: Any, grad: Any, low: Any) -> None:
    params, wide = made(param), [p.detach().float() for p in made(param)]
    copies = [torch.zeros_like(p, dtype=low) for p in params]
    one, other = MAKERS[rule](params), MAKERS[rule](wide)
    for number in range(3):
        generator = torch.Generator().manual_seed(number)
        grads = [torch.randn(p.shape, generator=generator).to(grad) for p in params]
        one.step(grads=grads, copies=copies)
        other.step(grads=[g.float() for g in grads])
        for p, w, c in zip(params, wide, copies, strict=True):
            assert torch.equal(p, w.to(param))
            assert torch.equal(c, w.to(low))
            w.copy_(p)  # what a low-precision parameter keeps of a step
    dtypes = {t.dtype for values in one.state.values() for t in values.values()}
    assert dtypes <= {F32}


@pytest.mark.parametrize("rule", MAKERS)
def test_states_of_the_parameters_dtype(rule: str) -> None:
    params = made(BF16)
    optimizer = MAKERS[rule](params, state_dtype=None)
    steps(optimizer, params, 2)
    found = {t.dtype for values in optimizer.state.values() for name, t in values.items() if name != "step"}
    assert found == ({BF16} if rule != "sgd" else set())


@pytest.mark.parametrize("rule", MAKERS)
def test_scale_and_clip_are_one_factor_of_the_gradient(rule: str) -> None:
    one, other = made(), made()
    grads = [torch.randn_like(p) for p in one]
    scaled = [g * 1024 for g in grads]
    kept = [g.clone() for g in scaled]
    ours, plain = MAKERS[rule](one), MAKERS[rule](other)
    for _ in range(2):
        ours.step(grads=scaled, grad_scale=torch.tensor(512.0), clip_coef=0.5)
        plain.step(grads=grads)
    assert all(map(torch.equal, one, other))
    assert all(map(torch.equal, scaled, kept))
    before = [p.detach().clone() for p in one]
    for value in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=f"clip_coef is {value}; needed 0 or more"):
            ours.step(grads=grads, clip_coef=value)
    for value in (0.0, -2.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=f"grad_scale is {value}; needed a positive number"):
            ours.step(grads=grads, grad_scale=value)
    assert all(map(torch.equal, one, before))


@pytest.mark.parametrize("rule", MAKERS)
def test_found_inf_skips_the_step_and_does_not_count_it(rule: str) -> None:
    params = made()
    optimizer = MAKERS[rule](params)
    steps(optimizer, params, 1)
    before = [p.detach().clone() for p in params]
    states = [t.clone() for values in optimizer.state.values() for t in values.values()]
    optimizer.step(found_inf=torch.tensor(1.0))
    assert all(map(torch.equal, params, before))
    assert all(map(torch.equal, states, (t for values in optimizer.state.values() for t in values.values())))
    optimizer.step(found_inf=torch.tensor(0.0))
    assert not torch.equal(params[0], before[0])


@pytest.mark.parametrize("rule", MAKERS)
def test_the_number_of_threads_changes_no_bit(rule: str) -> None:
    def stepped() -> list[Any]:
        generator = torch.Generator().manual_seed(0)
        params = [torch.randn(size, generator=generator) for size in (70_001, 3, 50_000, 1)]
        optimizer = MAKERS[rule](params)
        for _ in range(2):
            optimizer.step(grads=[torch.randn(p.shape, generator=generator).to(BF16) for p in params])
        return params

    assert_same_with_any_number_of_threads(stepped)


@pytest.mark.parametrize("rule", MAKERS)
def test_views_of_one_flat_buffer_at_any_offset_and_with_gaps(rule: str) -> None:
    """As offloading frameworks keep parameters: the numbers of tensors of their own, and nothing beside the views."""
    buffers = [torch.randn(4000) for _ in range(2)]
    spans = [slice(1, 18), slice(18, 19), slice(19, 19), slice(23, 1500), slice(2001, 3999, 3)]
    views = [buffers[0][span] for span in spans]
    copies = torch.zeros(4000, dtype=BF16)
    alone = [view.clone() for view in views]
    before = buffers[0].clone()
    one, other = MAKERS[rule](views), MAKERS[rule](alone)
    for _ in range(3):
        one.step(grads=[buffers[1][span] for span in spans], copies=[copies[span] for span in spans])
        other.step(grads=[buffers[1][span].clone() for span in spans])
    beside = torch.ones(4000, dtype=torch.bool)
    for span, view, own in zip(spans, views, alone, strict=True):
        assert torch.equal(view, own) and torch.equal(copies[span], own.bfloat16())
        beside[span] = False
    assert torch.equal(buffers[0][beside], before[beside]) and not copies[beside].any()


@pytest.mark.gpu
@pytest.mark.parametrize("rule", MAKERS)
def test_copies_go_into_pinned_memory(rule: str) -> None:
    params = [torch.randn(100_003), torch.randn(7)]
    copies = [torch.zeros(p.shape, dtype=BF16, pin_memory=True) for p in params]
    MAKERS[rule](params).step(grads=[torch.randn_like(p) for p in params], copies=copies)
    for p, c in zip(params, copies, strict=True):
        assert c.is_pinned() and torch.equal(c, p.bfloat16())


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (CPUSGD, {"momentum": -0.5}, "momentum is -0.5; needed 0 or more"),
        (CPUSGD, {"nesterov": True}, "nesterov with momentum 0.0 and dampening 0.0; needed a momentum above 0"),
        (CPUSGD, {"nesterov": True, "momentum": 0.9, "dampening": 0.1}, "and dampening 0.1; needed .* no dampening"),
        (CPUAdagrad, {"lr_decay": -1.0}, "lr_decay is -1.0; needed 0 or more"),
        (CPUAdagrad, {"initial_accumulator_value": float("nan")}, "initial_accumulator_value is nan; needed 0 or more"),
        (CPULion, {"betas": (0.9, 1.0)}, r"betas is \(0.9, 1.0\); needed two numbers"),
        (CPULion, {"lr": -1.0}, "lr is -1.0; needed 0 or more"),
        (CPULion, {"state_dtype": F16}, "state_dtype is torch.float16; needed"),
    ],
)
def test_options_out_of_range(kind: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind([torch.zeros(3)], **options)


@pytest.mark.parametrize("make", [CPUSGD, CPUAdam, CPUAdagrad], ids=lambda make: make.__name__)
def test_no_factor_is_a_subnormal_number(make: Any) -> None:
    """A thread that flushes such numbers takes one for zero, and zero times an infinite parameter is NaN."""
    param = torch.tensor([float("inf"), 1.0])
    optimizer = make([param], lr=0.5)
    assert torch.set_flush_denormal(True)
    try:
        optimizer.step(grads=[torch.ones(2)])
    finally:
        torch.set_flush_denormal(False)
    assert param[0].isposinf()
    assert param[1] < 1


def test_both_scales_divide_the_gradient() -> None:
    """One is an argument, the other what ``GradScaler`` leaves at the optimizer: only that one is taken back."""
    param = torch.nn.Parameter(torch.zeros(3))
    optimizer = CPUSGD([param], lr=1.0)
    optimizer.grad_scale = torch.tensor(2.0)
    for step in (1, 2):
        param.grad = torch.full((3,), 8.0)
        optimizer.step(grad_scale=4.0)
        assert param.tolist() == [-float(step)] * 3
        assert param.grad.tolist() == [4.0] * 3


@pytest.mark.parametrize("rule", MAKERS)
def test_a_loaded_state_shares_nothing_with_what_it_was_loaded_from(rule: str) -> None:
    params, others = made(), made()
    optimizer, other = MAKERS[rule](params), MAKERS[rule](others)
    steps(optimizer, params, 1)
    before = copy.deepcopy(optimizer.state_dict()["state"])
    other.load_state_dict(optimizer.state_dict())
    steps(other, others, 2)
    for key, states in optimizer.state_dict()["state"].items():
        assert all(torch.equal(value, before[key][name]) for name, value in states.items())


HOOKS: dict[str, Callable[[Any, Any], Any]] = {
    "before a step": lambda optimizer, hook: optimizer.register_step_pre_hook(hook),
    "after a step": lambda optimizer, hook: optimizer.register_step_post_hook(hook),
    "before any step": lambda _, hook: register_optimizer_step_pre_hook(hook),
    "after any step": lambda _, hook: register_optimizer_step_post_hook(hook),
}


@pytest.mark.parametrize("which", HOOKS)
def test_a_hook_is_called_as_long_as_it_is_registered(which: str) -> None:
    params = made()
    optimizer = CPUSGD(params)
    seen: list[Any] = []
    handle = HOOKS[which](optimizer, lambda one, *_: seen.append(one))
    steps(optimizer, params, 2)
    handle.remove()
    steps(optimizer, params, 1)
    assert len(seen) == 2 and all(one is optimizer for one in seen)


def test_a_torch_for_cuda_without_a_driver_is_not_asked_about_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask() -> bool:
        raise RuntimeError("CUDA error: CUDA driver version is insufficient for CUDA runtime version")

    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", ask)
    param = torch.ones(3, requires_grad=True)
    param.grad = torch.ones(3)
    HybridAdam([param], lr=0.5).step()
    torch.testing.assert_close(param.detach(), torch.full((3,), 0.5))
