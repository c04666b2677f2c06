"""The base of the optimizers that keep a plan: the checked tensors of the last step, as long as none changes."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim import Optimizer, optimizer

from precast.optim._rules import Kernel, Rule, State, state_dtype
from precast.optim._watched import Params, Seen, States, is_watched

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT

_Function = TypeVar("_Function", bound=Callable[..., Any])
# Imports Dynamo at the first call; torch.compiler.disable would import it here.
outside_dynamo = cast("Callable[[_Function], _Function]", _disable_dynamo)

_profiler_enabled: Callable[[], bool] = cast("Any", torch.autograd)._profiler_enabled


def light(step: _Function) -> _Function:
    """Use ``torch.optim``'s wrapper for hooks and the profiler only if there are hooks or a profiler runs.

    The wrapper makes a profiler record, which takes a third of the host time of a step.
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

    cast("Any", call).hooked = True  # tells torch not to wrap it
    return cast("_Function", call)


def loss_of(closure: Callable[[], Any] | None) -> Any:
    """The result of a step's closure, which also computes gradients; None without a closure."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def options_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The options among the arguments of a constructor, which passes its ``locals()``."""
    return {name: value for name, value in arguments.items() if name not in ("self", "params", "__class__")}


# Options that torch's classes lack, with their defaults.
OURS = {"bias_correction": True, "state_dtype": torch.float32, "master_weights": False}
_NONE = object()


class TorchsKeys(Optimizer):
    """An optimizer whose ``state_dict`` has the keys of torch's class, and whose groups have only its own options."""

    rule: ClassVar[Rule]
    _reads_rate: ClassVar[bool] = True  # a learning rate on the GPU too

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        self.check_options(defaults)  # as torch does, before the parameters of a generator are used up
        super().__init__(params, defaults)

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Raise ValueError on numbers out of range."""
        self.rule.check_options(options, self._reads_rate)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; missing options come from the constructor. Raises ValueError on values out of range."""
        self.check_options({**self.defaults, **param_group})
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """The same as in ``torch.optim``; the states are plain dictionaries.

        Each group has the keys of torch's class, and those of our own options that differ from the default. So
        ``torch.distributed.checkpoint``, which needs equal keys, loads a checkpoint of either class into the other.
        """
        # The first of the hooks, so that others see what is returned and may change it.
        handle = self.register_state_dict_post_hook(_in_torchs_form, prepend=True)
        try:
            return super().state_dict()
        finally:
            handle.remove()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of this class, of ours for another device, or of torch's or apex's with the same rule."""
        seen: dict[str, Any] = {}  # before torch casts the states to the parameters' dtype, which loses precision
        # The hook that is registered last sees the changes of all others.
        handle = self.register_load_state_dict_pre_hook(lambda _, loaded: seen.update(loaded))
        try:
            super().load_state_dict(_with_steps(state_dict))
        finally:
            handle.remove()
        ids = chain.from_iterable(group["params"] for group in seen["param_groups"])
        params = ((group, param) for group in self.param_groups for param in group["params"])
        for key, (group, param) in zip(ids, params, strict=True):
            saved = seen["state"].get(key)
            for name, value in saved.items() if isinstance(saved, dict) else ():
                dtype = self._loaded_dtype(name, group, param)
                if dtype is not None and isinstance(value, Tensor):
                    self.state[param][name] = value.to(param.device, dtype, copy=True)

    def _loaded_dtype(self, name: str, group: dict[str, Any], param: Tensor) -> torch.dtype | None:
        """The dtype of a loaded entry; None if torch has already loaded it in the right dtype."""
        return state_dtype(group, param) if name in self.rule.saved else None

    def _state_as_torchs(self, state: Any) -> Any:
        """A state as torch's class has it; None if it has none."""
        return dict(state) if isinstance(state, dict) else state

    def _as_torchs(self, group: dict[str, Any]) -> dict[str, Any]:
        theirs = _defaults(self.rule.torchs)
        ours = {key: value for key, value in group.items() if key in theirs or OURS.get(key, _NONE) != value}
        return {**theirs, **ours}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # torch adds this option of its own optimizers, which would become one of every group.
        self.defaults.pop("differentiable", None)
        for group in self.param_groups:
            for name in _defaults(self.rule.torchs).keys() - self.defaults.keys():
                group.pop(name, None)
            for name, value in self.defaults.items():
                group.setdefault(name, value)


