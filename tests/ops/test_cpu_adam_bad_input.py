"""What CPUAdam refuses, and that nothing is changed before it does."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast.optim import CPUAdam  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

F16, BF16 = torch.float16, torch.bfloat16

BAD = {
    "float64": (torch.zeros(3).double(), None, "parameter 1: it is float64; needed float32, float16 or bfloat16"),
    "complex": (torch.zeros(3).cfloat(), None, "parameter 1: it is complex64; needed float32"),
    "meta": (torch.zeros(3, device="meta"), None, "parameter 1: it is on meta; needed the CPU"),
    "sparse": (torch.zeros(3), torch.zeros(3).to_sparse(), "its gradient has layout sparse_coo; needed a dense tensor"),
    "grad elsewhere": (torch.zeros(3), torch.zeros(3, device="meta"), "its gradient is on meta; needed the CPU"),
    "another shape": (torch.zeros(3), torch.zeros(3, 1), r"its gradient has shape \(3, 1\); needed \(3,\)"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_parameters_are_refused_before_anything_is_updated(case: str) -> None:
    param, grad, message = BAD[case]
    good = torch.zeros(3)
    optimizer = CPUAdam([{"params": [good]}, {"params": [param]}])
    with pytest.raises(RuntimeError, match=message):
        optimizer.step(grads=[torch.ones(3), torch.ones_like(param) if grad is None else grad])
    assert good.tolist() == [0.0] * 3
    assert not optimizer.state


@pytest.mark.gpu
def test_parameters_on_a_gpu_are_refused() -> None:
    optimizer = CPUAdam([torch.zeros(3, device="cuda")])
    with pytest.raises(RuntimeError, match="parameter 0: it is on cuda:0; needed the CPU"):
        optimizer.step(grads=[torch.ones(3, device="cuda")])


def test_bad_copies_are_refused() -> None:
    param = torch.zeros(3)
    optimizer = CPUAdam([param])
    for target, message in (
        (torch.zeros(3), "its copy is float32; needed float16 or bfloat16"),
        (torch.zeros(4, dtype=BF16), r"its copy has shape \(4,\); needed \(3,\)"),
        (torch.zeros(3, dtype=BF16, device="meta"), "its copy is on meta; needed the CPU"),
    ):
        with pytest.raises(RuntimeError, match=message):
            optimizer.step(grads=[torch.ones(3)], copies=[target])
    assert param.tolist() == [0.0] * 3


def test_a_failed_step_leaves_no_state() -> None:
    storage = torch.zeros(6)
    optimizer = CPUAdam([storage[:4], storage[2:]])
    with pytest.raises(RuntimeError, match="share memory"):
        optimizer.step(grads=[torch.ones(4), torch.ones(4)])
    assert not optimizer.state
    assert storage.tolist() == [0.0] * 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "lr is -1.0; needed 0 or more"),
        ({"lr": torch.ones(2)}, r"lr is a tensor of shape \(2,\); needed one element"),
        ({"eps": -1e-8}, "eps is -1e-08; needed 0 or more"),
        ({"weight_decay": float("nan")}, "weight_decay is nan; needed 0 or more"),
        ({"betas": (0.9, 1.0)}, r"betas is \(0.9, 1.0\); needed two numbers from 0"),
        ({"betas": (0.9,)}, r"betas is \(0.9,\); needed two numbers"),
        ({"state_dtype": F16}, "state_dtype is torch.float16; needed torch.float32, or None"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CPUAdam([torch.zeros(3)], **options)
    optimizer = CPUAdam([torch.zeros(3)])
    with pytest.raises(ValueError, match=message):
        optimizer.add_param_group({"params": [torch.zeros(3)], **options})
    assert len(optimizer.param_groups) == 1
