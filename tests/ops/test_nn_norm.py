"""The modules in the place of torch's: the same construction, parameters and numbers."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import precast  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

CASES = {
    "LayerNorm": ("LayerNorm", {}),
    "LayerNorm without bias": ("LayerNorm", {"bias": False, "eps": 1e-3}),
    "LayerNorm without parameters": ("LayerNorm", {"elementwise_affine": False}),
    "RMSNorm": ("RMSNorm", {}),
    "RMSNorm with eps": ("RMSNorm", {"eps": 1e-3}),
    "RMSNorm without parameters": ("RMSNorm", {"elementwise_affine": False}),
}


def pair(case: str, width: Any, **more: Any) -> tuple[Any, Any]:
    name, options = CASES[case]
    made = [getattr(library, name)(width, **options, **more) for library in (precast.nn, torch.nn)]
    return made[0], made[1]


def rows(*shape: int, device: str, dtype: Any = torch.float32) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [24, (24,), [24], torch.Size([24]), (3, 8)], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_a_module_is_torchs(case: str, width: Any, dtype: Any, device: str) -> None:
    ours, theirs = pair(case, width, device=device, dtype=dtype)
    assert isinstance(ours, type(theirs))
    assert repr(ours) == repr(theirs)
    assert ours.normalized_shape == theirs.normalized_shape
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.uniform_(-2, 2)
    ours.load_state_dict(theirs.state_dict())
    assert list(ours.state_dict()) == list(theirs.state_dict())
    x = rows(5, *ours.normalized_shape, device=device, dtype=dtype).requires_grad_()
    inputs = [x, *ours.parameters()], [x, *theirs.parameters()]
    y, right = ours(x), theirs(x)
    tolerance = {"rtol": 2 * torch.finfo(dtype).eps, "atol": 1e-5 if dtype == torch.float32 else 2e-2}
    torch.testing.assert_close(y, right, **tolerance)
    gradients = [torch.autograd.grad(t.sin().sum(), leaves) for t, leaves in zip((y, right), inputs, strict=True)]
    tolerance["atol"] *= 4
    torch.testing.assert_close(*gradients, **tolerance)
    ours.reset_parameters()
    for name, parameter in ours.named_parameters():
        assert (parameter == (name == "weight")).all()


@pytest.mark.parametrize("case", CASES)
def test_compiles_without_a_break(case: str, device: str) -> None:
    ours, _ = pair(case, 24, device=device)
    x = rows(5, 24, device=device)
    torch.testing.assert_close(torch.compile(ours, backend="aot_eager", fullgraph=True)(x), ours(x))


@pytest.mark.parametrize("case", ["LayerNorm", "RMSNorm"])
def test_two_dtypes_meet_in_the_wider_one(case: str, device: str) -> None:
    ours, _ = pair(case, 24, device=device)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.uniform_(-2, 2)  # numbers that the narrow dtype has not
    x = rows(5, 24, device=device, dtype=torch.bfloat16)
    y = ours(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, ours(x.float()).bfloat16())  # the kernels differ in the order of their sums
    narrow = ours.bfloat16()
    assert narrow(x.float()).dtype == torch.float32


@pytest.mark.parametrize("case", CASES)
def test_what_is_refused(case: str, device: str) -> None:
    name, _ = CASES[case]
    ours, _ = pair(case, 24, device=device)
    for shape in ((5, 23), (24, 5), ()):
        with pytest.raises(RuntimeError, match=rf"{name}: the input has shape .*; needed 24 in the last dimension"):
            ours(rows(*shape, device=device))
    ours, _ = pair(case, (3, 24), device=device)
    for shape in ((5, 24), (3, 5, 24), (24,)):
        with pytest.raises(RuntimeError, match=rf"{name}: the input .*; needed \(3, 24\) in the last dimensions"):
            ours(rows(*shape, device=device))
