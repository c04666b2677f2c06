"""Blocks of keys and values for the sequences of a decoding model: a small example engine to start from."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from precast import ops


@dataclasses.dataclass(frozen=True)
class Step:
    """The tokens for which one :meth:`PagedKVCache.append` made room, sequence by sequence.

    ``slots`` and ``positions`` are int64, one per token. ``block_tables`` and ``lengths`` are int32, with a row per
    sequence, and include the new tokens.
    """

    tokens: int  # per sequence
    slots: Tensor
    positions: Tensor
    block_tables: Tensor
    lengths: Tensor


@dataclasses.dataclass
class _Sequence:
    length: int
    blocks: list[int]


class PagedKVCache:
    """A cache for the keys and values of all layers, in blocks that are assigned to sequences.

    This class is an example: the lists of blocks are Python lists, which each step copies to the device. It does not
    schedule sequences or evict blocks. It has no locks, so use it from one thread.

    Args:
        layers: attention layers of the model; each has its own keys and values in the same blocks.
        blocks: blocks in the pool.
        kv_heads: heads of keys and values.
        width: elements of a head.
        value_width: elements of a head of values; by default ``width``.
        block_size: tokens of a block, 1 to 256.
        dtype: of keys and values.
        device: where they are.

    Raises:
        ValueError: ``block_size`` is not 1 to 256.

    Example::

        cache = precast.nn.PagedKVCache(layers=1, blocks=8, kv_heads=2, width=64)
        step = cache.append([cache.add(), cache.add()])
        cache.write(0, step, torch.randn(2, 2, 64), torch.randn(2, 2, 64))
        assert cache.attend(0, step, torch.randn(2, 4, 64)).shape == (2, 4, 64)
    """

    def __init__(
        self,
        layers: int,
        blocks: int,
        kv_heads: int,
        width: int,
        *,
        value_width: int | None = None,
        block_size: int = 16,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if not 1 <= block_size <= 256:
            raise ValueError(f"block_size is {block_size}; needed 1 to 256")
        shape = (layers, blocks, block_size, kv_heads)
        self.keys = torch.zeros(*shape, width, dtype=dtype, device=device)
        self.values = torch.zeros(*shape, width if value_width is None else value_width, dtype=dtype, device=device)
        self.block_size = block_size
        self._free = list(range(blocks - 1, -1, -1))
        self._users = [0] * blocks  # sequences that use the block
        self._sequences: dict[int, _Sequence] = {}
        self._next = 0

    @property
    def free_blocks(self) -> int:
        """The number of blocks that no sequence uses."""
        return len(self._free)

    def length(self, sequence: int) -> int:
        """Tokens of a sequence."""
        return self._of(sequence).length

    def add(self) -> int:
        """Adds a sequence without tokens and returns its number, which is never reused."""
        return self._keep(_Sequence(0, []))

    def fork(self, sequence: int) -> int:
        """A new sequence with the tokens of another. They share blocks until one of them appends to a shared block."""
        parent = self._of(sequence)
        for block in parent.blocks:
            self._users[block] += 1
        return self._keep(_Sequence(parent.length, list(parent.blocks)))

    def free(self, sequence: int) -> None:
        """Removes a sequence. Blocks that no other sequence uses return to the pool."""
        for block in self._of(sequence).blocks:
            self._release(block)
        del self._sequences[sequence]

    def append(self, sequences: Sequence[int], tokens: int = 1) -> Step:
        """Makes room for ``tokens`` more tokens of each sequence.

        Raises:
            KeyError: there is no such sequence.
            ValueError: ``tokens`` is below 1, or a sequence is named twice.
            RuntimeError: the pool has too few blocks. Nothing has changed then.
        """
        if tokens < 1:
            raise ValueError(f"tokens is {tokens}; needed 1 or more")
        if len(set(sequences)) != len(sequences):
            raise ValueError(f"sequences are {list(sequences)}; needed each number once")
        chosen = [self._of(sequence) for sequence in sequences]
        needed = self._blocks_for(chosen, tokens)
        if needed > len(self._free):
            raise RuntimeError(
                f"PagedKVCache: {tokens} tokens for each of {len(chosen)} sequences need {needed} blocks and the pool "
                f"has {len(self._free)} free ones; needed a larger pool, or free(sequence) before"
            )
        return self._step(chosen, [self._grow(one, tokens) for one in chosen], tokens)

    def write(self, layer: int, step: Step, key: Tensor, value: Tensor) -> None:
        """Writes the keys and values of a step's tokens, ``(tokens, kv_heads, width)``, for one layer."""
        with torch.no_grad():
            keys, values = self.keys[layer], self.values[layer]
            if keys.shape == values.shape:
                ops.reshape_and_cache(key, value, keys, values, step.slots)
                return
            for name, rows, cache in (("key", key, keys), ("value", value, values)):
                if (rows.dtype, rows.device) != (cache.dtype, cache.device):
                    raise RuntimeError(
                        f"PagedKVCache.write: {name} is {rows.dtype} on {rows.device}; needed {cache.dtype} on "
                        f"{cache.device}, as the cache"
                    )
            if key.shape[1:] != keys.shape[2:] or value.shape != (key.shape[0], *values.shape[2:]):  # before a write
                needed = (key.shape[0], *keys.shape[2:]), (key.shape[0], *values.shape[2:])
                raise RuntimeError(
                    f"PagedKVCache.write: key has shape {tuple(key.shape)} and value {tuple(value.shape)}; needed "
                    f"{needed[0]} and {needed[1]}"
                )
            for rows, cache in ((key, keys), (value, values)):  # of two widths
                ops.reshape_and_cache(rows, None, cache, None, step.slots)

    def attend(self, layer: int, step: Step, query: Tensor, **options: Any) -> Any:
        """:func:`precast.ops.paged_decode_attention` for a step's tokens, with its options; at most 16 tokens per
        sequence.

        ``query`` is ``(tokens, heads, width)``, and the result ``(tokens, heads, value_width)``.
        """
        rows = query.unflatten(0, (-1, step.tokens))
        found = ops.paged_decode_attention(
            rows, self.keys[layer], self.values[layer], step.block_tables, step.lengths, **options
        )
        if isinstance(found, tuple):
            return tuple(one.flatten(0, 1) for one in found)
        return found.flatten(0, 1)

    def _keep(self, sequence: _Sequence) -> int:
        number = self._next
        self._next += 1
        self._sequences[number] = sequence
        return number

    def _of(self, sequence: int) -> _Sequence:
        if sequence not in self._sequences:
            raise KeyError(f"PagedKVCache: there is no sequence {sequence}; needed a live number from add() or fork()")
        return self._sequences[sequence]

    def _release(self, block: int) -> None:
        self._users[block] -= 1
        if self._users[block] == 0:
            self._free.append(block)

    def _take(self) -> int:
        block = self._free.pop()
        self._users[block] = 1
        return block

    def _blocks_for(self, chosen: Sequence[_Sequence], tokens: int) -> int:
        """The new blocks needed, including copies of written shared blocks. The last user of a block keeps it."""
        users: dict[int, int] = {}
        needed = 0
        for one in chosen:
            needed += -(-(one.length + tokens) // self.block_size) - len(one.blocks)
            if one.length % self.block_size:
                last = one.blocks[-1]
                left = users.setdefault(last, self._users[last])
                if left > 1:
                    needed += 1
                    users[last] = left - 1
        return needed

    def _grow(self, one: _Sequence, tokens: int) -> list[int]:
        """Makes room in one sequence and returns the slots of the new tokens."""
        if one.length % self.block_size and self._users[one.blocks[-1]] > 1:
            shared, own = one.blocks[-1], self._take()
            with torch.no_grad():
                self.keys[:, own] = self.keys[:, shared]
                self.values[:, own] = self.values[:, shared]
            one.blocks[-1] = own
            self._release(shared)
        first, one.length = one.length, one.length + tokens
        while len(one.blocks) * self.block_size < one.length:
            one.blocks.append(self._take())
        size = self.block_size
        return [one.blocks[at // size] * size + at % size for at in range(first, one.length)]

    def _step(self, chosen: Sequence[_Sequence], slots: Sequence[Sequence[int]], tokens: int) -> Step:
        device = self.keys.device
        columns = max((len(one.blocks) for one in chosen), default=0)
        tables = [one.blocks + [-1] * (columns - len(one.blocks)) for one in chosen]
        positions = [at for one in chosen for at in range(one.length - tokens, one.length)]
        return Step(
            tokens,
            torch.tensor([slot for row in slots for slot in row], dtype=torch.int64, device=device),
            torch.tensor(positions, dtype=torch.int64, device=device),
            torch.tensor(tables, dtype=torch.int32, device=device).reshape(len(chosen), columns),
            torch.tensor([one.length for one in chosen], dtype=torch.int32, device=device),
        )
