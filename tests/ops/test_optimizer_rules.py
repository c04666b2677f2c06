"""A rule is data: a made-up optimizer whose states have other shapes than the parameters, on both devices."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast.ops import cpu_optim, multi_tensor  # noqa: E402
from precast.optim import _gathered, _rules, others  # noqa: E402
from precast.optim._rules import Kernel, Rule, State, option  # noqa: E402
from precast.optim.cpu_base import CPUOptimizer  # noqa: E402
from precast.optim.fused_base import FusedOptimizer  # noqa: E402

pytestmark = pytest.mark.torch

SHAPES = [(5, 7), (2, 4, 6), (33,), ()]
OPTIONS = {"lr": 0.05, "beta2_decay": -0.8, "eps": (None, 1e-3), "d": 1.0, "weight_decay": 0.1, "maximize": False}
TORCHS: Any = getattr(torch.optim, "Adafactor", None)  # since torch 2.5


# ---- what stands in for its kernels ----


@torch.no_grad()
def update(param: Any, grad: Any, row: Any, col: Any, whole: Any, step: float, numbers: Any) -> None:
    """One step of one parameter (Shazeer and Stern, 2018); states that it lacks are empty."""
    lr, beta2_decay, least, d, decay, maximize = numbers
    wide = torch.promote_types(param.dtype, torch.float32)
    p, g, tiny = param.to(wide), (-grad if maximize else grad).to(wide), torch.finfo(param.dtype).eps
    rate, new = max(least, float(p.norm()) / math.sqrt(p.numel())) * min(lr, step**-0.5), step**beta2_decay
    if p.dim() > 1:
        row.lerp_(g.square().mean(-1, keepdim=True), new)
        col.lerp_(g.square().mean(-2, keepdim=True), new)
        variance = row * col / row.mean(-2, keepdim=True).clamp(min=tiny)
    else:
        variance = whole.lerp_(g.square(), new)
    u = g * variance.clamp(min=tiny * tiny).rsqrt()
    clipped = rate / max(1.0, float(u.norm()) / (math.sqrt(p.numel()) * d))
    param.copy_(p * (1 - lr * decay) - clipped * u)


def optimize(grads: Any, lists: Any, plan: Any, numbers: Any, scale: float, number: int) -> None:
    assert number == 7
    params, *states, steps, _ = lists
    rows = [row[:-1] for row in numbers.view(-1, 7).tolist() for _ in range(int(row[-1]))]
    states = [own or [torch.empty(0)] * len(params) for own in states]
    for p, g, row, col, whole, step, values in zip(params, grads, *states, steps, rows, strict=True):
        update(p, g * scale, row, col, whole, float(step.add_(1)), values)


class OnGpu:
    """The functions of a plan."""

    def __init__(self) -> None:
        self.plans: dict[int, Any] = {}
        self.number = itertools.count(1)

    def plan(self, params: Any, grads: Any, *lists: Any) -> int:
        *states, _, _, layout = lists
        self.plans[number := next(self.number)] = (params, states, layout.tolist())
        return number

    def step_(self, number: int, grads: Any, steps: Any, groups: Any, *rest: Any) -> int:
        params, states, layout = self.plans[number]
        found = grads or [p.grad for p in params]
        if any(g is None for g in found):
            return multi_tensor.STALE
        (kind, flags), states = rest[-4:-2], [own or [None] * len(params) for own in states]
        assert kind == 8
        for p, g, row, col, whole, (group, slot) in zip(params, found, *states, layout, strict=True):
            steps[slot] += 1
            update(p, g, row, col, whole, float(steps[slot]), (*groups[group].tolist(), flags))
        return multi_tensor.UNCOUNTED

    def forget(self, number: int, steps: Any) -> None:
        self.plans.pop(number, None)


# ---- the data ----

ROW = State("row_var", shape=lambda p: (*p.shape[:-1], 1) if p.dim() > 1 else None)
COL = State("col_var", shape=lambda p: (*p.shape[:-2], 1, p.shape[-1]) if p.dim() > 1 else None)
WHOLE = State("variance", shape=lambda p: p.shape if p.dim() < 2 else None)
STATES = (ROW, COL, WHOLE)
NUMBERS = (option("beta2_decay"), lambda group: group["eps"][1], option("d"), option("weight_decay"))
MAXIMIZE = ((option("maximize"), 1),)
FACTORED = Rule(
    TORCHS,
    {
        "cpu": Kernel(7, STATES, NUMBERS, flags=MAXIMIZE, ops=SimpleNamespace(optimize=optimize)),
        "gpu": Kernel(8, STATES, NUMBERS, flags=MAXIMIZE, ops=OnGpu()),
    },
    not_negative=("lr", "weight_decay", "d"),
)


class CPUFactored(CPUOptimizer):
    rule = FACTORED

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, {**OPTIONS, "state_dtype": torch.float32, **options})


class FusedFactored(FusedOptimizer):
    rule = FACTORED

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, {**OPTIONS, "state_dtype": torch.float32, **options})


@pytest.fixture(params=[CPUFactored, FusedFactored])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param is FusedFactored:
        for module in (_gathered, multi_tensor):
            monkeypatch.setattr(module, "on_gpu", lambda tensor: tensor.is_cpu)
    return request.param


def made(seed: int, dtype: Any = torch.float32) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    turned = torch.randn(7, 6, generator=generator).to(dtype).t()  # its states have a layout of their own
    return [*(torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES), turned]


def give(params: list[Any], seed: int) -> None:
    for param, grad in zip(params, made(seed), strict=True):
        param.grad = grad.to(param.dtype)


# ---- the claims ----


def test_a_rule_with_states_of_other_shapes_steps(make: Any) -> None:
    params = list(map(torch.nn.Parameter, made(0)))
    exact = [p.detach().double() for p in params]
    states: list[Any] = [[s.new(p, {}).double() if s.exists(p) else None for s in STATES] for p in params]
    optimizer = make(params)
    for step in range(1, 4):
        give(params, step)
        optimizer.step()
        for p, own, x in zip(params, states, exact, strict=True):
            update(x, p.grad.double(), *own, step, (0.05, -0.8, 1e-3, 1.0, 0.1, 0.0))
            torch.testing.assert_close(p.detach().double(), x, rtol=1e-5, atol=1e-5)
            found = [optimizer.state[p].get(s.name) for s in STATES]
            assert [f is None for f in found] == [x is None for x in own]
    assert optimizer.state[params[1]]["row_var"].shape == (2, 4, 1)
    assert optimizer.state[params[1]]["col_var"].shape == (2, 1, 6)
    assert set(optimizer.state[params[2]]) == {"step", "variance"}


@pytest.mark.parametrize("again", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_its_copies_step_like_the_original(make: Any, again: Any) -> None:
    params = list(map(torch.nn.Parameter, made(0)))
    optimizer = make(params, state_dtype=None)
    give(params, 1)
    optimizer.step()
    theirs, other = again((params, optimizer))
    for one, own in ((optimizer, params), (other, theirs)):
        give(own, 2)
        one.step()
    assert all(torch.equal(a, b) for a, b in zip(params, theirs, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_its_states_are_loaded_in_their_dtype(make: Any, dtype: Any) -> None:
    params = [torch.nn.Parameter(p) for p in made(0, dtype)]
    optimizer, second = make(params), make(params)
    give(params, 1)
    optimizer.step()
    second.load_state_dict(optimizer.state_dict())
    for p in params:
        for name in ("row_var", "col_var", "variance"):
            if name in optimizer.state[p]:
                assert second.state[p][name].dtype == torch.float32
                assert torch.equal(second.state[p][name], optimizer.state[p][name])


def test_torchs_class_of_the_rule_takes_its_states_and_gives_its_own(make: Any) -> None:
    if TORCHS is None:  # nothing to compare with, but the keys are our own then
        assert make([torch.ones(2)]).state_dict()["param_groups"][0].keys() >= OPTIONS.keys()
        return
    ours, theirs = (list(map(torch.nn.Parameter, made(0))) for _ in range(2))
    one, other = make(ours), TORCHS(theirs, **OPTIONS)
    for step in range(1, 4):
        give(ours, step), give(theirs, step)
        one.step(), other.step()
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
        saved = copy.deepcopy((one.state_dict(), other.state_dict()))
        one.load_state_dict(saved[1]), other.load_state_dict(saved[0])


def test_a_state_of_the_wrong_shape_is_refused(make: Any) -> None:
    params = list(map(torch.nn.Parameter, made(0)))
    optimizer = make(params)
    give(params, 1)
    optimizer.step()
    before = [p.detach().clone() for p in params]
    optimizer.state[params[0]]["row_var"] = torch.zeros(7)
    wanted = r"the row_var of a parameter has shape \(7,\) and is on cpu; needed \(5, 1\) on cpu; nothing was updated"
    with pytest.raises(RuntimeError, match=wanted):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(params, before, strict=True))


def test_a_dtensor_is_refused_whose_state_has_another_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_rules, "is_dtensor", lambda tensor: True)
    with pytest.raises(RuntimeError, match="a parameter is a DTensor, and its row_var has another shape"):
        ROW.new(torch.ones(3, 4), {})


def test_options_are_checked_by_the_table() -> None:
    with pytest.raises(ValueError, match=r"d is -1\.0; needed 0 or more"):
        CPUFactored([torch.ones(2)], d=-1.0)


def test_functions_of_one_rule_are_not_those_of_another() -> None:
    class Again(CPUFactored):
        rule = others.SGD

    assert CPUFactored.ops is FACTORED.kernels["cpu"].ops
    assert Again.ops is cpu_optim and Again.kernel is others.SGD.kernels["cpu"]
