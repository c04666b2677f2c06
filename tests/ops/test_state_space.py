"""Tokens of a state-space model: numbers, pools of states, graphs, the function of transformers, and refusals."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast import ops  # noqa: E402
from precast.compat.mamba_ssm import selective_state_update  # noqa: E402
from precast.ops.state_space import reference  # noqa: E402
from tests.ops.state_space_cases import assert_close, made_call  # noqa: E402
from tests.ops.tensors import assert_captured  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.compiler,
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
RAW = torch.ops.precast
SHAPES = [(2, 8, 64, 1, 128), (3, 4, 6, 2, 9), (1, 3, 17, 3, 33), (0, 4, 6, 2, 9)]


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_numbers(dtype: Any, wide: bool, shape: tuple[int, ...], device: str) -> None:
    for seed, index in enumerate((None, torch.int32, torch.int64)):
        call = made_call(dtype, wide, shape, index, options=seed > 0, device=device)
        exact = [one.double() if torch.is_tensor(one) and one.is_floating_point() else one for one in call]
        y = RAW.selective_state_update_(*call)
        assert_close(y, reference.selective_state_update_(*exact), 8)
        assert_close(call[0], exact[0], 8)


def test_the_function_of_transformers(device: str) -> None:
    mamba2 = pytest.importorskip("transformers.models.mamba2.modeling_mamba2")
    batch, heads, rows, size = 2, 8, 64, 128
    state, x, dt, a, b, c, d, _, bias, *_ = made_call(
        torch.float32, False, (batch, heads, rows, 1, size), device=device
    )
    dt = dt[..., None].expand(batch, heads, rows)
    a, d, bias = (
        a[:, None, None].expand(heads, rows, size),
        d[:, None].expand(heads, rows),
        bias[:, None].expand(heads, rows),
    )
    again = state.clone()
    y = selective_state_update(state, x, dt, a, b, c, d, None, bias, True)
    if not hasattr(mamba2, "mamba2_selective_state_update"):
        pytest.skip("this transformers has no such function")
    right = mamba2.mamba2_selective_state_update(again, x, dt, a, b, c, d, z=None, dt_bias=bias, dt_softplus=True)
    torch.testing.assert_close(y, right, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(state, again, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match=r"A has shape .*; needed one number for each head, expanded"):
        selective_state_update(state, x, dt, a.contiguous(), b, c)


def test_graphs(device: str) -> None:
    call = made_call(torch.float32, False, (2, 4, 8, 2, 16), torch.int64, device=device)

    def run(state: Any) -> Any:
        return ops.selective_state_update_(
            *(state, *call[1:7]), z=call[7], dt_bias=call[8], dt_softplus=True, state_indices=call[9]
        )

    pools = [call[0].clone() for _ in range(2)]
    results = [f(pool) for f, pool in zip((run, torch.compile(run, fullgraph=True)), pools, strict=True)]
    assert torch.equal(*results) and torch.equal(*pools)
    from precast.ops import _folders

    torch.library.opcheck(RAW.selective_state_update_.default, _folders.arguments("selective_state_update_"))


@pytest.mark.gpu
def test_cuda_graphs() -> None:
    call = made_call(torch.bfloat16, True, (2, 4, 64, 1, 128), torch.int64, device="cuda")
    call[3] = torch.zeros_like(call[3])  # with an input of zero, the state stays what it is
    call[1] = torch.zeros_like(call[1])
    assert_captured(lambda: RAW.selective_state_update_(*call))


def test_refusals(device: str) -> None:
    call = made_call(torch.float32, False, (2, 4, 8, 2, 16), torch.int64, device=device)
    names = ("state", "x", "dt", "a", "b", "c", "d", "z", "dt_bias", "state_indices")
    for name, wrong, words in (
        ("x", call[1].double(), "x is float64; needed float32, float16 or bfloat16"),
        ("state", call[0].half(), "state is float16 and x is float32; needed one dtype"),
        ("state", call[0][:, :3], "state has shape (7, 3, 8, 16), x (2, 4, 8) and b (2, 2, 16); needed (slots, heads,"),
        ("c", call[5][..., :8], "c has shape (2, 2, 8); needed (2, 2, 16), as b"),
        ("dt", call[2][0], "dt has shape (4,); needed (batch, heads), a number for each head"),
        ("d", call[2], "d has shape (2, 4); needed (heads,), a number for each head"),
        ("state_indices", call[2], "state_indices is float32; needed int32 or int64"),
        ("state_indices", None, "there are 7 states and 2 sequences; needed state_indices, a number for each sequence"),
    ):
        given = [wrong if name == one else value for one, value in zip(names, call, strict=False)]
        with pytest.raises(RuntimeError) as error:
            RAW.selective_state_update_(*given, True)
        assert words in str(error.value)
        with pytest.raises(RuntimeError) as of_fake:
            RAW.selective_state_update_(*(one if one is None else one.to("meta") for one in given), True)
        assert str(of_fake.value) == str(error.value)
    with pytest.raises(RuntimeError, match="needed contiguous last two dimensions, and no two elements in one place"):
        RAW.selective_state_update_(call[0].transpose(2, 3).contiguous().transpose(2, 3), *call[1:])
    with pytest.raises(RuntimeError, match="a gradient is wanted"):
        ops.selective_state_update_(*call[:2], call[2].requires_grad_(), *call[3:6], state_indices=call[9])
    if device == "cpu":
        given = [*call[:2], call[2].detach(), *call[3:9], torch.tensor([0, 7]), True]
        with pytest.raises(RuntimeError, match=r"state_indices\[1\] is 7 and there are 7 states; needed one of these"):
            RAW.selective_state_update_(*given)


def test_overlap() -> None:
    call = made_call(torch.float32, False, (2, 4, 8, 1, 8), torch.int64)
    call[1] = call[0][0:2, :, :, :].reshape(-1)[: 2 * 4 * 8].view(2, 4, 8)
    assert call[1].data_ptr() == call[0].data_ptr()
    with pytest.raises(RuntimeError, match="x overlaps state in memory, which is written"):
        RAW.selective_state_update_(*call)
