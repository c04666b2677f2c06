"""What the optimizers of the GPU refuse, and that nothing is changed before they do."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast.ops import _updates, multi_tensor  # noqa: E402
from precast.ops.multi_tensor import check_lists  # noqa: E402
from precast.optim import FusedAdam, FusedAdamW, FusedLAMB, FusedLion, FusedSGD, _gathered  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]


def zeros(*shape: int, **options: Any) -> Any:
    return torch.zeros(*shape, **options)


def with_grad(param: Any, grad: Any = None) -> Any:
    param.grad = torch.ones_like(param) if grad is None else grad
    return param


@pytest.fixture
def counts_as_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_gathered, "on_gpu", lambda tensor: True)


def test_parameters_in_cpu_memory_have_an_optimizer_of_their_own() -> None:
    optimizer = FusedAdamW([with_grad(zeros(3))])
    with pytest.raises(RuntimeError, match=r"step: parameter 0: it is on cpu; .* precast.optim.CPUAdam is for"):
        optimizer.step()
    assert not optimizer.state


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "float64": (lambda: with_grad(zeros(3).double()), "it is float64; needed float32, float16 or bfloat16"),
    "complex": (lambda: with_grad(zeros(3).cfloat()), "it is complex64; needed float32"),
    "sparse": (lambda: with_grad(zeros(3), zeros(3).to_sparse()), "its gradient has layout sparse_coo; needed a dense"),
    "another device": (lambda: with_grad(zeros(3, device="meta")), "it is on meta, and the first parameter on cpu"),
}


@pytest.mark.usefixtures("counts_as_gpu")
@pytest.mark.parametrize("case", BAD)
def test_bad_parameters_are_refused_before_anything_is_updated(case: str) -> None:
    make, message = BAD[case]
    good = with_grad(zeros(3))
    optimizer = FusedAdam([{"params": [good]}, {"params": [make()]}])
    with pytest.raises(RuntimeError, match=f"parameter 1: {message}.*; nothing was updated"):
        optimizer.step()
    assert good.tolist() == [0.0] * 3
    assert not optimizer.state


@pytest.mark.usefixtures("counts_as_gpu")
def test_one_norm_wants_one_launch() -> None:
    groups = [{"params": [with_grad(zeros(3))]}, {"params": [with_grad(zeros(3))], "maximize": True}]
    optimizer = FusedAdam(groups, max_grad_norm=1.0)
    with pytest.raises(ValueError, match="one norm of all gradients, but the parameters need 2 launches"):
        optimizer.step()
    assert not optimizer.state


def test_no_gradients_is_no_work() -> None:
    optimizer = FusedAdamW([zeros(3)])
    assert optimizer.step(lambda: 7) == 7
    assert not optimizer.state


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (FusedAdam, {"lr": -1.0}, "lr is -1.0; needed 0 or more"),
        (FusedAdam, {"lr": torch.ones(2)}, r"lr is a tensor of shape \(2,\); needed one element"),
        (FusedAdamW, {"eps": -1e-8}, "eps is -1e-08; needed 0 or more"),
        (FusedLAMB, {"weight_decay": float("nan")}, "weight_decay is nan; needed 0 or more"),
        (FusedLion, {"betas": (0.9, 1.0)}, r"betas is \(0.9, 1.0\); needed two numbers from 0"),
        (FusedAdam, {"state_dtype": torch.float16}, "state_dtype is torch.float16; needed torch.float32, or None"),
        (FusedSGD, {"momentum": -0.1}, "momentum is -0.1; needed 0 or more"),
        (FusedSGD, {"nesterov": True}, "nesterov with momentum 0.0 and dampening 0.0; needed a momentum above 0"),
        (
            FusedSGD,
            {"nesterov": True, "momentum": 0.9, "dampening": 0.1},
            "nesterov with momentum 0.9 and dampening 0.1",
        ),
        (FusedSGD, {"max_grad_norm": 0.0}, "max_grad_norm is 0.0; needed a positive number, or None"),
    ],
)
def test_options_out_of_range(make: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make([zeros(3)], **options)


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ({"outs": [], "xs": []}, "the list of outs is empty"),
        ({"outs": [zeros(3)], "xs": []}, "1 outs, but 0 xs; one for each is needed"),
        ({"outs": [zeros(3)], "xs": [zeros(3).double()]}, r"xs\[0\] is float64; float32, float16 or bfloat16"),
        ({"outs": [zeros(3)], "xs": [zeros(4)]}, r"xs\[0\] has shape \(4,\), outs\[0\] has \(3,\)"),
        ({"outs": [zeros(3)], "xs": [zeros(3, device="meta")]}, r"xs\[0\] is on meta and outs\[0\] on cpu"),
    ],
)
def test_lists_are_checked_without_data_too(lists: dict[str, Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        check_lists("multi_tensor_axpby_", lists)


REFUSED: dict[str, tuple[Callable[[], list[Any]], str]] = {
    "shared memory": (
        lambda: [(t := torch.zeros(6))[:4], t[2:]],
        "two of the tensors that are written share",
    ),
    "gaps": (lambda: [torch.zeros(4, 4)[:, :2]], r"params\[0\] \(shape \(4, 2\)\) has gaps or overlaps"),
    "expanded": (lambda: [torch.zeros(1).expand(4)], "has gaps or overlaps"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_parameters_that_cannot_be_one_range(list_gpu: Any, case: str) -> None:
    make, message = REFUSED[case]
    params = make()
    for param in params:
        param.grad = torch.ones(param.shape)
    with pytest.raises(RuntimeError, match=message):
        FusedAdamW(params).step()
    assert all(not param.any() for param in params)
    list_gpu.check_launches([])


def test_lists_of_different_length_and_unknown_plans(list_gpu: Any) -> None:
    one, places = [torch.ones(3)], torch.zeros(1, 2, dtype=torch.int32)
    with pytest.raises(RuntimeError, match="1 params, but 2 grads; one for each is needed"):
        multi_tensor.plan(one, one * 2, [], [], [], [], [], places)
    with pytest.raises(RuntimeError, match=r"layout has shape \(1, 2\); \(2, 2\), int32"):
        multi_tensor.plan(one * 2, one * 2, [], [], [], [], [], places)
    numbers = torch.zeros(1, 6, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="there is no plan -1"):
        multi_tensor.step_(-1, [], torch.zeros(1), numbers, [], None, None, 0.0, 0, 0, None, None)
    number = multi_tensor.plan(one, [torch.ones(3)], [], [], [], [], [], places)
    with pytest.raises(RuntimeError, match="an update of kind 0 needs states that were not given"):
        multi_tensor.step_(number, [torch.ones(3)], torch.zeros(1), numbers, [], None, None, 0.0, 0, 0, None, None)
    multi_tensor.forget(number, torch.zeros(1))
    with pytest.raises(RuntimeError, match="there is no plan"):
        multi_tensor.forget(number, torch.zeros(1))


def test_scalars_and_rates_that_do_not_fit(list_gpu: Any) -> None:
    """Each alone; all others are absent."""
    one, numbers = [torch.ones(3)], torch.zeros(1, 6, dtype=torch.float64)
    number = multi_tensor.plan(one, [torch.ones(3)], [], [], [], [], [], torch.zeros(1, 2, dtype=torch.int32))
    step = functools.partial(multi_tensor.step_, number, [], torch.zeros(1), numbers)
    for bad in (torch.zeros(1).double(), torch.zeros(2), torch.zeros(0)):
        for name, (rates, *scalars) in {
            "found_inf": ([], bad, None, None),
            "grad_scale": ([], None, bad, None),
            "norm": ([], None, None, bad),
            "a learning rate": ([bad], None, None, None),
        }.items():
            with pytest.raises(RuntimeError, match=f"{name} is float.* of shape .*; one float32 (on cpu )?is needed"):
                step(rates, *scalars[:2], 0.0, 0, 0, scalars[2], None)
    with pytest.raises(RuntimeError, match="2 rates for 1 groups; one for each is needed"):
        step([torch.zeros(1)] * 2, None, None, 0.0, 0, 0, None, None)
    cut = torch.zeros(1)
    cut.untyped_storage().resize_(0)
    if list_gpu.counts:  # plain torch looks at no storage
        with pytest.raises(RuntimeError, match="a learning rate has a storage of only 0 bytes"):
            step([cut], None, None, 0.0, 0, 0, None, None)
    multi_tensor.forget(number, torch.zeros(1))


def test_sums_over_shards_that_do_not_fit(list_gpu: Any) -> None:
    tensors = [[torch.ones(3)] for _ in range(5)]
    number = multi_tensor.plan(*tensors, [], [], torch.zeros(1, 2, dtype=torch.int32))
    step = functools.partial(multi_tensor.step_, number, tensors[1], torch.zeros(1), torch.zeros(1, 6).double(), [])
    with pytest.raises(RuntimeError, match="LAMB's second launch needs sums"):
        step(None, None, 0.0, _updates.LAMB_APPLY, 0, None, None)
    for kind, sums in (
        (_updates.LAMB, torch.zeros(3)),
        (_updates.LAMB, torch.zeros(2).double()),
        (_updates.LAMB_APPLY, torch.zeros(4)[::2]),
        (_updates.ADAM, torch.zeros(2)),
    ):
        with pytest.raises(RuntimeError, match="two float32 for each of 1 tensors are needed"):
            step(None, None, 0.0, kind, 0, None, sums)
    with pytest.raises(RuntimeError, match="norm is float32 of shape"):
        step(None, None, 1.0, _updates.LAMB, 0, torch.zeros(2), None)
    multi_tensor.forget(number, torch.zeros(1))
    assert tensors[0][0].tolist() == [1.0, 1.0, 1.0]
    list_gpu.check_launches([])
