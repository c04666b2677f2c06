"""Which way a call takes through torch's dispatcher: autograd's Python kernel only where a gradient can be wanted."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
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
    dispatch = importlib.import_module("precast._dispatch.formulas")
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


def calls(device: str) -> dict[str, Callable[[], Any]]:
    """A call of each public op that leaves autograd out while it calls its kernel."""
    x, gates = torch.randn(4, 8, device=device), torch.randn(4, 16, device=device)
    query = torch.randn(3, 4, 8, device=device)
    key, value = (torch.randn(3, 1, 8, device=device) for _ in range(2))
    cos, sin = torch.randn(5, 4, device=device), torch.randn(5, 4, device=device)
    positions, slots = torch.tensor([4, 0, 2], device=device), torch.tensor([3, -1, 11], device=device)
    caches = torch.zeros(3, 1, 2, 4, 4, device=device), torch.zeros(3, 1, 4, 8, device=device)
    return {
        "layer_norm": lambda: ops.layer_norm(x, torch.ones(8, device=device)),
        "silu_and_mul": lambda: ops.silu_and_mul(gates),
        "silu_and_mul of two": lambda: ops.silu_and_mul(gates, gates),
        "scaled_softmax": lambda: ops.scaled_softmax(x, 1.0),
        "scaled_masked_softmax": lambda: ops.scaled_masked_softmax(x, x > 0, 1.0),
        "rotary_embedding": lambda: ops.rotary_embedding(query, key, cos, sin, positions=positions),
        "rotary_embedding_": lambda: ops.rotary_embedding_(query, key, cos, sin, positions=positions),
        "reshape_and_cache": lambda: ops.reshape_and_cache(key, value, *caches, slots),
        "rotary_embedding_and_cache": lambda: ops.rotary_embedding_and_cache(
            query, key, value, cos, sin, *caches, slots, positions=positions
        ),
    }


@pytest.mark.parametrize("name", calls("cpu"))
def test_autograd_is_left_out_after_a_call_only_if_it_was_before(
    name: str, each_route: Callable[[], None], device: str
) -> None:
    call = calls(device)[name]
    call()
    each_route()
    call()
    assert not torch._C._dispatch_tls_is_dispatch_key_excluded(AUTOGRAD)
    with torch._C._AutoDispatchBelowAutograd():
        call()
        assert torch._C._dispatch_tls_is_dispatch_key_excluded(AUTOGRAD)
    assert not torch._C._dispatch_tls_is_dispatch_key_excluded(AUTOGRAD)


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