class PlannedOptimizer(TorchsKeys):
    """An optimizer with a plan; ``_drop`` discards it if parameters or states change."""

    device: ClassVar[str]  # whose kernel of the rule makes the steps
    kernel: ClassVar[Kernel]
    ops: ClassVar[Any]  # the functions that the kernel is: its own, or those over lists
    _over_lists: ClassVar[Any]
    _owner: tuple[str, list[int]] | None = None

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        self._changed = _dropper(self)
        self._moved: dict[Tensor, Tensor] = {}  # redistributed gradients of the current step, by parameter
        super().__init__(params, defaults)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "rule" in vars(cls):
            cls.kernel = cls.rule.kernels[cls.device]
            cls.ops = cls._over_lists if cls.kernel.ops is None else cls.kernel.ops

    def work_for(self, name: str, places: list[int]) -> None:
        """Name another optimizer, and the indices there of this one's parameters, in errors."""
        self._owner = name, places

    @property
    def _called(self) -> str:
        return type(self).__name__ if self._owner is None else self._owner[0]

    def _place(self, index: int) -> int:
        """The index that errors give for a parameter."""
        return index if self._owner is None else self._owner[1][index]

    def _drop(self) -> None:
        raise NotImplementedError

    def _states(self, group: dict[str, Any], param: Tensor) -> tuple[State | None, ...]:
        """The states that a parameter has, in the order of the op's lists."""
        found = self.kernel.states(group)
        return tuple(s if s is not None and s.exists(param) else None for s in found) if self.kernel.shaped else found

    def _missing(self, group: dict[str, Any], param: Tensor, entries: Mapping[str, Any]) -> list[State]:
        """The states that a parameter needs and does not have yet."""
        found = self._states(group, param)
        return [s for s in found if s is not None and s.saved and entries.get(s.name) is None]

    def _look(self) -> None:
        """Remember the current parameters and states."""
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
        """Make the optimizer's lists and dicts of parameters and states report changes."""
        if not is_watched(self.state, self._changed):
            self.state = States(self.state, self._changed)
        for group in self.param_groups:
            if not is_watched(group["params"], self._changed):
                group["params"] = Params(group["params"], self._changed)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; missing options come from the constructor. Raises ValueError on values out of range."""
        self._drop()
        super().add_param_group(param_group)
        self._watch()

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_changed" not in self.__dict__:  # created by copy or pickle, without __init__
            self._changed, self._moved = _dropper(self), {}
        super().__setstate__(state)
        self._watch()
        self._drop()


@functools.cache
def _defaults(torchs: Any) -> dict[str, Any]:
    """The options of torch's class and their defaults, which depend on the version of torch."""
    return {} if torchs is None else torchs([torch.empty(1)]).defaults


def _with_steps(saved: dict[str, Any]) -> dict[str, Any]:
    """A saved state whose parameters have the step counts. Those of apex and others have one count for each group."""
    states, groups = dict(saved["state"]), [dict(group) for group in saved["param_groups"]]
    for group in groups:
        step = group.pop("step", None)
        for key in group["params"] if step is not None else ():
            if key in states:
                count = torch.tensor(float(step), dtype=torch.float32, device="cpu")
                states[key] = {"step": count, **states[key]}
    return {**saved, "state": states, "param_groups": groups}


def _in_torchs_form(owner: Any, result: dict[str, Any]) -> dict[str, Any]:
    found = {key: owner._state_as_torchs(state) for key, state in result["state"].items()}
    states = {key: state for key, state in found.items() if state is not None}
    return {**result, "state": states, "param_groups": [owner._as_torchs(group) for group in result["param_groups"]]}


def _dropper(owner: PlannedOptimizer) -> Callable[[], None]:
    """The function that a changed list or dict calls, without a reference that keeps the optimizer alive."""
    reference = weakref.ref(owner)

    def drop() -> None:
        alive = reference()
        if alive is not None:
            alive._drop()

    return drop
