"""The gated delta rule in plain torch: token by token, and by chunks of tokens as matrix products.

Nothing waits for a GPU: where sequences start is only compared and indexed with. So both forms can be traced.
"""

from __future__ import annotations

import torch
from torch import Tensor

from precast.ops._reference import wide

_CHUNK = 64
_KEY_GATES_CHUNK = 16  # with a decay for each element of a key, the products of pairs have one more dimension
_EPS = 1e-6


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    initial_state: Tensor | None,
    starts: Tensor | None,
    scale: float,
    l2_norm: bool,
) -> tuple[Tensor, Tensor]:
    """The outputs, and the state after the last token of each sequence."""
    tokens = _prepared(q, k, v, g, beta, scale, l2_norm)
    length = v.shape[1]
    initial = _initial(tokens[1], tokens[2], initial_state, starts)
    state, final = initial if starts is None else initial[:1], initial
    outs = []
    for t in range(length):
        if starts is not None:
            now = torch.searchsorted(starts[1:].contiguous(), torch.full_like(starts[:1], t), right=True)
            state = torch.where(starts[now] == t, initial.index_select(0, now), state)
        out, state = _step(state, *(one[:, t] for one in tokens))
        outs.append(out)
        if starts is not None:
            ended = (starts[1:] == t + 1) & (starts[:-1] <= t)
            final = torch.where(ended[:, None, None, None], state, final)
    results = torch.stack(outs, 1) if outs else tokens[2]
    last = state if starts is None else final
    return results.reshape(v.shape).to(v.dtype), last.to(_state_dtype(initial, initial_state))


def gated_delta_rule_update_(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    states: Tensor,
    indices: Tensor,
    accepted: Tensor | None,
    scale: float,
    l2_norm: bool,
) -> Tensor:
    """The outputs; writes the states to their slots."""
    tokens = _prepared(q, k, v, g, beta, scale, l2_norm)
    slots = indices.unsqueeze(1) if indices.dim() == 1 else indices
    first = slots[:, 0] if accepted is None else slots.gather(1, accepted.long()[:, None] - 1)[:, 0]
    there = (first >= 0) & (first < states.shape[0])
    state = wide(states.index_select(0, torch.where(there, first, 0)))
    outs = []
    for t in range(q.shape[1]):
        out, state = _step(state, *(one[:, t] for one in tokens))
        outs.append(torch.where(there[:, None, None], out, 0))
        if indices.dim() == 2 or t == q.shape[1] - 1:
            to = slots[:, t] if indices.dim() == 2 else first
            chosen = there & (to >= 0) & (to < states.shape[0])
            states[to[chosen]] = state[chosen].to(states.dtype)
    return torch.stack(outs, 1).to(v.dtype)


def sequences_of(q: Tensor, starts: Tensor | None) -> int:
    """How many states there are."""
    return q.shape[0] if starts is None else starts.shape[0] - 1


def by_chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    initial_state: Tensor | None,
    starts: Tensor | None,
    scale: float,
    l2_norm: bool,
) -> tuple[Tensor, Tensor]:
    """The same as matrix products over chunks of tokens: the WY form of section 3 of arXiv 2412.06464."""
    if v.shape[0] * v.shape[1] == 0:
        initial = _initial(k, wide(v), initial_state, starts)
        return v.clone(), initial.to(_state_dtype(initial, initial_state))
    by_key = g is not None and g.dim() == 4
    size = _KEY_GATES_CHUNK if by_key else _CHUNK
    places, inside, sequence = _chunk_places(v, starts, size)
    tokens = _prepared(q, k, v, g, beta, scale, l2_norm)
    initial = _initial(tokens[1], tokens[2], initial_state, starts)
    queries, keys, values, gates, betas = (
        torch.where(inside[(...,) + (None,) * (one.dim() - 2)], one.flatten(0, 1)[places], 0).transpose(1, 2)
        for one in tokens
    )  # (chunks, heads, tokens of a chunk, ...)
    total = gates.cumsum(2)
    total = total if by_key else total.unsqueeze(-1)  # a column for each element of a key, or one for all
    below = torch.ones(size, size, dtype=torch.bool, device=v.device).tril()
    between = (total.unsqueeze(3) - total.unsqueeze(2)).masked_fill(~below[..., None], -torch.inf).exp()
    if by_key:
        scores, products = (torch.einsum("chid,chjd,chijd->chij", one, keys, between) for one in (queries, keys))
    else:
        scores, products = (one @ keys.mT * between.squeeze(-1) for one in (queries, keys))
    products = products.tril(-1) * betas.unsqueeze(-1)
    right = betas.unsqueeze(-1) * torch.cat([values, total.exp() * keys], -1)
    solved = torch.linalg.solve_triangular(products, right, upper=False, unitriangular=True)
    corrected, erased = solved.split((v.shape[-1], k.shape[-1]), -1)
    last = total[:, :, -1:]
    queries, keys, decay = queries * total.exp(), (keys * (last - total).exp()).mT, last.exp().mT
    parts = (corrected, erased, queries, keys, decay, scores)
    outs, final = (_pass_rows if starts is None else _pass_packed)(initial, parts, inside, sequence)
    flat = outs.transpose(1, 2).flatten(0, 1)
    nowhere = v.shape[0] * v.shape[1]  # a row for what is in no sequence
    to = torch.where(inside, places, nowhere).flatten()
    result = flat.new_zeros(nowhere + 1, *flat.shape[1:]).index_copy(0, to, flat)[:nowhere]
    return result.reshape(v.shape).to(v.dtype), final.to(_state_dtype(initial, initial_state))


