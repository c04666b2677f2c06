"""The plans of the GPU, emulated: they see what kind of tensor a gradient has become."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast.optim import FusedSGD  # noqa: E402
from tests.ops import histories  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]


@pytest.mark.parametrize("kind", ["negative", "conjugate", "zero tensor", "opaque", "asking", "offset", "expanded"])
def test_a_gradient_is_what_its_elements_are(list_gpu: Any, kind: str) -> None:
    param = torch.nn.Parameter(torch.zeros(5, 7))
    optimizer = FusedSGD([param], lr=1.0)
    for number in range(1, 6):
        plain = number in (1, 4)
        param.grad = histories.GRADIENTS["plain" if plain else kind](torch.ones(5, 7))
        before = param.detach().clone()
        optimizer.step()
        assert torch.equal(param, before - (0.0 if kind == "zero tensor" and not plain else 1.0))


@pytest.mark.parametrize("kind", ["fake", "denying", "refusing", "empty storage", "short storage", "shard"])
def test_what_is_refused_changes_nothing(list_gpu: Any, kind: str) -> None:
    params = [torch.nn.Parameter(torch.zeros(8)) for _ in range(2)]
    optimizer = FusedSGD(params, lr=1.0)
    for number in range(3):
        for param in params:
            param.grad = torch.ones(8)
        if number > 0:
            params[1].grad = histories.GRADIENTS[kind](torch.ones(8))
            assert histories._attempt(optimizer.step, "cpu") is not None
        else:
            optimizer.step()
        assert [p.tolist() for p in params] == [[-1.0] * 8] * 2


def test_a_step_without_any_gradient_does_not_end_the_updates(list_gpu: Any) -> None:
    param = torch.nn.Parameter(torch.zeros(4))
    optimizer = FusedSGD([param], lr=1.0)
    for number, grad in enumerate((None, torch.ones(4), None, torch.ones(4))):
        param.grad = grad
        optimizer.step()
        assert param.tolist() == [-float((number + 1) // 2)] * 4


def test_of_two_launches_the_one_that_is_not_stale_steps_once(list_gpu: Any) -> None:
    params = [torch.nn.Parameter(torch.zeros(4, 4)) for _ in range(2)]
    for stale in (0, 1):
        optimizer = FusedSGD([{"params": params[:1]}, {"params": params[1:], "maximize": True}], lr=1.0, momentum=0.5)
        with torch.no_grad():
            for param in params:
                param.zero_()
        expected, momentum = 0.0, 0.0
        for number in range(4):
            for index, param in enumerate(params):
                turned = number == 2 and index == stale  # a new plan for this launch alone
                param.grad = torch.ones(4, 4).t() if turned else torch.ones(4, 4)
                if turned:
                    param.data = param.data.t()
                    optimizer.state[param]["momentum_buffer"] = optimizer.state[param]["momentum_buffer"].t()
            optimizer.step()
            momentum = 0.5 * momentum + 1.0
            expected += momentum
            assert [p.detach().unique().tolist() for p in params] == [[-expected], [expected]]
        for param in params:
            param.data = param.data.contiguous()


def test_versions_are_raised_whether_gradients_are_found_or_handed_over(list_gpu: Any) -> None:
    param = torch.nn.Parameter(torch.zeros(4))
    optimizer = FusedSGD([param], lr=1.0)
    for kind in ("plain", "plain", "conjugate", "conjugate", "plain"):
        param.grad = histories.GRADIENTS[kind](torch.ones(4))
        before = param._version
        optimizer.step()
        assert param._version == before + 1


def test_a_sparse_gradient_is_refused_by_its_layout(list_gpu: Any) -> None:
    param = torch.nn.Parameter(torch.zeros(4, 5))
    optimizer = FusedSGD([param], lr=1.0)
    for kind in ("conjugate", "sparse"):  # the first makes a plan that is handed its gradients
        param.grad = histories.GRADIENTS[kind](torch.ones(4, 5))
        if kind == "sparse":
            with pytest.raises(RuntimeError, match="has layout sparse_coo; needed a dense tensor"):
                optimizer.step()
        else:
            optimizer.step()
    assert param.tolist() == [[-1.0] * 5] * 4


def test_a_gradient_that_comes_later_is_seen_beside_one_that_is_handed_over(list_gpu: Any) -> None:
    params = [torch.nn.Parameter(torch.zeros(4)) for _ in range(2)]
    optimizer = FusedSGD(params, lr=1.0)
    params[0].grad = histories.GRADIENTS["negative"](torch.ones(4))
    optimizer.step()
    params[1].grad = torch.ones(4)
    optimizer.step()
    assert [p.tolist() for p in params] == [[-2.0] * 4, [-1.0] * 4]


@pytest.mark.parametrize("which", ["parameter", "momentum_buffer of parameter"])
def test_what_a_plan_cannot_stand_for_is_refused(list_gpu: Any, which: str) -> None:
    param = torch.nn.Parameter(torch.ones(4))
    optimizer = FusedSGD([param], lr=1.0, momentum=0.5)
    param.grad = torch.ones(4)
    optimizer.step()
    tensor = param if which == "parameter" else optimizer.state[param]["momentum_buffer"]
    tensor.data = torch._neg_view(tensor.data)
    with pytest.raises(RuntimeError, match=f"{which} 0 has no memory of its own; nothing was updated"):
        optimizer.step()


@pytest.mark.parametrize("count", [10, pytest.param(40, marks=pytest.mark.long)])
def test_histories(list_gpu: Any, count: int) -> None:
    counts = histories.run(0, count, "cpu", "gpu")
    assert counts["equal"] > count


@pytest.mark.parametrize("negative", [False, True])
def test_a_turned_gradient_whose_storage_ends_early_is_refused(list_gpu: Any, negative: bool) -> None:
    """It must be copied into the parameter's layout, and torch's copy would read past the end."""
    param = torch.nn.Parameter(torch.zeros(5, 7))
    optimizer = FusedSGD([param], lr=1.0)
    grad = torch.ones(70)[35:].view(7, 5).t()
    grad.untyped_storage().resize_(4 * 69)
    param.grad = torch._neg_view(grad) if negative else grad
    with pytest.raises(RuntimeError, match=r"has shape \(5, 7\), and a storage of only 276 bytes; nothing was updated"):
        optimizer.step()
    assert param.tolist() == [[0.0] * 7] * 5


def test_one_plan_serves_gradients_of_which_the_first_is_handed_over(list_gpu: Any) -> None:
    params = [torch.nn.Parameter(torch.zeros(5, 7)) for _ in range(2)]
    optimizer, numbers = FusedSGD(params, lr=1.0), set()
    for step in (1, 2, 3):
        params[0].grad, params[1].grad = torch.ones(7, 5).t(), torch.ones(5, 7)
        optimizer.step()
        assert optimizer._plans is not None
        numbers.add(optimizer._plans[0].number)
        assert [p.detach().unique().tolist() for p in params] == [[-step]] * 2
    assert len(numbers) == 1
