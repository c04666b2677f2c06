"""Defines a rule of optimizers: its states, the checks of its options, and its kernel on each device.

``adam.py`` and ``others.py`` have the rules. Below each rule are the classes that combine it with
``CPUOptimizer`` and ``FusedOptimizer``. A state may have another shape than its parameter, as the row and column
factors of Adafactor do.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor

from precast.ops import _updates, multi_tensor
from precast.ops._shards import is_dtensor, local_like

Group: TypeAlias = "dict[str, Any]"
Number: TypeAlias = "Callable[[Group], Any]"  # of a group: a number, or a tensor of one
Shape: TypeAlias = "Callable[[Tensor], Sequence[int] | None]"  # for a parameter; None if it has no such state


@dataclass(frozen=True, eq=False, slots=True)
class State:
    """A tensor that a rule keeps for each parameter, or needs during a step."""

    name: str
    when: str | None = None  # the option that asks for it
    initial: str | None = None  # the option with its initial value; otherwise 0
    shape: Shape | None = None  # None: that of the parameter
    saved: bool = True  # otherwise it is float32 memory between two launches

    def exists(self, param: Tensor) -> bool:
        """Whether a parameter of this shape has the state."""
        return self.shape is None or self.shape(param) is not None

    def new(self, param: Tensor, group: Group) -> Tensor:
        """The state of a parameter before its first step."""
        if not self.saved:
            return torch.empty_like(param, dtype=torch.float32)
        value = 0.0 if self.initial is None else float(group[self.initial])
        dtype = state_dtype(group, param)
        if self.shape is None:
            return torch.full_like(param, value, dtype=dtype)
        return torch.full(self._shape_for(param), value, dtype=dtype, device=param.device)

    def of(self, param: Tensor, entries: Mapping[str, Any]) -> Tensor:
        """The local tensor among a parameter's entries. RuntimeError if it does not fit the parameter."""
        tensor: Tensor = entries[self.name]
        if self.shape is None:
            return local_like(tensor, param, f"its {self.name}")
        if tensor.shape != self._shape_for(param) or tensor.device != param.device:
            raise RuntimeError(
                f"the {self.name} of a parameter has shape {tuple(tensor.shape)} and is on {tensor.device}; needed "
                f"{tuple(self._shape_for(param))} on {param.device}; nothing was updated"
            )
        return tensor

    def _shape_for(self, param: Tensor) -> torch.Size:
        if is_dtensor(param):
            raise RuntimeError(
                f"a parameter is a DTensor, and its {self.name} has another shape, of which no shard is known; needed "
                "a plain tensor; nothing was updated"
            )
        assert self.shape is not None
        return torch.Size(self.shape(param) or ())


@dataclass(frozen=True, eq=False)
class Kernel:
    """The ops that compute a step of a rule on one device."""

    number: int  # of the rule, in the op
    lists: tuple[State | None, ...]  # in the op's order; None: a list that the rule leaves empty
    numbers: tuple[Number, ...]  # the op's columns after the learning rate
    at_first: tuple[Number, ...] | None = None  # on the CPU, of a step that creates the states
    flags: tuple[tuple[Number, int], ...] = ()
    counts: bool = True  # the op reads how many steps there were
    sparse: bool = False  # on the CPU: gradients in COO layout, of which only their elements are updated
    apply: int | None = None  # the second of two launches, which reads sums over all shards
    # Functions instead of those of cpu_optim (``optimize``, and for steps that keep their lists ``optimize_again`` and
    # ``forget``) or of multi_tensor (``plan``, ``step_`` and ``forget``).
    ops: Any = None
    _present: dict[tuple[bool, ...], tuple[State | None, ...]] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def _asked(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(state.when for state in self.lists if state is not None and state.when is not None))

    @cached_property
    def shaped(self) -> bool:
        """Whether a state has another shape than its parameter."""
        return any(state is not None and state.shape is not None for state in self.lists)

    def states(self, group: Group) -> tuple[State | None, ...]:
        """The lists of states that the group's options require."""
        asked = self._asked
        if not asked:
            return self.lists
        key = tuple([not group[option] for option in asked])
        found = self._present.get(key)
        if found is None:
            on = {None, *(option for option, is_off in zip(asked, key, strict=True) if not is_off)}
            found = tuple(state if state is not None and state.when in on else None for state in self.lists)
            self._present[key] = found
        return found

    def values(self, group: Group) -> list[Any]:
        """The group's numbers in the op's columns, without the learning rate."""
        return [number(group) for number in self.numbers]

    def bits(self, group: Group) -> int:
        """The group's flags."""
        found = 0
        for flag, bit in self.flags:  # a third of the time of sum() over a list
            if flag(group):
                found |= bit
        return found


