"""The probe tells the orders of rounding apart, and refuses each that no kernel has."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast._adopt.probe import StandIn, Trial, decide, probe  # noqa: E402
from precast._adopt.rules import RULES  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]
Module = torch.nn.Module


class Norm(Module):
    """An RMS norm that rounds where its subclass says."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))
        self.eps = 1e-6

    def normal(self, x: Any) -> Any:
        wide = x.float()
        return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)


class RoundedOnce(Norm):
    def forward(self, x: Any) -> Any:
        return (self.normal(x) * self.weight.float()).to(x.dtype)


class Llama(Norm):
    def forward(self, x: Any) -> Any:
        return self.weight * self.normal(x).to(x.dtype)


class Gemma(Norm):
    def forward(self, x: Any) -> Any:
        return (self.normal(x) * (1 + self.weight.float())).to(x.dtype)


class RoundedRoot(Norm):
    """As DeepSeek V4 has it without a weight: the reciprocal root is rounded."""

    def forward(self, x: Any) -> Any:
        root = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.eps)
        return x * root.to(x.dtype) * self.weight


class RoundedScale(Norm):
    """Gemma's scale, rounded before the product."""

    def forward(self, x: Any) -> Any:
        return (self.normal(x) * (1 + self.weight).float()).to(x.dtype)


class Wide(Norm):
    def forward(self, x: Any) -> Any:
        return self.normal(x) * self.weight.float()


class LateLayerNorm(torch.nn.LayerNorm):
    """Rounds before the weight."""

    def forward(self, x: Any) -> Any:
        normal = torch.nn.functional.layer_norm(x, self.normalized_shape, None, None, self.eps)
        return normal * self.weight + self.bias


class Mlp(Module):
    """A gated MLP that, fused, does not round the activation."""

    def __init__(self, act: Module, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.act, self.gate, self.up, self.down = act, StandIn(None), StandIn(None), StandIn(None)

    def forward(self, x: Any) -> Any:
        gate, up = self.gate(x), self.up(x)
        if self.fused:
            return self.down((self.act(gate.float()) * up.float()).to(gate.dtype))
        return self.down(self.act(gate) * up)


class Swapped(Mlp):
    """A projection of factors and gates."""

    def __init__(self, act: Module, fused: bool) -> None:
        super().__init__(act, fused)
        self.proj = StandIn(None)

    def forward(self, x: Any) -> Any:
        factors, gates = self.proj(x).chunk(2, dim=-1)
        if self.fused:
            return (factors.float() * self.act(gates.float())).to(x.dtype)
        return factors * self.act(gates)


class Experts(Module):
    """The gate of experts; fused, it does not round the activation."""

    def __init__(self, act: Module, fused: bool, has_gate: bool = True) -> None:
        super().__init__()
        self.act_fn, self.fused, self.has_gate = act, fused, has_gate

    def _apply_gate(self, both: Any) -> Any:
        gates, factors = (both.float() if self.fused else both).chunk(2, dim=-1)
        return (self.act_fn(gates) * factors).to(both.dtype)


def found(kind: str, module: Any, names: Any) -> tuple[str | None, str]:
    (rule,) = (one for one in RULES if one.kind == kind)
    trials = rule.trials(module, names, "cpu")
    assert not isinstance(trials, str), trials
    return decide(probe(trials, "cpu"), "cpu")


@pytest.mark.parametrize(("cls", "casting"), [(RoundedOnce, "none"), (Llama, "llama"), (Gemma, "gemma")])
@pytest.mark.parametrize("width", [16, 256, 4096])
def test_each_order_of_an_rms_norm_is_found(cls: Any, casting: str, width: int) -> None:
    assert found("rms_norm", cls(width), "eps")[0] == casting


@pytest.mark.parametrize("cls", [RoundedRoot, RoundedScale])
def test_an_order_that_no_kernel_has_is_refused(cls: Any) -> None:
    casting, reason = found("rms_norm", cls(), "eps")
    assert casting is None
    assert reason.startswith("it rounds in another order in bfloat16: ")


def test_a_result_of_another_dtype_is_refused() -> None:
    assert found("rms_norm", Wide(), "eps") == (None, "its result for bfloat16 is float32")


def test_a_layer_norm_that_rounds_before_its_weight_is_refused() -> None:
    assert found("layer_norm", torch.nn.LayerNorm(64), False)[0] == "layer_norm"
    assert found("layer_norm", LateLayerNorm(64), False)[1].startswith("it rounds in another order in bfloat16: ")


@pytest.mark.parametrize(
    ("act", "gate"),
    [
        (torch.nn.SiLU(), "silu"),
        (torch.nn.GELU(), "gelu"),
        (torch.nn.GELU(approximate="tanh"), "gelu_tanh"),
    ],
)
def test_the_activation_of_a_gated_mlp_is_found(act: Any, gate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precast._adopt.rules.unknown_activation", lambda _: "")
    names = ("act", "gate", "up", "down")
    assert found("gated_mlp", Mlp(act, fused=False), names)[0] == gate
    assert found("gated_mlp", Mlp(act, fused=True), names)[1].startswith("it rounds in another order in bfloat16: ")


@pytest.mark.parametrize(
    ("kind", "cls", "names"), [("gated_mlp", Swapped, ("act", "proj")), ("experts", Experts, None)]
)
@pytest.mark.parametrize(("act", "gate"), [(torch.nn.SiLU(), "silu"), (torch.nn.GELU(), "gelu")])
def test_the_gate_of_halves_and_of_experts_is_found(
    kind: str, cls: Any, names: Any, act: Any, gate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("precast._adopt.rules.unknown_activation", lambda _: "")
    assert found(kind, cls(act, fused=False), names)[0] == gate
    assert found(kind, cls(act, fused=True), names)[1].startswith("it rounds in another order in bfloat16: ")


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Experts(torch.nn.SiLU(), fused=False, has_gate=False), "it has no gate"),
        (Experts(torch.nn.Mish(), fused=False), "its activation Mish is not known"),
    ],
)
def test_experts_of_another_form_are_refused(module: Any, reason: str) -> None:
    (rule,) = (one for one in RULES if one.kind == "experts")
    assert rule.trials(module, None, "cpu") == reason


def test_orders_that_the_inputs_do_not_tell_apart_are_refused() -> None:
    def trials(dtype: Any, generator: torch.Generator) -> Trial:
        x = torch.ones(64, dtype=dtype)
        return Trial(
            StandIn(None), x, {"one": x, "other": x}, lambda error: dict.fromkeys(("one", "other"), x.double())
        )

    assert decide(probe(trials, "cpu"), "cpu") == (None, "the probe cannot tell one and other apart")
