"""Norms with a gate, and norms by length: numbers, gradients, graphs, the modules of transformers, and refusals."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast import ops  # noqa: E402
from precast.ops.norm import reference  # noqa: E402
from tests.ops.convolution_cases import assert_close  # noqa: E402
from tests.ops.tensors import assert_captured, made  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
RAW = torch.ops.precast


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("rows", "columns", "group"), [(5, 33, 11), (7, 128, 0), (3, 2048, 256), (64, 64, 32), (2, 5000, 0)]
)
def test_numbers(dtype: Any, rows: int, columns: int, group: int, device: str) -> None:
    """Against float64: half a unit of the dtype, and float32's errors, which the gradients' cancellations enlarge."""
    x, gate, grad = (made(rows, columns, dtype=dtype, device=device, seed=seed) for seed in (1, 2, 3))
    for wide, norm_first, sigmoid in itertools.product((None, False, True), (False, True), (False, True)):
        weight = None if wide is None else made(columns, dtype=torch.float32 if wide else dtype, device=device, seed=4)
        call = (x, gate, weight, 1e-6, 0, norm_first, sigmoid, group)
        exact = [one.double() if isinstance(one, torch.Tensor) else one for one in call]
        assert_close(RAW.rms_norm_gated(*call), reference.rms_norm_gated(*exact))
        found = RAW.rms_norm_gated_backward(grad, *call)
        for ours, right in zip(found, reference.rms_norm_gated_backward(grad.double(), *exact), strict=True):
            assert_close(ours, right, 4)
    assert_close(ops.l2_norm(x), reference.l2_norm(x.double(), 1e-6))
    assert_close(RAW.l2_norm_backward(grad, x, 1e-6), reference.l2_norm_backward(grad.double(), x.double(), 1e-6), 4)


def test_the_modules_of_transformers(device: str) -> None:
    """Bit for bit in 16 bits."""
    pytest.importorskip("transformers")
    from transformers.models.falcon_h1.modeling_falcon_h1 import FalconH1RMSNormGated
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNormGated
    from transformers.models.zamba2.modeling_zamba2 import Zamba2RMSNormGated

    modules = [
        (Qwen3NextRMSNormGated(128), {"casting": "llama"}),
        (Zamba2RMSNormGated(128, 32), {"casting": "llama", "norm_first": False, "group_size": 32}),
        (FalconH1RMSNormGated(128, n_groups=2), {"group_size": 64}),
        (FalconH1RMSNormGated(128, n_groups=2, norm_before_gate=False), {"group_size": 64, "norm_first": False}),
    ]
    for (made_module, options), dtype in itertools.product(modules, DTYPES[1:]):
        module: Any = made_module.to(device, dtype)
        torch.nn.init.normal_(module.weight)
        x, gate = (made(4, 60, 128, dtype=dtype, device=device, seed=seed) for seed in (1, 2))
        ours = ops.rms_norm_gated(x, gate, module.weight, module.variance_epsilon, **options)
        different = (ours != module(x, gate)).sum().item()
        assert different <= ours.numel() // 2000, "only where the order of a sum decides"


def _with(options: Any, *given: Any) -> Any:
    return reference.rms_norm_gated(*given, *options)


def test_gradients(device: str) -> None:
    x, gate, weight = made(4, 24).double(), made(4, 24, seed=1).double(), made(24, seed=2).double()
    given = [one.requires_grad_() for one in (x, gate, weight)]
    for norm_first, sigmoid, group in itertools.product((False, True), (False, True), (0, 8)):
        options = (1e-6, 0, norm_first, sigmoid, group)
        call = functools.partial(_with, options)
        assert torch.autograd.gradcheck(call, given)
        grad = made(4, 24, seed=3).double()
        theirs = torch.autograd.grad(call(*given), given, grad)
        ours = reference.rms_norm_gated_backward(grad, *given, *options)
        assert all(map(torch.allclose, ours, theirs))
    leaves = [one.detach().to(device, torch.float32).requires_grad_() for one in given]
    y = ops.rms_norm_gated(*leaves, activation="swish", norm_first=False, group_size=8) + ops.l2_norm(leaves[0])
    y.sum().backward()
    right = reference.rms_norm_gated(*given, 1e-6, 0, False, False, 8) + reference.l2_norm(given[0], 1e-6)
    for leaf, grad in zip(leaves, torch.autograd.grad(right.sum(), given), strict=True):
        torch.testing.assert_close(leaf.grad, grad.to(device, torch.float32), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
def test_graphs(device: str) -> None:
    x, gate, weight = made(4, 64, device=device), made(4, 64, device=device, seed=1), made(64, device=device, seed=2)

    def run(x: Any, gate: Any, weight: Any) -> Any:
        return ops.rms_norm_gated(x, gate, weight, casting="llama", group_size=16) + ops.l2_norm(x)

    assert torch.allclose(torch.compile(run, fullgraph=True)(x, gate, weight), run(x, gate, weight))
    for name in ("rms_norm_gated", "l2_norm"):
        from precast.ops import _folders

        torch.library.opcheck(getattr(RAW, name).default, _folders.arguments(name))


@pytest.mark.gpu
def test_cuda_graphs() -> None:
    x, gate = (
        made(64, 128, dtype=torch.bfloat16, device="cuda"),
        made(64, 128, dtype=torch.bfloat16, device="cuda", seed=1),
    )
    assert_captured(lambda: (ops.rms_norm_gated(x, gate), ops.l2_norm(x)))


def test_refusals(device: str) -> None:
    x, weight = made(4, 24, device=device), made(24, device=device)
    for call, words in (
        (lambda: ops.rms_norm_gated(x, x[:3]), "rms_norm_gated: gate has shape (3, 24); needed (4, 24), as x"),
        (lambda: ops.rms_norm_gated(x, x.half()), "rms_norm_gated: gate is float16 and x is float32; needed one dtype"),
        (
            lambda: ops.rms_norm_gated(x, x, weight[1:]),
            "rms_norm_gated: weight has shape (23,); needed (24,), the last",
        ),
        (
            lambda: ops.rms_norm_gated(x, x, group_size=7),
            "rms_norm_gated: group is 7 and x has 24 columns; needed a div",
        ),
        (lambda: ops.l2_norm(x.double()), "l2_norm: x is float64; needed float32, float16 or bfloat16"),
        (lambda: ops.l2_norm(x, -1.0), "l2_norm: eps is -1; needed a number that is not negative"),
    ):
        with pytest.raises(RuntimeError) as error:
            call()
        assert str(error.value).startswith(words)
    with pytest.raises(ValueError, match="activation is 'relu'; needed 'silu', 'swish' or 'sigmoid'"):
        ops.rms_norm_gated(x, x, activation="relu")
    with pytest.raises(ValueError, match="casting is 'gemma'; needed 'none' or 'llama'"):
        ops.rms_norm_gated(x, x, casting="gemma")
