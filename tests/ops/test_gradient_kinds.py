"""A planned step sees what the first one sees, whatever kind of tensor a gradient, parameter or state is by then."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast import ops  # noqa: E402
from precast.ops import cpu_optim  # noqa: E402
from precast.optim import CPUSGD, FusedSGD  # noqa: E402
from tests.ops import histories  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
ALL = [
    *(pytest.param("cpu", name, id=f"cpu-{name}") for name in histories.PAIRS["cpu"]),
    *(pytest.param("cuda", name, id=f"cuda-{name}", marks=pytest.mark.gpu) for name in histories.PAIRS["gpu"]),
]


def stepped(device: str, name: str, kind: str, forget: bool) -> tuple[list[Any], str]:
    """What three steps come to, of which the last two have a gradient of this kind; ``forget``: all are first steps."""
    pair = histories.PAIRS["gpu" if device == "cuda" else "cpu"][name]
    generator = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(shape, generator=generator).to(device)) for shape in ((4, 6), (33,))]
    optimizer: Any = pair.ours(params, **copy.deepcopy(pair.options))
    told = ""
    for number in range(4):
        for index, param in enumerate(params):
            values = torch.randn(param.shape, generator=generator).to(device)
            if hasattr(param, "grad_dtype"):
                param.grad_dtype = None
            try:
                param.grad = histories.GRADIENTS[kind if number > 1 and index == 0 else "plain"](values)
            except (RuntimeError, TypeError) as error:
                told += f"{type(error)} "
        if forget:
            optimizer._drop()
        error = histories._attempt(optimizer.step, device)
        told += f"{error and error.kind} "
    return [
        t.detach().resolve_neg().clone() for p in params for t in (p, *histories._states(optimizer, p).values())
    ], told


@pytest.mark.parametrize("kind", histories.GRADIENTS)
@pytest.mark.parametrize(("device", "name"), ALL)
def test_a_planned_step_is_the_first_one(device: str, name: str, kind: str) -> None:
    planned, told = stepped(device, name, kind, forget=False)
    first, said = stepped(device, name, kind, forget=True)
    assert told == said
    for one, other in zip(planned, first, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("kind", "size"), [("negative", 1.0), ("conjugate", 1.0), ("zero tensor", 0.0), ("opaque", 1.0)]
)
def test_a_gradient_is_what_its_elements_are(device: str, kind: str, size: float) -> None:
    param = torch.nn.Parameter(torch.zeros(5, 7, device=device))
    optimizer = (FusedSGD if device == "cuda" else CPUSGD)([param], lr=1.0)
    for number in range(1, 4):
        param.grad = histories.GRADIENTS[kind](torch.ones(5, 7, device=device))
        optimizer.step()
        assert torch.equal(param, torch.full_like(param, -size * number))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", histories.NO_MEMORY)
def test_a_storage_that_is_too_short_is_refused(device: str, kind: str) -> None:
    params = [torch.nn.Parameter(torch.zeros(8, device=device)) for _ in range(2)]
    optimizer = (FusedSGD if device == "cuda" else CPUSGD)(params, lr=1.0)
    for planned in (False, True):
        params[0].grad, params[1].grad = (
            torch.ones(8, device=device),
            histories.GRADIENTS[kind](torch.ones(8, device=device)),
        )
        with pytest.raises(
            RuntimeError, match=r"\[1\] has shape \(8,\), and a storage of only [06] bytes|of only 24 bytes"
        ):
            optimizer.step()
        assert not torch.cat([p.detach() for p in params]).any()
        if not planned:
            params[0].grad, params[1].grad = (torch.zeros(8, device=device) for _ in range(2))
            optimizer.step()


@pytest.mark.parametrize("device", DEVICES)
def test_a_shorter_storage_in_the_place_of_the_last_one_is_refused(device: str) -> None:
    param = torch.nn.Parameter(torch.zeros(8, device=device))
    optimizer = (FusedSGD if device == "cuda" else CPUSGD)([param], lr=1.0)
    for _ in range(20):  # where the allocator puts a storage is up to it
        param.grad = torch.zeros(8, device=device)
        optimizer.step()
        short = torch.ones(8, device=device)
        param.grad = None
        short.untyped_storage().resize_(24)
        param.grad = short
        with pytest.raises(RuntimeError, match="a storage of only 24 bytes"):
            optimizer.step()
    assert not param.detach().any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", histories.NO_MEMORY)
def test_a_short_storage_beside_a_turned_parameter_is_refused(device: str, kind: str) -> None:
    param = torch.nn.Parameter(torch.zeros(4, 8, device=device).t())
    optimizer = (FusedSGD if device == "cuda" else CPUSGD)([param], lr=1.0)
    param.grad = histories.GRADIENTS[kind](torch.ones(8, 4, device=device))
    with pytest.raises(RuntimeError, match=r"a storage of only \d+ bytes"):
        optimizer.step()
    assert not param.detach().any()


def test_a_wrapper_as_parameter_gets_every_step() -> None:
    """What it dispatches to is what the kernel sees: a plan would stand for the last of these alone."""
    both = torch.zeros(4), torch.zeros(4)
    from torch.testing._internal.two_tensor import TwoTensor

    param = torch.nn.Parameter(TwoTensor(*both))
    optimizer = CPUSGD([param], lr=1.0)
    for _ in range(3):
        param.grad = TwoTensor(torch.ones(4), torch.full((4,), 2.0))
        optimizer.step()
    assert [t.tolist() for t in both] == [[-3.0] * 4, [-6.0] * 4]


def test_a_parameter_with_the_negative_bit() -> None:
    memory = torch.full((4,), -10.0)
    param = torch.nn.Parameter(torch._neg_view(memory))
    optimizer = CPUSGD([param], lr=1.0, momentum=0.5)
    for expected in (9.0, 7.5, 5.75):
        param.grad = torch.ones(4)
        optimizer.step()
        assert param.tolist() == [expected] * 4
        assert memory.tolist() == [-expected] * 4


@pytest.mark.parametrize("which", ["param", "state"])
@pytest.mark.parametrize("handed", [False, True])
def test_data_that_becomes_negative_in_the_same_memory(which: str, handed: bool) -> None:
    params, made = [torch.nn.Parameter(torch.full((4,), 1.0)) for _ in range(2)], []
    for param, make in zip(params, (CPUSGD, torch.optim.SGD), strict=True):
        optimizer: Any = make([param], lr=1.0, momentum=0.5)
        for number in range(4):
            param.grad = torch.ones(4)
            if number == 2:
                tensor = param if which == "param" else optimizer.state[param]["momentum_buffer"]
                tensor.data = torch._neg_view(tensor.data)
            optimizer.step(**({"grads": [param.grad]} if handed and make is CPUSGD else {}))
        made.append(param.detach().resolve_neg())
    assert torch.equal(*made)


@pytest.mark.parametrize("which", ["parameter", "momentum_buffer of parameter"])
@pytest.mark.gpu
def test_what_a_plan_on_the_gpu_cannot_stand_for_is_refused(which: str) -> None:
    param = torch.nn.Parameter(torch.ones(4, device="cuda"))
    optimizer = FusedSGD([param], lr=1.0, momentum=0.5)
    for planned in (False, True):
        param.grad = torch.ones(4, device="cuda")
        if planned:
            tensor = param if which == "parameter" else optimizer.state[param]["momentum_buffer"]
            tensor.data = torch._neg_view(tensor.data)
            with pytest.raises(RuntimeError, match=f"{which} 0 has no memory of its own; nothing was updated"):
                optimizer.step()
        else:
            optimizer.step()


@pytest.mark.gpu
def test_clipping_and_unscaling_see_the_kind_too() -> None:
    param = torch.nn.Parameter(torch.zeros(4, device="cuda"))
    param.grad = torch._neg_view(torch.full((4,), -3.0, device="cuda"))
    with pytest.raises(RuntimeError, match="negation"):  # written in place: torch has no way to hand that over
        ops.clip_grad_norm_([param], 1.0)
    optimizer = FusedSGD([param], lr=1.0)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0)
    scaler.scale(torch.ones((), device="cuda"))
    param.grad = torch._neg_view(torch.full((4,), -2.0, device="cuda"))
    with pytest.raises(RuntimeError, match="negation"):  # torch's own unscaling refuses it likewise
        scaler.step(optimizer)
    assert param.tolist() == [0.0] * 4


def test_a_transform_is_refused_by_every_step() -> None:
    param = torch.nn.Parameter(torch.zeros(4))
    optimizer = CPUSGD([param], lr=1.0)

    def loss(x: Any) -> Any:
        optimizer.step()
        return x.sum()

    for planned in (False, True):
        param.grad = torch.ones(4)
        with pytest.raises(RuntimeError, match="a transform is active"):
            torch.func.grad(loss)(torch.ones(2))
        assert param.tolist() == [-1.0 * planned] * 4
        optimizer.step()


@pytest.mark.parametrize(
    ("kind", "alone"),
    {"plain": True, "inference": False, "offset": True, "asking": False, "negative": False, "parameter": False}.items(),
)
def test_plain_gradients_still_cost_little(kind: str, alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[bool] = []
    again: Callable[..., bool] = cpu_optim.optimize_again
    monkeypatch.setattr(cpu_optim, "optimize_again", lambda *args: done.append(again(*args)) or done[-1])
    param = torch.nn.Parameter(torch.zeros(5, 7))
    optimizer = CPUSGD([param], lr=1.0)
    for number in range(3):
        param.grad = histories.GRADIENTS[kind if number > 0 else "plain"](torch.ones(5, 7))
        optimizer.step()
    # A tensor that autograd does not know is taken once the dispatcher has handed one over.
    assert done == ([True, True] if alone else [False, kind == "inference"])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("count", [12, pytest.param(50, marks=pytest.mark.long)])
def test_histories(device: str, count: int) -> None:
    """More of them: python -m tests.ops.histories."""
    counts, wrong = histories.run_apart(0, count, device)
    assert not wrong
    assert counts["equal"] > count
    assert counts["the same class of error"] > count // 10
