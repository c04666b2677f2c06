"""The ops on paged caches in graphs, beside autograd and under autocast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402

from precast import ops  # noqa: E402
from tests.ops import test_kv_cache, test_kv_cache_rotary  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.compiler,
    # torch.func.jvp of torch 2.13 warns about torch's own use of torch.jit.
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]

OPS = ["reshape_and_cache", "rotary_embedding_and_cache"]
LAYOUTS = ["flash", "paged", "by element"]


def raw(name: str) -> Any:
    getattr(ops, name)  # the ops are defined at the first use of their module
    return getattr(torch.ops.precast, name)


def inputs(name: str, device: str, layout: str = "flash", dtype: Any = torch.float32) -> list[Any]:
    """The arguments of the op, all of them."""
    if name == "reshape_and_cache":
        return test_kv_cache.inputs(device, layout, dtype=dtype)
    return [*test_kv_cache_rotary.inputs(device, layout, dtype=dtype, table=dtype), False]


def written(name: str, args: list[Any]) -> list[Any]:
    """The tensors that the op writes."""
    return args[2:4] if name == "reshape_and_cache" else [*args[:2], *args[5:7]]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OPS)
def test_opcheck(name: str, layout: str, device: str) -> None:
    args = [t.clone() if isinstance(t, torch.Tensor) else t for t in inputs(name, device, layout)]
    assert set(torch.library.opcheck(raw(name).default, tuple(args)).values()) == {"SUCCESS"}


def test_opcheck_of_keys_alone(device: str) -> None:
    key, _, key_cache, _, mapping = inputs("reshape_and_cache", device)
    args = (key, None, key_cache, None, mapping)
    assert set(torch.library.opcheck(raw("reshape_and_cache").default, args).values()) == {"SUCCESS"}


STEP = """
    import torch
    from precast import ops

    device = {device!r}
    torch.manual_seed(0)
    cos, sin = torch.randn(32, 4, device=device), torch.randn(32, 4, device=device)
    fresh = lambda tokens: (
        torch.randn(tokens, 8, 8, device=device), *torch.zeros(2, 4, 4, 2, 8, device=device).unbind(),
        torch.randperm(16, device=device)[:tokens] - 1, torch.arange(tokens, device=device),
    )

    def step(qkv, key_cache, value_cache, slots, positions):
        query, key, value = (qkv * 2).split((4, 2, 2), 1)
        query, key = ops.rotary_embedding_and_cache(
            query, key, value, cos, sin, key_cache, value_cache, slots, positions=positions
        )
        ops.reshape_and_cache(value, query[:, :2], key_cache, value_cache, slots.flip(0))
        ops.reshape_and_cache(key, None, value_cache, None, slots)
        return query + 1, key.sin()

    def given(qkv, key_cache, value_cache, slots, positions):
        query, key, value = qkv.split((4, 2, 2), 1)  # what is written over belongs to the caller
        ops.rotary_embedding_and_cache(query, key, value, cos, sin, key_cache, value_cache, slots, positions=positions)
        return key * 2
