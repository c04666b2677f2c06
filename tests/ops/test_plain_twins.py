"""The image ops in plain torch, as they stand in for kernels: compared with the CPU kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast import ops  # noqa: E402
from precast._builder.catalogue import FAMILIES  # noqa: E402
from precast._dispatch import namespace  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]


def cases(some: Callable[..., Any]) -> dict[str, tuple[str, tuple[Any, ...]]]:
    """Every activation both ways, and filters with steps, crops and both memory formats."""
    x, b, grad = some(2, 3, 5, 7), some(3), some(2, 3, 5, 7)
    last = x.contiguous(memory_format=torch.channels_last)
    found: dict[str, tuple[str, tuple[Any, ...]]] = {}
    for act in range(9):
        options = (1, act, 0.3, 1.5, 1.0 if act % 2 else -1.0)
        found[f"act {act}"] = ("bias_act", (x, b, *options))
        found[f"act {act} back"] = ("bias_act_backward", (grad, last, b, *options, False, True))
    found["act alone"] = ("bias_act", (last, None, 1, 2, 0.2, 1.4, -1.0))
    found["act of columns"] = ("bias_act", (some(4, 9), some(9), 1, 8, 0.0, 1.0, -1.0))
    found["act of output"] = ("bias_act_backward", (grad, x, b, 1, 2, 0.2, 1.4, 1.0, True, True))
    found["act without slope"] = ("bias_act_backward", (grad, None, None, 1, 0, 0.0, 1.4, -1.0, False, False))
    found["no images, back"] = ("bias_act_backward", (x[:0], x[:0], b, 1, 2, 0.2, 1.4, 1.0, True, True))
    f = some(3, 4).float()
    for number, steps in enumerate(((1, 1, 1, 1), (2, 3, 1, 1), (1, 1, 3, 2), (3, 2, 2, 3))):
        found[f"filter {number}"] = ("upfirdn2d", (x, f, *steps, 2, 3, -1, 4, number % 2 == 0, 1.5))
    found["filter of channels_last"] = ("upfirdn2d", (last, f, 2, 2, 1, 1, 2, 1, 2, 1, False, 4.0))
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_results_are_those_of_the_kernels_in_numbers_dtype_and_strides(dtype: Any) -> None:
    ops.define("bias_act")
    random = torch.Generator().manual_seed(8)
    given = cases(lambda *shape: torch.randn(*shape, generator=random).to(dtype))
    assert {op for op, _ in given.values()} == {op for f in FAMILIES if f.plain and f.cpu for op in f.op_names}
    for name, (op, args) in given.items():
        ours, kernels = namespace.twin(op)(*args), namespace.overload(op)(*args)
        for mine, theirs in zip(*((r if isinstance(r, tuple) else (r,)) for r in (ours, kernels)), strict=True):
            torch.testing.assert_close(mine, theirs, equal_nan=True, check_stride=True, msg=lambda m: f"{name}: {m}")  # noqa: B023


def test_a_result_is_no_argument_and_bad_input_is_refused() -> None:
    ops.define("bias_act")
    x = torch.ones(2, 3)
    y = namespace.twin("bias_act")(x, None, 1, 0, 0.0, 1.0, -1.0)
    assert torch.equal(x, y) and y.data_ptr() != x.data_ptr()
    with pytest.raises(RuntimeError, match="bias_act: bias"):
        namespace.twin("bias_act")(x, torch.ones(4), 1, 0, 0.0, 1.0, -1.0)
