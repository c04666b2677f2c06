"""What stays known from one step to the next: that it is used, how little is handed over, and that it is let go."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast.ops import cpu_optim  # noqa: E402
from precast.ops.cpu_optim import optimize, optimize_again  # noqa: E402
from precast.optim import CPUSGD, CPUAdam  # noqa: E402
from tests.ops.cpu_run import Run, with_copies, with_some_copies  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What each step handed over: everything, the gradients, or nothing."""
    seen: list[str] = []

    def spy(grads: Any, lists: Any, *rest: Any) -> None:
        seen.append("gradients" if lists is None else "everything")
        optimize(grads, lists, *rest)

    def spy_again(*args: Any) -> bool:
        done = optimize_again(*args)
        seen.append("nothing" if done else "refused")
        return done

    monkeypatch.setattr(cpu_optim, "optimize", spy)
    monkeypatch.setattr(cpu_optim, "optimize_again", spy_again)
    return seen


def test_later_steps_hand_over_as_little_as_they_can(calls: list[str]) -> None:
    run = Run(forgetful=False)
    for _ in range(3):
        run.step()  # each has gradients in new places
    assert calls == ["everything", "nothing", "nothing"]
    with_some_copies(run)
    run.step(), run.step()
    run.params[0].grad = None
    run.again()
    assert calls[3:] == ["everything", "nothing", "refused", "everything"]
    run.again()
    run.params[0].grad = torch.ones(5, 7)  # Python asks those that had none
    run.again()
    assert calls[7:] == ["nothing", "everything"]


def test_gradients_that_are_given_are_handed_over(calls: list[str]) -> None:
    run = Run(forgetful=False, handed=True)
    run.step(), run.step()
    run.handed = False
    run.step()
    assert calls == ["everything", "gradients", "nothing"]


def test_gradients_in_another_layout_are_handed_over(calls: list[str]) -> None:
    run = Run(forgetful=False)
    run.step()
    run.params[2].grad = torch.ones(1, 4, 2, 3).to(memory_format=torch.channels_last)
    run.again(), run.step()
    assert calls == ["everything", "refused", "gradients", "nothing"]


def test_what_is_too_sparse_is_never_known(calls: list[str]) -> None:
    sparse = torch.zeros(4, 8)[:, ::2]  # with gaps: updated in a copy
    optimizer = CPUAdam([sparse])
    for _ in range(2):
        optimizer.step(grads=[torch.ones(4, 4)])
    assert calls == ["everything", "everything"]


def test_tensors_of_inference_mode_have_no_version_and_are_updated_all_the_same(calls: list[str]) -> None:
    with torch.inference_mode():
        param = torch.ones(3)
        optimizer = CPUSGD([param], lr=0.5)
        for _ in range(2):
            optimizer.step(grads=[torch.ones(3)])
        param.grad = torch.ones(3)
        optimizer.step()
    assert param.tolist() == [-0.5] * 3
    assert calls == ["everything", "gradients", "gradients"]


def test_the_optimizers_may_be_imported_in_inference_mode(run_child: Callable[[str], str]) -> None:
    said = run_child(
        """
        import torch
        with torch.inference_mode():
            from precast.optim import CPUSGD
        params = [torch.ones(3, requires_grad=True) for _ in range(2)]
        copies = [torch.zeros(3, dtype=torch.bfloat16), None]
        optimizer = CPUSGD(params, lr=0.25)
        for param in params:
            param.grad = torch.ones(3)
        for _ in range(3):
            optimizer.step(copies=copies)
        print(params[0].tolist(), params[1].tolist(), copies[0].tolist())
        """
    )
    assert said.strip() == " ".join(["[0.25, 0.25, 0.25]"] * 3)


def test_every_step_counts_the_changes_of_all_that_it_writes() -> None:
    run = Run(forgetful=False)
    with_copies(run)
    run.step()
    for handed in (False, True):
        run.handed = handed
        before = [t._version for t in run.everything()]
        run.step()
        assert all(t._version > version for t, version in zip(run.everything(), before, strict=True))


@pytest.mark.parametrize("where", [0, 150, 299])
def test_hundreds_of_parameters_are_looked_at_by_all_threads(calls: list[str], where: int) -> None:
    params = [torch.ones(4, requires_grad=True) for _ in range(300)]
    optimizer = CPUSGD(params, lr=0.5)
    for _ in range(3):
        for param in params:
            param.grad = torch.ones(4)
        optimizer.step()
    assert calls == ["everything", "nothing", "nothing"]
    versions = [param._version for param in params]
    params[where].grad = params[where].detach()
    with pytest.raises(RuntimeError, match="a gradient shares memory"):
        optimizer.step()
    params[where].grad = torch.ones(4)
    params[where].data = torch.zeros(4)
    optimizer.step()
    found = torch.stack([param.detach()[0] for param in params])
    wanted = torch.full((300,), -1.0)
    wanted[where] = -0.5
    assert torch.equal(found, wanted)
    assert all(param._version > version for param, version in zip(params, versions, strict=True))


