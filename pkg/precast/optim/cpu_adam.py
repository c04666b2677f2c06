"""Adam and AdamW for parameters in CPU memory, in mixed precision, one pass per step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar, TypeAlias, TypeVar, cast

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim import Optimizer

from precast.extension.compat import CPUAdamOptimizer
from precast.ops.adam import adam_

__all__ = ["CPUAdam", "CPUAdamOptimizer"]

FLOAT_TYPES = (torch.float32, torch.float16, torch.bfloat16)

# One tensor per parameter, in the order of the parameter groups, or looked up by parameter; None leaves one out.
PerParameter: TypeAlias = "Sequence[Tensor | None] | Mapping[Tensor, Tensor]"

_Function = TypeVar("_Function", bound=Callable[..., Any])
# Imports Dynamo at the first call, where torch.compiler.disable would import it here.
_outside_dynamo = cast("Callable[[_Function], _Function]", _disable_dynamo)


class CPUAdam(Optimizer):
    """AdamW (``decoupled=True``) or Adam with the decay added to the gradient, over float32, float16 or bfloat16.

    The arithmetic is float32 whatever the tensors are. The moments are float32 too, or, with ``state_dtype=None``, of
    their parameter's dtype, as ``torch.optim`` keeps them. The usual mixed-precision loop, float32 masters updated from
    low-precision gradients and rounded into the model in the same pass::

        optimizer = CPUAdam(masters)
        optimizer.step(grads=[p.grad for p in model.parameters()], copies=list(model.parameters()))

    ``state_dict`` has the entries of ``torch.optim.AdamW``; each loads the other's. ``GradScaler`` is served without an
    extra pass: gradients are unscaled as they are read, and stay as they are.
    """

    _step_supports_amp_scaling: ClassVar[bool] = True  # GradScaler.step then hands over grad_scale and found_inf

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled: bool = True,
        *,
        maximize: bool = False,
        state_dtype: torch.dtype | None = torch.float32,
    ) -> None:
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**options, "decoupled": decoupled, "maximize": maximize, "state_dtype": state_dtype})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group; what it does not set comes from the constructor. Raises ValueError on values out of range."""
        _check_options({**self.defaults, **param_group})
        super().add_param_group(param_group)

    @_outside_dynamo
    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        grads: PerParameter | None = None,
        copies: PerParameter | None = None,
        grad_scale: float | Tensor | None = None,
    ) -> Any:
        """Updates every parameter that has a gradient, and returns what ``closure`` returned.

        ``grads`` are used in place of ``.grad``, and may be of another dtype than their parameters. ``copies`` receive
        the new parameters, rounded to their own dtype. Gradients are divided by ``grad_scale`` (the loss scale). Raises
        before anything is written if any of the tensors cannot be used.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        found_inf = getattr(self, "found_inf", None)
        if found_inf is not None and float(found_inf) != 0:
            return loss
        scale = _number(grad_scale) * _number(getattr(self, "grad_scale", None))
        if not 0 < scale < math.inf:
            raise ValueError(f"grad_scale is {scale}; needed a positive number")
        with torch.no_grad():
            work = list(self._work(grads, copies))
            for batch in self._batches(work):
                batch.run(scale)
        return loss

    def _work(self, grads: PerParameter | None, copies: PerParameter | None) -> Iterator[_Item]:
        """Every parameter with a gradient, checked. Nothing is changed here, so that an error leaves all as it was."""
        params = [param for group in self.param_groups for param in group["params"]]
        given = [param.grad for param in params] if grads is None else _per_parameter("grads", grads, params)
        targets = [None] * len(params) if copies is None else _per_parameter("copies", copies, params)
        groups = (group for group in self.param_groups for _ in group["params"])
        for index, (group, param, grad, copy) in enumerate(zip(groups, params, given, targets, strict=True)):
            if grad is not None:
                for tensor in (param, grad) if copy is None else (param, grad, copy):
                    if not (tensor.is_cpu and tensor.layout is torch.strided and tensor.dtype in FLOAT_TYPES):
                        _refuse(index, param, grad, copy)
                    if tensor.shape != param.shape:
                        _refuse(index, param, grad, copy)
                if copy is not None and copy.dtype is torch.float32:
                    _refuse(index, param, grad, copy)
                yield _Item(group, param, grad, copy)

    def _batches(self, work: Iterable[_Item]) -> Iterable[_Batch]:
        """The items that share every number, together."""
        batches: dict[tuple[int, float, bool], _Batch] = {}
        for item in work:
            state = self.state[item.param]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32)
                for name in ("exp_avg", "exp_avg_sq"):
                    state[name] = torch.zeros_like(item.param, dtype=_moment_dtype(item.group, item.param))
            step = state["step"].item() + 1
            key = (id(item.group), step, item.copy is None)
            if key not in batches:
                batches[key] = _Batch(item.group, step)
            batches[key].add(item, state)
        return batches.values()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state of this class or of ``torch.optim.AdamW`` or ``Adam`` (without amsgrad)."""
        seen: dict[str, Any] = {}
        # The last hook sees what the others made of it.
        handle = self.register_load_state_dict_pre_hook(lambda _, loaded: seen.update(loaded))
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
        # The base class has cast the moments to the parameters' dtype; with low-precision parameters that loses them.
        saved_ids = chain.from_iterable(group["params"] for group in seen["param_groups"])
        params = ((group, param) for group in self.param_groups for param in group["params"])
        for saved_id, (group, param) in zip(saved_ids, params, strict=True):
            saved = seen["state"].get(saved_id, {})
            for name in saved.keys() & {"exp_avg", "exp_avg_sq"}:
                self.state[param][name] = saved[name].to(param.device, _moment_dtype(group, param), copy=True)

    def __setstate__(self, state: dict[str, Any]) -> None:
        if any(group.get("amsgrad", False) for group in state["param_groups"]):
            raise ValueError(
                "CPUAdam cannot load this state: it was made with amsgrad=True, which CPUAdam does not have"
            )
        super().__setstate__(state)
        for group in self.param_groups:
            # AdamW and Adam of torch say it with their class or with decoupled_weight_decay.
            group.setdefault("decoupled", group.get("decoupled_weight_decay", self.defaults["decoupled"]))
            for name in ("maximize", "state_dtype"):
                group.setdefault(name, self.defaults[name])
            for param in group["params"]:
                values = self.state.get(param, {})
                if "step" in values:  # a number in states saved long ago; on the GPU in those of capturable optimizers
                    values["step"] = torch.as_tensor(values["step"], dtype=torch.float32, device="cpu").clone()