def _pass_rows(state: Tensor, parts: tuple[Tensor, ...], *_: Tensor) -> tuple[Tensor, Tensor]:
    """All sequences go through their chunks side by side."""
    count = parts[0].shape[0] // max(state.shape[0], 1)
    by_sequence, outs = [one.unflatten(0, (state.shape[0], count)) for one in parts], [parts[0][:0].unsqueeze(1)]
    for i in range(count):
        out, state = _pass_chunk(state, *(one[:, i] for one in by_sequence))
        outs.append(out.unsqueeze(1))
    return torch.cat(outs[1:] or outs, 1).flatten(0, 1), state


def _pass_packed(initial: Tensor, parts: tuple[Tensor, ...], inside: Tensor, sequence: Tensor) -> tuple[Tensor, Tensor]:
    """One chunk after the other; the first one of a sequence begins with the state of that sequence."""
    state, final, outs = initial[:1], initial, [parts[0][:0]]
    number = torch.arange(initial.shape[0], device=sequence.device)
    for i in range(inside.shape[0]):
        fresh = sequence[i] != sequence[i - 1] if i else torch.ones_like(inside[0, 0])
        state = torch.where(fresh, initial.index_select(0, sequence[i : i + 1]), state)
        out, state = _pass_chunk(state, *(one[i : i + 1] for one in parts))
        outs.append(out)
        final = torch.where(((number == sequence[i]) & inside[i, 0])[:, None, None, None], state, final)
    return torch.cat(outs), final


def _pass_chunk(
    state: Tensor, values: Tensor, erased: Tensor, queries: Tensor, keys: Tensor, decay: Tensor, scores: Tensor
) -> tuple[Tensor, Tensor]:
    corrections = values - erased @ state
    return queries @ state + scores @ corrections, decay * state + keys @ corrections


def _chunk_places(v: Tensor, starts: Tensor | None, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """The tokens of each chunk, which of them there are, and the sequence of a chunk."""
    batch, length = v.shape[:2]
    if starts is None:
        per = -(-length // size)
        chunks, sequences, lengths = batch * per, batch, torch.full((batch,), length, device=v.device)
        begins, first = (torch.arange(batch, device=v.device) * one for one in (length, per))
    else:
        begins, sequences = starts[:-1].long(), starts.shape[0] - 1
        chunks, lengths = length // size + sequences, starts[1:].long() - begins
        # No two sequences share a chunk, and none is beyond the last one.
        first = begins // size + torch.arange(sequences, device=v.device)
    number = torch.arange(chunks, device=v.device)
    sequence = torch.searchsorted(first, number, right=True) - 1
    within = ((number - first[sequence]) * size)[:, None] + torch.arange(size, device=v.device)
    inside = within < lengths[sequence][:, None]
    return torch.where(inside, begins[sequence][:, None] + within, 0), inside, sequence


def _prepared(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor | None, scale: float, l2_norm: bool
) -> list[Tensor]:
    """The arguments in a wide dtype, with a head of ``q`` and ``k`` for each of ``v``."""
    v = wide(v)
    heads = []
    for one in (wide(q), wide(k)):
        normed = one * torch.rsqrt(one.square().sum(-1, keepdim=True) + _EPS) if l2_norm else one
        heads.append(normed.repeat_interleave(v.shape[2] // q.shape[2], 2))
    gates = v.new_zeros(v.shape[:3]) if g is None else g.to(v.dtype)
    return [heads[0] * scale, heads[1], v, gates, v.new_ones(v.shape[:3]) if beta is None else beta.to(v.dtype)]


def _initial(k: Tensor, v: Tensor, initial_state: Tensor | None, starts: Tensor | None) -> Tensor:
    if initial_state is not None:
        return initial_state.to(v.dtype)
    return v.new_zeros(sequences_of(k, starts), v.shape[2], k.shape[3], v.shape[3])


def _state_dtype(initial: Tensor, given: Tensor | None) -> torch.dtype:
    return initial.dtype if given is None else given.dtype


def _step(state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """One token of each sequence."""
    state = state * g.exp()[(..., None) if g.dim() == 3 else (..., None, None)]
    predicted = (state * k.unsqueeze(-1)).sum(2)
    state = state + k.unsqueeze(-1) * (beta.unsqueeze(-1) * (v - predicted)).unsqueeze(2)
    return (state * q.unsqueeze(-1)).sum(2), state
