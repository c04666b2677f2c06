"""The complete module of the older inference kernels, with its names and signatures, on top of precast's ops.

Sequences are described by block tables of shape ``(batch, blocks of a sequence)`` that hold block numbers. Plain torch
converts them to slots on the device, without a synchronization. Tokens of a block below zero are skipped. Caches must
have the dtype of the keys; 8-bit caches are refused.
"""

from __future__ import annotations

import torch
from torch import Tensor

from precast.compat.members import kernel
from precast.compat.rms_norms import fused_add_rms_layernorm, rms_layernorm

__all__ = [
    "context_kv_cache_memcpy",
    "convert_fp8",
    "copy_k_to_blocked_cache",
    "copy_kv_to_blocked_cache",
    "decode_kv_cache_memcpy",
    "flash_decoding_attention",
    "fused_add_rms_layernorm",
    "get_cos_and_sin",
    "rms_layernorm",
    "rotary_embedding",
    "rotary_embedding_and_cache_copy",
    "silu_and_mul",
]


@torch.no_grad()
def silu_and_mul(ins: Tensor) -> Tensor:
    """``silu(first half) * second half`` of the first dimension, which is dropped if its new size is 1."""
    if ins.dim() == 0 or ins.shape[0] % 2:
        raise ValueError(f"ins has shape {tuple(ins.shape)}; needed an even first dimension")
    half = ins.shape[0] // 2
    shape = (half, *ins.shape[1:]) if half != 1 else ins.shape[1:]
    # the halves of one long row
    y: Tensor = kernel("gated_activation")(ins.reshape(1, -1), 0)
    return y.reshape(shape)


@torch.no_grad()
def rotary_embedding(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, high_precision: bool = False) -> None:
    """Rotate the halves of ``(tokens, heads, head_dim)`` in place, always in float32.

    Row ``i`` of the tables is for token ``i``; the rows after the last token are not used.
    """
    kernel("rotary_embedding_")(query, key, *_halves(query, cos, sin), None, False, False)


def get_cos_and_sin(
    cos_cache: Tensor,
    sin_cache: Tensor,
    cos: Tensor,
    sin: Tensor,
    sequence_lengths: Tensor,
    max_seq_len_in_batch: int,
    is_prompts: bool,
) -> None:
    """Fill ``cos`` and ``sin`` with rows of the caches: for all tokens of prompts, else for each last token."""
    from precast import ops

    rows = ops.get_cos_and_sin(sequence_lengths, cos_cache, sin_cache, is_prompts=is_prompts, tokens=cos.shape[0])
    for given, found in zip((cos, sin), rows, strict=True):
        given.copy_(found)


@torch.no_grad()
def decode_kv_cache_memcpy(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    sequence_lengths: Tensor,
    block_tables: Tensor,
) -> None:
    """Write the last token of each sequence; ``key`` and ``value`` have one token per sequence."""
    slots = _slots_of_last(key_cache, sequence_lengths, block_tables)
    kernel("reshape_and_cache")(key, value, key_cache, value_cache, slots)


@torch.no_grad()
def context_kv_cache_memcpy(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    sequence_lengths: Tensor,
    cu_seqlens: Tensor,
    block_tables: Tensor,
    max_seq_len_in_batch: int,
) -> None:
    """Write all tokens of packed sequences; ``cu_seqlens`` holds where each sequence starts."""
    slots = _slots_of_packed(key, key_cache, sequence_lengths, cu_seqlens, block_tables)
    kernel("reshape_and_cache")(key, value, key_cache, value_cache, slots)


@torch.no_grad()
def rotary_embedding_and_cache_copy(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos: Tensor,
    sin: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    sequence_lengths: Tensor,
    block_tables: Tensor,
    high_precision: bool = False,
) -> None:
    """Rotate the last token of each sequence in float32 and write it. ``key`` is rotated in place as well."""
    slots = _slots_of_last(key_cache, sequence_lengths, block_tables)
    tables = _halves(query, cos, sin)
    kernel("rotary_embedding_and_cache")(query, key, value, *tables, key_cache, value_cache, slots, None, False)


@torch.no_grad()
def copy_k_to_blocked_cache(
    k: Tensor,
    k_cache: Tensor,
    kv_lengths: Tensor,
    block_tables: Tensor,
    n: int = 1,
    use_new_kcache_layout: bool = False,
) -> None:
    """Write the last ``n`` tokens of each sequence to one cache, of keys or of values.

    ``k`` is ``(sequences, n, heads, width)`` or ``(sequences * n, heads, width)``. ``k_cache`` is ``(blocks, heads,
    block_size, width)``, or with ``use_new_kcache_layout`` ``(blocks, heads, width / x, block_size, x)``.
    """
    cache = _by_position(k_cache, use_new_kcache_layout)
    slots = _slots_of_last(cache, kv_lengths, block_tables, n)
    kernel("reshape_and_cache")(k.flatten(0, -3), None, cache, None, slots)


