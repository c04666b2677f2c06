"""The norm of heads and their rotation in one: the bits of transformers and of two ops, gradients, what is refused."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast import ops  # noqa: E402
from precast.ops import rotary  # noqa: E402
from precast.ops.rotary import reference  # noqa: E402
from tests.ops.tensors import assert_same_with_any_number_of_threads, made  # noqa: E402
from tests.ops.test_rotary import DTYPES, layouts, tables  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.compiler,
    # torch.func.jvp of torch 2.13 warns about torch's own use of torch.jit.
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]

ROUNDINGS = pytest.mark.parametrize("rounding", ["once", "each"])
CASTINGS = pytest.mark.parametrize("casting", ["none", "llama", "gemma"])
# (head_dim, rotary_dim): lanes of a warp by vectors, the last ones empty, with a rest, element by element, odd
WIDTHS = [
    (128, 128),
    (256, 256),
    (64, 32),
    (96, 96),
    (8, 4),
    (512, 512),
    (1024, 256),
    (100, 64),
    (7, 4),
    (2, 2),
    (5, 0),
]


def exact_rows(*shape: int, dtype: Any, device: str) -> Any:
    """Rows of 1 and 7 in any order and with any sign: their sums of squares, and the roots, have one value."""
    generator = torch.Generator().manual_seed(0)
    order = torch.rand(shape, generator=generator).argsort(-1)
    sign = torch.randint(0, 2, shape, generator=generator) * 2 - 1
    return (torch.where(order < shape[-1] // 2, 1, 7) * sign).to(device, dtype)


def weights(width: int, dtype: Any, device: str) -> list[Any]:
    return [made(width, dtype=dtype, device=device, seed=seed) for seed in (5, 6)]


def apart(query: Any, key: Any, of_query: Any, of_key: Any, cos: Any, sin: Any, **options: Any) -> Any:
    """The two ops, one after the other."""
    norm = {name: options.pop(name) for name in ("eps", "casting") if name in options}
    normal = ops.rms_norm(query, of_query, **norm), None if key is None else ops.rms_norm(key, of_key, **norm)
    return ops.rotary_embedding(*normal, cos, sin, **options)


# ---- values ----


@CASTINGS
@pytest.mark.parametrize(("width", "rotary_dim"), WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_bits_of_the_two_ops(dtype: Any, width: int, rotary_dim: int, casting: str, device: str) -> None:
    """Where sums have one value; an odd row has no such values, but a sum of few elements has one order."""
    query, key = (exact_rows(2, 5, heads, width, dtype=dtype, device=device) for heads in (6, 2))
    cos, sin = tables(9, rotary_dim // 2, device)
    rows = torch.tensor([8, 0, 3, 3, 1], device=device)
    for interleaved in (False, True):
        for kind in {dtype, torch.float32}:
            given = (query, key, *weights(width, kind, device), cos, sin)
            options = {"eps": 0.0, "casting": casting, "positions": rows, "interleaved": interleaved}
            ours, right = ops.rms_norm_rotary_embedding(*given, **options), apart(*given, **options)
            for one, other in zip(ours, right, strict=True):
                assert one.dtype == dtype and one.is_contiguous()
                if device == "cpu" or width % 2 == 0:
                    assert torch.equal(one, other)
                else:
                    torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)


@ROUNDINGS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_bits_of_the_reference(dtype: Any, rounding: str, device: str) -> None:
    """Of random heads, as near as the order of sums allows; the mean of one norm decides each row."""
    query, key = (made(3, 5, heads, 128, dtype=dtype, device=device) for heads in (4, 2))
    cos, sin = tables(5, 64, device, dtype)
    given = (query, key, *weights(128, dtype, device), cos, sin)
    ours = ops.rms_norm_rotary_embedding(*given, rounding=rounding)
    right = reference.rms_norm_rotary_embedding(*given, None, 1e-6, 1, False, rounding == "each", False)
    for one, other in zip(ours, right, strict=True):
        torch.testing.assert_close(one.float(), other.float(), rtol=0, atol=8 * torch.finfo(dtype).eps)
        assert (one != other).double().mean() < (0.5 if dtype == torch.float32 else 0.01)


@pytest.mark.models
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("model", ["qwen3", "qwen3_moe", "gemma3", "llama"])
def test_the_bits_of_transformers(model: str, dtype: Any, device: str) -> None:
    """Its norms and its rotation, and the gradient of the rotation."""
    module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    named = {"qwen3": "Qwen3RMSNorm", "qwen3_moe": "Qwen3MoeRMSNorm", "gemma3": "Gemma3RMSNorm"}
    packed = exact_rows(12, 8, 64, dtype=dtype, device=device)
    query, key, _ = packed.split((4, 2, 2), 1)
    cos, sin = (made(12, 64, dtype=dtype, device=device, seed=seed) for seed in (1, 2))  # of halves that differ
    pair, casting = [None, None], "none"
    heads = [query, key]
    if model in named:
        norms = [getattr(module, named[model])(64, eps=0.0).to(device, dtype) for _ in heads]
        for norm, weight in zip(norms, weights(64, dtype, device), strict=True):
            norm.weight.data = weight
        heads = [norm(x).detach() for norm, x in zip(norms, heads, strict=True)]
        pair, casting = [norm.weight.detach() for norm in norms], "gemma" if model == "gemma3" else "llama"
    options: dict[str, Any] = {"eps": 0.0, "casting": casting, "rounding": "each"}
    ours = ops.rms_norm_rotary_embedding(query, key, *pair, cos, sin, **options)
    leaves = [x.detach().clone().requires_grad_() for x in heads]
    right = module.apply_rotary_pos_emb(*(x.transpose(0, 1).unsqueeze(0) for x in leaves), cos[None], sin[None])
    right = [x[0].transpose(0, 1) for x in right]
    assert all(map(torch.equal, ours, right))
    grads = [made(*x.shape, dtype=dtype, device=device, seed=3) for x in heads]
    turned = [x.detach().clone().requires_grad_() for x in heads]
    back = torch.autograd.grad(
        ops.rms_norm_rotary_embedding(*turned, None, None, cos, sin, rounding="each"), turned, grads
    )
    assert all(map(torch.equal, back, torch.autograd.grad(right, leaves, grads)))


@pytest.mark.parametrize("width", [64, 17])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_layout_gives_the_bits_of_the_plain_one(dtype: Any, width: int, device: str) -> None:
    cos, sin = tables(4, width // 2, device)
    pair = weights(width, dtype, device)
    for layout, x in layouts(width, dtype, device).items():
        right, _ = ops.rms_norm_rotary_embedding(x.clone().contiguous(), None, pair[0], None, cos, sin)
        query, key = ops.rms_norm_rotary_embedding(x, x, pair[0], pair[0], cos, sin)
        for one in (query, key):  # unaligned heads are added up in another order on a GPU
            torch.testing.assert_close(one, right, rtol=0, atol=0 if device == "cpu" else 16 * torch.finfo(dtype).eps)
        assert torch.equal(query, key), layout


@pytest.mark.gpu
def test_a_position_outside_of_the_tables_makes_nan_on_a_gpu() -> None:
    query = made(4, 2, 80, device="cuda")
    cos, sin = tables(3, 32, "cuda")
    positions = torch.tensor([2, 3, -1, 1 << 40], device="cuda")
    ours, _ = ops.rms_norm_rotary_embedding(query, None, weights(80, query.dtype, "cuda")[0], None, cos, sin,
                                            positions=positions)  # fmt: skip
    assert not ours[0].isnan().any() and not ours[..., 64:].isnan().any()
    assert bool(ours[1:, :, :64].isnan().all())


def test_hostile_rows(device: str) -> None:
    """Infinities, NaN and zeros stay in their head; numbers whose squares overflow float16 do not."""
    for dtype in DTYPES:
        query = made(6, 3, 64, dtype=dtype, device=device)
        query[0, 0], query[1, 1, 5], query[2, 2, 7], query[3] = 0, torch.inf, torch.nan, 60000
        cos, sin = tables(6, 32, device)
        given = (query, None, weights(64, dtype, device)[0], None, cos, sin)
        ours, _ = ops.rms_norm_rotary_embedding(*given)
        right, _ = apart(*given, casting="llama")
        torch.testing.assert_close(ours, right, rtol=2e-2, atol=2e-2, equal_nan=True)
        assert ours.isnan().any(-1).sum() == 2 and not ours[3].isnan().any()


@pytest.mark.parametrize("shape", [(0, 3, 8), (2, 0, 8), (2, 3, 0), (0, 2, 3, 8)], ids=str)
def test_nothing(shape: tuple[int, ...], device: str) -> None:
    x = made(*shape, device=device).requires_grad_()
    cos, sin = tables(shape[-3], shape[-1] // 2, device)
    weight = made(shape[-1], device=device).requires_grad_()
    y, _ = ops.rms_norm_rotary_embedding(x, x, weight, weight, cos, sin)
    assert y.shape == shape
    assert [grad.shape for grad in torch.autograd.grad(y.sum(), (x, weight))] == [x.shape, weight.shape]


def test_the_same_numbers_with_any_number_of_threads() -> None:
    query, key = made(300, 7, 96), made(300, 2, 96)
    cos, sin = tables(300, 40)
    pair = weights(96, query.dtype, "cpu")
    assert_same_with_any_number_of_threads(lambda: ops.rms_norm_rotary_embedding(query, key, *pair, cos, sin))


# ---- derivatives ----


@CASTINGS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients(dtype: Any, casting: str, device: str) -> None:
    """Those of the two ops: what is rotated back is rounded, and then goes through the norm."""
    query, key = (made(2, 5, heads, 64, dtype=dtype, device=device) for heads in (4, 2))
    leaves = [x.requires_grad_() for x in (query, key, *weights(64, dtype, device))]
    cos, sin = tables(5, 32, device)
    grads = [made(*x.shape, dtype=dtype, device=device, seed=1) for x in (query, key)]
    ours = torch.autograd.grad(ops.rms_norm_rotary_embedding(*leaves, cos, sin, casting=casting), leaves, grads)
    right = torch.autograd.grad(apart(*leaves, cos, sin, casting=casting), leaves, grads)
    assert all(map(torch.equal, ours, right))


def test_gradients_of_some_alone(device: str) -> None:
    query, key = (made(5, heads, 16, device=device) for heads in (4, 2))
    leaves = [x.requires_grad_() for x in (query, key, *weights(16, query.dtype, device))]
    cos, sin = tables(5, 8, device)
    grads = [made(*x.shape, device=device, seed=1) for x in (query, key)]

    def turned(*given: Any) -> Any:
        return ops.rms_norm_rotary_embedding(*given, cos, sin)

    right = torch.autograd.grad(turned(*leaves), leaves, grads)
    of_query = torch.autograd.grad(turned(*leaves)[0], leaves, grads[0], allow_unused=True)
    assert torch.equal(of_query[0], right[0]) and torch.equal(of_query[2], right[2])
    assert of_query[1] is None and of_query[3] is None
    of_key = torch.autograd.grad(turned(*leaves)[1], leaves, grads[1], allow_unused=True)
    assert of_key[0] is None and torch.equal(of_key[1], right[1]) and torch.equal(of_key[3], right[3])
    for number in range(4):
        given = [x if i == number else x.detach() for i, x in enumerate(leaves)]
        assert torch.equal(torch.autograd.grad(turned(*given), leaves[number], grads)[0], right[number])
    alone = turned(query, None, leaves[2], None)[0]
    assert torch.equal(torch.autograd.grad(alone, query, grads[0])[0], right[0])


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("normed", [False, True])
def test_derivatives_and_transforms(normed: bool, whole: bool, device: str) -> None:
    """To the second order, forward, and over a batch, as the reference has them."""
    columns = 8 if whole else 4
    cos, sin = (made(3, columns, device=device, seed=seed) for seed in (1, 2))
    x, tangent = made(3, 2, 8, device=device), made(3, 2, 8, device=device, seed=3)
    pair = weights(8, x.dtype, device) if normed else [None, None]

    def ours(x: Any) -> Any:
        query, key = ops.rms_norm_rotary_embedding(x, x[:, :1], *pair, cos, sin, rounding="each")
        return query.sin().sum() + key.cos().sum()

    def right(x: Any) -> Any:
        both = reference.rms_norm_rotary_embedding(x, x[:, :1], *pair, cos, sin, None, 1e-6, 1, False, True, False)
        return both[0].sin().sum() + both[1].cos().sum()

    def twice(function: Any) -> Any:
        leaf = x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(function(leaf), leaf, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), leaf)

    for transform in (
        twice,
        lambda f: torch.func.jvp(f, (x,), (tangent,)),
        lambda f: torch.func.grad(f)(x),
        lambda f: torch.vmap(f)(torch.stack([x, tangent])),
        lambda f: torch.func.functionalize(f)(x),
    ):
        torch.testing.assert_close(transform(ours), transform(right), rtol=1e-3, atol=1e-4)


def test_the_reference_has_the_right_derivatives() -> None:
    x, weight = made(3, 2, 8).double().requires_grad_(), made(8, seed=1).double().requires_grad_()
    cos, sin = (made(3, 8, seed=seed).double() for seed in (2, 3))

    def function(x: Any, weight: Any) -> Any:
        return reference.rms_norm_rotary_embedding(x, None, weight, None, cos, sin, None, 1e-6, 2, False, True, True)[0]

    assert torch.autograd.gradcheck(function, (x, weight), check_forward_ad=True)


# ---- graphs ----


def samples(device: str) -> dict[str, tuple[Any, ...]]:
    query, key = (made(2, 5, heads, 16, device=device) for heads in (3, 1))
    pair = weights(16, query.dtype, device)
    cos, sin = made(5, 8, device=device), made(5, 8, device=device, seed=1)
    rows = torch.tensor([4, 0, 0, 1, 2], device=device)
    return {
        "two": (query, key, *pair, cos, sin, None, 1e-6, 1, False, True, False),
        "one": (query, None, pair[0], None, cos, sin, None, 1e-6, 2, True, False, False),
        "no norm": (query, key, None, None, cos, sin, rows, 1e-6, 0, False, True, True),
        "gradients": (
            *(x.clone().requires_grad_() for x in (query, key, *pair)),
            cos,
            sin,
            rows,
            1e-6,
            1,
            *[False] * 3,
        ),
        "whole tables": (query, key, *pair, cos.repeat(1, 2), sin.repeat(1, 2), None, 1e-6, 1, False, True, False),
        "nothing": (query[:, :0], key[:, :0], *pair, cos[:0], sin[:0], None, 1e-6, 0, False, False, False),
    }


@pytest.mark.parametrize("name", samples("cpu"))
def test_opcheck(name: str, device: str) -> None:
    checked = torch.library.opcheck(rotary.RMS_NORM_ROTARY_EMBEDDING, samples(device)[name])
    assert set(checked.values()) == {"SUCCESS"}


def test_compiled_and_exported(device: str) -> None:
    """With the fullgraph, with gradients, by an exported program."""
    query, key = (made(6, heads, 16, device=device).requires_grad_() for heads in (3, 1))
    pair = weights(16, query.dtype, device)
    cos, sin = tables(6, 8, device)

    class Block(torch.nn.Module):
        def forward(self, query: Any, key: Any) -> Any:
            both = ops.rms_norm_rotary_embedding(query.sin(), key, *pair, cos, sin, rounding="each")
            return both[0].cos() + both[1].mean(1, keepdim=True)

    right = Block()(query, key)
    grads = torch.autograd.grad(right.sum(), (query, key))
    exported = torch.export.export(Block(), (query.detach(), key.detach())).module()
    assert torch.equal(exported(query.detach(), key.detach()), right)
    compiled = torch.compile(Block(), backend="aot_eager", fullgraph=True)(query, key)
    assert torch.equal(compiled, right)
    assert all(map(torch.equal, torch.autograd.grad(compiled.sum(), (query, key)), grads))


# ---- what is refused ----

Call = dict[str, Any]


def good(device: str) -> Call:
    query, key = (made(5, heads, 16, device=device) for heads in (4, 2))
    of_query, of_key = weights(16, query.dtype, device)
    cos, sin = made(5, 8, device=device), made(5, 8, device=device)
    return {"query": query, "key": key, "query_weight": of_query, "key_weight": of_key, "cos": cos, "sin": sin}


BAD: dict[str, tuple[Callable[[Call], Call], str]] = {
    "float64": (lambda c: {"query": c["query"].double()}, "query is float64; needed float32, float16 or bfloat16"),
    "a key of other heads": (lambda c: {"key": c["key"][..., :8]}, "key has shape (5, 2, 8) and query has (5, 4, 16)"),
    "tables of another width": (
        lambda c: {n: c[n].repeat(1, 2)[:, :12] for n in ("cos", "sin")},
        "needed at most 8 columns, half of a head, or head_dim columns (not if interleaved)",
    ),
    "whole tables of neighbours": (
        lambda c: {**{n: c[n].repeat(1, 2) for n in ("cos", "sin")}, "interleaved": True},
        "cos has shape (5, 16) and query has (5, 4, 16); needed at most 8 columns, half of a head, or head_dim",
    ),
    "a weight of one": (
        lambda c: {"key_weight": None},
        "key_weight is None and query_weight is not; needed both, or neither to leave out the norm",
    ),
    "a weight of the other": (lambda c: {"query_weight": None}, "query_weight is None and key_weight is not; needed"),
    "a weight without a key": (lambda c: {"key": None}, "key is None and key_weight is not; needed None for both"),
    "a weight of another width": (
        lambda c: {"query_weight": c["query_weight"][:8]},
        "query_weight has shape (8,); needed (16,), a number for each element of a head",
    ),
    "a weight of rows": (lambda c: {"key_weight": c["key_weight"][None]}, "key_weight has shape (1, 16); needed (16,)"),
    "a weight of another dtype": (
        lambda c: {"query_weight": c["query_weight"].half()},
        "query_weight is float16 and query is float32; needed float32, or that dtype",
    ),
    "weights of two dtypes": (
        lambda c: {n: c[n].bfloat16() for n in ("query", "key", "cos", "sin", "key_weight")},
        "key_weight is bfloat16 and query_weight is float32; needed one dtype",
    ),
    "a weight elsewhere": (
        lambda c: {"key_weight": torch.ones(16, device="cpu" if c["query"].is_meta else "meta")},
        "key_weight is on ",
    ),
    "a negative eps": (lambda c: {"eps": -1.0}, "eps is -1; needed a number that is not negative"),
    "a table with a gradient": (
        lambda c: {"query": c["query"].clone().requires_grad_(), "sin": c["sin"].clone().requires_grad_()},
        "sin requires grad, and the tables have no gradient; needed cos.detach() and sin.detach()",
    ),
}


@pytest.mark.parametrize("way", ["by the kernel", "in a trace"])
@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str, way: str, device: str) -> None:
    change, text = BAD[name]
    call = good("meta" if way == "in a trace" else device)
    call |= change(call)
    with pytest.raises(RuntimeError, match=re.escape(text)):
        ops.rms_norm_rotary_embedding(**call)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"casting": "bert"}, "casting is 'bert'; needed one of 'none', 'llama', 'gemma'"),
        ({"rounding": "twice"}, "rounding is 'twice'; needed one of 'once', 'each'"),
    ],
)
def test_unknown_names(option: Call, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        ops.rms_norm_rotary_embedding(**good("cpu"), **option)


def test_a_casting_that_no_name_has() -> None:
    with pytest.raises(RuntimeError, match=re.escape("casting is 3; needed 0, 1 or 2")):
        rotary.RMS_NORM_ROTARY_EMBEDDING(*good("cpu").values(), None, 1e-6, 3, False, False, False)
