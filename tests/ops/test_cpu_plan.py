"""What stays known from one step to the next: that it is used, that every change is seen, and that it is let go."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast.ops.cpu_optim import optimize, optimize_again  # noqa: E402
from precast.optim import CPUSGD, CPUAdam, cpu_plan  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

BF16 = torch.bfloat16


class Run:
    """A small optimizer, its gradients and copies.

    ``forgetful``: nothing is known from the step before. ``handed``: gradients are given to the step, in a list.
    """

    def __init__(self, forgetful: bool, handed: bool = False) -> None:
        generator = torch.Generator().manual_seed(0)
        self.params = [
            torch.randn(size, generator=generator).requires_grad_() for size in ((5, 7), (33,), (1, 4, 2, 3))
        ]
        self.optimizer: Any = CPUAdam(
            [{"params": self.params[:2]}, {"params": self.params[2:], "amsgrad": True}], lr=1e-2, weight_decay=0.1
        )
        self.copies: Any = None
        self.forgetful, self.handed = forgetful, handed
        self.count = 0

    def step(self) -> None:
        self.count += 1
        for index, param in enumerate(p for group in self.optimizer.param_groups for p in group["params"]):
            generator = torch.Generator().manual_seed(100 * self.count + index)
            param.grad = torch.randn(param.shape, generator=generator)
        self.again()

    def again(self) -> None:
        if self.forgetful:
            self.optimizer._known = None
        grads = [p.grad for group in self.optimizer.param_groups for p in group["params"]] if self.handed else None
        self.optimizer.step(grads=grads, copies=self.copies)

    def everything(self) -> list[Any]:
        states = [t for values in self.optimizer.state.values() for t in values.values()]
        return [*(p.detach() for p in self.params), *states, *(c for c in self.copies or [] if c is not None)]


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


def with_copies(run: Run) -> None:
    run.copies = [torch.zeros_like(p, dtype=BF16) for p in run.params]


def with_some_copies(run: Run) -> None:
    run.copies = [None, torch.zeros_like(run.params[1], dtype=BF16), None]


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

    monkeypatch.setattr(cpu_plan, "optimize", spy)
    monkeypatch.setattr(cpu_plan, "optimize_again", spy_again)
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
    "a count that is no number": (
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
