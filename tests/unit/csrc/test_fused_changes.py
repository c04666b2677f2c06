"""What is changed behind an optimizer's plan between two steps is seen: the emulated kernels against torch's step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast.optim import FusedAdamW  # noqa: E402
from tests.unit.csrc.tensor_lists import assert_near, give_grads, made  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]


def test_a_parameter_turned_in_place_is_seen(list_gpu: Any) -> None:
    ours, theirs = (torch.arange(32.0).view(4, 8) for _ in range(2))
    optimizers = [FusedAdamW([ours], lr=0.1), torch.optim.AdamW([theirs], lr=0.1)]
    for step, shape in enumerate(((4, 8), (4, 8), (8, 4))):
        for param, optimizer in zip((ours, theirs), optimizers, strict=True):
            if param.shape != shape:
                states = optimizer.state[param]
                for tensor in (param, states["exp_avg"], states["exp_avg_sq"]):
                    tensor.data = tensor.data.t()  # other sizes and strides, in the same memory
            give_grads([param], step)
            optimizer.step()
    assert_near(ours, theirs, 0.5, 3)


def test_gradients_that_move_or_come_and_go(list_gpu: Any) -> None:
    params, twins = made(torch.float32), made(torch.float32)
    ours, theirs = FusedAdamW(params, lr=0.1), torch.optim.AdamW(twins, lr=0.1)
    numbers = set()
    for step in range(1, 7):
        ours.zero_grad()
        give_grads(params, step)
        if step in (2, 3):
            params[step].grad = None
        for param, twin in zip(params, twins, strict=True):
            twin.grad = None if param.grad is None else param.grad.clone()
        ours.step()
        theirs.step()
        assert ours._plans is not None
        numbers.add(ours._plans[0].number)
        for param, twin in zip(params, twins, strict=True):
            assert_near(param, twin.detach(), 0.5, step)
    assert len(numbers) == 4  # a new one at steps 1, 2, 3 and 4; then gradients only moved
    assert float(ours.state[params[2]]["step"]) == 5


def layout_of_gradient(_: Any, tensor: Any) -> None:
    tensor.grad = tensor.grad.t().contiguous().t()


def dtype_of_gradient(optimizer: Any, tensor: Any) -> None:
    narrow = tensor.grad.bfloat16()
    tensor.grad_dtype = None
    tensor.grad = narrow if isinstance(optimizer, FusedAdamW) else narrow.float()


def set_data(tensor: Any, factor: float) -> None:
    tensor.data = tensor.data * factor


# What happens to an optimizer and one of its parameters between two steps; the same objects hold other things then.
CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "entry": lambda o, p: o.state[p].update(exp_avg=o.state[p]["exp_avg"] * 2),
    "state": lambda o, p: o.state.update({p: {k: v * 2 for k, v in o.state[p].items()}}),
    "all states": lambda o, p: setattr(o, "state", defaultdict(dict, {k: dict(v) for k, v in o.state.items()})),
    "no states": lambda o, p: o.state.clear(),
    "data": lambda o, p: set_data(p, 2),
    "data of a state": lambda o, p: set_data(o.state[p]["exp_avg_sq"], 2),
    "data of a gradient": lambda o, p: set_data(p.grad, 3),
    "storage": lambda o, p: p.untyped_storage().resize_(1 << 20),
    "storage of a state": lambda o, p: o.state[p]["exp_avg"].untyped_storage().resize_(1 << 20),
    "storage of a gradient": lambda o, p: p.grad.set_(p.grad * 3),
    "group": lambda o, p: o.param_groups[0].update(maximize=True),
    "order": lambda o, p: o.param_groups[0]["params"].reverse(),
    "fewer": lambda o, p: o.param_groups[0]["params"].pop(),
    "another list": lambda o, p: o.param_groups[0].update(params=o.param_groups[0]["params"][:7]),
    "layout of a gradient": layout_of_gradient,
    "dtype of a gradient": dtype_of_gradient,
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_exchanged_is_seen(list_gpu: Any, change: str) -> None:
    params, twins = made(torch.float32), made(torch.float32)
    ours, theirs = FusedAdamW(params, lr=0.1), torch.optim.AdamW(twins, lr=0.1)
    which = 5
    for step in range(1, 4):
        for param, twin, grad in zip(params, twins, made(torch.float32, step), strict=True):
            if step == 1:  # later ones in the same memory, so that nothing moves but what is changed
                param.grad, twin.grad = grad, grad.clone()
            else:
                param.grad.copy_(grad)
                twin.grad.copy_(grad)
        if step == 3:
            CHANGES[change](ours, params[which])
            CHANGES[change](theirs, twins[which])
        ours.step()
        theirs.step()
        for param, twin in zip(params, twins, strict=True):
            assert_near(param, twin.detach(), 0.5, step)


def test_a_gradient_that_became_shorter_is_refused_before_any_write(list_gpu: Any) -> None:
    param = torch.nn.Parameter(torch.ones(600))
    optimizer = FusedAdamW([param], lr=0.1)
    give_grads([param], 1)
    optimizer.step()
    before = param.detach().clone()
    param.grad.resize_(500)  # the storage stays as it is
    with pytest.raises(RuntimeError, match=r"its gradient has shape \(500,\); needed \(600,\); nothing was updated"):
        optimizer.step()
    assert torch.equal(param, before) and float(optimizer.state[param]["step"]) == 1


def test_a_norm_that_is_wanted_later_takes_memory_of_its_own(list_gpu: Any) -> None:
    """A step that clips needs a number for each 8192 elements, which those before it had no place for."""
    ours, theirs = (torch.nn.Parameter(torch.linspace(-1, 1, 1 << 19)) for _ in range(2))
    optimizers = [FusedAdamW([ours], lr=0.1), torch.optim.AdamW([theirs], lr=0.1)]
    give_grads([ours], 1)
    grown = []
    for step in (1, 2, 3, 4):
        theirs.grad = ours.grad.clone()
        if step > 2:
            optimizers[0].max_grad_norm = 0.5
            torch.nn.utils.clip_grad_norm_([theirs], 0.5)
        optimizers[1].step()
        with torch.profiler.profile(profile_memory=True) as profile:
            optimizers[0].step()
        grown.append(sum(e.self_cpu_memory_usage for e in profile.events() if e.name.endswith("multi_tensor_step_")))
        assert_near(ours, theirs.detach(), 0.5, step)
    assert not list_gpu.counts or (grown[0] > 0 and grown[1:] == [0, 4 * (1 << 19) // 8192, 0])


def test_a_plan_keeps_no_reference_to_what_it_uses_again(list_gpu: Any) -> None:
    params = [torch.nn.Parameter(p) for p in made(torch.float32)]
    optimizer = FusedAdamW(params, lr=0.1)
    for step in (1, 2):
        give_grads(params[:-1], step)
        optimizer.step()
    states = [t for p in params for name, t in optimizer.state[p].items() if name != "step"]
    assert {t._use_count() for t in (*params, *states)} == {1}


@pytest.mark.parametrize("which", ["parameter", "state", "idle parameter", "gradient"])
def test_what_is_swapped_is_seen_and_what_is_freed_is_not_touched(list_gpu: Any, which: str) -> None:
    ours, theirs = ([torch.nn.Parameter(p) for p in made(torch.float32)] for _ in range(2))
    optimizers = [FusedAdamW(ours, lr=0.1), torch.optim.AdamW(theirs, lr=0.1)]
    for step in range(1, 5):
        for params, optimizer in zip((ours, theirs), optimizers, strict=True):
            give_grads(params[1:], step)
            if step == 3:
                tensor: Any = {
                    "parameter": params[5],
                    "state": optimizer.state[params[5]]["exp_avg"],
                    "idle parameter": params[0],
                    "gradient": params[5].grad,
                }[which]
                if which == "gradient":
                    params[5].grad = None
                other = torch.full_like(tensor, 0.5)
                other.grad = torch.ones_like(other) if which.endswith("parameter") else None
                torch.utils.swap_tensors(tensor, torch.nn.Parameter(other) if which.endswith("parameter") else other)
                if which == "gradient":
                    params[5].grad = tensor
                elif which.endswith("parameter"):
                    tensor.grad = torch.ones_like(tensor)
            optimizer.step()
        for one, other in zip(ours, theirs, strict=True):
            assert_near(one, other.detach(), 0.5, step)


def test_a_module_that_is_converted_by_swapping_goes_on(list_gpu: Any) -> None:
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model = torch.nn.Linear(5, 7)
        optimizer = FusedAdamW(model.parameters(), lr=0.1)
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float32):
            model.to(dtype)
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.ones(2, 5, dtype=dtype)).sum().backward()
                before = model.weight.detach().clone()
                optimizer.step()
                assert model.weight.dtype == dtype and (model.weight < before).all()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
