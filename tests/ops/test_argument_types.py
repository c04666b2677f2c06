"""An argument of another type than a signature says is one sentence that names it, whatever stumbles over it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast import ops  # noqa: E402
from precast.ops import _checks  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

IMAGE, ROWS = torch.ones(1, 2, 4, 4), torch.ones(4, 8)
IDS = torch.zeros(4, 2, dtype=torch.int64)

BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "no tensor": (lambda: ops.bias_act(None), r"bias_act: x is None; needed Tensor$"),
    "a list": (lambda: ops.moe_permute([1.0], IDS, 2), r"moe_permute: rows is a list; needed Tensor$"),
    "a list with None": (
        lambda: ops.adam_([ROWS], [None], [ROWS], [ROWS], **RATES),
        r"adam_: grads is a list; needed Sequence\[Tensor\]$",
    ),
    "a number for a word": (lambda: ops.bias_act(IMAGE, act=["relu"]), "bias_act: act is a list; needed str$"),
    "a complex factor": (lambda: ops.fused_leaky_relu(IMAGE, scale=1j), "fused_leaky_relu: scale is 1j; needed float$"),
    "a shape of halves": (
        lambda: ops.rms_norm(ROWS, normalized_shape=1.5),
        r"rms_norm: normalized_shape is 1.5; needed int \| Sequence\[int\] \| None$",
    ),
}
RATES: Any = {
    "lr": 0.1,
    "beta1": 0.9,
    "beta2": 0.9,
    "eps": 1e-8,
    "weight_decay": 0.0,
    "bias_correction1": 0.1,
    "bias_correction2": 0.1,
}


@pytest.mark.parametrize("case", BAD)
def test_one_sentence_names_the_argument(case: str) -> None:
    call, message = BAD[case]
    with pytest.raises(TypeError, match=message) as caught:
        call()
    assert caught.value.__suppress_context__


def test_an_error_of_another_kind_stays() -> None:
    with pytest.raises(RuntimeError, match="bias_act: b"):
        ops.bias_act(IMAGE, torch.ones(3))
    with pytest.raises(ValueError, match="act is 'none'"):
        ops.bias_act(IMAGE, act="none")
    assert _checks.explain(ops.bias_act, {"x": IMAGE, "dim": 1}) is None  # type: ignore[func-returns-value]


@pytest.mark.parametrize("step", [0.0, -1.0, float("nan")])
def test_a_bias_correction_that_is_none_is_refused(step: float) -> None:
    param = torch.ones(3)
    with pytest.raises(RuntimeError, match=r"bias_correction1 is .* and bias_correction2 0.1; needed numbers above 0"):
        ops.adam_([param], [param.clone()], [param.clone()], [param.clone()], **{**RATES, "bias_correction1": step})
    assert param.tolist() == [1.0] * 3
