"""Base of the CPU optimizers: one pass over memory per step, float32 states, state dicts compatible with torch."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from precast._dispatch.in_place import mark_written
from precast.ops import cpu_optim
from precast.ops._shards import is_dtensor, local_like, local_of, local_param, still_have
from precast.optim._gathered import FLOAT_TYPES, NEEDED_TYPES
from precast.optim._planned import PlannedOptimizer, light, loss_of, outside_dynamo
from precast.optim._rules import Group
from precast.optim._watched import State, is_watched
from precast.optim.cpu_plan import Item, Known, Plan, same

# One tensor per parameter, in group order, or a mapping from parameter to tensor; None skips a parameter.
PerParameter: TypeAlias = "Sequence[Tensor | None] | Mapping[Tensor, Tensor]"
Number: TypeAlias = "float | Tensor | None"
_dispatch_modes = torch._C._len_torch_dispatch_stack


class CPUOptimizer(PlannedOptimizer):
    """An optimizer for float32, float16 or bfloat16 parameters in CPU memory; a subclass has a rule and its options.

    One parallel region updates all parameters of all groups in one pass over memory. The arithmetic is in float32 for
    every dtype. The states are float32, or have the dtype of their parameter with ``state_dtype=None``.
    """

    device: ClassVar[str] = "cpu"
    _over_lists: ClassVar[Any] = cpu_optim
    _step_supports_amp_scaling: ClassVar[bool] = True  # makes GradScaler.step set grad_scale and found_inf
    _known: Known | None = None

    def _drop(self) -> None:
        self._known = None

    @light
    @outside_dynamo
    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        grads: PerParameter | None = None,
        copies: PerParameter | None = None,
        grad_scale: Number = None,
        clip_coef: Number = None,
        found_inf: Number = None,
    ) -> Any:
        """Update every parameter that has a gradient.

        Args:
            closure: computes the loss and its gradients again.
            grads: gradients to use instead of ``.grad``, in any of the dtypes; a list with one per parameter, or a
                mapping from parameter to gradient.
            copies: float16 or bfloat16 tensors that receive the rounded new parameters, in pinned memory too; a list
                or mapping as for ``grads``.
            grad_scale: the loss scale; gradients are divided by it as they are read, and are not modified. A step of
                ``GradScaler`` does not use this argument, and leaves gradients unscaled.
            clip_coef: gradients are multiplied by it as they are read.
            found_inf: if it is not 0, nothing is updated and no step is counted.

        Returns:
            The value that ``closure`` returned.

        Raises:
            RuntimeError: a tensor cannot be used; nothing was updated.
            ValueError: ``grads`` or ``copies`` do not match the parameters, or a number is out of range.
            precast.errors.KernelError: no kernel can be loaded or built here.
        """
        loss = loss_of(closure)
        scaler = getattr(self, "grad_scale", None)
        if scaler is not None:
            warn_of_late_copies(self._called, scaler)
        for found in (found_inf, getattr(self, "found_inf", None)):
            if found is not None and float(found) != 0:
                return loss
        scale = _factor(grad_scale, scaler, clip_coef)
        unscale = 0.0 if scaler is None else 1.0 / float(scaler)
        known, self._known = self._known, None
        try:
            if known is None or not self._step_again(known, grads, copies, scale, unscale):
                known = self._first_step(grads, copies, scale, unscale)
        finally:
            self._moved.clear()
        if known is not None and known.plan.kept:
            self._known = known
        return loss

    def _step_again(
        self,
        known: Known,
        grads: PerParameter | None,
        copies: PerParameter | None,
        scale: float,
        unscale: float,
    ) -> bool:
        """Run the plan of the last step. Return False, and change nothing, if the plan does not fit."""
        if _dispatch_modes() != 0:  # a mode sees the arguments alone, and a plan's op does not name what it writes
            return False
        if not self._looks_same() or self._kinds() != known.kinds or not still_have(known.plan.shards):
            return False
        params = known.params
        sharded = bool(known.plan.shards)
        if not same(self._given("copies", copies, params, sharded), known.copies):
            return False
        try:
            if grads is None and known.plan.run_again(scale, unscale, known.idle):
                return True
            given = self._given("grads", grads, params, sharded)
            if [grad is None for grad in given] != known.missing:
                return False
            known.plan.run(given, scale)
        except RuntimeError:  # a tensor has changed: the first step handles it, or raises a precise error
            return False
        _unscale(self._listed("grads", grads, params), unscale)
        return True

    @torch.no_grad()
    def _first_step(
        self, grads: PerParameter | None, copies: PerParameter | None, scale: float, unscale: float
    ) -> Known | None:
        """Make a plan and run it. New states are kept only on success. Return None if there is no gradient."""
        params = [param for group in self.param_groups for param in group["params"]]
        sharded = any(map(is_dtensor, params))
        given, targets = (
            self._given(name, values, params, sharded) for name, values in (("grads", grads), ("copies", copies))
        )
        items = list(self._items(params, given, targets))
        if not items:
            return None
        plan = Plan(self.ops, self.kernel, items)
        plan.run([item.grad for item in items], scale)
        _unscale(self._listed("grads", grads, params), unscale)
        for item in items:
            if item.fresh or (item.state and not is_watched(item.state, self._changed)):
                self.state[item.param] = State(item.state, self._changed)
        self._look()
        missing = [grad is None for grad in given]
        return Known(plan, params, targets, missing, list(compress(params, missing)), self._kinds())

    def _items(
        self, params: Sequence[Tensor], given: Sequence[Tensor | None], copies: Sequence[Tensor | None]
    ) -> Iterator[Item]:
        """Check every parameter that has a gradient. This changes nothing, so an error leaves the optimizer intact."""
        groups = (group for group in self.param_groups for _ in group["params"])
        targets = copies or [None] * len(params)
        for index, (group, param, grad, copy) in enumerate(zip(groups, params, given, targets, strict=True)):
            if grad is None:
                continue
            local = local_param(param)
            sparse = self.kernel.sparse and grad.is_sparse
            for tensor in (local, grad) if copy is None else (local, grad, copy):
                dense = tensor.layout is torch.strided or (sparse and tensor is grad)
                if not (tensor.is_cpu and dense and tensor.dtype in FLOAT_TYPES):
                    self._refuse(index, local, grad, copy)
                if tensor.shape != local.shape:
                    self._refuse(index, local, grad, copy)
            if copy is not None and copy.dtype is torch.float32:
                self._refuse(index, local, grad, copy)
            state = self.state.get(param) or {}
            new = self._new_state(group, param, state)
            fresh = bool(new)
            state = {**state, **new} if fresh else state
            if self.kernel.counts and not isinstance(state["step"], Tensor):
                state = {**state, "step": torch.tensor(float(state["step"]), dtype=torch.float32, device="cpu")}
                fresh = True
            rows = None
            if sparse:
                self._check_sparse(index, group)
                self._check_rows(index, grad._indices(), local.shape)  # coalesce crashes on a wrong one
                coalesced = grad.coalesce()  # an index that is there twice would be updated twice
                rows, grad = tuple(coalesced.indices()), coalesced.values()
            yield Item(index, group, param, local, grad, copy, self._states(group, param), state, fresh, rows)

    def _new_state(self, group: Group, param: Tensor, state: Mapping[str, Any]) -> dict[str, Any]:
        """The missing entries of a parameter's state."""
        counts = self.kernel.counts and "step" not in state
        count = {"step": torch.zeros((), dtype=torch.float32, device="cpu")} if counts else {}
        return count | {one.name: one.new(param, group) for one in self._missing(group, param, state)}

    def _check_sparse(self, index: int, group: Group) -> None:
        """Raise RuntimeError if the options need the elements that a sparse gradient lacks."""
        if group["weight_decay"] != 0:
            raise RuntimeError(
                f"{self._called}.step: parameter {self._place(index)}: its gradient is sparse, and weight_decay is "
                f"{float(group['weight_decay'])}; needed 0, or a dense gradient; nothing was updated"
            )

    def _check_rows(self, index: int, rows: Tensor, shape: Sequence[int]) -> None:
        """Raise RuntimeError if a sparse gradient has an index that the parameter lacks; torch may not have looked."""
        for indices, size in zip(rows, shape, strict=False):
            least, most = (int(found) for found in indices.aminmax()) if indices.numel() else (0, size - 1)
            if least < 0 or most >= size:
                raise RuntimeError(
                    f"{self._called}.step: parameter {self._place(index)}: its sparse gradient has index "
                    f"{least if least < 0 else most}; needed 0 to {size - 1}; nothing was updated"
                )

    def check_step(self, grads: PerParameter | None = None) -> None:
        """Raise what a step with these gradients would raise about its tensors, and change nothing."""
        known = self._known
        if grads is None and known is not None and self._looks_same() and known.plan.is_current(known.idle):
            return
        with torch.no_grad():
            params = [param for group in self.param_groups for param in group["params"]]
            given = self._given("grads", grads, params, any(map(is_dtensor, params)))
            list(self._items(params, given, []))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for param in group["params"]:
                values = self.state.get(param, {})
                if "step" in values:  # old checkpoints have a number, capturable optimizers a GPU tensor
                    values["step"] = torch.as_tensor(values["step"], dtype=torch.float32, device="cpu").clone()

    def _kinds(self) -> list[object]:
        """The states of each group."""
        return [self.kernel.states(group) for group in self.param_groups]

    def _given(
        self, name: str, values: PerParameter | None, params: Sequence[Tensor], sharded: bool
    ) -> list[Tensor | None]:
        """``grads`` or ``copies`` as local tensors, one per parameter. None means ``.grad``, or no copies."""
        if values is None and name == "copies":
            return []
        given = self._listed(name, values, params)
        if not sharded:
            return given
        what, moved = ("its gradient", self._moved) if name == "grads" else ("its copy", None)
        return [
            None if tensor is None else local_like(tensor, param, what, moved)
            for param, tensor in zip(params, given, strict=True)
        ]

    def _listed(self, name: str, values: PerParameter | None, params: Sequence[Tensor]) -> list[Tensor | None]:
        if values is None:
            return [param.grad for param in params]
        what = f"{self._called}.step"
        if isinstance(values, Mapping):
            unknown = len(values.keys() - set(params))
            if unknown:
                raise ValueError(
                    f"{what}: {unknown} keys of {name} are not parameters of this optimizer; needed only its parameters"
                )
            return [values.get(param) for param in params]
        if len(values) != len(params):
            raise ValueError(f"{what}: {name} has {len(values)} entries; needed {len(params)}, one per parameter")
        return list(values)

    def _refuse(self, index: int, param: Tensor, grad: Tensor, copy: Tensor | None) -> None:
        """Raise for the first problem of one parameter, its gradient or its copy."""
        tensors = {"it": param, "its gradient": grad, **({} if copy is None else {"its copy": copy})}
        sparse = "" if self.kernel.sparse or not grad.is_sparse else "; precast.optim.CPUAdagrad takes sparse gradients"
        for name, tensor in tensors.items():
            dtype, layout = (str(x).removeprefix("torch.") for x in (tensor.dtype, tensor.layout))
            wrong = {
                f"is on {tensor.device}; needed the CPU": not tensor.is_cpu,
                f"has layout {layout}; needed a dense tensor{sparse}": tensor.layout is not torch.strided
                and not (self.kernel.sparse and tensor is grad and tensor.is_sparse),
                f"is {dtype}; needed {NEEDED_TYPES}": tensor.dtype not in FLOAT_TYPES,
                "is float32; needed float16 or bfloat16": tensor is copy and tensor.dtype == torch.float32,
                f"has shape {tuple(tensor.shape)}; needed {tuple(param.shape)}": tensor.shape != param.shape,
            }
            for what, is_wrong in wrong.items():
                if is_wrong:
                    where = f"{self._called}.step: parameter {self._place(index)}"
                    raise RuntimeError(f"{where}: {name} {what}; nothing was updated")


