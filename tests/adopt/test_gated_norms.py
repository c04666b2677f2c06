"""Norms with a gate: which rounding is proved for each model, which calls take the kernel, and what refuses."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import precast  # noqa: E402
from tests.adopt.test_models import QUIET  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler, pytest.mark.models, *QUIET]

# The module of transformers, its class, arguments, and the rounding.
MODULES = [
    ("qwen3_next", "Qwen3NextRMSNormGated", (128,), {}, "llama"),
    ("kimi_linear", "KimiLinearRMSNormGated", (128,), {}, "none"),
    ("zamba2", "Zamba2RMSNormGated", (128, 32), {}, "llama"),
    ("bamba", "BambaRMSNormGated", (256, 256), {}, "llama"),
    ("falcon_h1", "FalconH1RMSNormGated", (128,), {"n_groups": 2, "norm_before_gate": False}, "none"),
    ("falcon_h1", "FalconH1RMSNormGated", (128,), {}, "none"),
]


def made(module: str, name: str, args: Any, options: Any) -> Any:
    cls = getattr(importlib.import_module(f"transformers.models.{module}.modeling_{module}"), name)
    model = torch.nn.Sequential(cls(*args, **options)).bfloat16()
    torch.nn.init.normal_(model[0].weight)
    return model


@pytest.mark.parametrize(("module", "name", "args", "options", "casting"), MODULES, ids=str)
def test_each_is_replaced_by_proof(module: str, name: str, args: Any, options: Any, casting: str) -> None:
    model = made(module, name, args, options)
    x, gate = torch.randn(2, 2, 30, args[0]).bfloat16()
    right = model[0](x, gate)
    (group,) = precast.adopt(model).replaced
    assert group.kind == "gated_norm" and group.note.startswith(f'rms_norm_gated, casting="{casting}"')
    for y in (model[0](x, gate), model[0](x, gate=gate), model[0](hidden_states=x, gate=gate)):
        assert (y != right).sum() <= 2, "only where the order of a sum decides"
    assert precast.undo_adopt(model) == 1 and torch.equal(model[0](x, gate), right)


def test_an_unknown_activation_and_a_change_of_one() -> None:
    model = made(*MODULES[0][:4])
    x, gate = torch.randn(2, 4, 128).bfloat16()
    precast.adopt(model)
    model[0].activation = "gelu"
    assert torch.equal(model[0](x, gate), type(model[0]).forward(model[0], x, gate))
    precast.undo_adopt(model)
    (group,) = precast.adopt(model).left
    assert "its activation is 'gelu'; needed 'silu' or 'sigmoid'" in group.note


def test_the_layer_of_kernels() -> None:
    from kernels import Mode, kernelize, replace_kernel_forward_from_hub, use_kernel_mapping

    model = made(*MODULES[0][:4])
    cls, x, gate = type(model[0]), *torch.randn(2, 4, 128).bfloat16()
    right = model[0](x, gate)
    replace_kernel_forward_from_hub(cls, "RMSNormGated")
    try:
        mapping = precast.kernel_mapping(model)
        assert mapping["RMSNormGated"]["cpu"].given[0] == "llama"
        with use_kernel_mapping(mapping, inherit_mapping=False):  # type: ignore[arg-type]
            faster: Any = kernelize(model, mode=Mode.TRAINING, device="cpu")
        assert torch.equal(faster[0](x, gate), right)
    finally:
        del cls.kernel_layer_name, cls.kernel_condition
