"""Options of all optimizers as torch has them: betas, tensors as rates, groups after a copy, bias correction."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast import optim  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

CLASSES = [getattr(optim, name) for name in optim.__all__ if issubclass(getattr(optim, name), torch.optim.Optimizer)]
WITH_BETAS = [make for make in CLASSES if "betas" in make([torch.ones(1)]).defaults]


def saved(optimizer: Any) -> Any:
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    optimizer.load_state_dict(torch.load(file, weights_only=True))
    return optimizer


@pytest.mark.parametrize("again", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o)), saved])
@pytest.mark.parametrize("make", CLASSES)
def test_a_copy_has_the_options_of_the_original_and_no_other(make: Any, again: Any) -> None:
    optimizer = make([torch.nn.Parameter(torch.ones(3))])
    keys = [set(group) for group in optimizer.param_groups]
    for _ in range(2):
        optimizer = again(optimizer)
        assert [set(group) for group in optimizer.param_groups] == keys
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))]})
    assert [set(group) for group in optimizer.param_groups] == keys * 2


@pytest.mark.parametrize("make", [optim.CPUAdam, optim.CPUSGD, optim.CPUAdagrad, optim.CPULion, optim.HybridAdam])
def test_a_default_device_is_not_that_of_the_parameters(make: Any, run_child: Any) -> None:
    # Another process, because some tensors are made by the import.
    script = f"""
import torch
param = torch.nn.Parameter(torch.ones(5))
param.grad = torch.linspace(0.5, 1, 5)
torch.set_default_device("meta")  # a GPU, for a model whose optimizer works on the CPU
import precast
optimizer = precast.optim.{make.__name__}([param], lr=0.1)
for _ in range(2):
    optimizer.step()
