"""The causal convolutions and their gradients in plain torch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from precast.ops._reference import wide


class _Cuts(NamedTuple):
    """Of each token ``(rows, tokens)``: how many of its sequence are before it, its state, and whether it has one."""

    age: Tensor
    number: Tensor
    begins: Tensor  # whether the states before it are those of its number
    padding: Tensor
    rows: Tensor  # of each state: its row, and the first and the end of the tokens before it
    first: Tensor
    end: Tensor


def _cuts(x: Tensor, index: Tensor | None, starts: Tensor | None) -> _Cuts:
    rows, _, tokens = x.shape
    at = torch.arange(tokens, device=x.device).expand(rows, tokens)
    row = torch.arange(rows, device=x.device)
    last = torch.full((rows,), tokens, device=x.device)
    no = torch.zeros_like(at, dtype=torch.bool)
    if starts is not None:
        ordered = starts.long().clamp(0, tokens)
        number = torch.searchsorted(ordered, at.contiguous(), right=True) - 1
        first = ordered[number.clamp(min=0)]
        padding = (number < 0) | (number >= len(starts) - 1)
        age = at - torch.where(number < 0, 0, first)
        number = torch.where(padding, 0, number)
        return _Cuts(age, number, ~padding, padding, torch.zeros_like(ordered[1:]), ordered[:-1], ordered[1:])
    number = row[:, None].expand(rows, tokens)
    if index is None:
        return _Cuts(at, number, ~no, no, row, torch.zeros_like(last), last)
    change = torch.cat([no[:, :1], index[:, 1:] != index[:, :-1]], 1)
    first = torch.where(change, at, 0).cummax(1).values if tokens > 0 else at
    of_last = first[:, -1] if tokens > 0 else torch.zeros_like(last)
    return _Cuts(at - first, number, first == 0, index < 0, row, of_last, last)


def _tap(x: Tensor, distance: int, width: int, state: Tensor | None, cuts: _Cuts) -> Tensor:
    """The numbers that are ``distance`` tokens before each: of its sequence, of its state, or zero."""
    own = pad(x, (distance, 0))[..., : x.shape[-1]]
    other = x.new_zeros(())
    if state is not None and state.shape[0] > 0:
        place = (width - 1 + cuts.age - distance).clamp(0, width - 2)
        other = torch.where(cuts.begins[..., None], state[cuts.number, :, place], 0).transpose(1, 2)
    return torch.where((cuts.age >= distance)[:, None], own, other)


def _sum(x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor | None, cuts: _Cuts) -> Tensor:
    width = weight.shape[1]
    total = x.new_zeros(()) if bias is None else bias[:, None]
    for k in range(width):
        total = total + weight[:, k, None] * _tap(x, width - 1 - k, width, state, cuts)
    return total.expand(x.shape)


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    sequence_index: Tensor | None,
    starts: Tensor | None,
    silu: bool,
    final_state: bool,
) -> tuple[Tensor, Tensor]:
    """Each channel with its filter, and the last tokens of each sequence, or nothing."""
    numbers, state = wide(x), None if initial_state is None else wide(initial_state)
    cuts = _cuts(x, sequence_index, starts)
    z = _sum(numbers, wide(weight), None if bias is None else wide(bias), state, cuts)
    y = torch.where(cuts.padding[:, None], 0, torch.nn.functional.silu(z) if silu else z)
    y = _ordered(y.to(x.dtype), x)
    if not final_state:
        return y, x.new_empty(0)
    before = weight.shape[1] - 1
    at = cuts.end[:, None] - before + torch.arange(before, device=x.device)
    own = at >= cuts.first[:, None]
    last = x.new_zeros((len(at), before, x.shape[1]))
    if x.shape[-1] > 0:
        last = torch.where(own[..., None], x[cuts.rows[:, None], :, at.clamp(min=0)], last)
    if initial_state is not None:
        place = (at - cuts.first[:, None] + before).clamp(0, before - 1)
        number = torch.arange(len(at), device=x.device)[:, None]
        mine = ~own & (cuts.first[:, None] == 0) if starts is None else ~own
        last = torch.where(mine[..., None], initial_state[number, :, place], last)
    return y, last.transpose(1, 2).contiguous()


def causal_conv1d_backward(
    grad: Tensor,
    grad_state: Tensor | None,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    sequence_index: Tensor | None,
    starts: Tensor | None,
    silu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, of weight and bias one after the other, and of the initial state, or of nothing."""
    numbers, taps, state = wide(x), wide(weight), None if initial_state is None else wide(initial_state)
    width, tokens = weight.shape[1], x.shape[-1]
    cuts = _cuts(x, sequence_index, starts)
    g = torch.where(cuts.padding[:, None], 0, wide(grad))
    if silu:
        z = _sum(numbers, taps, None if bias is None else wide(bias), state, cuts)
        s = torch.sigmoid(z)
        g = g * s * (1 + z * (1 - s))
    grad_x, of_weight = torch.zeros_like(numbers), []
    of_state = torch.zeros_like(numbers[:0]) if state is None else torch.zeros_like(state)
    for k in range(width):
        distance = width - 1 - k
        of_weight.append((g * _tap(numbers, distance, width, state, cuts)).sum((0, 2)))
        part, own = g * taps[:, k, None], (cuts.age >= distance)[:, None]
        grad_x = grad_x + pad(torch.where(own, part, 0), (0, distance))[..., distance:]
        if state is not None and tokens > 0:
            place = (width - 1 + cuts.age - distance).clamp(0, width - 2)
            kept = torch.where(own | ~cuts.begins[:, None], 0, part).transpose(1, 2)
            of_state = of_state.transpose(1, 2).index_put((cuts.number, place), kept, accumulate=True).transpose(1, 2)
    if grad_state is not None and len(grad_state) > 0:
        at = cuts.end[:, None] - width + 1 + torch.arange(width - 1, device=x.device)
        own, given = at >= cuts.first[:, None], wide(grad_state).transpose(1, 2)
        if tokens > 0:
            to, part = (cuts.rows[:, None].expand_as(at), at.clamp(min=0)), torch.where(own[..., None], given, 0)
            grad_x = grad_x.transpose(1, 2).index_put(to, part, accumulate=True).transpose(1, 2)
        if state is not None:
            place = (at - cuts.first[:, None] + width - 1).clamp(0, width - 2)
            mine = ~own & (cuts.first[:, None] == 0) if starts is None else ~own
            number = torch.arange(len(at), device=x.device)[:, None].expand_as(at)
            part = torch.where(mine[..., None], given, 0)
            of_state = of_state.transpose(1, 2).index_put((number, place), part, accumulate=True).transpose(1, 2)
    parameters = [torch.stack(of_weight, 1).flatten(), *([] if bias is None else [g.sum((0, 2))])]
    nothing = x.new_empty(0)
    return (
        _ordered(grad_x.to(x.dtype), x),
        torch.cat(parameters).to(weight.dtype),
        nothing if initial_state is None else of_state.to(x.dtype).contiguous(),
    )


