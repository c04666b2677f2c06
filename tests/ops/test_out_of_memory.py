"""Without memory for a result, every way of calling an op raises what torch itself raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast import ops  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]


def needing(call: Callable[[Any], Any], x: Any) -> type[BaseException]:
    with pytest.raises(RuntimeError, match="allocate") as caught:
        call(x)
    return caught.type


@pytest.mark.parametrize(
    "call",
    [
        ops.silu_and_mul,
        lambda x: torch.ops.precast.gated_activation(x, 0),
        lambda x: ops.silu_and_mul(x.requires_grad_()),
        lambda x: ops.bias_act(x[:, :, None, None], act="lrelu"),
        lambda x: ops.rms_norm(x, torch.ones(8, device=x.device)),
    ],
    ids=["direct", "dispatcher", "gradient", "image", "norm"],
)
def test_a_result_that_fits_nowhere_raises_torchs_error(call: Callable[[Any], Any], device: str) -> None:
    ops.silu_and_mul(torch.ones(1, 8, device=device))
    x = torch.ones(1, 8, device=device).expand(2**43, 8)  # its result is larger than the address space
    kind = needing(lambda x: torch.empty_like(x, memory_format=torch.contiguous_format), x)
    assert kind is (torch.cuda.OutOfMemoryError if device == "cuda" else RuntimeError)
    assert needing(call, x) is kind


def test_the_error_of_torchs_allocator_passes_unchanged(run_child: Callable[[str], str]) -> None:
    """Torch's function that allocates is overridden: it raises what a GPU's does, then there is memory again."""
    said = run_child("""
        import resource, warnings
        warnings.simplefilter("ignore")
        import torch
        from precast import ops

        x, weight = torch.randn(2**21, 8), torch.randn(8)
        calls = (ops.rms_norm, lambda x, weight: torch.ops.precast.rms_norm(x, weight, 1e-6, 0))
        expected = calls[0](x, weight)
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()

        def empty_strided(size, stride, **options):
            if there_is_none:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
            return torch.empty(size)

        library = torch.library.Library("aten", "IMPL")
        library.impl("empty_strided", empty_strided, "CPU")
        for call in calls:
            resource.setrlimit(resource.RLIMIT_AS, (used + 2**25, hard))
            there_is_none = True
            try:
                call(x, weight)
            except torch.cuda.OutOfMemoryError as error:
                print(error)
            there_is_none = False
            assert torch.equal(call(x, weight), expected)
            assert resource.getrlimit(resource.RLIMIT_AS) == (soft, hard)
    """)
    assert said.splitlines() == ["CUDA out of memory. Tried to allocate 2.00 GiB"] * 2
