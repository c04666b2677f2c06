"""The ops in plain torch as they stand in for kernels: compared with the CPU kernels, registered by the loader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast import ops  # noqa: E402
from precast._builder.catalogue import FAMILIES  # noqa: E402
from precast._dispatch import namespace  # noqa: E402
from tests.ops import plain_rows  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]


def images(some: Callable[..., Any]) -> dict[str, tuple[str, tuple[Any, ...]]]:
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


def result_of(call: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a call gives, or what it has written over its first two arguments."""
    given = [arg.clone() if isinstance(arg, torch.Tensor) and arg.is_contiguous() else arg for arg in args]
    result = call(*given)
    return tuple(given[:2]) if result is None else result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_results_are_those_of_the_kernels_in_numbers_dtype_and_strides(dtype: Any) -> None:
    ops.define("bias_act")
    random = torch.Generator().manual_seed(8)

    def some(*shape: int) -> Any:
        return torch.randn(*shape, generator=random).to(dtype)

    given = images(some) | plain_rows.cases(some)
    assert {op for op, _ in given.values()} == {op for f in FAMILIES if f.plain and f.cpu for op in f.op_names}
    for name, (op, args) in given.items():
        ours, kernels = result_of(namespace.plain(op), args), result_of(namespace.overload(op), args)
        for mine, theirs in zip(ours, kernels, strict=True):
            torch.testing.assert_close(mine, theirs, equal_nan=True, check_stride=True, msg=lambda m: f"{name}: {m}")  # noqa: B023


def test_a_result_is_no_argument_and_bad_input_is_refused() -> None:
    ops.define("bias_act")
    x = torch.ones(2, 3)
    y = namespace.plain("bias_act")(x, None, 1, 0, 0.0, 1.0, -1.0)
    assert torch.equal(x, y) and y.data_ptr() != x.data_ptr()
    with pytest.raises(RuntimeError, match="bias_act: bias"):
        namespace.plain("bias_act")(x, torch.ones(4), 1, 0, 0.0, 1.0, -1.0)


def test_a_family_of_the_cpu_alone_has_no_plain_torch_to_stand_in() -> None:
    with pytest.raises(KeyError, match="plain torch does not stand in for cpu_adam"):
        namespace.plain("adam_")


STAND_IN = """
    import dataclasses, logging
    logging.basicConfig(level=logging.WARNING)
    import torch
    from precast import errors, ops
    from precast._load import loader, probe
    from precast.kernel_loader import RMSNormLoader
    real_host = probe.probe_host

    def intel(settings, **kwargs):
        host = real_host(settings, **kwargs)
        return dataclasses.replace(host, torch=dataclasses.replace(host.torch, xpu="20250300"))

    has_kernel = lambda op: torch._C._dispatch_has_kernel_for_dispatch_key(f"precast::{op}", "XPU")
    try:
        loader.ensure("rms_norm", "xpu")
    except errors.KernelUnavailable as error:
        print("REFUSED", "an XPU build of torch" in str(error), has_kernel("rms_norm"))
    probe.probe_host = intel
    ops.define("multi_tensor")
    for family, op in (("rms_norm", "rms_norm"), ("multi_tensor", "multi_tensor_step_")):
        loaded = loader.ensure(family, "xpu")
        print(family, loaded.host, loaded.images, has_kernel(op))
    print("AGAIN", loader.ensure("rms_norm", "xpu") is loader.load("rms_norm", "xpu"))
    try:
        loader.ensure("cpu_adam", "xpu")
    except errors.KernelUnavailable as error:
        print("WITHOUT", str(error).splitlines()[0])
    print("BY NAME", RMSNormLoader().load("rms_norm_triton").__name__)
"""


def test_the_loader_registers_it_where_nothing_else_can_be_had_and_says_so(run_child: Callable[[str], str]) -> None:
    said = dict(line.split(" ", 1) for line in run_child(STAND_IN).splitlines())
    assert said["REFUSED"] == "True False"
    for family in ("rms_norm", "multi_tensor"):
        assert said[family].startswith("torch ") and said[family].endswith("reference.py (plain torch) () True")
    assert said["AGAIN"] == "True"
    assert said["WITHOUT"] == "cpu_adam has no xpu kernels"
    assert said["BY"] == "NAME rms_norm_torch"
