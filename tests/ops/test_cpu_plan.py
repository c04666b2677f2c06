"""What stays known from one step to the next: every change is seen, and what went bad is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast.optim import CPUSGD, CPUAdam  # noqa: E402
from tests.ops.cpu_run import Run, with_copies, with_some_copies  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]


def new_data(run: Run) -> None:
    run.params[0].data = torch.full((5, 7), 2.0)


def other_shape(run: Run) -> None:
    run.params[1].data = torch.full((11, 3), 2.0)
    run.optimizer.state[run.params[1]] = {
        name: t if name == "step" else torch.zeros(11, 3) for name, t in run.optimizer.state[run.params[1]].items()
    }


def other_layout(run: Run) -> None:
    run.params[2].data = run.params[2].data.to(memory_format=torch.channels_last)


def turned(run: Run) -> None:
    """Other sizes and strides, in the same memory."""
    states = run.optimizer.state[run.params[0]]
    for tensor in (run.params[0], states["exp_avg"], states["exp_avg_sq"]):
        tensor.data = tensor.data.t()


def new_moment(run: Run) -> None:
    run.optimizer.state[run.params[0]]["exp_avg"] = torch.ones(5, 7)


def new_state(run: Run) -> None:
    run.optimizer.state[run.params[1]] = {}


def no_state(run: Run) -> None:
    run.optimizer.state.clear()


def new_count(run: Run) -> None:
    run.optimizer.state[run.params[0]]["step"].fill_(100.0)


def loaded(run: Run) -> None:
    run.optimizer.load_state_dict(run.optimizer.state_dict())


def another_parameter(run: Run) -> None:
    run.params.append(torch.ones(6, requires_grad=True))
    run.optimizer.add_param_group({"params": run.params[-1:], "lr": 0.5})


def one_less(run: Run) -> None:
    del run.optimizer.param_groups[0]["params"][0]


def other_numbers(run: Run) -> None:
    run.optimizer.param_groups[0].update(lr=torch.tensor(0.3), betas=(0.5, 0.6), maximize=True, decoupled=False)


def no_amsgrad(run: Run) -> None:
    run.optimizer.param_groups[1]["amsgrad"] = False


def in_shared_memory(run: Run) -> None:
    run.params[1].data.share_memory_()


CHANGES: list[Callable[[Run], None]] = [
    new_data,
    other_shape,
    other_layout,
    turned,
    new_moment,
    new_state,
    no_state,
    new_count,
    loaded,
    another_parameter,
    one_less,
    other_numbers,
    no_amsgrad,
    with_copies,
    with_some_copies,
    in_shared_memory,
]


@pytest.mark.parametrize("handed", [False, True], ids=["own", "handed"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_every_change_between_two_steps_is_seen(change: Callable[[Run], None], handed: bool) -> None:
    runs = [Run(forgetful, handed) for forgetful in (False, True)]
    for run in runs:
        run.step(), run.step()
        change(run)
        run.step(), run.step()
    for one, other in zip(runs[0].everything(), runs[1].everything(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("handed", [False, True], ids=["own", "handed"])
def test_changed_copies_and_gradients_are_seen(handed: bool) -> None:
    runs = [Run(forgetful, handed) for forgetful in (False, True)]
    for run in runs:
        with_copies(run)
        run.step(), run.step()
        run.copies[1] = torch.zeros_like(run.params[1], dtype=torch.float16)  # in the very list
        run.step()
        for grads in ([None, 0, 0], [0, None, None], [0, 0, 0]):
            for param, grad in zip(run.params, grads, strict=True):
                param.grad = None if grad is None else torch.ones_like(param)
            run.again()
        run.params[2].grad = torch.ones(1, 4, 2, 3).to(memory_format=torch.channels_last) * 2
        run.again()
    assert runs[0].copies[1].any()
    for one, other in zip(runs[0].everything(), runs[1].everything(), strict=True):
        assert torch.equal(one, other)


BAD: dict[str, tuple[Callable[[Run], Any], str]] = {
    "sparse": (lambda run: setattr(run.params[0], "grad", torch.eye(5, 7).to_sparse()), "has layout sparse_coo"),
    "shared": (lambda run: setattr(run.params[0], "grad", run.params[0].detach()), "a gradient shares memory"),
    "elsewhere": (
        lambda run: run.optimizer.state[run.params[0]].update(exp_avg=torch.ones(5, 7, device="meta")),
        r"first\[0\] is on meta; all tensors must be on cpu",
    ),
    "another dtype": (lambda run: run.params[0].__setattr__("data", torch.ones(5, 7).double()), "is float64"),
    "a negative count": (
        lambda run: run.optimizer.state[run.params[1]]["step"].fill_(-1.0),
        r"steps\[1\] is -1; a whole number from 0 on is needed",
    ),
    "a count that is not a number": (
        lambda run: run.optimizer.state[run.params[1]]["step"].fill_(float("nan")),
        r"steps\[1\] is -?nan",
    ),
    "two in one place": (
        lambda run: run.params[2].__setattr__("data", run.params[1].data[:24].view(1, 4, 2, 3)),
        "share memory; each must have its own",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_went_bad_since_the_last_step_is_refused_before_any_write(case: str) -> None:
    spoil, message = BAD[case]
    run = Run(forgetful=False)
    run.step(), run.step()
    spoil(run)
    tensors = [t for t in run.everything() if t.is_cpu]
    before = [t.clone() for t in tensors]
    with pytest.raises(RuntimeError, match=message):
        run.again()
    for now, was in zip(tensors, before, strict=True):
        assert torch.equal(now.nan_to_num(7.0), was.nan_to_num(7.0))


def test_copies_that_came_to_share_memory_are_refused_on_a_known_plan() -> None:
    run = Run(forgetful=False)
    with_copies(run)
    run.step(), run.step()
    run.copies[1].data = run.copies[0].data.flatten()[:33]
    before = [t.clone() for t in run.everything()]
    with pytest.raises(RuntimeError, match="two of params, states and copies share memory; each must have its own"):
        run.again()
    assert all(map(torch.equal, run.everything(), before))


def test_a_gradient_of_another_shape_is_refused_on_a_known_plan() -> None:
    run = Run(forgetful=False)
    run.step(), run.step()
    with pytest.raises(RuntimeError, match=r"parameter 1: its gradient has shape \(3,\); needed \(33,\)"):
        run.optimizer.step(grads=[run.params[0].grad, torch.ones(3), run.params[2].grad])
    with pytest.raises(RuntimeError, match=r"parameter 1: its gradient has shape \(11, 3\); needed \(33,\)"):
        run.optimizer.step(grads=[run.params[0].grad, torch.ones(11, 3), run.params[2].grad])
    run.step()


def test_an_expanded_parameter_is_refused_before_any_write() -> None:
    good, bad = torch.zeros(3), torch.zeros(1).expand(3)
    with pytest.raises(RuntimeError, match=r"shape \(3,\) has one place for many elements"):
        CPUAdam([good, bad]).step(grads=[torch.ones(3), torch.ones(3)])
    assert not good.any() and not bad.any()


def test_an_optimizer_without_any_gradient_does_nothing() -> None:
    run = Run(forgetful=False)
    for _ in range(2):
        run.optimizer.step()
        assert not run.optimizer.state
    run.step()
    assert len(run.optimizer.state) == 3


def test_dampening_begins_with_the_second_step_of_each_parameter() -> None:
    options: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}
    pairs = [[torch.ones(4, requires_grad=True) for _ in range(2)] for _ in range(2)]
    optimizers = CPUSGD(pairs[0], **options), torch.optim.SGD(pairs[1], **options)
    for params, optimizer in zip(pairs, optimizers, strict=True):
        for pattern in ((1, None), (2, None), (3, 1), (4, 2), (5, 3)):
            for param, value in zip(params, pattern, strict=True):
                param.grad = None if value is None else torch.full((4,), float(value))
            optimizer.step()
    torch.testing.assert_close(pairs[0], pairs[1], rtol=1e-6, atol=1e-6)
