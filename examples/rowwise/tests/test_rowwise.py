"""Numbers, gradients, and which of the two extensions answers where."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

import rowwise
from precast.extension import TorchExtension
from rowwise import LogSumExpLoader

GPU = torch.cuda.is_available()
TRITON = importlib.util.find_spec("triton") is not None and (GPU or os.environ.get("TRITON_INTERPRET") == "1")
DEVICE = "cuda" if GPU else "cpu"
NAMES = ["log_sum_exp_torch", *(["log_sum_exp_triton"] if TRITON else [])]
DTYPES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
INF = float("inf")


def test_the_machine_decides() -> None:
    """The Triton kernel has the higher priority; where it cannot run, plain torch answers."""
    best = "log_sum_exp_triton" if TRITON else "log_sum_exp_torch"
    assert LogSumExpLoader().load() is LogSumExpLoader().load(best)
    assert LogSumExpLoader.names() == ("log_sum_exp_torch", "log_sum_exp_triton")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1,), (3, 1), (2, 3, 5), (4, 4096), (3, 9001), (0, 7)], ids=str)
def test_numbers(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = (torch.randn(shape, device=DEVICE) * 20).to(dtype)
    ours = LogSumExpLoader().load(name).log_sum_exp(x)
    assert ours.dtype == dtype and ours.shape == shape[:-1]
    torch.testing.assert_close(ours.double(), torch.logsumexp(x.double(), -1), rtol=DTYPES[dtype], atol=DTYPES[dtype])


@pytest.mark.parametrize("name", NAMES)
def test_infinities(name: str) -> None:
    x = torch.tensor([[-INF, -INF], [-INF, 1.0], [INF, 1.0], [1e38, 1e38], [-1e38, -1e38], [float("nan"), 1.0]])
    ours = LogSumExpLoader().load(name).log_sum_exp(x.to(DEVICE))
    torch.testing.assert_close(ours.cpu(), torch.logsumexp(x, -1), equal_nan=True)


def test_gradients() -> None:
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(rowwise.log_sum_exp, x)
    assert torch.autograd.gradgradcheck(rowwise.log_sum_exp, x)


def test_a_better_one_can_be_registered() -> None:
    class Better(TorchExtension):
        members = {"log_sum_exp": lambda x: "better"}  # noqa: RUF012

        def __init__(self) -> None:
            super().__init__("log_sum_exp_better", priority=20)

    before = LogSumExpLoader().load().log_sum_exp
    LogSumExpLoader.register_extension(Better)
    try:
        assert LogSumExpLoader().load().log_sum_exp(torch.ones(1)) == "better"
    finally:
        LogSumExpLoader.unregister_extension(Better)
    assert LogSumExpLoader().load().log_sum_exp is before


def test_a_tensor_on_the_cpu_is_served_on_every_machine() -> None:
    assert rowwise.log_sum_exp(torch.zeros(2, 4)).tolist() == pytest.approx([torch.tensor(4.0).log().item()] * 2)
