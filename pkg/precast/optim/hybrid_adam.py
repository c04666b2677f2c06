"""Adam and AdamW for parameters on the CPU and on a GPU, with the states of GPU parameters where memory allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import is_
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor

from precast.ops import multi_tensor
from precast.ops._shards import is_dtensor
from precast.optim import _gathered
from precast.optim._planned import TorchsKeys, light, loss_of, options_of, outside_dynamo
from precast.optim._rules import Rule
from precast.optim._watched import Seen
from precast.optim.adam import ADAMW, CPUAdam, FusedAdam
from precast.optim.cpu_base import warn_of_late_copies

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT

# Without torch's wrapper, which calls the global hooks: they are for this optimizer.
_STEP_ON_GPU: Callable[..., Any] = cast("Any", FusedAdam.step).__wrapped__
_STEP_ON_CPU: Callable[..., Any] = cast("Any", CPUAdam.step).__wrapped__
_device: Callable[[Tensor], int] = torch._C.TensorBase.get_device  # -1 on the CPU; comparing torch.device is slow


class HybridAdam(TorchsKeys):
    """AdamW (``adamw_mode=True``) or Adam for parameters on the CPU and on one GPU, in one optimizer.

    Parameters on the GPU step in one launch, as in :class:`FusedAdam`, and parameters on the CPU in one pass, as in
    :class:`CPUAdam`. If a parameter moves to another device between steps, its states move too. If the states of GPU
    parameters need more than ``gpu_bytes``, the rest of the states is kept on the CPU: their gradients are copied to
    the CPU and the new parameters back, while the GPU updates the others. ``gpu_bytes`` may be changed between steps.
    ``state_dict`` has the entries of ``torch.optim.AdamW``.

    Args:
        params: parameters on the CPU and one GPU, or dicts of groups; float32, float16, bfloat16 or any mix of them.
        lr: learning rate, 0 or more.
        bias_correction: divide the averages by ``1 - beta**step``.
        betas: decay rates of the averages of the gradient and of its square; from 0 up to but not including 1.
        eps: added to the denominator; 0 or more.
        weight_decay: 0 or more.
        adamw_mode: decay the parameter itself (AdamW) instead of adding the decay to the gradient (Adam).
        amsgrad: use the largest average of squares so far.
        maximize: maximize the objective instead of minimizing it.
        state_dtype: dtype of the states: ``torch.float32``, or None for that of each parameter.
        gpu_bytes: the maximum GPU memory for states, used in the order of the parameters. None: no limit.

    Raises:
        ValueError: an option is out of range.

    Example::

        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))  # the first may be on a GPU
        optimizer = precast.optim.HybridAdam(model.parameters(), lr=1e-3, gpu_bytes=8 << 30)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    """

    rule: ClassVar[Rule] = ADAMW
    _step_supports_amp_scaling: ClassVar[bool] = True  # makes GradScaler.step set grad_scale and found_inf

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        adamw_mode: bool = True,
        *,
        amsgrad: bool = False,
        maximize: bool = False,
        state_dtype: torch.dtype | None = torch.float32,
        gpu_bytes: int | None = None,
    ) -> None:
        options = options_of(locals())
        options["decoupled_weight_decay"] = options.pop("adamw_mode")
        del options["gpu_bytes"]  # of the optimizer, not of a group
        if gpu_bytes is not None and not gpu_bytes >= 0:
            raise ValueError(f"gpu_bytes is {gpu_bytes}; needed 0 or more, or None")
        self.gpu_bytes = gpu_bytes
        self._sides: _Sides | None = None
        super().__init__(params, options)

    @light
    @outside_dynamo
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient.

        Args:
            closure: computes the loss and its gradients again.

        Returns:
            The value that ``closure`` returned.

        Raises:
            RuntimeError: a tensor cannot be used, or a CUDA graph is captured and parameters step on the CPU.
            precast.errors.KernelError: no kernel can be loaded or built here.
        """
        loss = loss_of(closure)
        sides = self._current()
        scaling = {name: getattr(self, name, None) for name in ("grad_scale", "found_inf")}  # of GradScaler
        scaled = scaling["grad_scale"] is not None
        if scaled and any(param.is_cpu and param.grad is not None for param in sides.params):
            warn_of_late_copies(type(self).__name__, scaling["grad_scale"])
        if sides.cpu is not None and _gathered.capturing():
            raise RuntimeError(
                "HybridAdam.step: a graph is captured, but parameters step on the CPU, which a replay would leave out; "
                "needed: all parameters and their states on the GPU"
            )
        fetched = self._fetch(sides)
        grads = sides.grads()
        if sides.gpu is not None:
            if sides.cpu is not None:
                sides.cpu.check_step(grads)  # before the other side writes anything
            vars(sides.gpu).update(scaling)
            _STEP_ON_GPU(sides.gpu)
        if sides.cpu is not None:
            self._step_on_cpu(sides, sides.cpu, grads, fetched, scaling)
        if not sides.still(self.state):
            for param, own, side in sides.owners():
                state = side.state.get(own)
                if state and self.state.get(param) is not state:
                    self.state[param] = state
            sides.look(self.state)
        return loss

    @torch.no_grad()
    def _fetch(self, sides: _Sides) -> Callable[[], Any]:
        """Start to copy offloaded parameters and gradients to the CPU; the result waits for them."""
        moving = sides.moving()
        for one in moving:
            one.fetch()
        kind = moving[0].param.device.type if moving else "cpu"
        if kind == "cpu":
            return lambda: None
        event = getattr(torch, kind).Event()
        event.record(getattr(torch, kind).current_stream(moving[0].param.device))
        wait: Callable[[], Any] = event.synchronize
        return wait

    def _step_on_cpu(
        self,
        sides: _Sides,
        cpu: CPUAdam,
        grads: dict[Tensor, Tensor] | None,
        fetched: Callable[[], Any],
        scaling: dict[str, Any],
    ) -> None:
        vars(cpu).update({name: _on(value, torch.device("cpu")) for name, value in scaling.items()})
        if grads is None:
            _STEP_ON_CPU(cpu)
            return
        fetched()
        _STEP_ON_CPU(cpu, grads=grads)
        with torch.no_grad():
            for one in sides.moving():
                one.param.copy_(one.host, non_blocking=True)
                if (
                    getattr(self, "grad_scale", None) is not None
                    and one.param.grad is not None
                    and one.grad is not None
                ):
                    one.param.grad.copy_(one.grad, non_blocking=True)  # the step has unscaled it

    # ---- who steps where ----

    def _current(self) -> _Sides:
        """The optimizers of both sides, with the options and states of this one."""
        params = [param for group in self.param_groups for param in group["params"]]
        devices = list(map(_device, params))
        sides = self._sides
        placed = sides is not None and sides.gpu_bytes == self.gpu_bytes and sides.devices == devices
        if sides is None or not placed or not all(map(is_, sides.params, params)):
            sides = self._sides = _Sides(self, params, devices)
        for side in sides.both:
            for theirs, ours in zip(side.param_groups, self.param_groups, strict=True):
                theirs.update(_options(ours))
        if sides.still(self.state):
            return sides
        for param, own, side in sides.owners():
            state = self.state.get(param)
            if state is not None and side.state.get(own) is not state:
                side.state[own] = _moved(state, own.device)
            elif not state and own in side.state:
                del side.state[own]
        return sides

    def offloaded(self) -> list[Tensor]:
        """The GPU parameters whose states do not fit into ``gpu_bytes``."""
        left = float("inf") if self.gpu_bytes is None else self.gpu_bytes
        kept = self.rule.kernels["gpu"]
        found = []
        for group in self.param_groups:
            for param in filter(multi_tensor.on_gpu, group["params"]):
                width = 4 if group["state_dtype"] is not None else param.element_size()
                needed = param.numel() * width * sum(state is not None for state in kept.states(group))
                if needed > left:
                    found.append(param)
                else:
                    left -= needed
        return found

    # ---- the interface of torch.optim ----

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; missing options come from the constructor. Raises ValueError on values out of range."""
        super().add_param_group(param_group)
        self._sides = None

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {**state, "gpu_bytes": self.gpu_bytes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._sides = None
        super().__setstate__(state)


@dataclass
class _Offloaded:
    """A GPU parameter that steps on the CPU. It is read before each step, because others may have changed it."""

    param: Tensor
    host: Tensor
    grad: Tensor | None = None

    def fetch(self) -> None:
        """Start to copy the parameter and its gradient."""
        found = self.param.grad
        assert found is not None
        if found.layout is not torch.strided:
            layout = str(found.layout).removeprefix("torch.")
            raise RuntimeError(
                f"HybridAdam.step: a gradient has layout {layout}, and its states do not fit into gpu_bytes; needed a "
                "dense tensor; nothing was updated"
            )
        if self.grad is None or self.grad.dtype != found.dtype:
            self.grad = torch.empty_like(self.host, dtype=found.dtype, pin_memory=self.host.is_pinned())
        self.host.copy_(self.param, non_blocking=True)
        self.grad.copy_(found, non_blocking=True)


class _Sides:
    """The optimizers of the GPU and of the CPU, with one group for each of the owner's; None without parameters."""

    def __init__(self, owner: HybridAdam, params: list[Tensor], devices: list[int]) -> None:
        self.params, self.devices, self.gpu_bytes = params, devices, owner.gpu_bytes
        self._seen: list[Seen] = []
        self.offloaded = [_Offloaded(param, _host(param)) for param in owner.offloaded()]
        self._own = {one.param: one.host for one in self.offloaded}
        self._on_gpu = {param for param in params if multi_tensor.on_gpu(param) and param not in self._own}
        self.gpu = FusedAdam(self._groups(owner, True)) if self._on_gpu else None
        self.cpu = CPUAdam(self._groups(owner, False)) if len(self._on_gpu) < len(params) else None
        for side in self.both:
            on_gpu = side is self.gpu
            places = [i for i, param in enumerate(params) if (param in self._on_gpu) is on_gpu]
            side.work_for(type(owner).__name__, places)

    def moving(self) -> list[_Offloaded]:
        """The offloaded parameters that have a gradient."""
        return [one for one in self.offloaded if one.param.grad is not None]

    def grads(self) -> dict[Tensor, Tensor] | None:
        """The gradients for the CPU, of which the offloaded are on their way; None if each parameter has its own."""
        if self.cpu is None or not self.offloaded:
            return None
        params = (param for group in self.cpu.param_groups for param in group["params"])
        found = {param: param.grad for param in params if param.grad is not None}
        return found | {one.host: one.grad for one in self.moving() if one.grad is not None}

    def look(self, state: dict[Tensor, Any]) -> None:
        """Remember the states of the owner and of both optimizers."""
        self._seen = [Seen(one, _unheard) for one in (state, *(side.state for side in self.both))]

    def still(self, state: dict[Tensor, Any]) -> bool:
        """Whether the states are the remembered ones; without a look-up for each parameter."""
        states = (state, *(side.state for side in self.both))
        return len(self._seen) == len(states) and all(map(Seen.still, self._seen, states))

    @property
    def both(self) -> Iterator[FusedAdam | CPUAdam]:
        """The optimizers of the two devices, without a missing one."""
        return (side for side in (self.gpu, self.cpu) if side is not None)

    def owners(self) -> Iterator[tuple[Tensor, Tensor, Any]]:
        """Each parameter, the tensor that steps for it, and that tensor's optimizer."""
        for param in self.params:
            yield param, self._own.get(param, param), self.gpu if param in self._on_gpu else self.cpu

    def _groups(self, owner: HybridAdam, on_gpu: bool) -> list[dict[str, Any]]:
        return [
            {
                **_options(group),
                "params": [self._own.get(p, p) for p in group["params"] if (p in self._on_gpu) is on_gpu],
            }
            for group in owner.param_groups
        ]


def _options(group: dict[str, Any]) -> dict[str, Any]:
    """A group's options under the names of both optimizers, without the parameters."""
    found = {name: value for name, value in group.items() if name != "params"}
    return {**found, "decoupled": group["decoupled_weight_decay"]}


def _host(param: Tensor) -> Tensor:
    if is_dtensor(param):
        raise RuntimeError(
            "HybridAdam: the states of a DTensor do not fit into gpu_bytes, and only plain tensors can be offloaded; "
            "needed a larger gpu_bytes, or None"
        )
    return torch.empty_like(param, device="cpu", requires_grad=False, pin_memory=param.is_cuda)


def _moved(state: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """A state for a parameter on this device; the step count stays a float32 number."""
    return {
        name: torch.as_tensor(value, dtype=torch.float32, device=device).clone()
        if name == "step"
        else _on(value, device)
        for name, value in state.items()
    }


def _on(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value


def _unheard() -> None:
    """A callback to which no list or dict reports changes, so each of them is compared."""
