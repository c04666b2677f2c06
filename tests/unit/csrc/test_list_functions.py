"""The functions over lists as the older package and apex have them, on device code that runs on the CPU."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast.compat import lists  # noqa: E402
from precast.ops import _updates  # noqa: E402
from tests.ops import list_functions as must  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]


@pytest.fixture
def module(list_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(lists, "kernel", lambda name: getattr(list_gpu.ops, name))
    return lists


@pytest.mark.parametrize("dtypes", must.LOW)
@pytest.mark.parametrize(("mode", "correct", "scale"), must.ADAM)
def test_list_adam(module: Any, dtypes: str, mode: int, correct: int, scale: float) -> None:
    # fails if a tensor differs from its formula in float64
    must.check_adam(module, dtypes, mode, correct, scale)


@pytest.mark.parametrize("dtypes", must.LOW)
@pytest.mark.parametrize(("momentum", "options"), must.SGD, ids=str)
def test_list_sgd(module: Any, dtypes: str, momentum: float, options: Any) -> None:
    # fails if a tensor differs from its formula in float64
    must.check_sgd(module, dtypes, momentum, options)


@pytest.mark.parametrize("dtypes", must.LOW)
@pytest.mark.parametrize(("mode", "decay", "options"), must.LAMB, ids=str)
def test_list_lamb(module: Any, dtypes: str, mode: int, decay: float, options: Any) -> None:
    # fails if a tensor differs from its formula in float64
    must.check_lamb(module, dtypes, mode, options, decay=decay)


def test_list_sums(module: Any) -> None:
    # fails if a tensor differs from its formula in float64
    must.check_sums(module)
    must.check_more_sums(module)


@pytest.mark.parametrize("dtypes", must.LOW)
@pytest.mark.parametrize("mode", [0, 1])
def test_list_adagrad(module: Any, dtypes: str, mode: int) -> None:
    # fails if a tensor differs from its formula in float64
    must.check_adagrad(module, dtypes, mode)


def test_list_adam_is_one_launch_for_all(module: Any, list_gpu: Any) -> None:
    tensors = [[t.abs() for t in must.made(torch.float32, seed)] for seed in range(4)]
    list_gpu.launched()
    module.multi_tensor_adam(65536, must.flag(), tensors, 0.1, 0.9, 0.999, 1e-8, 1, 1, 1, 0.0, -1.0)
    # fails if there are other launches
    list_gpu.check_launches(["prepare", "adam"])


def test_lists_that_are_refused(module: Any) -> None:
    numbers = (0.1, 0.9, 0.999, 1e-8, 1, 1, 1, 0.0)
    tensors = [must.made(torch.float32, seed) for seed in range(4)]
    before = [t.clone() for t in tensors[1]]
    adam = module.multi_tensor_adam
    refusals: list[tuple[Any, Any, str]] = [
        (tensors[:3], numbers, "tensor_lists has 3 lists; needed 4"),
        ([[], [], [], []], numbers, "lists of tensor_lists are empty"),
        ([tensors[0], tensors[1], tensors[2], tensors[2]], numbers, "share memory"),
        ([tensors[0], tensors[1], tensors[2], tensors[3][:-1]], numbers, "one for each is needed"),
        ([tensors[0], [t.double() for t in tensors[1]], *tensors[2:]], numbers, "float32, float16 or bfloat16"),
        (tensors, (*numbers[:4], 0, *numbers[5:]), "step is 0; needed 1 or more"),
    ]
    for given, with_numbers, text in refusals:
        with pytest.raises((RuntimeError, ValueError), match=text):
            adam(65536, must.flag(), given, *with_numbers)
    assert all(map(torch.equal, tensors[1], before))


@pytest.mark.parametrize("kind", [-1, _updates.LAMB_APPLY])
def test_an_update_of_lists_that_there_is_not(list_gpu: Any, kind: int) -> None:
    # LAMB's second launch needs the sums of the first, which only multi_tensor_step_ takes
    tensors = [must.made(torch.float32, seed) for seed in range(5)]
    numbers = (1.0, 1.0, 0.1, 0.9, 0.999, 1e-8, 0.0, 0.0)
    with pytest.raises(RuntimeError, match=f"multi_tensor_update_: there is no update of kind {kind}"):
        list_gpu.ops.multi_tensor_update_(*tensors, [], None, None, *numbers, kind, 0)


@pytest.mark.parametrize("pair", ["out, out", "out, another's x", "out, part of its y", "found_inf, x", "factor, out"])
def test_sums_refuse_what_shares_memory(list_gpu: Any, pair: str) -> None:
    room = torch.arange(64.0)
    outs, xs, ys, found, factor = [room[:8], room[8:16]], [room[16:24], room[:8]], [room[24:32]] * 2, room[40], room[41]
    xs[1] = {"out, another's x": room[:8]}.get(pair, room[8:16])  # its own out is no fault
    outs[0] = room[9:17] if pair == "out, out" else outs[0]
    ys[1] = room[12:20] if pair == "out, part of its y" else ys[1]
    found, factor = {"found_inf, x": (room[17], factor), "factor, out": (found, room[3])}.get(pair, (found, factor))
    before = room.clone()
    with pytest.raises(RuntimeError, match=r"shares? memory"):
        list_gpu.ops.multi_tensor_axpby_(outs, xs, ys, 1.0, 2.0, factor, found)
    assert torch.equal(room, before)


@pytest.mark.parametrize("name", ["found_inf", "grad_scale"])
def test_a_step_of_lists_refuses_a_number_inside_a_parameter(list_gpu: Any, name: str) -> None:
    tensors = [must.made(torch.float32, seed) for seed in range(5)]
    inside = {"found_inf": None, "grad_scale": None, name: tensors[0][0].view(-1)[1]}
    numbers = (1.0, 1.0, 0.1, 0.9, 0.999, 1e-8, 0.0, 0.0)
    with pytest.raises(RuntimeError, match=f"multi_tensor_update_: .*{name}.* shares memory"):
        list_gpu.ops.multi_tensor_update_(
            *tensors[:4], [], [], inside["found_inf"], inside["grad_scale"], *numbers, _updates.ADAM, 0
        )


NUMBERS = {"step": 1.0, "factor": 1.0, "lr": 0.1, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "decay": 0.0, "extra": 0.0}


def adam(list_gpu: Any, tensors: Any, **others: float) -> None:
    numbers = {**NUMBERS, **others}.values()
    list_gpu.ops.multi_tensor_update_(*tensors, [], [], None, None, *numbers, _updates.ADAM, 0)


@pytest.mark.parametrize("name", ["step", "beta1", "beta2"])
def test_numbers_that_no_step_has(list_gpu: Any, name: str) -> None:
    tensors = [must.made(torch.float32, seed) for seed in range(4)]
    before = [t.clone() for some in tensors for t in some]
    for number in (-1.0, 0.0 if name == "step" else 1.0, float("nan"), -1e300):
        with pytest.raises(RuntimeError, match=f"multi_tensor_update_: {name} is .*; needed [01] or more"):
            adam(list_gpu, tensors, **{name: number})
    assert all(torch.equal(a, b) for a, b in zip(before, (t for some in tensors for t in some), strict=True))


def test_a_step_with_endless_numbers_is_that_of_torch(list_gpu: Any) -> None:
    """A second moment that has overflowed moves nothing."""
    infinity = float("inf")
    params = torch.tensor([1.0, 1.0, 2.0, 1.0])
    grads = torch.tensor([0.5, 1e30, 0.5, float("nan")])
    firsts, seconds = torch.full((4,), 0.1), torch.tensor([infinity, 0.2, 0.2, infinity])
    right = [t.clone() for t in (params, firsts, seconds)]
    parameter = torch.nn.Parameter(right[0])
    optimizer = torch.optim.Adam([parameter], lr=0.1, betas=(0.9, 0.999), eps=1e-8, foreach=False)
    optimizer.state[parameter] = {"step": torch.tensor(0.0), "exp_avg": right[1], "exp_avg_sq": right[2]}
    parameter.grad = grads.clone()
    optimizer.step()
    adam(list_gpu, [[params], [grads], [firsts], [seconds]])
    for mine, theirs in zip((params, firsts, seconds), (parameter.detach(), *right[1:]), strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True)