@dataclass(frozen=True, slots=True)
class _Item:
    group: dict[str, Any]
    param: Tensor
    grad: Tensor
    copy: Tensor | None


@dataclass(frozen=True, slots=True)
class _Batch:
    """Parameters that one call of the op updates."""

    group: dict[str, Any]
    step: float
    steps: list[Tensor] = field(default_factory=list)
    params: list[Tensor] = field(default_factory=list)
    grads: list[Tensor] = field(default_factory=list)
    exp_avgs: list[Tensor] = field(default_factory=list)
    exp_avg_sqs: list[Tensor] = field(default_factory=list)
    copies: list[Tensor] = field(default_factory=list)
    written_back: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def add(self, item: _Item, state: dict[str, Tensor]) -> None:
        param, grad, copy, m, v = item.param, item.grad, item.copy, state["exp_avg"], state["exp_avg_sq"]
        flat = param.is_contiguous() and m.is_contiguous() and v.is_contiguous()
        if not (flat and (copy is None or copy.is_contiguous())):
            # The op takes flat ranges. Dimensions in the order of their strides make one of a channels_last tensor
            # without moving anything; what still has gaps is updated in a copy.
            order = sorted(range(param.dim()), key=param.stride, reverse=True)
            grad = grad.permute(order)
            param, m, v = (self._flat(tensor.permute(order)) for tensor in (param, m, v))
            copy = None if copy is None else self._flat(copy.permute(order))
        self.params.append(param)
        self.grads.append(grad)
        self.exp_avgs.append(m)
        self.exp_avg_sqs.append(v)
        if copy is not None:
            self.copies.append(copy)
        self.steps.append(state["step"])

    def _flat(self, tensor: Tensor) -> Tensor:
        flat = tensor.contiguous()
        if flat is not tensor:
            self.written_back.append((tensor, flat))
        return flat

    def run(self, scale: float) -> None:
        group = self.group
        beta1, beta2 = map(float, group["betas"])
        adam_(
            self.params,
            self.grads,
            self.exp_avgs,
            self.exp_avg_sqs,
            self.copies,
            lr=float(group["lr"]),
            beta1=beta1,
            beta2=beta2,
            eps=float(group["eps"]),
            weight_decay=float(group["weight_decay"]),
            bias_correction1=1 - beta1**self.step,
            bias_correction2=1 - beta2**self.step,
            grad_scale=1 / scale,
            decoupled=group["decoupled"],
            maximize=group["maximize"],
        )
        for tensor, flat in self.written_back:
            tensor.copy_(flat)
        torch._foreach_add_(self.steps, 1)


