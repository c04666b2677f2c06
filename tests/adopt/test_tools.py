"""What other tools and modes do around ``adopt`` and ``undo_adopt``: hooks of accelerate, TorchScript, defaults."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import precast  # noqa: E402
from precast.errors import KernelError  # noqa: E402
from tests.adopt import zoo  # noqa: E402
from tests.adopt.test_models import QUIET  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler, *QUIET]
IDS = torch.arange(24).view(2, 12)


@pytest.fixture
def adopted(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, list[str]]:
    """An adopted LayerNorm, an input, and the calls of the kernel from now on."""
    from precast._adopt import forwards

    torch.manual_seed(0)
    one = torch.nn.LayerNorm(64)
    precast.adopt(torch.nn.Sequential(one))
    calls: list[str] = []
    kernel = forwards._layer_norm
    monkeypatch.setattr(forwards, "_layer_norm", lambda *given: calls.append("layer_norm") or kernel(*given))
    return one, torch.randn(4, 64), calls


@pytest.mark.models
def test_undo_reaches_what_accelerate_has_kept(adopted: Any) -> None:
    from accelerate import hooks

    one, x, calls = adopted
    hooks.add_hook_to_module(one, hooks.ModelHook())
    right = one(x)
    assert calls.pop() and precast.undo_adopt(one) == 1 and precast.undo_adopt(one) == 0
    torch.testing.assert_close(one(x), right)
    hooks.remove_hook_from_module(one)
    torch.testing.assert_close(one(x), right)
    assert not calls


def test_undo_reaches_what_a_closure_has_kept(adopted: Any) -> None:
    one, x, calls = adopted
    inner = one.forward
    one.forward = lambda x: inner(x) + 1
    right = one(x)
    assert calls.pop() and precast.undo_adopt(one) == 1 and precast.undo_adopt(one) == 0
    torch.testing.assert_close(one(x), right)
    assert not calls


def test_a_trace_has_no_ops_of_ours(adopted: Any) -> None:
    one, x, _ = adopted
    traced = torch.jit.trace(one, x)
    assert "precast" not in str(traced.inlined_graph)
    torch.testing.assert_close(traced(x), one(x))


@pytest.mark.models
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_a_trace_of_a_model_has_no_ops_of_ours() -> None:
    model = zoo.make("llama").eval()
    other = copy.deepcopy(model)
    assert precast.adopt(other).ok

    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = other

        def forward(self, ids: Any) -> Any:
            return self.model(input_ids=ids, labels=ids, use_cache=False).loss

    traced = torch.jit.trace(Loss(), IDS, check_trace=False)
    assert "precast" not in str(traced.inlined_graph)
    torch.testing.assert_close(traced(IDS), model(input_ids=IDS, labels=IDS).loss)


def test_a_script_says_what_to_do(adopted: Any) -> None:
    one, x, _ = adopted
    with pytest.raises(KernelError, match=r"torch\.jit\.script cannot compile a LayerNorm") as error:
        torch.jit.script(torch.nn.Sequential(one))
    assert "precast.undo_adopt(model)" in str(error.value)
    precast.undo_adopt(one)
    torch.testing.assert_close(torch.jit.script(torch.nn.Sequential(one))(x), one(x))


@pytest.fixture
def restored() -> Iterator[None]:
    before = torch.get_default_dtype()
    yield
    torch.set_default_device(None)
    torch.set_default_dtype(before)


def kinds(model: Any) -> set[str]:
    """What is proved, without a sample."""
    from precast._adopt import recognise
    from precast._adopt.rules import RULES

    found = recognise.examine(model, RULES)
    return {one.kind for one in found if isinstance(one.fate, recognise.Exact)}


@pytest.mark.models
@pytest.mark.parametrize("default", ["device", "dtype"])
def test_no_proof_reads_a_default_of_the_caller(default: str, restored: None) -> None:
    model = zoo.make("qwen3_moe")
    known = kinds(model)
    assert known == {"rms_norm", "rotary", "experts", "loss"}
    if default == "device":
        torch.set_default_device("meta")
    else:
        torch.set_default_dtype(torch.bfloat16)
    assert kinds(model) == known


@pytest.mark.models
def test_adopt_works_inside_the_inference_mode() -> None:
    model = zoo.make("llama")
    with torch.inference_mode():
        report = precast.adopt(model)
    assert report.ok and "loss" in {group.kind for group in report.replaced}
    assert any(one.output.startswith("gradient") for one in report.compared)
    with torch.inference_mode():
        made = zoo.make("llama")
        report = precast.adopt(made)
        assert report.ok and any(reason.startswith("gradients: ") for reason in report.not_compared)
