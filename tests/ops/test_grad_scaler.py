"""GradScaler with every optimizer: steps, overflows, growth, and gradients that are unscaled afterwards."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.ops.histories import PAIRS, Pair  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

SHAPES = ((5, 7), (33,), (1,), (2, 3, 4, 4), (1029,))
EACH = [
    pytest.param(device, name, id=f"{device} {name}", marks=[pytest.mark.gpu] if device == "cuda" else [])
    for device, kind in (("cpu", "cpu"), ("cuda", "gpu"))
    for name in PAIRS[kind]
]


def pair_of(device: str, name: str) -> Pair:
    return PAIRS["gpu" if device == "cuda" else "cpu"][name]


def drawn(seed: int, device: str) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(device) for shape in SHAPES]


class Training:
    """Steps of an optimizer with a scaler; the gradients are given."""

    def __init__(self, make: Any, device: str, options: dict[str, Any], **scaler: Any) -> None:
        self.device = device
        self.params = [torch.nn.Parameter(p) for p in drawn(0, device)]
        self.optimizer = make(self.params, **options)
        self.scaler = torch.amp.GradScaler(device, **{"init_scale": 1024.0, "growth_interval": 2, **scaler})
        self.before: list[Any] = []

    def step(self, seed: int, *, overflow: bool = False, clip: float = 0.0, turned: bool = False) -> None:
        scale = self.scaler.scale(torch.ones((), device=self.device))
        for param, grad in zip(self.params, drawn(seed, self.device), strict=True):
            param.grad = grad * scale
            if turned and param.dim() == 2:
                param.grad = param.grad.t().contiguous().t()
        if overflow:
            self.params[2].grad.fill_(float("inf"))
        self.before = [param.grad.clone() for param in self.params]
        if clip:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.params, clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def counts(self) -> set[float]:
        return {float(state["step"]) for state in self.optimizer.state.values() if "step" in state}


def both(device: str, name: str, **scaler: Any) -> tuple[Training, Training]:
    ours, theirs, options = pair_of(device, name)
    # torch's foreach form of Nesterov momentum, the default on a GPU, adds the momentum to the gradients in place.
    plain = {"foreach": False} if name == "momentum" else {}
    return Training(ours, device, options, **scaler), Training(theirs, device, {**options, **plain}, **scaler)


@pytest.mark.parametrize(("device", "name"), EACH)
def test_scaled_steps_are_torchs_and_leave_unscaled_gradients(device: str, name: str) -> None:
    ours, theirs = both(device, name)
    overflows = (3, 4)
    for step in range(1, 9):
        versions = [param.grad._version if param.grad is not None else 0 for param in ours.params]
        for side in (ours, theirs):
            side.step(step, overflow=step in overflows, turned=step == 6)
        assert ours.scaler.get_scale() == theirs.scaler.get_scale()
        for one, other, scaled in zip(ours.params, theirs.params, ours.before, strict=True):
            torch.testing.assert_close(one, other, rtol=2e-5 * step, atol=4e-6 * step)
            if step in overflows:
                torch.testing.assert_close(one.grad, scaled, rtol=0, atol=0)
            else:
                torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=0)
                assert one.grad._version > 0, versions
    assert ours.scaler.get_scale() == 1024.0 * 2 / 4 * 2 * 2
    assert ours.counts() <= {8.0 - len(overflows)}


@pytest.mark.parametrize(("device", "name"), EACH)
def test_gradients_that_stay_in_place_are_unscaled_once_by_each_step(device: str, name: str) -> None:
    ours, theirs = both(device, name, growth_interval=1000)
    for side in (ours, theirs):
        side.step(1)
    for _ in range(3):  # what was unscaled is scaled again by those who accumulate into it
        for side in (ours, theirs):
            for param in side.params:
                param.grad.mul_(2048.0)
            side.scaler.scale(torch.ones((), device=device))
            side.scaler.step(side.optimizer)
            side.scaler.update()
        for one, other in zip(ours.params, theirs.params, strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=0)
            torch.testing.assert_close(one, other, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(("device", "name"), EACH)
def test_clipping_between_unscaling_and_the_step(device: str, name: str) -> None:
    ours, theirs = both(device, name)
    for step in range(1, 6):
        for side in (ours, theirs):
            side.step(step, overflow=step == 3, clip=0.5)
        assert ours.scaler.get_scale() == theirs.scaler.get_scale()
        for one, other in zip(ours.params, theirs.params, strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=0, equal_nan=True)
            torch.testing.assert_close(one, other, rtol=2e-5 * step, atol=4e-6 * step)


# torch's own check for infinities refuses bfloat16 on a GPU.
NARROW = [
    pytest.param(*case.values, dtype, id=f"{case.id} {dtype}", marks=case.marks)
    for case in EACH
    for dtype in (torch.float16, torch.bfloat16)
    if (case.values[0], dtype) != ("cuda", torch.bfloat16)
]


@pytest.mark.parametrize(("device", "name", "dtype"), NARROW)
def test_narrow_gradients_are_unscaled_in_their_dtype(device: str, name: str, dtype: Any) -> None:
    ours, _, options = pair_of(device, name)
    params = [torch.nn.Parameter(p.to(dtype)) for p in drawn(0, device)]
    optimizer, scaler = ours(params, **options), torch.amp.GradScaler(device, init_scale=64.0)
    for step in range(1, 4):
        scaler.scale(torch.ones((), device=device))
        grads = [grad.to(dtype) for grad in drawn(step, device)]
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad * 64
        scaler.step(optimizer)
        scaler.update()
        assert all(torch.equal(param.grad, grad) for param, grad in zip(params, grads, strict=True))


@pytest.mark.parametrize("overflow", [False, True])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_what_is_left_is_what_torchs_fused_step_leaves(device: str, overflow: bool) -> None:
    ours, theirs, options = pair_of(device, "adamw")
    sides = Training(ours, device, options), Training(theirs, device, {**options, "fused": True})
    for step in (1, 2):
        for side in sides:
            side.step(step, overflow=overflow)
        for one, other in zip(*(side.params for side in sides), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=0)
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_a_gradient_that_two_parameters_share_is_unscaled_once() -> None:
    ours, _, options = pair_of("cpu", "adamw")
    params = [torch.nn.Parameter(torch.ones(8)) for _ in range(2)]
    optimizer = ours(params, **options)
    for _ in range(3):
        params[0].grad = params[1].grad = torch.full((8,), 4.0)
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(4.0), torch.tensor(0.0)
        optimizer.step()
        assert params[0].grad.tolist() == [1.0] * 8


@pytest.mark.gpu
def test_gradients_that_share_memory_are_refused_before_any_write() -> None:
    ours, _, options = pair_of("cuda", "adamw")
    params = [torch.nn.Parameter(torch.ones(8, device="cuda")) for _ in range(2)]
    optimizer = ours(params, **options)
    params[0].grad = params[1].grad = torch.full((8,), 4.0, device="cuda")
    optimizer.step()
    before = params[0].detach().clone()
    optimizer.grad_scale = torch.tensor(4.0, device="cuda")
    with pytest.raises(RuntimeError, match="two gradients share memory; each must have its own to be unscaled"):
        optimizer.step()
    assert torch.equal(params[0], before) and params[0].grad.tolist() == [4.0] * 8


def test_memory_that_is_shared_until_a_write_is_not_written_through() -> None:
    ours, _, options = pair_of("cpu", "adamw")
    param = torch.nn.Parameter(torch.ones(64))
    optimizer, kept = ours([param], **options), torch.full((64,), 4.0)
    for _ in range(3):
        param.grad = torch._lazy_clone(kept)
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(4.0), torch.tensor(0.0)
        optimizer.step()
        assert param.grad.tolist() == [1.0] * 64 and kept.tolist() == [4.0] * 64
