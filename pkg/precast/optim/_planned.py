"""What the optimizers that keep a plan share: a step that costs the host little, and how they see that they changed."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch._compile import _disable_dynamo
from torch.optim import Optimizer, optimizer

from precast.optim._watched import Params, Seen, States, is_watched

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT

_Function = TypeVar("_Function", bound=Callable[..., Any])
# Imports Dynamo at the first call, where torch.compiler.disable would import it here.
outside_dynamo = cast("Callable[[_Function], _Function]", _disable_dynamo)

_profiler_enabled: Callable[[], bool] = cast("Any", torch.autograd)._profiler_enabled


def light(step: _Function) -> _Function:
    """A step in the wrapper that ``torch.optim`` gives it, for hooks and the profiler, only while there are any.

    The wrapper makes a record for the profiler whether one runs or not: a third of the host's time for a step.
    """
    recorded = cast("Any", Optimizer).profile_hook_step(step)

    @functools.wraps(step)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if (
            _profiler_enabled()
            or self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or optimizer._global_optimizer_pre_hooks
            or optimizer._global_optimizer_post_hooks
        ):
            return recorded(self, *args, **kwargs)
        return step(self, *args, **kwargs)

    cast("Any", call).hooked = True  # torch then leaves it as it is
    return cast("_Function", call)


class PlannedOptimizer(Optimizer):
    """An optimizer with containers that say when they are changed; ``_drop`` then forgets what was planned."""

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        self._changed = _dropper(self)
        super().__init__(params, defaults)

    def _drop(self) -> None:
        raise NotImplementedError

    def _look(self) -> None:
        """Remembers parameters and states as they are."""
        self._seen_states = Seen(self.state, self._changed)
        self._seen_params = [Seen(group["params"], self._changed) for group in self.param_groups]

    def _looks_same(self) -> bool:
        """Whether the same parameters have the same states as when ``_look`` was called."""
        return (
            self._seen_states.still(self.state)
            and len(self.param_groups) == len(self._seen_params)
            and all(
                seen.still(group["params"]) for seen, group in zip(self._seen_params, self.param_groups, strict=True)
            )
        )

    def _watch(self) -> None:
        """Has the containers that are this optimizer's own say when they are changed."""
        if not is_watched(self.state, self._changed):
            self.state = States(self.state, self._changed)
        for group in self.param_groups:
            if not is_watched(group["params"], self._changed):
                group["params"] = Params(group["params"], self._changed)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group; what it does not set comes from the constructor."""
        self._drop()
        super().add_param_group(param_group)
        self._watch()

    def state_dict(self) -> dict[str, Any]:
        """As ``torch.optim``'s; the states are plain dictionaries."""
        result = super().state_dict()
        return {**result, "state": {key: _plain(value) for key, value in result["state"].items()}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_changed" not in self.__dict__:  # made by copy or pickle, without __init__
            self._changed = _dropper(self)
        super().__setstate__(state)
        self._watch()
        self._drop()
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else value


def _dropper(owner: PlannedOptimizer) -> Callable[[], None]:
    """What a container calls when it is changed; it does not keep the optimizer alive."""
    reference = weakref.ref(owner)

    def drop() -> None:
        alive = reference()
        if alive is not None:
            alive._drop()

    return drop