"""


@pytest.mark.parametrize(
    ("backend", "functions", "sizes"),
    [("aot_eager", "(step, given)", (7, 5)), pytest.param("inductor", "(given,)", (7,), marks=pytest.mark.long)],
)
def test_compile_in_a_fresh_process(
    backend: str, functions: str, sizes: tuple[int, ...], device: str, run_child: Callable[[str], str]
) -> None:
    """One graph, views of one projection and caches written in place; nothing is loaded when it is made."""
    source = (
        STEP
        + """
    for function in {functions}:
        compiled = torch.compile(function, backend={backend!r}, fullgraph=True)
        for tokens in {sizes}:
            ours = fresh(tokens)
            theirs = [t.clone() for t in ours]
            with torch.no_grad():
                torch.testing.assert_close(compiled(*ours), function(*theirs))
            torch.testing.assert_close(list(ours), theirs)
    print("the same")
    """
    )
    assert "the same" in run_child(source.format(backend=backend, functions=functions, sizes=sizes, device=device))


@pytest.mark.gpu
def test_capture_in_a_cuda_graph() -> None:
    """Replayed with other slots and positions, which are read where they lie."""
    for name in OPS:
        args, again = inputs(name, "cuda"), inputs(name, "cuda")
        kept = [t.clone() for t in written(name, args)]
        raw(name)(*args)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            raw(name)(*args)
        for tensor, before in zip(written(name, args), kept, strict=True):
            tensor.copy_(before)
        for tensors in (args, again):
            slots = tensors[4 if name == "reshape_and_cache" else 7]
            slots.copy_(slots.flip(0))  # still a slot of its own for each token
        graph.replay()
        raw(name)(*again)
        torch.cuda.synchronize()
        assert all(map(torch.equal, written(name, args), written(name, again)))


@pytest.mark.parametrize("way", ["function", "op", "compiled"])
@pytest.mark.parametrize("name", OPS)
def test_a_gradient_is_refused_before_anything_is_written(name: str, way: str, device: str) -> None:
    for leaf in (0,) if way == "compiled" else (0, 2, 3):
        args = inputs(name, device)
        args[leaf] = args[leaf].clone().requires_grad_()
        kept = [t.detach().clone() for t in written(name, args)]
        call = raw(name) if way == "op" else calling(name)
        if way == "compiled":
            call = torch.compile(call, backend="aot_eager", fullgraph=True)
        with pytest.raises(Exception, match=f"{name}: a gradient is wanted .* needed torch.no_grad"):
            call(*args)
        assert all(map(torch.equal, written(name, args), kept))
        with torch.no_grad():
            calling(name)(*args)
        assert not torch.equal(written(name, args)[-1], kept[-1])


def calling(name: str) -> Callable[..., Any]:
    """The public function with the arguments of the op."""
    if name == "reshape_and_cache":
        return ops.reshape_and_cache
    return lambda *a: ops.rotary_embedding_and_cache(*a[:8], positions=a[8], interleaved=a[9])


@pytest.mark.parametrize("name", OPS)
def test_a_backward_through_what_was_written_over_is_refused(name: str, device: str) -> None:
    for call in (raw(name), calling(name)):
        for which in range(len(written(name, inputs(name, device)))):
            args = inputs(name, device)
            weight = torch.ones((), device=device, requires_grad=True)
            product = (written(name, args)[which] * weight).sum()
            with torch.no_grad():
                call(*args)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                product.backward()


@pytest.mark.parametrize("name", OPS)
def test_transforms(name: str, device: str) -> None:
    """What has no kernel there is computed by plain torch."""
    right = inputs(name, device)
    raw(name)(*right)
    for way in (torch.func.functionalize, in_forward_mode):
        args = inputs(name, device)
        way(raw(name))(*args)
        for ours, theirs in zip(written(name, args), written(name, right), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def in_forward_mode(op: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> None:
        with forward_ad.dual_level():
            op(*args)

    return call


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OPS)
def test_the_same_bits_under_autocast(name: str, dtype: Any, device: str) -> None:
    plain, cast = inputs(name, device, dtype=dtype), inputs(name, device, dtype=dtype)
    calling(name)(*plain)
    with torch.autocast(device, dtype=torch.bfloat16):
        calling(name)(*cast)
    assert all(map(torch.equal, written(name, cast), written(name, plain)))


def test_inference_mode_and_modes_of_the_dispatcher(device: str) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Dispatches(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    for name in OPS:
        with torch.inference_mode():
            args = inputs(name, device)
            calling(name)(*args)
        right = inputs(name, device)
        with Dispatches():
            calling(name)(*right)
        assert all(map(torch.equal, written(name, args), written(name, right)))
    assert {f"precast.{name}.default" for name in OPS} <= set(seen)
