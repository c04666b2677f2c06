"""precast.nn.PagedKVCache: which blocks sequences have, and a small model that decodes through it."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from precast import ops  # noqa: E402
from precast.nn import PagedKVCache  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

HEADS, KV_HEADS, WIDTH = 4, 2, 64


def made(blocks: int = 6, block_size: int = 4, layers: int = 2, device: str = "cpu") -> PagedKVCache:
    return PagedKVCache(layers, blocks, KV_HEADS, WIDTH, block_size=block_size, device=device)


def grow(cache: PagedKVCache, sequence: int, tokens: int, seed: int) -> Any:
    """Random keys of so many tokens in all layers; the values are their negatives."""
    device = cache.keys.device
    numbers = torch.Generator().manual_seed(seed)
    step = cache.append([sequence], tokens)
    rows = torch.randn(2, tokens, KV_HEADS, WIDTH, generator=numbers).to(device)
    for layer in range(2):
        cache.write(layer, step, rows[layer], -rows[layer])
    return rows


def attended(cache: PagedKVCache, keys: Any, sequence: int) -> None:
    """A step of one token sees what was written, in both layers."""
    new = grow(cache, sequence, 1, seed=99)
    keys = torch.cat([keys, new], 1)
    step = cache._step([cache._of(sequence)], [[0]], 1)
    query = torch.randn(1, HEADS, WIDTH, device=keys.device)
    for layer in range(2):
        rows = keys[layer].transpose(0, 1).repeat_interleave(HEADS // KV_HEADS, 0)
        right = functional.scaled_dot_product_attention(query.transpose(0, 1), rows, -rows).transpose(0, 1)
        torch.testing.assert_close(cache.attend(layer, step, query), right, rtol=1e-4, atol=1e-5)


def test_blocks_are_taken_as_needed_and_come_back(device: str) -> None:
    cache = made(device=device)
    a, b = cache.add(), cache.add()
    keys = grow(cache, a, 3, seed=1)
    assert (cache.free_blocks, cache.length(a), cache.length(b)) == (5, 3, 0)
    keys = torch.cat([keys, grow(cache, a, 6, seed=2)], 1)
    grow(cache, b, 4, seed=3)
    assert cache.free_blocks == 2
    attended(cache, keys, a)
    cache.free(a)
    assert cache.free_blocks == 5
    with pytest.raises(KeyError, match=f"there is no sequence {a}; needed a live number"):
        cache.append([a])
    assert cache.add() not in (a, b)


def test_a_fork_shares_blocks_until_one_appends_to_them(device: str) -> None:
    cache = made(blocks=8, device=device)
    parent = cache.add()
    keys = grow(cache, parent, 6, seed=1)
    child, twin = cache.fork(parent), cache.fork(parent)
    assert cache.free_blocks == 6
    ours = torch.cat([keys, grow(cache, child, 2, seed=2)], 1)
    theirs = torch.cat([keys, grow(cache, parent, 1, seed=3)], 1)
    assert cache.free_blocks == 4  # a copy of the half-full block for two of the three
    cache.free(twin)
    assert cache.free_blocks == 5
    attended(cache, ours, child)
    attended(cache, theirs, parent)
    cache.free(parent)
    cache.free(child)
    assert cache.free_blocks == 8


def test_a_pool_that_is_too_small_changes_nothing() -> None:
    cache = made(blocks=3)
    a, b = cache.add(), cache.add()
    grow(cache, a, 6, seed=1)
    with pytest.raises(RuntimeError, match=r"5 tokens for each of 2 sequences need 3 blocks and the pool has 1 free"):
        cache.append([a, b], 5)
    child = cache.fork(a)
    with pytest.raises(RuntimeError, match="need 3 blocks"):
        cache.append([a, child], 3)
    assert (cache.free_blocks, cache.length(a), cache.length(child), cache.length(b)) == (1, 6, 6, 0)
    cache.append([a, child])  # one copies the shared block, the other keeps it
    assert cache.free_blocks == 0


def test_bad_arguments() -> None:
    cache = made()
    a = cache.add()
    for sequences, tokens, said in (([a, a], 1, "needed each number once"), ([a], 0, "tokens is 0; needed 1 or more")):
        with pytest.raises(ValueError, match=said):
            cache.append(sequences, tokens)
    with pytest.raises(KeyError, match="there is no sequence 7"):
        cache.fork(7)
    with pytest.raises(ValueError, match="block_size is 257; needed 1 to 256"):
        made(block_size=257)


def test_keys_and_values_of_two_widths_are_refused_before_either_is_written() -> None:
    cache = PagedKVCache(1, 4, KV_HEADS, WIDTH, value_width=80)
    step = cache.append([cache.add()], 3)
    key, value = torch.ones(3, KV_HEADS, WIDTH), torch.ones(3, KV_HEADS, 80)
    for one, other, error in (
        (key, value.half(), r"value is torch.float16 on cpu; needed torch.float32 on cpu, as the cache"),
        (key.double(), value, r"key is torch.float64 on cpu; needed torch.float32 on cpu, as the cache"),
        (key, value.to("meta"), r"value is torch.float32 on meta; needed torch.float32 on cpu, as the cache"),
        (key, value[:2], r"key has shape \(3, 2, 64\) and value \(2, 2, 80\); needed \(3, 2, 64\) and \(3, 2, 80\)"),
    ):
        with pytest.raises(RuntimeError, match=error):
            cache.write(0, step, one, other)
        assert not cache.keys.any() and not cache.values.any()
    cache.write(0, step, key, value)
    assert cache.keys.sum() == key.sum() and cache.values.sum() == value.sum()


# ---- a small model ----

LAYERS, DIM, HIDDEN, VOCABULARY, EPS = 2, HEADS * WIDTH, 384, 512, 1e-6
PACKED = (HEADS, KV_HEADS, KV_HEADS)


class Model:
    """The weights of a Llama of two layers, and what is common to both ways to run it."""

    def __init__(self, device: str) -> None:
        numbers = torch.Generator().manual_seed(0)

        def some(*shape: int) -> Any:
            return (torch.randn(*shape, generator=numbers) * shape[-1] ** -0.5).to(device)

        self.embedding = some(VOCABULARY, DIM) * DIM**0.5
        self.layers = [
            {
                "packed": some(sum(PACKED) * WIDTH, DIM),
                "out": some(DIM, HEADS * WIDTH),
                "up": some(2 * HIDDEN, DIM),
                "down": some(DIM, HIDDEN),
                "first": 1 + some(DIM),
                "second": 1 + some(DIM),
            }
            for _ in range(LAYERS)
        ]
        self.last = 1 + some(DIM)
        angles = torch.outer(torch.arange(512.0), 10000 ** (-torch.arange(0, WIDTH, 2) / WIDTH))
        self.cos, self.sin = angles.cos().to(device), angles.sin().to(device)


def through_the_cache(model: Model, cache: PagedKVCache, step: Any, tokens: Any) -> Any:
    """Logits of the tokens of a step, by this package's ops."""
    x = model.embedding[tokens]
    for number, layer in enumerate(model.layers):
        packed = ops.rms_norm(x, layer["first"], eps=EPS) @ layer["packed"].T
        query, key, value = packed.unflatten(-1, (-1, WIDTH)).split(PACKED, 1)
        query, key = ops.rotary_embedding_and_cache(
            *(query, key, value, model.cos, model.sin, cache.keys[number], cache.values[number], step.slots),
            positions=step.positions,
        )
        x = x + cache.attend(number, step, query).flatten(1) @ layer["out"].T
        x = x + ops.silu_and_mul(ops.rms_norm(x, layer["second"], eps=EPS) @ layer["up"].T) @ layer["down"].T
    return ops.rms_norm(x, model.last, eps=EPS) @ model.embedding.T


