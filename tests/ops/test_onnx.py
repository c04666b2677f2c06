"""The exporters of torch.onnx record the norms as torch's own ops, because they know no others."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast import nn, ops  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]


class Norms(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.plain, self.rms = nn.LayerNorm(16), nn.LayerNorm(16, bias=False), nn.RMSNorm(16)
        self.weight = torch.nn.Parameter(torch.randn(16))
        torch.nn.init.normal_(self.layer.weight)

    def forward(self, x: Any) -> Any:
        y, total = ops.fused_add_rms_norm(self.rms(self.layer(x)), self.plain(x), self.weight)
        y = ops.rms_norm(y, self.weight, casting="gemma") + ops.rms_norm(y, self.weight, casting="llama")
        return ops.layer_norm(ops.rms_norm(y).unflatten(-1, (4, 4)), normalized_shape=(4, 4)).flatten(-2) + total


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("exporter", ["export", "trace"])
def test_the_norms_are_torchs_own_ops(exporter: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, x = Norms().to(dtype).eval(), torch.randn(3, 16).to(dtype)
    wanted = model(x)

    def recorded() -> tuple[Any, str]:
        if exporter == "trace":
            traced: Any = torch.jit.trace(model, (x,), check_trace=False)
            return traced, str(traced.inlined_graph)
        program = torch.export.export(model, (x,), strict=False)
        return program.module(), str(program.graph)

    assert "precast" in recorded()[1].replace("precast.nn", "")
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    found, graph = recorded()
    for text in ("precast::", "precast."):
        assert text not in graph.replace("precast.nn", "").replace("/precast/", "")
    assert "layer_norm" in graph
    close = 1e-5 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(found(x), wanted, rtol=close, atol=close)