def warn_of_late_copies(name: str, scale: Any) -> None:
    """Warn if torch's GradScaler has its scale on a GPU and looked at gradients on the CPU.

    GradScaler starts to copy the scale and its flag to the CPU, and uses the copies without waiting for them. Before
    the optimizer's step, a gradient can then get a wrong factor, and an infinity can be missed.
    """
    if isinstance(scale, Tensor) and not scale.is_cpu:
        warnings.warn(
            f"{name}.step: torch's GradScaler has its scale on {scale.device} and gradients on the CPU, which it may "
            "change by values that have not arrived yet (https://github.com/pytorch/pytorch/pull/176429); "
            "bfloat16 needs no GradScaler",
            RuntimeWarning,
            stacklevel=4,
        )


@torch.no_grad()
def _unscale(grads: Iterable[Tensor | None], by: float) -> None:
    """Multiply gradients in place, each once, unless the factor is 0; of DTensors, the local shards."""
    given = [grad for grad in grads if by != 0 and grad is not None]
    for local in {id(local): local for local in map(local_of, given)}.values():
        local.mul_(by)
    mark_written(filter(is_dtensor, given))


def _factor(scale: Number, scalers: Number, clip: Number) -> float:
    """The factor for the gradients."""
    divisor = (1.0 if scale is None else float(scale)) * (1.0 if scalers is None else float(scalers))
    if not 0 < divisor < math.inf:
        raise ValueError(f"grad_scale is {divisor}; needed a positive number")
    factor = 1.0 if clip is None else float(clip)
    if not 0 <= factor < math.inf:
        raise ValueError(f"clip_coef is {factor}; needed 0 or more")
    return factor / divisor