def causal_conv1d_update_(
    x: Tensor,
    state: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state_indices: Tensor | None,
    positions: Tensor | None,
    silu: bool,
) -> Tensor:
    """The next tokens of sequences; those with an index out of range are left out, with zeros as the result."""
    tokens = x[..., None] if x.dim() == 2 else x
    slots = torch.arange(len(x), device=x.device) if state_indices is None else state_indices.long()
    kept = (slots >= 0) & (slots < len(state))
    length, before = state.shape[2], weight.shape[1] - 1
    chosen, new = slots[kept], tokens[kept]
    old = state[chosen]
    if positions is None:
        window, moved = old[..., length - before :], torch.cat([old, new], -1)[..., -length:]
    else:
        at = positions.long()[kept]
        places = (at[:, None] + torch.arange(-before, 0, device=x.device)) % length
        window, moved = old.gather(2, places[:, None].expand(-1, old.shape[1], -1)), old.clone()
        for i in range(new.shape[2]):
            place = ((at + i) % length)[:, None, None].expand(-1, old.shape[1], 1)
            moved = moved.scatter(2, place, new[..., i : i + 1])
    state[chosen] = moved
    y = torch.zeros_like(tokens)
    y[kept] = causal_conv1d(new, weight, bias, window, None, None, silu, False)[0]
    return _ordered(y[..., 0] if x.dim() == 2 else y, x)


def _ordered(y: Tensor, x: Tensor) -> Tensor:
    """``y`` in the order of ``x``."""
    if x.dim() == 3 and x.stride(1) == 1:
        return y.transpose(1, 2).contiguous().transpose(1, 2)
    return y.contiguous()
