"""Arguments of another kind than a function takes: one sentence, or what they mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast import nn, ops, optim  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

W = torch.ones(8)
IMAGE, FILTER = torch.randn(1, 1, 4, 4), torch.ones(2, 2)


def nested(layout: Any = torch.strided) -> Any:
    return torch.nested.nested_tensor([torch.randn(2, 8), torch.randn(3, 8)], layout=layout)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: ops.rms_norm(None, W), "rms_norm: x is a NoneType; needed a torch.Tensor"),
        (lambda: ops.layer_norm([1.0], W), "layer_norm: x is a list; needed a torch.Tensor"),
        (lambda: nn.RMSNorm(8)(None), "RMSNorm: the input is a NoneType; needed a torch.Tensor"),
        (lambda: ops.rms_norm(nested(), W), "x is a nested tensor in the strided layout; needed torch.jagged"),
        (lambda: ops.rms_norm(nested()), "x is a nested tensor in the strided layout; needed torch.jagged"),
        (lambda: nn.RMSNorm(8)(nested()), "x is a nested tensor in the strided layout; needed torch.jagged"),
        (lambda: nn.LayerNorm(8)(nested()), "x is a nested tensor in the strided layout; needed torch.jagged"),
        (lambda: ops.silu_and_mul(nested()), r"x is a nested tensor; needed a dense tensor, such as the values\(\)"),
        (lambda: ops.gelu_new(nested(torch.jagged)), "gelu_new: x is a nested tensor; needed a dense tensor"),
        (lambda: ops.scaled_softmax(nested(torch.jagged), 1.0), "scaled_softmax: x is a nested tensor; needed a dense"),
        (lambda: ops.l2_norm(nested(torch.jagged)), "l2_norm: x is a nested tensor; needed a dense tensor"),
        (lambda: ops.cross_entropy(nested(torch.jagged), torch.zeros(5)), "logits is a nested tensor; needed a dense"),
        (lambda: ops.upfirdn2d(IMAGE, FILTER, up=(1.5, 2)), r"up is \(1.5, 2\); needed whole numbers"),
        (lambda: ops.upfirdn2d(IMAGE, FILTER, padding=1.5), "padding is 1.5; needed whole numbers"),
    ],
)
def test_a_wrong_kind_is_named(call: Callable[[], Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text) as error:
        call()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: ops.silu_and_mul(torch.ones(2, 7)), "silu_and_mul"),
        (lambda: ops.silu_and_mul(torch.ones(2, 8), torch.ones(2, 7)), "silu_and_mul"),
        (lambda: ops.swigluoai_and_mul(torch.ones(2, 8), limit=-1), "swigluoai_and_mul"),
        (lambda: ops.gelu_new(torch.ones(2, dtype=torch.int64)), "gelu_new"),
        (lambda: ops.gelu_quick(3), "gelu_quick"),
        (lambda: ops.topk_softmax(torch.ones(4, 8), 99), "topk_softmax"),
        (lambda: ops.topk_sigmoid(torch.ones(4, 8), 2, bias=torch.ones(3)), "topk_sigmoid"),
        (lambda: ops.moe_permute(torch.ones(2, 8), torch.ones(3, 1, dtype=torch.int32), 4), "moe_permute"),
        (lambda: ops.moe_permute(torch.ones(2, 8), torch.ones(2, 1), 4), "moe_permute"),
        (lambda: ops.moe_unpermute(torch.ones(2, 8), torch.ones(2)), "moe_unpermute"),
        (lambda: ops.filter2d(torch.ones(2, 8), torch.ones(3)), "filter2d"),
        (lambda: ops.upsample2d(IMAGE, FILTER, padding=-9), "upsample2d"),
        (lambda: ops.downsample2d("x", FILTER), "downsample2d"),
        (lambda: ops.fused_leaky_relu(IMAGE, torch.ones(9)), "fused_leaky_relu"),
    ],
)
def test_an_error_begins_with_the_name_that_was_called(call: Callable[[], Any], name: str) -> None:
    with pytest.raises((TypeError, ValueError, RuntimeError)) as error:
        call()
    assert str(error.value).startswith((f"{name}: ", f"{name}() "))


def test_whole_numbers_of_numpy_are_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    found = ops.upfirdn2d(IMAGE, FILTER, up=numpy.int64(2), padding=(numpy.int32(1), 1))
    assert torch.equal(found, ops.upfirdn2d(IMAGE, FILTER, up=2, padding=1))


def test_a_step_count_that_is_a_number_goes_on() -> None:
    param = torch.nn.Parameter(torch.ones(3))
    optimizer = optim.CPUAdam([param])
    param.grad = torch.ones(3)
    optimizer.step()
    optimizer.state[param]["step"] = 5
    optimizer.step()
    assert torch.equal(optimizer.state[param]["step"], torch.tensor(6.0))


def test_a_cache_whose_values_have_another_width_is_written_and_read() -> None:
    cache = nn.PagedKVCache(layers=1, blocks=4, kv_heads=2, width=64, value_width=80)
    step = cache.append([cache.add()])
    key, value = torch.randn(1, 2, 64), torch.randn(1, 2, 80)
    with pytest.raises(RuntimeError, match=r"needed \(1, 2, 64\) and \(1, 2, 80\)"):
        cache.write(0, step, key, key)
    assert not cache.keys.any()
    cache.write(0, step, key, value)
    torch.testing.assert_close(cache.attend(0, step, torch.randn(1, 2, 64)), value)  # of one token