def in_plain_torch(model: Model, tokens: Any) -> Any:
    """Logits of the tokens of one sequence."""
    x, length = model.embedding[tokens], len(tokens)
    cos, sin = model.cos[:length, None], model.sin[:length, None]
    for layer in model.layers:
        packed = functional.rms_norm(x, (DIM,), layer["first"], EPS) @ layer["packed"].T
        query, key, value = packed.unflatten(-1, (-1, WIDTH)).split(PACKED, 1)
        query, key = (
            torch.cat([a * cos - b * sin, b * cos + a * sin], -1) for a, b in (t.chunk(2, -1) for t in (query, key))
        )
        rows = [t.transpose(0, 1).repeat_interleave(HEADS // t.shape[1], 0) for t in (query, key, value)]
        y = functional.scaled_dot_product_attention(*rows, is_causal=True).transpose(0, 1)
        x = x + y.flatten(1) @ layer["out"].T
        gate, up = (functional.rms_norm(x, (DIM,), layer["second"], EPS) @ layer["up"].T).chunk(2, -1)
        x = x + (functional.silu(gate) * up) @ layer["down"].T
    return functional.rms_norm(x, (DIM,), model.last, EPS) @ model.embedding.T


def test_a_small_model_decodes_the_tokens_of_plain_torch(device: str) -> None:
    """256 tokens for each of 8 sequences, prompts of unlike lengths; each step is one batch through the cache.

    Plain torch takes a whole sequence at once: where its choice after every prefix is the token that follows there, its
    own decoding gives these tokens.
    """
    model, tokens = Model(device), 256
    numbers = torch.Generator().manual_seed(1)
    prompts = [torch.randint(VOCABULARY, (length,), generator=numbers).to(device) for length in range(1, 16, 2)]
    cache = PagedKVCache(LAYERS, 8 * 18, KV_HEADS, WIDTH, device=device)
    sequences = [cache.add() for _ in prompts]
    ours: list[Any] = []
    with torch.no_grad():
        last = torch.stack(
            [
                through_the_cache(model, cache, cache.append([s], len(p)), p)[-1].argmax()
                for s, p in zip(sequences, prompts, strict=True)
            ]
        )
        for _ in range(tokens):
            ours.append(last)
            last = through_the_cache(model, cache, cache.append(sequences), last).argmax(-1)
        found = torch.stack(ours, 1)
        for prompt, row in zip(prompts, found, strict=True):
            theirs = in_plain_torch(model, torch.cat([prompt, row[:-1]]))[len(prompt) - 1 :].argmax(-1)
            assert torch.equal(row, theirs)