@dataclass(frozen=True, eq=False)
class Rule:
    """A rule of optimizers, with a kernel for each device that has one."""

    torchs: Any  # torch's class of the same rule
    kernels: Mapping[str, Kernel]  # "cpu", "gpu"
    not_negative: tuple[str, ...] = ("lr", "weight_decay")
    check: Callable[[Mapping[str, Any]], None] | None = None  # raises ValueError on options that disagree

    @cached_property
    def saved(self) -> dict[str, State]:
        """The states in a ``state_dict``, by name."""
        lists = (state for kernel in self.kernels.values() for state in kernel.lists)
        return {state.name: state for state in lists if state is not None and state.saved}

    def check_options(self, options: Mapping[str, Any], reads_rate: bool) -> None:
        """Raise ValueError on numbers out of range; a rate on the GPU that no step reads here is not read."""
        lr = options["lr"]
        if isinstance(lr, Tensor) and lr.numel() != 1:
            raise ValueError(f"lr is a tensor of shape {tuple(lr.shape)}; needed one element")
        unread = () if reads_rate or not isinstance(lr, Tensor) or not multi_tensor.on_gpu(lr) else ("lr",)
        for name in self.not_negative:
            if name not in unread and not float(options[name]) >= 0:
                raise ValueError(f"{name} is {float(options[name])}; needed 0 or more")
        if options.get("state_dtype", torch.float32) not in (torch.float32, None):
            raise ValueError(
                f"state_dtype is {options['state_dtype']}; needed torch.float32, or None for that of each parameter"
            )
        if self.check is not None:
            self.check(options)


def state_dtype(group: Mapping[str, Any], param: Tensor) -> torch.dtype:
    """The dtype of a parameter's states."""
    return param.dtype if group.get("state_dtype", torch.float32) is None else torch.float32


# ---- numbers ----


option = operator.itemgetter  # of one option: its value


def zero(group: Group) -> float:
    """A column that the rule does not use."""
    return 0.0


def always(group: Group) -> float:
    """A flag that the rule has in every group."""
    return 1.0


def lacks(name: str) -> Number:
    """Whether an option is not set."""
    return lambda group: not group[name]


def beta(index: int) -> Number:
    """One of the two rates of decay."""
    return lambda group: group["betas"][index]


# ---- checks ----


def check_betas(options: Mapping[str, Any]) -> None:
    """Raise ValueError unless these are two numbers from 0 up to but not including 1, or two tensors of such."""
    betas = options["betas"]
    kinds = {isinstance(value, Tensor) for value in betas}
    fit = len(betas) == 2 and all(0 <= float(value) < 1 for value in betas if not _is_list(value))
    if not fit or len(kinds) > 1 or any(map(_is_list, betas)):
        raise ValueError(
            f"betas is {betas!r}; needed two numbers from 0 up to but not including 1, or two tensors with one each"
        )


def _is_list(value: Any) -> bool:
    return isinstance(value, Tensor) and value.numel() != 1


# ---- what most rows have ----
# The columns of a kernel: two betas, eps, the decay of the weights, and one more.

BETAS, EPS, DECAY = (beta(0), beta(1)), option("eps"), option("weight_decay")
MAXIMIZE = (option("maximize"), _updates.MAXIMIZE)
FIRST, SECOND = State("exp_avg"), State("exp_avg_sq")


def on_both(kernel: Kernel) -> dict[str, Kernel]:
    """The kernels of a rule that is the same on both devices."""
    return {"cpu": kernel, "gpu": kernel}
