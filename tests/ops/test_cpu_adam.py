"""The optimizer: as an optimizer of torch, in mixed precision, and with what surrounds an optimizer."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast.optim import CPUAdam, CPUAdamOptimizer  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


def model(dtype: Any = F32) -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 33), torch.nn.ReLU(), torch.nn.Linear(33, 3)).to(dtype)


def train(net: Any, optimizer: Any, steps: int, first: int = 0, scheduler: Any = None) -> list[Any]:
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(step)
        batch = torch.randn(8, 5, generator=generator).to(next(net.parameters()).dtype)
        optimizer.zero_grad()
        net(batch).square().mean().backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return [p.detach().clone() for p in net.parameters()]


def assert_near(ours: list[Any], theirs: list[Any]) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("maximize", [True, False])
def test_trains_as_torch_does(decoupled: bool, weight_decay: float, maximize: bool) -> None:
    ours, theirs = model(), model()
    theirs_class = torch.optim.AdamW if decoupled else torch.optim.Adam
    options = {"lr": 1e-3, "betas": (0.8, 0.99), "eps": 1e-7, "weight_decay": weight_decay, "maximize": maximize}
    assert_near(
        train(ours, CPUAdam(ours.parameters(), decoupled=decoupled, **options), 30),
        train(theirs, theirs_class(theirs.parameters(), **options), 30),
    )


def test_groups_have_their_own_numbers_and_new_ones_can_be_added() -> None:
    def groups(net: Any, decay: str) -> Any:
        return [
            {"params": [net[0].weight], "lr": 1e-2},
            {"params": [net[0].bias], "weight_decay": 0.3, decay: False},
        ], {"params": net[2].parameters(), "betas": (0.5, 0.9)}

    nets = model(), model()
    results = []
    for net, kind, decay in (
        (nets[0], CPUAdam, "decoupled"),
        (nets[1], lambda p: torch.optim.Adam(p, decoupled_weight_decay=True), "decoupled_weight_decay"),
    ):
        first, added = groups(net, decay)
        optimizer = kind(first)
        train(net, optimizer, 3)
        optimizer.add_param_group(added)
        results.append(train(net, optimizer, 3, first=3))
    assert_near(*results)


@pytest.mark.parametrize("tensor", [True, False])
def test_learning_rates_follow_a_scheduler(tensor: bool) -> None:
    results = []
    for kind in (CPUAdam, torch.optim.AdamW):
        net = model()
        optimizer = kind(net.parameters(), lr=torch.tensor(1e-2) if tensor else 1e-2, weight_decay=0.1)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=10, cycle_momentum=True)
        results.append(train(net, optimizer, 9, scheduler=scheduler))
    assert_near(*results)


@pytest.mark.parametrize("direction", ["to torch", "from torch"])
@pytest.mark.parametrize("saved", [True, False])
def test_states_are_exchanged_with_torch(direction: str, saved: bool, tmp_path: Path) -> None:
    classes = (CPUAdam, torch.optim.AdamW) if direction == "to torch" else (torch.optim.AdamW, CPUAdam)
    net, straight = model(), model()
    first = classes[0](net.parameters(), lr=1e-2, weight_decay=0.1)
    train(net, first, 5)
    state = first.state_dict()
    assert set(state["state"][0]) == {"step", "exp_avg", "exp_avg_sq"}
    assert isinstance(state["state"][0]["step"], torch.Tensor)
    if saved:
        torch.save(state, tmp_path / "state.pt")
        state = torch.load(tmp_path / "state.pt", weights_only=True)
    second = classes[1](net.parameters(), lr=5.0)
    second.load_state_dict(state)
    resumed = train(net, second, 5, first=5)
    optimizer = torch.optim.AdamW(straight.parameters(), lr=1e-2, weight_decay=0.1)
    assert_near(resumed, train(straight, optimizer, 10))
    assert {float(values["step"]) for values in second.state.values()} == {10.0}


def test_a_state_of_torchs_adam_decays_as_adam_does() -> None:
    net = model()
    theirs = torch.optim.Adam(net.parameters(), weight_decay=0.1)
    train(net, theirs, 1)
    ours = CPUAdam(net.parameters())
    ours.load_state_dict(theirs.state_dict())
    assert [group["decoupled"] for group in ours.param_groups] == [False]


@pytest.mark.parametrize("decoupled", [True, False])
def test_amsgrad_is_torchs_and_its_states_are_exchanged(decoupled: bool) -> None:
    theirs_class = torch.optim.AdamW if decoupled else torch.optim.Adam
    net, straight = model(), model()
    options = {"lr": 1e-2, "weight_decay": 0.1, "betas": (0.5, 0.6), "amsgrad": True}
    first = theirs_class(net.parameters(), **options)
    train(net, first, 3)
    ours = CPUAdam(net.parameters())
    ours.load_state_dict(first.state_dict())
    train(net, ours, 3, first=3)
    assert set(ours.state_dict()["state"][0]) == {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"}
    last = theirs_class(net.parameters())
    last.load_state_dict(ours.state_dict())
    assert_near(train(net, last, 3, first=6), train(straight, theirs_class(straight.parameters(), **options), 9))


def test_loading_keeps_float32_moments_of_low_precision_parameters() -> None:
    net = model(BF16)
    first = CPUAdam(net.parameters())
    train(net, first, 2)
    second = CPUAdam(model(BF16).parameters())
    seen = []
    second.register_load_state_dict_pre_hook(lambda _, state: seen.append(state))
    second.load_state_dict(first.state_dict())
    assert len(seen) == 1
    for ours, theirs in zip(second.state.values(), first.state.values(), strict=True):
        for name in ("exp_avg", "exp_avg_sq"):
            assert ours[name].dtype == F32
            assert torch.equal(ours[name], theirs[name])
            assert ours[name].data_ptr() != theirs[name].data_ptr()


@pytest.mark.parametrize("make", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=["deepcopy", "pickle"])
def test_copies_of_an_optimizer_go_on_alike(make: Callable[[Any], Any]) -> None:
    net = model()
    both = {"net": net, "optimizer": CPUAdam(net.parameters(), lr=1e-2, maximize=True)}
    train(net, both["optimizer"], 2)
    again = make(both)
    assert_near(train(again["net"], again["optimizer"], 3, first=2), train(net, both["optimizer"], 3, first=2))


@pytest.mark.parametrize("grad", [BF16, F16, F32], ids=str)
@pytest.mark.parametrize("low", [BF16, F16], ids=str)
def test_masters_with_low_precision_gradients_and_copies(grad: Any, low: Any) -> None:
    net = model(low)
    masters = [p.detach().float().requires_grad_() for p in net.parameters()]
    theirs = [m.detach().clone().requires_grad_() for m in masters]
    ours, torchs = CPUAdam(masters, lr=1e-2), torch.optim.AdamW(theirs, lr=1e-2, weight_decay=0.0)
    for _ in range(5):
        grads = [torch.randn_like(m).to(grad) for m in masters]
        kept = [g.clone() for g in grads]
        ours.step(grads=grads, copies=list(net.parameters()))
        for param, g in zip(theirs, grads, strict=True):
            param.grad = g.float()
        torchs.step()
        assert all(map(torch.equal, grads, kept))
    assert_near([m.detach() for m in masters], [t.detach() for t in theirs])
    for param, master in zip(net.parameters(), masters, strict=True):
        assert torch.equal(param, master.to(low))


def test_gradients_and_copies_by_parameter() -> None:
    first, second, third = (torch.ones(3, requires_grad=True) for _ in range(3))
    target = torch.zeros(3, dtype=BF16)
    optimizer = CPUAdam([first, second, third], lr=0.5)
    optimizer.step(grads={first: torch.ones(3), third: torch.ones(3, dtype=F16)}, copies={third: target})
    assert first.tolist() == third.tolist() == target.tolist() == [0.5] * 3
    assert second.tolist() == [1.0] * 3
    assert second not in optimizer.state
    with pytest.raises(ValueError, match="1 keys of grads are not parameters of this optimizer"):
        optimizer.step(grads={torch.ones(3): torch.ones(3)})
    with pytest.raises(ValueError, match="copies has 1 entries; needed 3, one per parameter"):
        optimizer.step(copies=[target])


def test_parameters_without_a_gradient_are_left_out_and_count_no_step() -> None:
    net, straight = model(), model()
    ours, theirs = CPUAdam(net.parameters(), lr=1e-2), torch.optim.AdamW(straight.parameters(), 1e-2, weight_decay=0)
    for step in range(6):
        for network, optimizer in ((net, ours), (straight, theirs)):
            for index, param in enumerate(network.parameters()):
                generator = torch.Generator().manual_seed(step)
                param.grad = None if (step + index) % 3 == 0 else torch.randn(param.shape, generator=generator)
            optimizer.step()
    assert_near([p.detach() for p in net.parameters()], [p.detach() for p in straight.parameters()])
    for one, other in zip(net.parameters(), straight.parameters(), strict=True):
        assert torch.equal(ours.state[one]["step"], theirs.state[other]["step"])


def test_closure_and_hooks() -> None:
    net = model()
    optimizer = CPUAdam(net.parameters())
    seen: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))

    def closure() -> Any:
        seen.append("closure")
        assert torch.is_grad_enabled()
        optimizer.zero_grad()
        loss = net(torch.ones(2, 5)).square().sum()
        loss.backward()
        return loss

    with torch.no_grad():
        first, second = optimizer.step(closure), optimizer.step(closure)
    assert second < first
    assert seen == ["before", "closure", "after"] * 2


@pytest.mark.parametrize("overflow", [False, True])
def test_grad_scaler(overflow: bool) -> None:
    ours, theirs = model(), model()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = CPUAdam(ours.parameters(), lr=1e-2)
    scaler.scale(ours(torch.ones(4, 5)).square().mean()).backward()
    if overflow:
        ours[0].weight.grad[0, 0] = float("inf")
    before = [p.detach().clone() for p in ours.parameters()]
    scaled = [p.grad.clone() for p in ours.parameters()]
    scaler.step(optimizer)
    scaler.update()
    left = [g if overflow else g / 1024 for g in scaled]
    assert all(torch.equal(p.grad, g) for p, g in zip(ours.parameters(), left, strict=True))
    after = [p.detach() for p in ours.parameters()]
    if overflow:
        assert all(map(torch.equal, after, before))
        assert not optimizer.state
        assert scaler.get_scale() == 512.0
        return
    plain = torch.optim.AdamW(theirs.parameters(), lr=1e-2, weight_decay=0.0)
    theirs(torch.ones(4, 5)).square().mean().backward()
    plain.step()
    assert_near(after, [p.detach() for p in theirs.parameters()])


def test_a_scale_on_another_device_is_warned_of() -> None:
    net = model()
    net(torch.ones(4, 5)).sum().backward()
    optimizer = CPUAdam(net.parameters())
    optimizer.grad_scale, optimizer.found_inf = torch.ones((), device="meta"), torch.ones(())
    with pytest.warns(RuntimeWarning, match=r"CPUAdam.step: torch's GradScaler has its scale on meta"):
        optimizer.step()
    optimizer.grad_scale = torch.ones(())
    optimizer.step()  # a warning is an error here


def test_gradients_unscaled_by_the_scaler_are_not_unscaled_again() -> None:
    results = []
    for unscale in (True, False):
        net = model()
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        optimizer = CPUAdam(net.parameters(), lr=1e-2, eps=1.0)  # with such an eps the size of a gradient matters
        scaler.scale(net(torch.ones(4, 5)).square().mean()).backward()
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        results.append([p.detach().clone() for p in net.parameters()])
    assert_near(*results)


@pytest.mark.parametrize("scale", [64.0, torch.tensor(64.0)], ids=["number", "tensor"])
def test_grad_scale_divides(scale: Any) -> None:
    params = [torch.ones(20, requires_grad=True) for _ in range(2)]
    grad = torch.linspace(-1, 1, 20)
    CPUAdam([params[0]], eps=1.0).step(grads=[grad * 64], grad_scale=scale)
    CPUAdam([params[1]], eps=1.0).step(grads=[grad])
    assert torch.equal(*params)
    for bad in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=r"grad_scale is .*; needed a positive number"):
            CPUAdam([params[0]]).step(grads=[grad], grad_scale=bad)


def test_any_memory_layout_gives_the_numbers_of_the_plain_one() -> None:
    start, grad = torch.randn(4, 3, 5, 7), torch.randn(4, 3, 5, 7)
    plain = start.clone().requires_grad_()
    layouts = {
        "channels_last": start.clone(memory_format=torch.channels_last),
        "transposed": start.transpose(0, 3).contiguous().transpose(0, 3),
        "with gaps": torch.zeros(4, 3, 5, 14)[..., ::2].copy_(start),
    }
    CPUAdam([plain]).step(grads=[grad])
    for name, layout in layouts.items():
        for gradient in (grad, grad.to(memory_format=torch.channels_last)):
            param = layout.clone().copy_(start) if name != "with gaps" else layout.copy_(start)
            target = torch.zeros_like(param, dtype=BF16)
            optimizer = CPUAdam([param])
            optimizer.step(grads=[gradient], copies=[target])
            assert torch.equal(param, plain), name
            assert torch.equal(target, plain.bfloat16()), name
            state = optimizer.state[param]
            assert state["exp_avg"].shape == param.shape


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_moments_of_the_parameters_dtype(dtype: Any) -> None:
    net = model(dtype)
    optimizer = CPUAdam(net.parameters(), state_dtype=None)
    train(net, optimizer, 2)
    assert {values["exp_avg"].dtype for values in optimizer.state.values()} == {dtype}


def test_versions_are_bumped() -> None:
    param = torch.ones(3, requires_grad=True)
    loss = (param * param).sum()
    CPUAdam([param]).step(grads=[torch.ones(3)])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.filterwarnings("ignore:Graph break due to unsupported builtin:UserWarning")  # said by torch up to 2.7
def test_a_compiled_training_step_leaves_the_optimizer_alone() -> None:
    ours, theirs = model(), model()
    results = []
    for net, compiled in ((ours, True), (theirs, False)):
        optimizer = CPUAdam(net.parameters(), lr=1e-2)

        def step(net: Any = net, optimizer: Any = optimizer) -> None:
            optimizer.zero_grad()
            net(torch.ones(4, 5)).square().mean().backward()
            optimizer.step()

        function = torch.compile(step, backend="aot_eager") if compiled else step
        for _ in range(3):
            function()
        results.append([p.detach() for p in net.parameters()])
    assert_near(*results)


def test_optimizers_in_several_threads() -> None:
    def run(seed: int) -> Any:
        param = torch.linspace(-1, 1, 30_000).requires_grad_()
        optimizer = CPUAdam([param], lr=1e-2)
        generator = torch.Generator().manual_seed(seed)
        for _ in range(10):
            optimizer.step(grads=[torch.randn(30_000, generator=generator)])
        return param.detach()

    alone = [run(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert all(map(torch.equal, alone, pool.map(run, range(4))))


def test_the_ancestors_optimizer_computes_the_same() -> None:
    ours = torch.linspace(-1, 1, 100)
    theirs, m, v = ours.clone(), torch.zeros(100), torch.zeros(100)
    optimizer = CPUAdam([ours], lr=1e-2, weight_decay=0.1)
    ancestor = CPUAdamOptimizer(1e-2, 0.9, 0.999, 1e-8, 0.1, True)
    for step in range(1, 4):
        grad = torch.randn(100, generator=torch.Generator().manual_seed(step))
        optimizer.step(grads=[grad * 8], grad_scale=8.0)
        ancestor.step(step, 1e-2, 0.9, 0.999, 1e-8, 0.1, True, theirs, grad * 8, m, v, 8.0)
    assert torch.equal(ours, theirs)
    assert torch.equal(m, optimizer.state[ours]["exp_avg"])


def test_the_ancestors_optimizer_bumps_versions(run_child: Callable[[str], str]) -> None:
    out = run_child("""
        import torch
        from precast.kernel_loader import CPUAdamLoader

        optimizer = CPUAdamLoader().load().CPUAdamOptimizer(1e-3, 0.9, 0.999, 1e-8, 0.0, True)
        tensors = [torch.ones(8) for _ in range(4)]
        optimizer.step(1, 1e-3, 0.9, 0.999, 1e-8, 0.0, True, *tensors, 1.0)
        print([t._version > 0 for t in tensors])
    """)
    assert out.splitlines()[-1] == "[True, False, True, True]"
