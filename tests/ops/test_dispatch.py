"""Which way a call takes through torch's dispatcher: autograd's Python kernel only where a gradient can be wanted."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast import ops  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

EPS = 1e-6
RAW = torch.ops.precast
AUTOGRAD = torch._C.DispatchKey.AutogradFunctionality


def inputs(count: int, device: str) -> tuple[Any, ...]:
    return (*(torch.randn(4, 8, device=device) for _ in range(count)), torch.randn(8, device=device))


@pytest.fixture
def python_hops(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The ops whose calls passed through autograd's Python kernel."""
    dispatch = importlib.import_module("precast.ops._dispatch")
    hops: list[str] = []
    real = dispatch.below_autograd

    def counting(op: Any, *args: Any) -> Any:
        hops.append(op._opname)
        return real(op, *args)

    monkeypatch.setattr(dispatch, "below_autograd", counting)
    return hops


def test_the_short_way_is_taken_where_no_gradient_can_be_wanted(python_hops: list[str], device: str) -> None:
    x, residual, weight = inputs(2, device)
    RAW.rms_norm(x, weight, EPS, 0)
    assert python_hops == ["rms_norm"]
    for requires_grad in (False, True):
        weight.requires_grad_(requires_grad)
        with torch.set_grad_enabled(not requires_grad):
            ops.rms_norm(x, weight)
            ops.fused_add_rms_norm(x, residual, weight)
            ops.fused_add_rms_norm_(x, residual, weight)
    assert python_hops == ["rms_norm"]
    with torch.no_grad():
        with pytest.raises(RuntimeError):
            ops.rms_norm(x, weight[:2])
        # The key that was left out for the failed call is back.
        assert not torch._C._dispatch_tls_is_dispatch_key_excluded(AUTOGRAD)
    leaf = x.clone().requires_grad_()
    assert ops.rms_norm(leaf, weight).requires_grad


def test_a_caller_that_left_autograd_out_finds_it_left_out_afterwards(device: str) -> None:
    x, residual, weight = inputs(2, device)
    with torch._C._AutoDispatchBelowAutograd():
        for call in (
            lambda: ops.rms_norm(x, weight),
            lambda: ops.fused_add_rms_norm(x, residual, weight),
            lambda: ops.fused_add_rms_norm_(x, residual, weight),
        ):
            call()
            assert torch._C._dispatch_tls_is_dispatch_key_excluded(AUTOGRAD)


def test_torch_function_and_dispatch_modes_see_the_call(device: str) -> None:
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(f"function {func}")
            # A handler is code of the user, to whom autograd must not be missing.
            assert not torch._C._dispatch_tls_is_dispatch_key_excluded(AUTOGRAD)
            return func(*args, **(kwargs or {}))

    class Dispatches(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(f"dispatch {func}")
            return func(*args, **(kwargs or {}))

    x, weight = inputs(1, device)
    with Functions():
        ops.rms_norm(x, weight)
    with Dispatches():
        ops.rms_norm(x, weight)
    assert [line for line in seen if "rms_norm" in line] == [
        "function precast.rms_norm.default",
        "dispatch precast.rms_norm.default",
    ]
