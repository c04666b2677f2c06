"""Forwards that multiply by an activation: which ones are known, and that their copies give the own bits."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast._adopt import gating, instances  # noqa: E402
from precast._adopt.source import Unreadable  # noqa: E402

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.torch, pytest.mark.compiler]


class Chunked(torch.nn.Module):
    """Gates and factors are columns of one tensor, which is used later too."""

    def __init__(self) -> None:
        super().__init__()
        self.act, self.drop = torch.nn.SiLU(), torch.nn.Dropout(0.0)

    def forward(self, x: Any) -> Any:
        gates, factors = x.chunk(2, -1)
        return self.drop(self.act(gates) * factors) + gates


class Turned(Chunked):
    """Factors come first, and more factors later."""

    def forward(self, x: Any) -> Any:
        gates, factors = x.chunk(2, -1)
        return factors * self.act(gates) * 2


class Scaled(Chunked):
    """The other factor is a number."""

    def forward(self, x: Any) -> Any:
        return self.act(x) * 2


class Squared(Chunked):
    """Both are activations."""

    def forward(self, x: Any) -> Any:
        return self.act(x) * self.act(x + 1)


class Added(Chunked):
    """There is no product."""

    def forward(self, x: Any) -> Any:
        return self.act(x) + x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("cls", [Chunked, Turned, Scaled, Squared])
def test_the_copy_gives_the_own_bits(cls: Any, dtype: Any, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, kernel = [], gating.GATES["silu"]
    monkeypatch.setitem(gating.GATES, "silu", lambda *given: [calls.append(1), kernel(*given)][1])
    module = cls()
    gate, _ = gating.prove(module, gating.activation(module), device)
    assert gate == "silu"
    adopted = copy.deepcopy(module)
    instances.put(adopted, "forward", gating.bind(adopted, "act", gate, device))
    x = torch.randn(2, 3, 64, dtype=dtype)
    calls.clear()
    for same in (adopted, copy.deepcopy(adopted), pickle.loads(pickle.dumps(adopted))):
        torch.testing.assert_close(same(x), module(x), rtol=1e-6 if dtype == torch.float32 else 0, atol=1e-6)
    assert len(calls) == (0 if cls is Scaled else 3)
    adopted.act.register_forward_hook(lambda *_: calls.append(2))
    adopted(x)
    assert set(calls[-1:]) <= {2}


def test_what_is_left_alone() -> None:
    with pytest.raises(Unreadable, match="does not multiply by an activation"):
        gating.activation(Added())
    module = Chunked()
    module.act = torch.nn.SiLU(inplace=True)
    with pytest.raises(Unreadable, match="works in place"):
        gating.activation(module)
    module.act = torch.nn.ReLU()
    with pytest.raises(Unreadable, match="its activation ReLU is not known"):
        gating.activation(module)
