"""The optimizers of the GPU, whole, with their device code run on the CPU: against torch's own in float64."""

from __future__ import annotations

import copy
import io
import itertools
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

torch = pytest.importorskip("torch")

from precast.optim import FusedAdagrad, FusedAdam, FusedAdamW, FusedLAMB, FusedLion, FusedSGD  # noqa: E402
from tests.unit.csrc.tensor_lists import assert_near, give_grads, made  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

KINDS: dict[str, tuple[Callable[..., Any], Callable[..., Any], dict[str, Any]]] = {
    "adam": (FusedAdam, torch.optim.Adam, {"weight_decay": 0.1}),
    "adamw": (FusedAdamW, torch.optim.AdamW, {"betas": (0.8, 0.95), "eps": 1e-6}),
    "amsgrad": (FusedAdamW, torch.optim.AdamW, {"amsgrad": True}),
    "maximize": (FusedAdamW, torch.optim.AdamW, {"maximize": True}),
    "sgd": (FusedSGD, torch.optim.SGD, {"weight_decay": 0.1}),
    "momentum": (FusedSGD, torch.optim.SGD, {"momentum": 0.9, "dampening": 0.3}),
    "nesterov": (FusedSGD, torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "maximize": True}),
    "adagrad": (FusedAdagrad, torch.optim.Adagrad, {"lr_decay": 0.1, "initial_accumulator_value": 0.2}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_torchs(list_gpu: Any, kind: str, dtype: Any) -> None:
    """Low-precision parameters by way of their masters, as an update of 1e-2 would be lost in the parameter itself."""
    make, torchs, options = KINDS[kind]
    low = dtype != torch.float32
    params = made(dtype)
    exact = [p.double() for p in params]
    ours = make(params, lr=1e-2, **options, **({"master_weights": True} if low else {}))
    theirs = torchs(exact, lr=1e-2, **options)
    for step in range(1, 4):
        give_grads(params, step)
        for param, wide in zip(params, exact, strict=True):
            wide.grad = param.grad.double()
        ours.step()
        theirs.step()
        for param, wide in zip(params, exact, strict=True):
            main = ours.state[param]["master_param"] if low else param
            assert_near(main, wide.detach(), 0.02, step)
            assert torch.equal(param, main.to(dtype))
            for name, value in theirs.state[wide].items():
                if name != "step" and value is not None:
                    assert_near(ours.state[param][name], value, 1.0, step)
            assert float(ours.state[param]["step"]) == step
    if kind in ("adamw", "adam", "maximize"):
        name = "adam_masters" if low else "adam"
    else:
        name = "update" if low or kind == "amsgrad" else "others"
    list_gpu.check_launches(["prepare", name] * 3)


def test_the_greatest_second_moment_keeps_a_nan(list_gpu: Any) -> None:
    """Of a gradient, and of a checkpoint whose second moment is a number, as torch's maximum does."""
    params, twins = made(torch.float32), made(torch.float32)
    ours, theirs = FusedAdamW(params, amsgrad=True), torch.optim.AdamW(twins, amsgrad=True)
    for step in range(1, 4):
        for some, optimizer in ((params, ours), (twins, theirs)):
            give_grads(some, step)
            if step == 2:
                optimizer.state[some[0]]["max_exp_avg_sq"].view(-1)[0] = float("nan")
                some[0].grad.view(-1)[1] = float("nan")
            optimizer.step()
    found, wanted = (o.state[s[0]]["max_exp_avg_sq"].isnan() for o, s in ((ours, params), (theirs, twins)))
    assert int(wanted.sum()) == 2 and torch.equal(found, wanted)


def test_hooks_are_called_and_versions_rise(list_gpu: Any) -> None:
    params = [torch.nn.Parameter(p) for p in made(torch.float32)]
    ours = FusedAdamW(params)
    calls: list[str] = []
    give_grads(params, 1)
    ours.step()
    ours.register_step_pre_hook(lambda *_: calls.append("before"))
    ours.register_step_post_hook(lambda *_: calls.append("after"))
    with torch.no_grad():
        give_grads(params, 2)
    ours.step()
    assert calls == ["before", "after"]
    assert {p._version for p in params} == {2}
    with torch.profiler.profile() as profile:
        ours.step()
    assert "Optimizer.step#FusedAdamW.step" in {event.key for event in profile.key_averages()}


def test_the_doctors_check_of_a_step(list_gpu: Any) -> None:
    from precast._cli import numbers

    assert numbers.check("multi_tensor_step_", "cpu") is None


def test_states_of_the_parameters_dtype(list_gpu: Any) -> None:
    params = made(torch.bfloat16)
    exact = [p.double() for p in params]
    ours, theirs = FusedAdamW(params, lr=0.1, state_dtype=None), torch.optim.AdamW(exact, lr=0.1)
    give_grads(params, 1)
    for param, wide in zip(params, exact, strict=True):
        wide.grad = param.grad.double()
    ours.step()
    theirs.step()
    for param, wide in zip(params, exact, strict=True):
        assert ours.state[param]["exp_avg"].dtype == torch.bfloat16
        assert_near(param, wide, 0.1, 1)
        assert_near(ours.state[param]["exp_avg_sq"], theirs.state[wide]["exp_avg_sq"], 1e-3, 1)


def lion(p: Any, m: Any, g: Any, lr: float, decay: float) -> None:
    p.mul_(1 - lr * decay).sub_(lr * torch.sign(0.9 * m + 0.1 * g))
    m.mul_(0.99).add_(0.01 * g)


def lamb(p: Any, m: Any, v: Any, g: Any, step: int, lr: float, decay: float) -> None:
    m.mul_(0.9).add_(0.1 * g)
    v.mul_(0.999).add_(0.001 * g * g)
    u = (m / (1 - 0.9**step)) / ((v / (1 - 0.999**step)).sqrt() + 1e-6) + decay * p
    size, length = p.norm(), u.norm()
    ratio = size / length if decay and size > 0 and length > 0 else 1.0
    p.sub_(lr * ratio * u)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_lion_and_lamb(list_gpu: Any, decay: float) -> None:
    params = [made(torch.float32), made(torch.float32)]
    exact = [[p.double() for p in some] for some in params]
    states = [[[torch.zeros_like(p) for p in exact[0]] for _ in range(n)] for n in (1, 2)]
    ours = FusedLion(params[0], lr=1e-2, weight_decay=decay), FusedLAMB(params[1], lr=1e-2, weight_decay=decay)
    for step in range(1, 3):
        for some, optimizer in zip(params, ours, strict=True):
            give_grads(some, step)
            optimizer.step()
        grads = [p.grad.double() for p in params[0]]
        share = min(1.0, 1.0 / float(torch.cat([g.flatten() for g in grads]).norm()))
        for i, g in enumerate(grads):
            lion(exact[0][i], states[0][0][i], g, 1e-2, decay)
            lamb(exact[1][i], states[1][0][i], states[1][1][i], g * share, step, 1e-2, decay)
            for some, wide in zip(params, exact, strict=True):
                assert_near(some[i], wide[i], 0.02, 2 * step)
    norm = ["norm_parts", "sum_each", "sum_total"]
    list_gpu.check_launches(["prepare", "others", *norm, "prepare", "lamb", "sum_each", "lamb"] * 2)


def test_clipping_and_loss_scale_and_overflow(list_gpu: Any) -> None:
    params, plain = made(torch.float32), made(torch.float32)
    ours, other = FusedAdam(params, lr=0.1, max_grad_norm=0.5), torch.optim.Adam(plain, lr=0.1)
    give_grads(plain, 1)
    for param, one in zip(params, plain, strict=True):
        param.grad = one.grad * 1024.0
    ours.grad_scale, ours.found_inf = torch.tensor(1024.0), torch.tensor(1.0)
    before = [p.clone() for p in params]
    ours.step()
    assert all(torch.equal(p, b) for p, b in zip(params, before, strict=True))
    assert {float(state["step"]) for state in ours.state.values()} == {0.0}
    ours.found_inf = torch.tensor(0.0)
    ours.step()
    torch.nn.utils.clip_grad_norm_(plain, 0.5)
    other.step()
    for param, one in zip(params, plain, strict=True):
        assert_near(param, one.detach(), 0.2, 1)
        assert float(ours.state[param]["step"]) == 1.0


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_norm_that_is_no_number_does_to_gradients_what_torch_does(list_gpu: Any, wrong: float) -> None:
    params, plain = made(torch.float32), made(torch.float32)
    ours, theirs = FusedAdam(params, lr=0.1, max_grad_norm=0.5), torch.optim.Adam(plain, lr=0.1)
    for some in (params, plain):
        give_grads(some, 1)
        some[1].grad[3] = wrong
    ours.step()
    torch.nn.utils.clip_grad_norm_(plain, 0.5)
    theirs.step()
    for param, one in zip(params, plain, strict=True):
        torch.testing.assert_close(param, one, equal_nan=True)


@pytest.mark.parametrize("count", [31, 32, 33, 65])
def test_every_group_has_numbers_of_its_own(list_gpu: Any, count: int) -> None:
    """A launch takes 32 groups; each has another rate, one of them a tensor, another decay and another beta."""
    params, twins = ([torch.full((3,), float(i + 1)) for i in range(count)] for _ in range(2))
    numbers = [{"lr": 0.01 * (i + 1), "weight_decay": 0.001 * i, "betas": (0.5 + i / 200, 0.99)} for i in range(count)]
    numbers[count // 2]["lr"] = torch.tensor(0.3)
    groups = [[{"params": [p], **n} for p, n in zip(some, numbers, strict=True)] for some in (params, twins)]
    optimizers = [FusedAdamW(groups[0]), torch.optim.AdamW(groups[1])]
    for step in range(1, 3):
        for some, optimizer in zip((params, twins), optimizers, strict=True):
            give_grads(some, step)
            optimizer.step()
        for param, twin in zip(params, twins, strict=True):
            assert_near(param, twin, 2.0, step)


@pytest.mark.parametrize("kind", ["adam", "adamw", "amsgrad", "momentum", "adagrad"])
def test_states_go_to_torch_and_back(list_gpu: Any, kind: str) -> None:
    make, torchs, options = KINDS[kind]
    params, twins = made(torch.float32), made(torch.float32)
    ours, theirs = make(params, lr=0.1, **options), torchs(twins, lr=0.1, **options)

    def both(step: int) -> None:
        give_grads(params, step)
        give_grads(twins, step)
        ours.step()
        theirs.step()
        for param, twin in zip(params, twins, strict=True):
            assert_near(param, twin.detach(), 1.0, step)

    both(1)
    saved, taken = copy.deepcopy(ours.state_dict()), copy.deepcopy(theirs.state_dict())
    assert {type(value) for value in saved["state"].values()} == {dict}
    theirs.load_state_dict(saved)
    ours.load_state_dict(taken)
    both(2)
    file = io.BytesIO()
    torch.save(ours.state_dict(), file)
    file.seek(0)
    ours.load_state_dict(torch.load(file, weights_only=True))
    both(3)


def test_adamw_stays_adamw_with_a_state_of_adam(list_gpu: Any) -> None:
    param, twin = (torch.linspace(-1, 1, 600) for _ in range(2))
    options = {"lr": 0.1, "weight_decay": 0.5}
    saved = []
    for tensor in (param, twin):
        adam = FusedAdam([tensor], **options)
        give_grads([tensor], 1)
        adam.step()
        saved.append(copy.deepcopy(adam.state_dict()))
    ours, theirs = FusedAdamW([param], **options), torch.optim.AdamW([twin], **options)
    for optimizer, tensor, state in zip((ours, theirs), (param, twin), saved, strict=True):
        optimizer.load_state_dict(state)
        give_grads([tensor], 2)
        optimizer.step()
    assert_near(param, twin, 0.5, 2)


def test_masters_and_wide_moments_survive_loading(list_gpu: Any) -> None:
    params = made(torch.bfloat16)
    ours = FusedAdamW(params, lr=1e-3, master_weights=True)
    give_grads(params, 1)
    ours.step()
    again = FusedAdamW(params, lr=1e-3, master_weights=True)
    again.load_state_dict(ours.state_dict())
    for param in params:
        for name in ("master_param", "exp_avg", "exp_avg_sq"):
            assert again.state[param][name].dtype == torch.float32
            assert torch.equal(again.state[param][name], ours.state[param][name])
    before = copy.deepcopy(ours.state_dict()["state"])
    give_grads(params, 2)
    again.step()
    for key, states in ours.state_dict()["state"].items():  # which were loaded, and are nobody else's now
        assert all(torch.equal(value, before[key][name]) for name, value in states.items())


def test_copies_of_an_optimizer_work_on_their_own(list_gpu: Any) -> None:
    params = made(torch.float32)
    ours = FusedAdamW(params, lr=1e-3)
    give_grads(params, 1)
    ours.step()
    other = copy.deepcopy(ours)
    mine = other.param_groups[0]["params"]
    give_grads(mine, 2)
    other.step()
    assert {float(state["step"]) for state in ours.state.values()} == {1.0}
    assert {float(state["step"]) for state in other.state.values()} == {2.0}


def test_groups_and_schedulers(list_gpu: Any) -> None:
    params, twins = made(torch.float32), made(torch.float32)
    options = [{"lr": 0.1, "weight_decay": 0.0}, {"lr": 0.01, "betas": (0.5, 0.6)}, {"lr": 0.02, "maximize": True}]

    def groups(tensors: list[Any]) -> list[dict[str, Any]]:
        parts = (tensors[:10], tensors[10:12], tensors[12:])
        return [{"params": part, **option} for part, option in zip(parts, options, strict=True)]

    ours, theirs = FusedAdamW(groups(params)), torch.optim.AdamW(groups(twins))
    schedules = [torch.optim.lr_scheduler.ExponentialLR(o, 0.5) for o in (ours, theirs)]
    for step in range(1, 4):
        give_grads(params, step)
        give_grads(twins, step)
        ours.step()
        theirs.step()
        for schedule in schedules:
            schedule.step()
        for param, twin in zip(params, twins, strict=True):
            assert_near(param, twin.detach(), 0.5, step)
    list_gpu.check_launches(["prepare", "adam"] * 6)  # maximize is a launch of its own


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_norms_and_sums_of_lists(list_gpu: Any, dtype: Any) -> None:
    xs, ys = made(dtype, 1), made(dtype, 2)
    total, squares = list_gpu.ops.multi_tensor_l2norm(xs)
    exact = torch.stack([x.double().square().sum() for x in xs])
    torch.testing.assert_close(squares.double(), exact, rtol=1e-5, atol=0)
    torch.testing.assert_close(total.double(), exact.sum().sqrt(), rtol=1e-5, atol=0)
    outs, found = [torch.full_like(x, float("nan")) for x in xs], torch.zeros(1)
    list_gpu.ops.multi_tensor_axpby_(outs, xs, ys, 2.0, -0.5, torch.tensor(0.5), found)
    for out, x, y in zip(outs, xs, ys, strict=True):
        assert_near(out, x.double() - 0.5 * y.double(), 3.0, 1)
    assert float(found) == 0
    xs[5][3] = float("nan")
    list_gpu.ops.multi_tensor_axpby_(xs, xs, [], 1.0, 0.0, None, found)
    assert float(found) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("most", [0.5, 1e3])
def test_clipping_by_the_norm_is_torchs(
    list_gpu: Any, monkeypatch: pytest.MonkeyPatch, most: float, dtype: Any
) -> None:
    from precast.ops import multi_tensor

    monkeypatch.setattr(multi_tensor, "L2NORM", list_gpu.ops.multi_tensor_l2norm)
    monkeypatch.setattr(multi_tensor, "AXPBY_", list_gpu.ops.multi_tensor_axpby_)
    params, twins = made(dtype), made(dtype)
    for some in (params, twins):
        give_grads(some, 1)
        some[2].grad = None
    norm = multi_tensor.clip_grad_norm_((param for param in params), most, "2", True, False)
    list_gpu.check_launches(["norm_parts", "sum_each", "sum_total", "axpby"])
    torch.testing.assert_close(norm, torch.nn.utils.clip_grad_norm_(twins, most))
    for param, twin in zip(params, twins, strict=True):
        torch.testing.assert_close(param.grad, twin.grad)
    for wrong in (float("inf"), float("nan")):
        params[5].grad.fill_(wrong)
        before = [param.grad.clone() for param in params if param.grad is not None]
        with pytest.raises(RuntimeError, match=f"the norm of the gradients is {wrong}; needed a finite one"):
            multi_tensor.clip_grad_norm_(params, most, error_if_nonfinite=True)
        after = [param.grad for param in params if param.grad is not None]
        torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("longest", [0, 40, 79])
def test_every_block_finds_its_tensor_among_short_ones_and_a_long_one(list_gpu: Any, longest: int) -> None:
    """A block first looks where its tensor would be if all were of one length, which here is far from it."""
    xs = [torch.full((5,), float(i)) for i in range(80)]
    xs[longest] = torch.full((100_000,), 0.5)
    outs = [torch.zeros_like(x) for x in xs]
    list_gpu.ops.multi_tensor_axpby_(outs, xs, [], 2.0, 0.0, None, None)
    assert all(torch.equal(out, 2 * x) for out, x in zip(outs, xs, strict=True))


def test_a_sum_by_the_factor_one_goes_into_other_tensors(list_gpu: Any) -> None:
    xs = made(torch.float32)
    outs = [torch.zeros_like(x) for x in xs]
    list_gpu.ops.multi_tensor_axpby_(outs, xs, [], 1.0, 0.0, None, None)
    assert all(map(torch.equal, outs, xs))


def test_lamb_leaves_a_parameter_without_a_direction(list_gpu: Any) -> None:
    param = torch.nn.Parameter(torch.ones(600))
    optimizer = FusedLAMB([param], lr=0.1, weight_decay=0.0, always_adapt=True)
    param.grad = torch.zeros(600)
    optimizer.step()
    assert torch.equal(param, torch.ones(600))


@pytest.fixture
def mesh() -> Iterator[Any]:
    """A mesh of two ranks, of which this process is the first and the other one is made up."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if torch.distributed.is_initialized():  # histories with DTensors leave theirs
        torch.distributed.destroy_process_group()
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield init_device_mesh("cpu", (2,))
    torch.distributed.destroy_process_group()


def test_shards_of_a_dtensor_are_updated(list_gpu: Any, mesh: Any) -> None:
    from torch.distributed.tensor import DTensor, Replicate, Shard

    local, twin = torch.randn(5, 7), None
    twin = local.clone()
    param = torch.nn.Parameter(DTensor.from_local(local.clone(), mesh, [Shard(0)]))
    ours, theirs = FusedAdamW([param], lr=0.1), torch.optim.AdamW([twin], lr=0.1)
    for step in range(1, 4):
        twin.grad = torch.randn(5, 7, generator=torch.Generator().manual_seed(step))
        param.grad = DTensor.from_local(twin.grad.clone(), mesh, [Shard(0)])
        ours.step()
        theirs.step()
        assert_near(param.to_local().detach(), twin, 0.5, step)
    cast("Any", param)._local_tensor = param.to_local().detach().clone()  # the plan knows another one
    twin.grad = torch.ones(5, 7)
    param.grad = DTensor.from_local(twin.grad.clone(), mesh, [Shard(0)])
    ours.step()
    theirs.step()
    assert_near(param.to_local().detach(), twin, 0.5, 4)
    moment = ours.state[param]["exp_avg"]
    assert isinstance(moment, DTensor) and moment.shape == (10, 7)
    whole = torch.randn(10, 7)
    param.grad, twin.grad = DTensor.from_local(whole, mesh, [Replicate()]), whole[:5].clone()
    ours.step()
    theirs.step()
    assert_near(param.to_local().detach(), twin, 0.5, 5)
    ours.state[param]["exp_avg"] = DTensor.from_local(torch.zeros(10, 7), mesh, [Replicate()])
    with pytest.raises(RuntimeError, match="needed the same for both"):
        ours.step()


def test_lamb_on_shards(list_gpu: Any, mesh: Any) -> None:
    """The sums of the other, made-up rank stay out, so this is the step of the local shards."""
    from torch.distributed.tensor import DTensor, Shard

    plain, some = made(torch.float32), made(torch.float32)
    params = [DTensor.from_local(p, mesh, [Shard(0)]) if p.dim() else p for p in some]
    ours, theirs = (FusedLAMB(some, lr=0.1, max_grad_norm=None) for some in (params, plain))
    for step in range(1, 4):
        give_grads(plain, step)
        for param, twin in zip(params, plain, strict=True):
            grad = twin.grad.clone()
            param.grad = DTensor.from_local(grad, mesh, [Shard(0)]) if isinstance(param, DTensor) else grad
        ours.step()
        list_gpu.launched()
        theirs.step()
        for local, twin in zip(some, plain, strict=True):
            assert_near(local, twin, 0.2, step)


def test_flat_views_and_odd_offsets(list_gpu: Any) -> None:
    """Parameters that lie side by side in one tensor, as sharded optimizers keep them: most are aligned to nothing."""
    flat, twin = torch.randn(3000), None
    twin = flat.clone()
    cuts = [1, 514, 515, 1540, 3000]
    views = [flat[a:b] for a, b in itertools.pairwise(cuts)]
    twins = [twin[a:b] for a, b in itertools.pairwise(cuts)]
    ours, theirs = FusedAdamW(views, lr=0.1), torch.optim.AdamW(twins, lr=0.1)
    give_grads(views, 1)
    give_grads(twins, 1)
    ours.step()
    theirs.step()
    assert_near(flat, twin, 0.2, 1)
    assert flat[0] == twin[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", [*KINDS, "lion", "lamb"])
def test_a_scaled_step_unscales_the_gradients_in_the_same_launches(list_gpu: Any, kind: str, dtype: Any) -> None:
    make, _, options = {**KINDS, "lion": (FusedLion, None, {}), "lamb": (FusedLAMB, None, {})}[kind]
    sides = [(made(dtype), 1.0), (made(dtype), 1024.0)]
    optimizers = [make(params, lr=1e-2, **options) for params, _ in sides]
    for step in range(1, 4):
        launched = []
        for (params, scale), optimizer in zip(sides, optimizers, strict=True):
            give_grads(params, step)
            for param in params:
                param.grad = param.grad * scale
            if scale != 1:
                optimizer.grad_scale, optimizer.found_inf = torch.tensor(scale), torch.tensor(0.0)
            optimizer.step()
            launched.append(list_gpu.launched())
            assert {param.grad._version for param in params} == {0 if scale == 1 else 1}
        assert launched[0] == launched[1]
        for plain, scaled in zip(*(params for params, _ in sides), strict=True):
            assert torch.equal(plain.grad, scaled.grad)
            torch.testing.assert_close(scaled, plain, rtol=1e-6, atol=1e-6)
    before = [param.grad.clone() for param in sides[1][0]]
    optimizers[1].found_inf = torch.tensor(1.0)
    optimizers[1].step()
    assert all(torch.equal(param.grad, grad) for param, grad in zip(sides[1][0], before, strict=True))


def test_gradients_in_another_layout_are_unscaled_too(list_gpu: Any) -> None:
    param = torch.nn.Parameter(torch.ones(4, 6))
    optimizer = FusedAdamW([param], lr=0.1)
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(4.0), torch.tensor(0.0)
    values = torch.arange(24.0).view(4, 6)
    kinds: list[Callable[[Any], Any]] = [
        lambda g: g.t().contiguous().t(),
        lambda g: torch._neg_view(-g),
        lambda g: torch.stack((g, g), 2)[..., 0],
    ]
    for make in kinds:
        for overflow in (1.0, 0.0):
            param.grad = make(values * 4)
            optimizer.found_inf.fill_(overflow)
            optimizer.step()
            assert torch.equal(param.grad, values * 4 if overflow else values)


def test_gradients_that_share_memory_cannot_be_unscaled(list_gpu: Any) -> None:
    params = [torch.nn.Parameter(torch.ones(8)) for _ in range(2)]
    optimizer = FusedAdamW(params)
    params[0].grad = params[1].grad = torch.full((8,), 4.0)
    optimizer.step()
    before = params[0].detach().clone()
    optimizer.grad_scale = torch.tensor(4.0)
    with pytest.raises(RuntimeError, match="two gradients share memory; each must have its own to be unscaled"):
        optimizer.step()
    assert torch.equal(params[0], before) and params[0].grad.tolist() == [4.0] * 8


@pytest.mark.parametrize("kind", ["adam", "lamb"])
def test_moments_without_bias_correction(list_gpu: Any, kind: str) -> None:
    make: Any = {"adam": FusedAdamW, "lamb": FusedLAMB}[kind]
    param = torch.linspace(-1, 1, 600)
    exact, m, v = param.double(), torch.zeros(600).double(), torch.zeros(600).double()
    options = {"max_grad_norm": None, "always_adapt": True} if kind == "lamb" else {}
    optimizer = make([param], lr=0.1, weight_decay=0.0, eps=1e-6, bias_correction=False, **options)
    for step in range(1, 4):
        give_grads([param], step)
        optimizer.step()
        g = param.grad.double()
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        u = m / (v.sqrt() + 1e-6)
        exact -= 0.1 * u * (exact.norm() / u.norm() if kind == "lamb" else 1.0)
        assert_near(param, exact, 0.5, step)
