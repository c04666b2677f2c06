"""vLLM's functions for paged caches, by their names: what they write, and that they write nothing else."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast import ops  # noqa: E402
from precast.compat import vllm  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

TOKENS, BLOCKS, HEADS, WIDTH, SIZE = 5, 4, 3, 32, 16
FORMATS = {"fp8": torch.float8_e4m3fn, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


def tokens(device: str, dtype: Any = torch.bfloat16) -> tuple[Any, Any]:
    made = torch.randn(2, TOKENS, HEADS, WIDTH, generator=torch.Generator().manual_seed(1)) * 100
    made[0, 0, 0, :3] = torch.tensor([1e6, -float("inf"), float("nan")])
    key, value = made.to(device, dtype)
    return key, value


def caches(paged: bool, dtype: Any, device: str) -> tuple[Any, Any]:
    """Of 8 bits, with a one in each element; paged ones in the layout of the first paged attention."""
    x = 16 // torch.empty(0, dtype=dtype).element_size()
    shape = (BLOCKS, HEADS, WIDTH // x, SIZE, x) if paged else (BLOCKS, SIZE, HEADS, WIDTH)
    other = (BLOCKS, HEADS, WIDTH, SIZE) if paged else shape
    return tuple(torch.ones(one, device=device).to(dtype) for one in (shape, other))  # type: ignore[return-value]


def token_at(cache: Any, slot: int, is_key: bool) -> Any:
    block, position = divmod(slot, SIZE)
    if cache.dim() == 5:
        return cache[block, :, :, position].flatten(-2)
    return cache[block, position] if cache.shape[1] == SIZE else cache[block, :, :, position]


@pytest.mark.parametrize("scales", [1, HEADS])
@pytest.mark.parametrize("stored", ["auto", *FORMATS, "uint8"])
@pytest.mark.parametrize("paged", [False, True])
def test_tokens_are_written_to_their_slots(paged: bool, stored: str, scales: int, device: str) -> None:
    key, value = tokens(device)
    name = "fp8_e5m2" if stored == "uint8" else stored
    dtype = FORMATS.get(name, torch.bfloat16)
    made = caches(paged, dtype, device)
    given = [cache.view(torch.uint8) for cache in made] if stored == "uint8" else list(made)
    slots = torch.tensor([33, -1, 0, 7], device=device)  # the last token is padding
    each = [torch.linspace(0.5, 2.0, scales, device=device), torch.linspace(2.0, 0.25, scales, device=device)]
    function = vllm.reshape_and_cache if paged else vllm.reshape_and_cache_flash
    function(key, value, *given, slots, name, *each)
    written = 0
    for rows, scale, cache in zip((key, value), each, made, strict=True):
        for token, slot in enumerate(slots.tolist()):
            wide, most = rows[token].float(), torch.finfo(dtype).max
            exact = wide.to(dtype) if name == "auto" else (wide / scale[:, None]).clamp(-most, most).to(dtype)
            if slot >= 0:
                found = token_at(cache, slot, cache is made[0]).float()
                assert torch.equal(found.nan_to_num(nan=9.5), exact.float().nan_to_num(nan=9.5))
                written += 1
        others = set(range(BLOCKS * SIZE)) - set(slots.tolist())
        assert all(bool((token_at(cache, slot, cache is made[0]).float() == 1).all()) for slot in others)
    assert written == 6


@pytest.mark.parametrize("slots", [[-1, -7], []])
def test_without_a_slot_nothing_is_written(slots: list[int], device: str) -> None:
    key, value = tokens(device)
    for paged, function in ((True, vllm.reshape_and_cache), (False, vllm.reshape_and_cache_flash)):
        made = caches(paged, torch.float8_e4m3fn, device)
        one = torch.ones(1, device=device)
        function(key, value, *made, torch.tensor(slots, dtype=torch.int64, device=device), "fp8", one, one)
        assert all(bool((cache.float() == 1).all()) for cache in made)


def test_what_is_written_is_what_attention_reads(device: str) -> None:
    key, value = torch.randn(2, SIZE, 2, 64, generator=torch.Generator().manual_seed(2)).to(device)
    made = tuple(torch.zeros(2, 1, SIZE, 2, 64, device=device).to(torch.float8_e4m3fn))
    scales = torch.tensor([[0.02], [0.05]], device=device)
    vllm.reshape_and_cache_flash(key, value, *made, torch.arange(SIZE, device=device), "fp8", *scales)
    query, table, length = torch.randn(1, 4, 64, device=device), [[0]], [SIZE]
    places = (torch.tensor(table, device=device), torch.tensor(length, device=device))
    found = ops.paged_decode_attention(query, *made, *places, key_scale=scales[0], value_scale=scales[1])
    wanted = ops.paged_decode_attention(query, key[None].contiguous(), value[None].contiguous(), *places)
    torch.testing.assert_close(found, wanted, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e4m3fn, torch.uint8])
def test_blocks_are_copied(dtype: Any, device: str) -> None:
    layers = [torch.arange(4 * 6, device=device).reshape(4, 6).to(dtype) for _ in range(4)]
    vllm.copy_blocks(layers[:2], layers[2:], torch.tensor([[1, 0], [1, 3]], device=device))
    wanted = torch.arange(24).reshape(4, 6)[[1, 1, 2, 1]].to(dtype)
    assert all(torch.equal(layer.cpu().float(), wanted.float()) for layer in layers)
    host = torch.zeros(3, 6).to(dtype)
    vllm.swap_blocks(layers[0], host, torch.tensor([[2, 0], [3, 1]]))
    assert torch.equal(host.float(), torch.cat((wanted[[2, 1]].float(), torch.zeros(1, 6))))
    vllm.swap_blocks(host, layers[1], torch.tensor([[0, 1]]))
    assert torch.equal(layers[1][1].cpu().float(), wanted[2].float())


def test_what_is_refused() -> None:
    cache, key = torch.zeros(4, SIZE, HEADS, WIDTH), torch.ones(1, HEADS, WIDTH)
    narrow, slot, one = cache.to(torch.float8_e4m3fn), torch.tensor([0]), torch.ones(1)
    refused: tuple[tuple[str, Any, tuple[Any, ...]], ...] = (
        (
            "needed 'auto' or one of 'fp8'",
            vllm.reshape_and_cache_flash,
            (key, key, narrow, narrow, slot, "int8", one, one),
        ),
        (
            "needed torch.float8_e5m2",
            vllm.reshape_and_cache_flash,
            (key, key, narrow, narrow, slot, "fp8_e5m2", one, one),
        ),
        (
            "the scale of key has 2",
            vllm.reshape_and_cache_flash,
            (key, key, narrow, narrow, slot, "fp8", one[[0, 0]], one),
        ),
        ("blocks -1 to 0; needed 0 to 3", vllm.copy_blocks, ([cache], [cache], torch.tensor([[-1, 0], [0, 1]]))),
        ("to blocks 4 to 4; needed 0 to 3", vllm.swap_blocks, (cache, cache, torch.tensor([[1, 4]]))),
        ("needed (pairs, 2) integers", vllm.swap_blocks, (cache, cache, torch.tensor([1, 4]))),
        ("needed blocks of one shape", vllm.swap_blocks, (cache, cache[:, 1:], torch.tensor([[1, 0]]))),
        ("needed the CPU", vllm.swap_blocks, (cache, cache, torch.tensor([[1, 0]], device="meta"))),
    )
    for text, function, arguments in refused:
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is compared below
            function(*arguments)
        assert text in str(caught.value)
    assert not cache.any() and not narrow.float().any()