assert {{str(one.device) for one in optimizer.state[param].values()}} <= {{"cpu"}}
print(param.tolist())
"""
    param = torch.nn.Parameter(torch.ones(5))
    param.grad = torch.linspace(0.5, 1, 5)
    optimizer = make([param], lr=0.1)
    for _ in range(2):
        optimizer.step()
    assert run_child(script).strip() == str(param.tolist())


@pytest.mark.parametrize(
    "betas",
    [
        (0.9, torch.tensor(0.99)),
        (torch.tensor(0.9), 0.99),
        (torch.tensor([0.9, 0.8]), torch.tensor(0.99)),
        (0.9, 1.0),
        (0.9,),
        (torch.tensor(0.9), torch.tensor(1.0)),
    ],
    ids=str,
)
@pytest.mark.parametrize("make", WITH_BETAS)
def test_betas_that_torch_refuses_are_refused(make: Any, betas: Any) -> None:
    with pytest.raises(ValueError, match=r"betas is .*; needed two numbers from 0 up to but not including 1, or two"):
        make([torch.ones(1)], betas=betas)


@pytest.mark.parametrize("make", CLASSES)
def test_a_rate_is_a_number_or_a_tensor_of_one(make: Any) -> None:
    assert make([torch.ones(1)], lr=torch.tensor([0.5])).param_groups[0]["lr"].tolist() == [0.5]
    for wrong in (torch.tensor([0.5, 0.5]), torch.tensor(-1.0), -1.0):
        with pytest.raises(ValueError, match="lr is"):
            make([torch.ones(1)], lr=wrong)


@pytest.mark.parametrize("betas", [(0.8, 0.95), (torch.tensor(0.8), torch.tensor(0.95))], ids=["numbers", "tensors"])
def test_a_rate_in_a_tensor_is_read_at_each_step(betas: Any) -> None:
    ours, theirs = (torch.nn.Parameter(torch.ones(5)) for _ in range(2))
    rates = [torch.tensor(0.1) for _ in range(2)]
    optimizers = (
        optim.CPUAdam([ours], lr=rates[0], betas=betas),
        torch.optim.AdamW([theirs], lr=rates[1], betas=(0.8, 0.95), weight_decay=0.0),
    )
    for step in range(1, 5):
        for param, optimizer, rate in zip((ours, theirs), optimizers, rates, strict=True):
            param.grad = torch.linspace(-1, 1, 5) * step
            optimizer.step()
            rate.mul_(0.5)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("decoupled", [False, True])
def test_moments_without_bias_correction(decoupled: bool, amsgrad: bool) -> None:
    param = torch.nn.Parameter(torch.linspace(-1, 1, 33))
    options: dict[str, Any] = {"decoupled": decoupled, "amsgrad": amsgrad, "eps": 1e-6, "weight_decay": 0.1}
    optimizer = optim.CPUAdam([param], lr=0.1, bias_correction=False, **options)
    p, m, v = param.detach().double(), torch.zeros(33).double(), torch.zeros(33).double()
    largest = v
    for step in range(1, 5):
        param.grad = torch.randn(33, generator=torch.Generator().manual_seed(step))
        optimizer.step()
        g = param.grad.double()
        g, p = (g, p * (1 - 0.1 * 0.1)) if decoupled else (g + 0.1 * p, p)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        largest = torch.maximum(largest, v)
        p = p - 0.1 * m / ((largest if amsgrad else v).sqrt() + 1e-6)
        torch.testing.assert_close(param.detach().double(), p, rtol=1e-5, atol=1e-5)
    assert optimizer.state_dict()["param_groups"][0]["bias_correction"] is False


def test_a_state_of_torch_is_corrected_and_ours_goes_to_torch() -> None:
    params = [torch.nn.Parameter(torch.ones(5)) for _ in range(2)]
    ours, theirs = optim.CPUAdam(params[:1]), torch.optim.AdamW(params[1:])
    ours.load_state_dict(theirs.state_dict())
    assert ours.param_groups[0]["bias_correction"] is True
    theirs.load_state_dict(ours.state_dict())
    params[1].grad = torch.ones(5)
    theirs.step()


def test_float64_is_refused_with_the_optimizer_that_has_it() -> None:
    param = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    param.grad = torch.ones_like(param)
    with pytest.raises(RuntimeError, match=r"is float64; needed .* torch\.optim has float64; nothing was updated"):
        optim.CPUAdam([param]).step()
    with pytest.raises(RuntimeError, match=r"is on cpu"):
        optim.FusedAdam([param]).step()


@pytest.mark.parametrize("make", CLASSES)
def test_hooks_of_a_state_dict_have_the_last_word(make: Any) -> None:
    optimizer = make([torch.nn.Parameter(torch.ones(3))])
    optimizer.register_state_dict_post_hook(lambda _, result: result.update(more=1))
    optimizer.register_state_dict_post_hook(lambda _, result: {**result, "seen": set(result["param_groups"][0])})
    result = optimizer.state_dict()
    assert result["more"] == 1 and result["seen"] == set(result["param_groups"][0])
    torchs = make.rule.torchs
    assert set(result["param_groups"][0]) >= set(torchs([torch.ones(1)]).defaults if torchs else ())


@pytest.mark.parametrize("make", CLASSES)
def test_a_state_entry_that_is_no_dict_is_kept(make: Any) -> None:
    optimizer = make([torch.nn.Parameter(torch.ones(3))])
    optimizer.state["rounds"] = 5
    result = optimizer.state_dict()
    assert result["state"]["rounds"] == 5
    again = make([torch.nn.Parameter(torch.ones(3))])
    again.load_state_dict(result)
    assert again.state["rounds"] == 5 and again.state_dict()["state"]["rounds"] == 5


@pytest.mark.parametrize("make", CLASSES)
def test_options_are_checked_before_the_parameters_are_used_up(make: Any) -> None:
    params = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
    with pytest.raises(ValueError, match="lr is -1"):
        make(params, lr=-1.0)
    assert len(list(params)) == 2


def test_the_name_of_the_older_packages_is_adamw_by_default() -> None:
    compat = optim.compat.FusedAdam
    for made, decoupled in (
        (compat([torch.ones(1)], 1e-3, True, (0.9, 0.99), 1e-8, weight_decay=0.1), True),
        (compat([torch.ones(1)], 1e-3, True, (0.9, 0.99), 1e-8, False, 0.1), False),
        (compat([torch.ones(1)], adamw_mode=False), False),
        (optim.FusedAdam([torch.ones(1)], weight_decay=0.1), False),
    ):
        assert made.param_groups[0]["decoupled_weight_decay"] is decoupled
    param = torch.nn.Parameter(torch.ones(2))
    kept = pickle.loads(pickle.dumps(compat([param], set_grad_none=False)))
    kept.param_groups[0]["params"][0].grad = torch.ones(2)
    kept.zero_grad()
    assert kept.param_groups[0]["params"][0].grad.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("step", [7, torch.tensor([7], dtype=torch.int32)])
@pytest.mark.parametrize("make", [optim.compat.FusedAdam, optim.FusedAdamW, optim.FusedLAMB, optim.CPUAdam])
def test_a_checkpoint_of_the_older_packages_keeps_its_step_count(make: Any, step: Any) -> None:
    """There a group counts, and the states of its parameters have no step."""
    used, idle = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    group = {"lr": 0.5, "bias_correction": True, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1}
    saved: dict[str, Any] = {
        "state": {0: {"exp_avg": torch.ones(2), "exp_avg_sq": torch.full((2,), 2.0)}},
        "param_groups": [{**group, "step": step, "params": [0, 1]}],
    }
    optimizer = make([used, idle])
    optimizer.load_state_dict(saved)
    assert float(optimizer.state[used]["step"]) == 7 and optimizer.state[used]["exp_avg_sq"].tolist() == [2.0, 2.0]
    assert not optimizer.state.get(idle) and "step" not in optimizer.param_groups[0]
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert "step" in saved["param_groups"][0] and "step" not in saved["state"][0], "the caller's dict is unchanged"
    again = make([used, idle])
    again.load_state_dict(optimizer.state_dict())
    assert float(again.state[used]["step"]) == 7