def _moment_dtype(group: Mapping[str, Any], param: Tensor) -> torch.dtype:
    return param.dtype if group["state_dtype"] is None else torch.float32


def _check_options(options: Mapping[str, Any]) -> None:
    lr, betas = options["lr"], options["betas"]
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError(f"lr is a tensor of shape {tuple(lr.shape)}; needed one element")
    for name, value in {"lr": lr, "eps": options["eps"], "weight_decay": options["weight_decay"]}.items():
        if not float(value) >= 0:
            raise ValueError(f"{name} is {float(value)}; needed 0 or more")
    if len(betas) != 2 or not all(0 <= float(beta) < 1 for beta in betas):
        raise ValueError(f"betas is {betas!r}; needed two numbers from 0 up to but not including 1")
    if options["state_dtype"] not in (torch.float32, None):
        raise ValueError(f"state_dtype is {options['state_dtype']}; needed torch.float32, or None: as the parameter")


def _number(scale: float | Tensor | None) -> float:
    return 1.0 if scale is None else float(scale)


def _per_parameter(name: str, values: PerParameter, params: Sequence[Tensor]) -> list[Tensor | None]:
    if isinstance(values, Mapping):
        unknown = len(values.keys() - set(params))
        if unknown:
            raise ValueError(f"CPUAdam.step: {unknown} of the keys of {name} are not parameters of this optimizer")
        return [values.get(param) for param in params]
    if len(values) != len(params):
        raise ValueError(f"CPUAdam.step: {name} has {len(values)} entries; needed {len(params)}, one per parameter")
    return list(values)


def _refuse(index: int, param: Tensor, grad: Tensor, copy: Tensor | None) -> None:
    """Names the first thing wrong with one parameter, its gradient or its copy."""
    tensors = {"it": param, "its gradient": grad, **({} if copy is None else {"its copy": copy})}
    for name, tensor in tensors.items():
        dtype, layout = (str(x).removeprefix("torch.") for x in (tensor.dtype, tensor.layout))
        wrong = {
            f"is on {tensor.device}; needed the CPU": not tensor.is_cpu,
            f"has layout {layout}; needed a dense tensor": tensor.layout is not torch.strided,
            f"is {dtype}; needed float32, float16 or bfloat16": tensor.dtype not in FLOAT_TYPES,
            "is float32; needed float16 or bfloat16": tensor is copy and tensor.dtype == torch.float32,
            f"has shape {tuple(tensor.shape)}; needed {tuple(param.shape)}": tensor.shape != param.shape,
        }
        for what, is_wrong in wrong.items():
            if is_wrong:
                raise RuntimeError(f"CPUAdam.step: parameter {index}: {name} {what}; nothing was updated")