def test_a_plan_is_let_go_with_its_optimizer_and_when_another_takes_its_place() -> None:
    run = Run(forgetful=False)
    run.step()
    first = run.optimizer._known.plan._number.clone()
    numbers = run.optimizer._known.plan._numbers
    with_copies(run)
    run.step()
    second = run.optimizer._known.plan._number.clone()
    grads = [p.grad for p in run.params]
    gc.collect()
    with pytest.raises(RuntimeError, match=r"there is no plan .*; it was forgotten"):
        optimize(grads, None, first, numbers, 1.0, 0)
    with pytest.raises(RuntimeError, match=r"there is no plan .*; it was forgotten"):
        optimize_again(first, numbers, 1.0)
    optimize(grads, None, second, run.optimizer._known.plan._numbers, 1.0, 0)
    assert optimize_again(second, run.optimizer._known.plan._numbers, 1.0)
    del run.optimizer
    gc.collect()
    with pytest.raises(RuntimeError, match="it was forgotten"):
        optimize(grads, None, second, numbers, 1.0, 0)
    with pytest.raises(RuntimeError, match="a step without tensors, and without a plan"):
        optimize_again(torch.zeros(0, dtype=torch.int64), numbers, 1.0)


def test_an_optimizer_may_be_collected_in_the_middle_of_anything() -> None:
    numbers: list[Any] = []

    def collected(x: Any) -> Any:
        numbers.append(plans.pop()._known.plan._number)
        gc.collect()
        return x * 2

    plans: list[Any] = []
    for _ in range(3):
        run = Run(forgetful=False)
        run.step()
        plans.append(run.optimizer)
    del run
    torch.func.vmap(collected)(torch.ones(3))
    torch.func.grad(lambda x: collected(x).sum())(torch.ones(3))
    with torch._subclasses.FakeTensorMode():
        collected(torch.ones(3))
    assert [int(number) for number in numbers] == [0, 0, 0]


def test_a_plan_keeps_no_reference_to_what_it_uses_again(calls: list[str]) -> None:
    run = Run(forgetful=False)
    with_copies(run)
    for _ in range(3):
        run.step()
    assert calls == ["everything", "nothing", "nothing"]
    assert {tensor._use_count() for tensor in run.everything()} == {1}


def swap_parameter(run: Run) -> None:
    torch.utils.swap_tensors(run.params[1], torch.full((33,), 2.0, requires_grad=True))


def swap_state(run: Run) -> None:
    torch.utils.swap_tensors(run.optimizer.state[run.params[1]]["exp_avg_sq"], torch.full((33,), 2.0))


def swap_count(run: Run) -> None:
    torch.utils.swap_tensors(run.optimizer.state[run.params[1]]["step"], torch.tensor(7.0))


def swap_copy(run: Run) -> None:
    torch.utils.swap_tensors(run.copies[1], torch.zeros(33, dtype=torch.float16))


@pytest.mark.parametrize("handed", [False, True], ids=["own", "handed"])
@pytest.mark.parametrize("swap", [swap_parameter, swap_state, swap_count, swap_copy], ids=lambda swap: swap.__name__)
def test_what_is_swapped_is_seen_and_what_is_freed_is_not_touched(
    calls: list[str], swap: Callable[[Run], None], handed: bool
) -> None:
    runs = [Run(forgetful, handed) for forgetful in (False, True)]
    for run in runs:
        with_copies(run)
        run.step(), run.step()
        swap(run)
        run.step(), run.step()
    assert calls[:2].count("everything") == 1 and "everything" in calls[2:5]
    for one, other in zip(runs[0].everything(), runs[1].everything(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("make", [CPUSGD, CPUAdam])
def test_a_module_that_is_converted_by_swapping_goes_on(make: Any) -> None:
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model = torch.nn.Linear(5, 7)
        optimizer = make(model.parameters(), lr=0.1)
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float32):
            model.to(dtype)
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.ones(2, 5, dtype=dtype)).sum().backward()
                before = model.weight.detach().clone()
                optimizer.step()
                assert model.weight.dtype == dtype and (model.weight < before).all()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
