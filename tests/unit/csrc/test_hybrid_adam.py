"""HybridAdam, with the device code of its GPU half run on the CPU: against torch's own in float64."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast.ops import multi_tensor  # noqa: E402
from precast.optim import CPUAdam, HybridAdam, _gathered, hybrid_adam  # noqa: E402
from tests.unit.csrc.tensor_lists import assert_near, give_grads, made  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

SHAPES = [(3,), (512,), (515,), (), (40, 31), (1024,), (5, 7)]
EVERY = 8 * sum(torch.empty(shape).numel() for shape in SHAPES)  # bytes of two float32 states for all
KINDS: dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]] = {
    "adamw": (torch.optim.AdamW, {"weight_decay": 0.1}, {}),
    "adam": (torch.optim.Adam, {"weight_decay": 0.1, "betas": (0.8, 0.95)}, {"adamw_mode": False}),
    "amsgrad": (torch.optim.AdamW, {"amsgrad": True, "maximize": True, "weight_decay": 0.0}, {}),
}
# Which of the parameters are on the GPU, and how much of it the states may take.
PLACES = {
    "all on the GPU": (range(7), None),
    "all on the CPU": ((), None),
    "on both": ((0, 2, 5), None),
    "some states do not fit": (range(7), EVERY // 2),
    "no state fits": ((1, 2, 3), 0),
}


class Placed:
    """Parameters in CPU memory of which some count as on the GPU."""

    def __init__(self, on_gpu: Any, dtype: Any = torch.float32) -> None:
        self.params = made(dtype, shapes=SHAPES)
        self.put(on_gpu)

    def put(self, on_gpu: Any) -> None:
        for index, param in enumerate(self.params):
            param.is_of_cpu = index not in on_gpu


@pytest.fixture(autouse=True)
def _gpu(list_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (_gathered, multi_tensor):
        monkeypatch.setattr(module, "on_gpu", lambda tensor: not getattr(tensor, "is_of_cpu", False))


def follow(ours: Any, theirs: Any, params: list[Any], exact: list[Any], steps: range) -> None:
    for step in steps:
        give_grads(params, step)
        for param, wide in zip(params, exact, strict=True):
            wide.grad = param.grad.double()
        ours.step()
        theirs.step()
    for param, wide in zip(params, exact, strict=True):
        assert_near(param, wide, 0.02, steps[-1])
        for name, value in theirs.state[wide].items():
            if name == "step":
                assert float(ours.state[param]["step"]) == float(value) == steps[-1]
            elif value is not None:
                assert_near(ours.state[param][name], value, 1.0, steps[-1])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_hybrid_steps_are_torchs(kind: str, place: str) -> None:
    # fails if a parameter or a state differs from torch's in float64
    make, options, own = KINDS[kind]
    on_gpu, budget = PLACES[place]
    params = Placed(on_gpu).params
    exact = [p.double() for p in params]
    ours = HybridAdam(params, lr=1e-2, gpu_bytes=budget, **options, **own)
    follow(ours, make(exact, lr=1e-2, **options), params, exact, range(1, 4))


@pytest.mark.parametrize("place", PLACES)
def test_no_bias_correction_on_either_side(place: str) -> None:
    on_gpu, budget = PLACES[place]
    params = Placed(on_gpu).params
    exact = [p.double() for p in params]
    states = [(torch.zeros_like(p), torch.zeros_like(p)) for p in exact]
    ours = HybridAdam(params, 1e-2, False, (0.8, 0.95), 1e-3, gpu_bytes=budget)
    for step in (1, 2, 3):
        give_grads(params, step)
        ours.step()
        for param, p, (m, v) in zip(params, exact, states, strict=True):
            g = param.grad.double()
            m.lerp_(g, 0.2)
            v.mul_(0.95).add_(0.05 * g * g)
            p.sub_(1e-2 * m / (v.sqrt() + 1e-3))
            assert_near(param, p, 0.2, step)


def test_a_budget_serves_parameters_in_their_order() -> None:
    params = Placed(range(7)).params
    assert HybridAdam(params).offloaded() == []
    assert [p.numel() for p in HybridAdam(params, gpu_bytes=8 * 1031).offloaded()] == [1240, 1024, 35]
    assert len(HybridAdam(params, gpu_bytes=EVERY).offloaded()) == 0
    assert len(HybridAdam(params, gpu_bytes=EVERY, amsgrad=True).offloaded()) > 0
    half = Placed(range(7), torch.float16).params
    assert HybridAdam(half, gpu_bytes=EVERY // 2, state_dtype=None).offloaded() == []
    on_cpu = Placed(()).params
    assert HybridAdam(on_cpu, gpu_bytes=0).offloaded() == []


def test_states_follow_a_parameter_and_a_budget() -> None:
    placed = Placed((0, 2, 5))
    params = placed.params
    exact = [p.double() for p in params]
    ours, theirs = HybridAdam(params, lr=1e-2), torch.optim.AdamW(exact, lr=1e-2, weight_decay=0.0)
    follow(ours, theirs, params, exact, range(1, 3))
    placed.put((0, 1, 3))
    ours._sides = None  # another device would say so
    follow(ours, theirs, params, exact, range(3, 4))
    ours.gpu_bytes = 0
    follow(ours, theirs, params, exact, range(4, 6))
    ours.gpu_bytes = None
    follow(ours, theirs, params, exact, range(6, 7))
    assert ours.offloaded() == []


def test_groups_rates_and_a_change_of_an_offloaded_parameter() -> None:
    params = Placed((0, 2, 5)).params
    exact = [p.double() for p in params]
    groups = [[{"params": some[:4]}, {"params": some[4:], "lr": 0.1}] for some in (params, exact)]
    ours = HybridAdam(groups[0], lr=1e-2, gpu_bytes=3000)
    theirs = torch.optim.AdamW(groups[1], lr=1e-2, weight_decay=0.0)
    assert [p.numel() for p in ours.offloaded()] == [515, 1024]
    follow(ours, theirs, params, exact, range(1, 2))
    for some in (ours, theirs):
        some.param_groups[1]["lr"] = 0.03
    with torch.no_grad():
        params[2].data.mul_(0.5)
        exact[2].mul_(0.5)
    follow(ours, theirs, params, exact, range(2, 4))


def test_a_state_dict_is_torchs() -> None:
    params = Placed((0, 2, 5)).params
    exact = [p.double() for p in params]
    ours, theirs = HybridAdam(params, lr=1e-2, gpu_bytes=3000), torch.optim.AdamW(exact, lr=1e-2, weight_decay=0.0)
    follow(ours, theirs, params, exact, range(1, 3))
    saved = io.BytesIO()
    torch.save(ours.state_dict(), saved)
    saved.seek(0)
    loaded = torch.load(saved, weights_only=True)
    give_grads(params, 3)
    begin = [p.detach().clone() for p in params]
    ours.step()
    for make in (HybridAdam, torch.optim.AdamW, CPUAdam):
        others = [p.clone() for p in begin]
        fresh = make(others)
        fresh.load_state_dict(copy.deepcopy(loaded))
        give_grads(others, 3)
        fresh.step()
        for one, other in zip(params, others, strict=True):
            torch.testing.assert_close(one, other, rtol=2e-6, atol=2e-6)
    back = HybridAdam(params)
    back.load_state_dict(theirs.state_dict())
    assert all(back.state[p]["exp_avg"].dtype == torch.float32 for p in params)
    assert back.param_groups[0]["decoupled_weight_decay"] is True


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda some: pickle.loads(pickle.dumps(some))])
def test_a_copy_goes_on_alone(duplicate: Any) -> None:
    params = Placed((0, 2, 5)).params
    exact = [p.double() for p in params]
    ours, theirs = HybridAdam(params, lr=1e-2, gpu_bytes=3000), torch.optim.AdamW(exact, lr=1e-2, weight_decay=0.0)
    follow(ours, theirs, params, exact, range(1, 3))
    other = duplicate(ours)
    assert other.gpu_bytes == 3000
    others = other.param_groups[0]["params"]
    assert all(one is not theirs_ for one, theirs_ in zip(others, params, strict=True))
    follow(other, theirs, others, exact, range(3, 5))


def test_a_loss_scale_and_an_overflow() -> None:
    params = Placed((0, 2, 5)).params
    exact = [p.double() for p in params]
    ours, theirs = HybridAdam(params, lr=1e-2, gpu_bytes=3000), torch.optim.AdamW(exact, lr=1e-2, weight_decay=0.0)
    give_grads(params, 1)
    for param, wide in zip(params, exact, strict=True):
        wide.grad = param.grad.double()
        param.grad.mul_(8.0)
    before = [p.clone() for p in params]
    ours.grad_scale, ours.found_inf = torch.tensor(8.0), torch.tensor(1.0)
    ours.step()
    assert all(map(torch.equal, params, before))
    assert all(float(state["step"]) == 0 for state in ours.state.values())
    ours.found_inf = torch.tensor(0.0)
    ours.step()
    theirs.step()
    for param, wide in zip(params, exact, strict=True):
        assert_near(param, wide, 0.02, 1)
        assert torch.equal(param.grad.double(), wide.grad)  # unscaled, as torch's fused optimizers leave it


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_low_precision_is_the_same_on_both_sides(dtype: Any) -> None:
    """Offloaded parameters are rounded as those on the GPU; the arithmetic is in float32."""
    found = []
    for budget in (None, 0):
        params = Placed(range(7), dtype).params
        ours = HybridAdam(params, lr=0.1, gpu_bytes=budget)
        for step in (1, 2):
            give_grads(params, step)
            ours.step()
        assert {ours.state[p]["exp_avg"].dtype for p in params} == {torch.float32}
        found.append(params)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_parameters_without_gradients_and_states_that_are_cleared() -> None:
    params = Placed((0, 2, 5)).params
    ours = HybridAdam(params, lr=1e-2, gpu_bytes=3000)
    ours.step()
    assert not ours.state
    give_grads(params, 1)
    params[2].grad = params[3].grad = None
    ours.step()
    assert set(ours.state) == {p for i, p in enumerate(params) if i not in (2, 3)}
    ours.state.clear()
    give_grads(params, 2)
    ours.step()
    assert {float(state["step"]) for state in ours.state.values()} == {1.0} and len(ours.state) == len(params)


def test_a_step_keeps_its_plan(list_gpu: Any) -> None:
    params = Placed((0, 2, 5)).params
    ours = HybridAdam(params)
    plans = []
    for step in (1, 2, 3):
        give_grads(params, step)
        params[1].grad = None
        ours.step()
        plans.append(ours._sides.gpu._plans)
    assert plans[0] and all(plan is plans[0] for plan in plans)


def test_hybrid_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    params = Placed((0, 2, 5)).params
    for options, text in (
        ({"gpu_bytes": -1}, "gpu_bytes is -1; needed 0 or more, or None"),
        ({"lr": -1.0}, "lr is -1.0"),
        ({"eps": float("nan")}, "eps is nan"),
        ({"betas": (0.9, 1.0)}, "betas is"),
        ({"state_dtype": torch.float16}, "state_dtype is"),
    ):
        with pytest.raises(ValueError, match=text):
            HybridAdam(params, **options)  # type: ignore[arg-type]
    give_grads(params, 1)
    ours = HybridAdam(params)
    monkeypatch.setattr(_gathered, "capturing", lambda: True)
    with pytest.raises(RuntimeError, match="a graph is captured"):
        ours.step()
    monkeypatch.setattr(_gathered, "capturing", lambda: False)
    monkeypatch.setattr(hybrid_adam, "is_dtensor", lambda tensor: True)
    with pytest.raises(RuntimeError, match="only plain tensors can be offloaded"):
        HybridAdam(params, gpu_bytes=0).step()


@pytest.mark.parametrize("known", [False, True], ids=["first step", "later step"])
@pytest.mark.parametrize("gpu_bytes", [None, 0], ids=["on both", "offloaded"])
@pytest.mark.parametrize("index", [1, 2])
def test_an_error_on_one_side_leaves_the_other_and_has_this_name(known: bool, gpu_bytes: Any, index: int) -> None:
    params = Placed((0, 2, 5)).params
    ours = HybridAdam(params, gpu_bytes=gpu_bytes)
    give_grads(params, 1)
    if known:
        ours.step()
    before = [param.detach().clone() for param in params]
    good = params[index].grad
    params[index].grad = torch.ones(params[index].shape).to_sparse()
    with pytest.raises(RuntimeError, match=r"HybridAdam\.step: .*layout sparse") as error:
        ours.step()
    assert f"parameter {index}:" in str(error.value) or gpu_bytes == 0
    assert all(map(torch.equal, params, before))
    params[index].grad = good
    ours.step()
    assert not any(map(torch.equal, params, before))


def test_a_hook_of_every_optimizer_is_called_once() -> None:
    from torch.optim import optimizer

    params, seen = Placed((0, 2, 5)).params, []
    give_grads(params, 1)
    handles = [
        register(lambda one, *_: seen.append(type(one).__name__))
        for register in (optimizer.register_optimizer_step_pre_hook, optimizer.register_optimizer_step_post_hook)
    ]
    try:
        HybridAdam(params).step()
    finally:
        for handle in handles:
            handle.remove()
    assert seen == ["HybridAdam"] * 2