@torch.no_grad()
def copy_kv_to_blocked_cache(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    kv_lengths: Tensor,
    block_tables: Tensor,
    use_new_kcache_layout: bool = False,
) -> None:
    """Write the last token of each sequence. ``v_cache`` is ``(blocks, heads, block_size, width)`` either way."""
    cache = _by_position(k_cache, use_new_kcache_layout)
    values = v_cache if use_new_kcache_layout else v_cache.transpose(1, 2)
    slots = _slots_of_last(cache, kv_lengths, block_tables)
    kernel("reshape_and_cache")(k.flatten(0, -3), v.flatten(0, -3), cache, values, slots)


def _by_position(cache: Tensor, in_pieces: bool) -> Tensor:
    """A cache as ``reshape_and_cache`` takes it."""
    wanted = 5 if in_pieces else 4
    if cache.dim() != wanted:
        raise ValueError(
            f"k_cache has shape {tuple(cache.shape)} and use_new_kcache_layout is {in_pieces}; needed {wanted} "
            "dimensions: (blocks, heads, width / x, block_size, x) for the new layout, else (blocks, heads, "
            "block_size, width)"
        )
    return cache if in_pieces else cache.transpose(1, 2)


@torch.no_grad()
def flash_decoding_attention(
    out: Tensor,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    sequence_lengths: Tensor,
    block_tables: Tensor,
    block_size: int,
    max_seq_len_in_batch: int,
    mid_output: Tensor | None,
    exp_sums: Tensor | None,
    max_logits: Tensor | None,
    alibi_slopes: Tensor | None,
    scale: float,
) -> None:
    """Write to ``out`` the attention of one token of each sequence; ``query`` is ``(sequences, heads, width)``.

    ``mid_output``, ``exp_sums`` and ``max_logits`` are not used: the op allocates its own partial results.
    ``block_size`` must be that of the caches. ``max_seq_len_in_batch`` is not used, because the op reads the
    lengths themselves on their device.
    """
    if block_size != _block_size(key_cache):
        raise ValueError(f"block_size is {block_size}; needed the block size of the caches, {_block_size(key_cache)}")
    slopes = None if alibi_slopes is None else alibi_slopes.float()
    options = (scale, 0, 0.0, slopes, None, None, None)
    attention = kernel("paged_decode_attention")
    result, _ = attention(query.unsqueeze(1), key_cache, value_cache, block_tables, sequence_lengths, *options)
    out.copy_(result.view_as(out))


def convert_fp8(input: Tensor, output: Tensor) -> None:  # noqa: A002 - a name to keep
    """Convert to or from float8_e5m2, stored as uint8. Numbers that are too large become the largest."""
    bytes_of = [tensor.dtype == torch.uint8 for tensor in (input, output)]
    if bytes_of[0] == bytes_of[1] or input.shape != output.shape:
        found = ", ".join(f"{tuple(tensor.shape)} of {tensor.dtype}" for tensor in (input, output))
        raise ValueError(f"input and output are {found}; needed the same shape, and uint8 for exactly one of them")
    if input.dtype == torch.uint8:
        output.copy_(input.view(torch.float8_e5m2))
    else:
        most = torch.finfo(torch.float8_e5m2).max  # torch's cast alone would give infinity
        output.view(torch.float8_e5m2).copy_(input.clamp(-most, most))


def _halves(query: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of the tokens, and of tables that are as wide as a head the first halves: only these are used."""
    tokens, half = query.shape[0], query.shape[-1] // 2
    return cos[:tokens, :half], sin[:tokens, :half]


def _block_size(key_cache: Tensor) -> int:
    return int(key_cache.shape[3 if key_cache.dim() == 5 else 1])


def _slots_of_last(key_cache: Tensor, lengths: Tensor, block_tables: Tensor, tokens: int = 1) -> Tensor:
    """The slots of the last ``tokens`` tokens of each sequence, sequence by sequence."""
    sequences = torch.arange(block_tables.shape[0], device=block_tables.device)
    positions = lengths.long() - 1
    if tokens != 1:
        back = torch.arange(tokens - 1, -1, -1, device=block_tables.device)
        positions = (positions[:, None] - back).flatten()
        sequences = sequences.repeat_interleave(tokens)
    return _slots(_block_size(key_cache), block_tables, sequences, positions)


def _slots_of_packed(
    key: Tensor, key_cache: Tensor, lengths: Tensor, cu_seqlens: Tensor, block_tables: Tensor
) -> Tensor:
    tokens = torch.arange(key.shape[0], device=block_tables.device)
    starts = cu_seqlens.long()
    sequences = torch.searchsorted(starts[1:], tokens, right=True).clamp(max=block_tables.shape[0] - 1)
    positions = tokens - starts[sequences]
    return _slots(
        _block_size(key_cache), block_tables, sequences, torch.where(positions < lengths[sequences], positions, -1)
    )


def _slots(block_size: int, block_tables: Tensor, sequences: Tensor, positions: Tensor) -> Tensor:
    """The slot of each position in its sequence; -1 if the position or its block is below zero."""
    blocks = block_tables[sequences, positions.clamp(min=0) // block_size].long()
    return torch.where((positions < 0) | (blocks < 0), -1, blocks * block_size + positions % block_size)
