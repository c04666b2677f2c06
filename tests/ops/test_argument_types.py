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
HEADS, CACHE = torch.ones(4, 2, 16), torch.zeros(2, 4, 2, 16)
IDS = torch.zeros(4, 2, dtype=torch.int64)

BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "no tensor": (lambda: ops.bias_act(None), "bias_act: x is a NoneType; needed a torch.Tensor$"),
    "a list": (lambda: ops.moe_permute([1.0], IDS, 2), r"moe_permute: rows is a list; needed Tensor$"),
    "a list with None": (
        lambda: ops.adam_([ROWS], [None], [ROWS], [ROWS], **RATES),
        r"adam_: grads is a list; needed Sequence\[Tensor\]$",
    ),
    "a number for a word": (lambda: ops.bias_act(IMAGE, act=["relu"]), "bias_act: act is a list; needed str$"),
    "a complex factor": (lambda: ops.fused_leaky_relu(IMAGE, scale=1j), "fused_leaky_relu: scale is 1j; needed float$"),
    "a factor in words": (
        lambda: ops.scaled_softmax(ROWS, "0.5"),
        "scaled_softmax: scale is '0.5'; needed float$",
    ),
    "a causal factor": (
        lambda: ops.scaled_aligned_causal_softmax(ROWS, ROWS),
        "scaled_aligned_causal_softmax: scale is a Tensor; needed float$",
    ),
    "no causal factor": (
        lambda: ops.scaled_upper_triang_masked_softmax(torch.ones(4, 4), None),
        "scaled_upper_triang_masked_softmax: scale is None; needed float$",
    ),
    "positions in a list": (
        lambda: ops.rotary_embedding(HEADS, None, ROWS, ROWS, positions=[0]),
        r"rotary_embedding: positions is a list; needed Tensor \| None$",
    ),
    "no query": (
        lambda: ops.rotary_embedding_(None, None, ROWS, ROWS),
        "rotary_embedding_: query is a NoneType; needed a torch.Tensor$",
    ),
    "slots in a list": (
        lambda: ops.reshape_and_cache(HEADS, HEADS, CACHE, CACHE, [0]),
        "reshape_and_cache: slot_mapping is a list; needed a torch.Tensor$",
    ),
    "a cache that is no tensor": (
        lambda: ops.rotary_embedding_and_cache(HEADS, HEADS, HEADS, ROWS, ROWS, CACHE, 1, IDS),
        "rotary_embedding_and_cache: value_cache is a int; needed a torch.Tensor$",
    ),
    "half an expert": (
        lambda: ops.moe_align_block_size(IDS, 2.5, 4),
        "moe_align_block_size: experts is 2.5; needed int$",
    ),
    "a tensor for a word": (
        lambda: ops.rms_norm(ROWS, casting=torch.ones(2, 2)),
        "rms_norm: casting is a Tensor; needed str$",
    ),
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

    def explained(error: ValueError) -> None:
        try:
            raise error
        except ValueError:
            _checks.explain(ops.bias_act, {"x": IMAGE, "dim": 1})

    other = ValueError("of another kind")
    with pytest.raises(ValueError, match=r"^of another kind$") as raised:
        explained(other)
    assert raised.value is other


@pytest.mark.parametrize("step", [0.0, -1.0, float("nan")])
def test_a_bias_correction_that_is_none_is_refused(step: float) -> None:
    param = torch.ones(3)
    with pytest.raises(RuntimeError, match=r"bias_correction1 is .* and bias_correction2 0.1; needed numbers above 0"):
        ops.adam_([param], [param.clone()], [param.clone()], [param.clone()], **{**RATES, "bias_correction1": step})
    assert param.tolist() == [1.0] * 3
