"""Find the saved state of each parameter, before torch casts it to the parameter's dtype."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

from torch import Tensor
from torch.optim import Optimizer


def load(
    optimizer: Optimizer, load_state_dict: Callable[[dict[str, Any]], None], state_dict: dict[str, Any]
) -> list[tuple[dict[str, Any], Tensor, dict[str, Any]]]:
    """Call torch's ``load_state_dict``, then return each group, parameter and saved state.

    The base class casts the states to the parameters' dtype, which loses precision with low-precision parameters.
    """
    seen: dict[str, Any] = {}
    # The hook that is registered last sees the changes of all others.
    handle = optimizer.register_load_state_dict_pre_hook(lambda _, loaded: seen.update(loaded))
    try:
        load_state_dict(state_dict)
    finally:
        handle.remove()
    ids = chain.from_iterable(group["params"] for group in seen["param_groups"])
    params = ((group, param) for group in optimizer.param_groups for param in group["params"])
    states = seen["state"]
    return [(group, param, _of(states.get(key))) for key, (group, param) in zip(ids, params, strict=True)]


def _of(state: Any) -> dict[str, Any]:
    return state if isinstance(state, dict) else {}
