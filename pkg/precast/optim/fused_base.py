"""The base of the GPU optimizers, which keep a plan between steps and update parameters of the same kind in one launch.

A plan holds the addresses and dtypes of parameters, gradients and states. Before each step, one call into C++ compares
it with the tensors. If only gradients have moved, it updates their addresses; any other change makes a new plan. The
step count, the loss scale and the decision to skip an overflow stay on the GPU. So the host need not wait for the GPU,
and a CUDA graph can capture ``step``.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor

from precast._dispatch.formulas import are_bare
from precast._dispatch.in_place import mark_written, show_written
from precast.ops import multi_tensor
from precast.ops._shards import is_dtensor, local_of, local_param, shards_of, still_have, summed
from precast.ops.multi_tensor import STALE, UNCOUNTED
from precast.optim import _gathered
from precast.optim._gathered import Signature, Work, check_memory, gather, local_grads
from precast.optim._planned import PlannedOptimizer, light, loss_of, outside_dynamo
from precast.optim._watched import State, is_watched

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT

    from precast.optim._rules import State as Listed

_group_params = operator.itemgetter("params")


@dataclass(frozen=True, eq=False)  # no slots: a weak reference tells when a plan is unused
class Plan:
    """A plan on the C++ side, and the data that Python passes with it."""

    number: int
    signature: Signature
    written: tuple[Tensor, ...]  # the model's parameters: a step raises their version counters
    listed: bool  # the step passes gradients explicitly, because some are not plain `.grad` tensors
    idle: tuple[Tensor, ...]  # parameters without a gradient
    shards: list[tuple[Any, Tensor]]  # the DTensors and their local tensors; if any, norms are over all shards
    held: tuple[Tensor, ...]  # local tensors that the C++ side uses again without references of its own


class FusedOptimizer(PlannedOptimizer):
    """An optimizer on the GPU; a subclass has a rule, and its constructor names the rule's options."""

    device: ClassVar[str] = "gpu"
    _over_lists: ClassVar[Any] = multi_tensor
    _reads_rate: ClassVar[bool] = False  # it would wait for the GPU
    _step_supports_amp_scaling: ClassVar[bool] = True  # makes GradScaler.step set grad_scale and found_inf
    _norm: Tensor | None = None  # of the current step's gradients, over all shards

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        max_grad_norm = defaults.pop("max_grad_norm", None)  # of the optimizer, not of a group
        if max_grad_norm is not None and not max_grad_norm > 0:
            raise ValueError(f"max_grad_norm is {max_grad_norm}; needed a positive number, or None")
        self.max_grad_norm = max_grad_norm
        self._plans: list[Plan] | None = None
        self._steps: Tensor | None = None  # one per parameter, in group order; each state has a view
        self._views: tuple[Tensor, ...] = ()
        self._kept: list[Plan] = []  # plans that CUDA graphs have captured
        self._numbers: tuple[Any, Tensor] = (None, torch.empty(0, device="cpu"))
        super().__init__(params, defaults)

    # ---- the step ----

    @light
    @outside_dynamo
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient.

        Args:
            closure: computes the loss and its gradients again.

        Returns:
            The value that ``closure`` returned.

        Raises:
            RuntimeError: a tensor cannot be used; nothing was updated.
            ValueError: ``max_grad_norm`` is set, and the parameter groups need more than one launch.
            precast.errors.KernelError: no kernel can be loaded or built here.
        """
        loss = loss_of(closure)
        try:
            self._run_all()
        finally:
            self._norm = None
            self._moved.clear()
        return loss

    def _run_all(self) -> None:
        done: set[Signature] = set()
        for plan in self._current_plans():
            if self._run(plan):
                done.add(plan.signature)
                continue
            for anew in self._replan():
                # The second try passes the gradients in a list, so that the dispatcher handles any kind of tensor.
                if anew.signature not in done and not self._run(anew) and not self._run(anew, listed=True):
                    raise RuntimeError(
                        f"{self._called}.step: the parameters, their gradients or states change while the step "
                        "is made; needed: one thread at a time for one optimizer"
                    )
            break

    def _run(self, plan: Plan, *, listed: bool = False) -> bool:
        """Call the op once. Return False, and change nothing, if the plan does not match the tensors."""
        grads: list[Tensor] = []
        if plan.listed or listed:
            if any(param.grad is not None for param in plan.idle):
                return False
            found = local_grads(plan.written, self._moved)
            if found is None or not still_have(plan.shards):  # last, so that every rank has redistributed the same
                return False
            grads = found
        kernel, sharded = self.kernel, bool(plan.shards)
        norm = self._norm_of_shards(plan, grads) if sharded and self.max_grad_norm else None
        sums = None
        if sharded and kernel.apply is not None:
            sums = torch.zeros(2 * len(grads), device=grads[0].device)
        groups, rates = self._group_numbers()
        steps = cast("Tensor", self._steps)
        found_inf, scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        most, flags = self.max_grad_norm or 0.0, plan.signature.flags
        numbers = (steps, groups, rates, found_inf, scale, most)
        show_written(chain(plan.written, (cast("Tensor", param.grad) for param in plan.written if scale is not None)))
        outcome = self.ops.step_(plan.number, grads, *numbers, kernel.number, flags, norm, sums)
        if outcome == STALE:
            return False
        if sums is not None:
            total = summed(sums.view(-1, 2), plan.written).flatten()
            self.ops.step_(plan.number, grads, *numbers, kernel.apply, flags, norm, total)
        if outcome == UNCOUNTED:
            mark_written(plan.written)
            if scale is not None:
                self._unscaled(plan, grads, scale)
        if _gathered.capturing() and plan not in self._kept:
            self._kept.append(plan)
        return True

    @torch.no_grad()
    def _unscaled(self, plan: Plan, grads: list[Tensor], scale: Tensor) -> None:
        """Unscale the gradients that the kernel could not, because the op got a copy, and count the changes."""
        wholes = [cast("Tensor", param.grad) for param in plan.written]
        owns = list(map(local_of, wholes))
        for param, own, given in zip(plan.written, owns, grads, strict=False):
            if param in self._moved or (given is own and not are_bare((own,))):
                found = getattr(self, "found_inf", None)
                factor = 1 / scale if found is None else torch.where(found == 0, 1 / scale, 1.0)
                own.copy_(own.float() * factor)  # in its dtype, the factor may be 0
            elif given is not own:
                own.copy_(given)
        mark_written([*owns, *filter(is_dtensor, wholes)])

    def _norm_of_shards(self, plan: Plan, grads: list[Tensor]) -> Tensor:
        """The norm of all gradients on all ranks; only one collective per step, even if this rank plans again."""
        if self._norm is None:
            _, squares = multi_tensor.multi_tensor_l2norm(grads)
            self._norm = summed(squares, plan.written).sum().sqrt()
        return self._norm

    def _group_numbers(self) -> tuple[Tensor, list[Tensor]]:
        """A table of the groups' numbers, and the learning rates as tensors if one of them is on the GPU."""
        rates = [group["lr"] for group in self.param_groups]
        on_gpu = any(isinstance(rate, Tensor) and multi_tensor.on_gpu(rate) for rate in rates)
        key = [
            (0.0 if on_gpu else float(rate), *map(float, self.kernel.values(group)))
            for rate, group in zip(rates, self.param_groups, strict=True)
        ]
        if key != self._numbers[0]:
            self._numbers = (key, torch.tensor(key, dtype=torch.float64, device="cpu"))
        if not on_gpu:
            return self._numbers[1], []
        like = cast("Tensor", self._steps)
        return self._numbers[1], [torch.as_tensor(rate, dtype=like.dtype, device=like.device) for rate in rates]

    # ---- plans ----

    def _current_plans(self) -> list[Plan]:
        """The existing plans, or new ones after a change that only Python can see."""
        plans = self._plans
        if (
            plans is not None
            and self._looks_same()
            and [self._signature_of(group) for group in self.param_groups] == self._signatures
        ):
            return plans
        return self._replan()

    def _signature_of(self, group: dict[str, Any]) -> Signature:
        kernel = self.kernel
        return Signature(kernel.bits(group), kernel.states(group), bool(group.get("master_weights", False)))

    def _replan(self) -> list[Plan]:
        """Make a plan for each signature, over the parameters that have a gradient now, and create missing states."""
        self._drop()
        name = self._called
        works, idle = gather(name, self.param_groups, self._signature_of, self._moved, self._place)
        if self.max_grad_norm is not None and len(works) > 1:
            raise ValueError(
                f"{name}: max_grad_norm is one norm of all gradients, but the parameters need {len(works)} launches, "
                "as they differ in maximize, amsgrad or the like; needed groups that agree, or "
                "precast.ops.clip_grad_norm_ before the step"
            )
        with torch.no_grad():
            if works:
                self._prepare_steps(next(iter(works.values())).params[0].device)
            plans = [self._plan(signature, work, idle) for signature, work in works.items()]
        self._look()
        self._signatures = [self._signature_of(group) for group in self.param_groups]
        self._plans = plans or None  # an empty list would hide the next gradient
        return plans

    def _plan(self, signature: Signature, work: Work, idle: list[Tensor]) -> Plan:
        params = [local_param(param) for param in work.params]
        for param, group, slot in zip(work.params, work.groups, work.slots, strict=True):
            self._complete(param, self.param_groups[group], slot)
        states = [self.state[param] for param in work.params]
        lists = [self._list(state, work.params, params) for state in signature.states]
        masters = [local_of(state["master_param"]) for state in states] if work.masters else []
        named = {"parameter": params, "master_param of parameter": masters}
        named |= {
            f"{s.name} of parameter": own for s, own in zip(signature.states, lists, strict=True) if s is not None
        }
        for what, tensors in named.items():
            check_memory(self._called, what, tensors)
        number = self.ops.plan(
            masters or params,
            work.grads,
            *lists,
            params if masters else [],
            [] if work.listed else idle,
            torch.tensor(list(zip(work.groups, work.slots, strict=True)), dtype=torch.int32, device="cpu"),
        )
        shards = shards_of(chain(work.params, *(state.values() for state in states)))
        held = (*params, *masters, *chain(*lists))
        plan = Plan(number, signature, tuple(work.params), work.listed, tuple(idle), shards, held)
        # Releases the C++ side's data, however the optimizer ends.
        weakref.finalize(plan, self.ops.forget, number, self._steps).atexit = False
        return plan

    def _list(self, state: Listed | None, params: list[Tensor], local: list[Tensor]) -> list[Tensor]:
        """One of the op's lists: the local states, or new memory for what a step alone needs."""
        if state is None:
            return []
        if not state.saved:
            return [state.new(param, {}) for param in local]
        none = torch.empty(0, device=local[0].device)  # of a parameter whose shape has no such state
        return [state.of(param, self.state[param]) if state.exists(param) else none for param in params]

    def _complete(self, param: Tensor, group: dict[str, Any], slot: int) -> None:
        """Create the missing states of one parameter; its step count is a view into one tensor for all parameters."""
        state = self.state[param]
        missing = self._missing(group, param, state)
        master = group.get("master_weights", False) and param.dtype != torch.float32
        if missing or (master and "master_param" not in state):
            if _gathered.capturing():
                raise RuntimeError(
                    f"{self._called}.step: a graph is captured, and the states of a parameter do not exist yet: "
                    "each replay would start over; needed: one step before the capture"
                )
            state.update({one.name: one.new(param, group) for one in missing})
            if master and "master_param" not in state:
                state["master_param"] = param.detach().float()
        view = self._views[slot]
        if state.get("step") is not view:
            # torch's SGD keeps no step count; an existing momentum buffer means that there was a step.
            had = not missing and any(self._states(group, param))
            before = state.get("step", float(had))
            view.copy_(torch.as_tensor(before, dtype=torch.float32))
            state["step"] = view
        if not is_watched(state, self._changed):
            self.state[param] = State(state, self._changed)

    def _prepare_steps(self, device: torch.device) -> None:
        count = sum(map(len, map(_group_params, self.param_groups)))
        if self._steps is None or self._steps.numel() != count or self._steps.device != device:
            self._steps = torch.zeros(count, dtype=torch.float32, device=device)
            self._views = self._steps.unbind()

    def _drop(self) -> None:
        """Drop the plans and the tensors that they hold."""
        self._plans = None

    # ---- the interface of torch.optim ----

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of this class or of the ``torch.optim`` class that it replaces."""
        super().load_state_dict(state_dict)
        self._drop()

    def _loaded_dtype(self, name: str, group: dict[str, Any], param: Tensor) -> torch.dtype | None:
        if param.dtype == torch.float32:
            return None
        return torch.float32 if name == "master_param" else super()._loaded_dtype(name, group, param)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {**state, "max_grad_norm": self.max_grad_norm}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_kept" not in self.__dict__:  # created by copy or pickle, without __init__
            self._plans, self._steps, self._views, self._kept = None, None, (), []
            self._numbers = (None, torch.empty(0, device="cpu"))
        super().__setstate__(state)
