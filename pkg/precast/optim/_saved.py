"""What of a saved state belongs to which parameter, as it was before torch cast it to the parameters' dtype."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

from torch import Tensor
from torch.optim import Optimizer


def load(
    optimizer: Optimizer, load_state_dict: Callable[[dict[str, Any]], None], state_dict: dict[str, Any]
) -> list[tuple[dict[str, Any], Tensor, dict[str, Any]]]:
    """Calls torch's ``load_state_dict``, then gives each parameter between its group and its saved state.

    The base class casts the states to the parameters' dtype; with low-precision parameters that loses them.
    """
    seen: dict[str, Any] = {}
    # The last hook sees what the others made of it.
    handle = optimizer.register_load_state_dict_pre_hook(lambda _, loaded: seen.update(loaded))
    try:
        load_state_dict(state_dict)
    finally:
        handle.remove()
    ids = chain.from_iterable(group["params"] for group in seen["param_groups"])
    params = ((group, param) for group in optimizer.param_groups for param in group["params"])
    return [(group, param, seen["state"].get(key, {})) for key, (group, param) in zip(ids, params, strict=True)]
