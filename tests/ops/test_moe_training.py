"""The ops for a mixture of experts in graphs and in a model: opcheck, torch.compile, and a transformer that trains."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast import ops  # noqa: E402
from precast._builder import catalogue  # noqa: E402
from precast.compat import members  # noqa: E402
from precast.ops import _folders  # noqa: E402
from tests.ops.tensors import made  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.compiler,
    # torch.func.jvp of torch 2.13 warns about torch's own use of torch.jit.
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]

ops.define("moe")
OPS = [op for name in ("moe_routing", "moe") for op in catalogue.get(name).op_names]
EXPERTS, K, WIDTH, INNER = 6, 2, 16, 24


@pytest.mark.parametrize("op", OPS)
def test_opcheck(op: str, device: str) -> None:
    args = tuple(arg.to(device) if isinstance(arg, torch.Tensor) else arg for arg in _folders.arguments(op))
    differentiable = op in ("topk_gating", "moe_permute_rows", "moe_combine_rows")
    if differentiable:
        args = tuple(
            arg.requires_grad_() if isinstance(arg, torch.Tensor) and arg.is_floating_point() else arg for arg in args
        )
    assert set(torch.library.opcheck(getattr(torch.ops.precast, op).default, args).values()) == {"SUCCESS"}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")  # inductor's advice on a GPU
def test_compiled_with_any_number_of_tokens(device: str) -> None:
    """One graph, gradients included, whatever the number of tokens."""

    def layer(x: Any, router: Any) -> Any:
        weights, ids = ops.topk_sigmoid(x @ router, K, renormalize=True, groups=2, kept_groups=1)
        rows, positions, _ = ops.moe_permute(x, ids, EXPERTS, align_block_size=4)
        sorted_ids, _, _ = ops.moe_align_block_size(ids, EXPERTS, 4)
        return ops.moe_unpermute(rows.tanh(), positions, weights), sorted_ids

    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    for tokens in (5, 9, 12):
        leaves = [made(tokens, WIDTH, device=device), made(WIDTH, EXPERTS, seed=1, device=device)]
        found = []
        for function in (compiled, layer):
            args = [leaf.clone().requires_grad_() for leaf in leaves]
            y, sorted_ids = function(*args)
            found.append((y, sorted_ids, *torch.autograd.grad(y.square().sum(), args)))
        for ours, theirs in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs)


class Experts(torch.nn.Module):  # type: ignore[name-defined, misc]
    """A router and experts of two linear layers. The functions are ours, or the same in plain torch."""

    def __init__(self, functions: Any) -> None:
        super().__init__()
        self.functions = functions
        self.router = torch.nn.Linear(WIDTH, EXPERTS)
        self.inward = torch.nn.Parameter(torch.randn(EXPERTS, WIDTH, INNER) / 4)
        self.outward = torch.nn.Parameter(torch.randn(EXPERTS, INNER, WIDTH) / 4)

    def forward(self, x: Any) -> Any:
        tokens = x.flatten(0, -2)
        weights, ids = self.functions["topk_softmax"](self.router(tokens), K, renormalize=True)
        rows, positions, ends = self.functions["moe_permute"](tokens, ids, EXPERTS)
        parts = rows.split(ends.diff(prepend=ends.new_zeros(1)).tolist())
        done = [torch.relu(part @ a) @ b for part, a, b in zip(parts, self.inward, self.outward, strict=True)]
        return self.functions["moe_unpermute"](torch.cat(done), positions, weights).view(x.shape)


class Transformer(torch.nn.Module):  # type: ignore[name-defined, misc]
    """Two layers of attention and experts, for sequences of small numbers."""

    def __init__(self, functions: Any) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(11, WIDTH)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(WIDTH) for _ in range(4))
        self.mixers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(2))
        self.experts = torch.nn.ModuleList(Experts(functions) for _ in range(2))
        self.head = torch.nn.Linear(WIDTH, 11)

    def forward(self, tokens: Any) -> Any:
        x = self.embedding(tokens)
        for i in range(2):
            q, k, v = self.mixers[i](self.norms[2 * i](x)).chunk(3, -1)
            x = x + torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.experts[i](self.norms[2 * i + 1](x))
        return self.head(x)


def _functions(*, plain: bool) -> Any:
    names = ["topk_softmax", "topk_sigmoid", "moe_align_block_size", "moe_permute", "moe_unpermute"]
    return members.members((), names, (), plain=plain)


def test_a_transformer_trains_as_with_plain_torch(device: str) -> None:
    """Each number is the sum of the two before it, modulo 11. Losses and parameters stay together for 20 steps."""
    start = torch.randint(11, (16, 2), generator=torch.Generator().manual_seed(0))
    while start.shape[1] < 12:
        start = torch.cat((start, start[:, -2:].sum(1, keepdim=True) % 11), 1)
    start = start.to(device)

    def trained(functions: Any) -> tuple[list[float], list[Any]]:
        torch.manual_seed(0)
        model = Transformer(functions).to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        losses = []
        for _ in range(20):
            logits = model(start[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), start[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        return losses, list(model.parameters())

    losses, parameters = trained(_functions(plain=False))
    plain, others = trained(_functions(plain=True))
    assert losses[-1] < 0.8 * losses[0]
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(plain), rtol=1e-4, atol=1e-4)
    for ours, theirs in zip(parameters, others, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def test_under_transforms() -> None:
    """Jvp and grad of torch.func go through the reference."""
    x, ids = made(3, 4), torch.tensor([[0, 1], [1, -1], [2, 0]])
    weights = made(3, 2, seed=1)

    def layer(x: Any) -> Any:
        rows, positions, _ = ops.moe_permute(x, ids, 3)
        return ops.moe_unpermute(rows.sin(), positions, weights)

    tangent = made(3, 4, seed=2)
    _, found = torch.func.jvp(layer, (x,), (tangent,))
    factor = torch.where(ids < 0, 0.0, weights).sum(1, keepdim=True)
    torch.testing.assert_close(found, factor * x.cos() * tangent)
    torch.testing.assert_close(torch.func.grad(lambda x: layer(x).sum())(x), factor * x.cos())
