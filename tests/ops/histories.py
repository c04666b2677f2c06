"""Random histories of optimizer steps, with gradients of every kind, beside ``torch.optim``.

A history is an optimizer, some parameters, and some steps. Before each step every parameter is given a gradient of a
random kind, and something may happen to the parameters, the states or the options. The same happens to an optimizer of
torch. After each step both must agree: equal parameters and states, or errors of one class. Where torch works and we
refuse (REFUSED), nothing may be changed. A history is known by its number; each run of histories is a process of its
own, so that a signal is seen, and has a number.

    python -m tests.ops.histories --count 1000 --device cpu [--first 0] [--jobs 16]
"""

from __future__ import annotations

import argparse
import copy
import faulthandler
import gc
import random
import re
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from precast import optim
from tests.ops.plain_optimizers import Lamb, Lion

SHAPES = ((5, 7), (33,), (1,), (4, 6), (257,), (2, 3, 4, 4), (1029,))
BATCH = 50


class Pair(NamedTuple):
    """An optimizer of ours, the one it stands for, and the options of each."""

    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    options: dict[str, Any]


_ADAM = {"lr": 0.01, "betas": (0.8, 0.95), "weight_decay": 0.1}
_LION = {"lr": 0.01, "betas": (0.9, 0.99), "weight_decay": 0.1}
_PAIRS: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
    "sgd": (optim.CPUSGD, optim.FusedSGD, torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.1}),
    "momentum": (optim.CPUSGD, optim.FusedSGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adagrad": (optim.CPUAdagrad, optim.FusedAdagrad, torch.optim.Adagrad, {"lr": 0.1, "lr_decay": 0.1}),
    "lion": (optim.CPULion, optim.FusedLion, Lion, _LION),
}
# CPUAdam is AdamW unless it is told otherwise.
_CPU = {
    "adamw": Pair(optim.CPUAdam, torch.optim.AdamW, _ADAM),
    "amsgrad": Pair(optim.CPUAdam, torch.optim.AdamW, {**_ADAM, "amsgrad": True}),
    **{name: Pair(cpu, torchs, options) for name, (cpu, _, torchs, options) in _PAIRS.items()},
}
_GPU = {
    "adamw": Pair(optim.FusedAdamW, torch.optim.AdamW, _ADAM),
    "adam": Pair(optim.FusedAdam, torch.optim.Adam, {**_ADAM, "amsgrad": True}),
    "lamb": Pair(
        lambda params, **options: optim.FusedLAMB(params, max_grad_norm=None, **options), Lamb, {**_ADAM, "eps": 1e-6}
    ),
    **{name: Pair(gpu, torchs, options) for name, (_, gpu, torchs, options) in _PAIRS.items()},
}
PAIRS = {"cpu": _CPU, "gpu": _GPU}


# ---- gradients: from a plain tensor of the values they are to have ----


class Opaque(torch.Tensor):
    """A subclass without memory of its own, whose tensor stands in for it in every op."""

    inner: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        options: dict[str, Any] = {"dtype": inner.dtype, "device": inner.device, "strides": inner.stride()}
        made: Any = torch.Tensor._make_wrapper_subclass(cls, inner.shape, **options)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*pytree.tree_map_only(Opaque, lambda t: t.inner, args), **(kwargs or {}))


class Refusing(torch.Tensor):
    """A subclass with memory, that takes part in no op."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise TypeError(f"no {func}")


class Asking(torch.Tensor):
    """A subclass that is asked, and lets everything pass."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class Denying(torch.Tensor):
    """A subclass that can be looked at, and not computed with."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") not in ("__get__", "is_contiguous", "stride", "is_neg", "is_complex", "dim"):
            raise TypeError(f"no {func}")
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def _fake(values: Any) -> Any:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(values.shape, device=values.device)


def _wrapped(values: Any) -> Any:
    """What a transform that is over has left behind."""
    left: list[Any] = []
    torch.func.grad(lambda x: (left.append(x * 1), (x * x).sum())[1])(values)
    return left[0]


def _shard(values: Any) -> Any:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh(values.device.type, (1,))
    return DTensor.from_local(values, mesh, [Replicate()], run_check=False)


def _two(values: Any) -> Any:
    from torch.testing._internal.two_tensor import TwoTensor

    return TwoTensor(values, values.clone())


def _inference(values: Any) -> Any:
    with torch.inference_mode():
        return values.clone()


def _in_a_larger_one(values: Any) -> Any:
    flat = torch.zeros(values.numel() + 3, device=values.device)
    flat[1 : 1 + values.numel()] = values.flatten()
    return flat[1 : 1 + values.numel()].view(values.shape)


def _with_gaps(values: Any) -> Any:
    return torch.stack((values, values), dim=-1)[..., 0]


def _turned(values: Any) -> Any:
    return values.t().contiguous().t() if values.dim() == 2 else values.clone()


def _conjugate(values: Any) -> Any:
    return torch.complex(torch.zeros_like(values), -values).conj().imag  # negative, and with gaps


def _shrunk(values: Any, part: int) -> Any:
    values = values.clone()
    values.untyped_storage().resize_(values.nbytes * part // 4)
    return values


GRADIENTS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda values: values.clone(),
    "none": lambda values: None,
    "negative": lambda values: torch._neg_view(-values),
    "conjugate": _conjugate,
    "expanded": lambda values: values.flatten()[0].expand(values.shape),
    "turned": _turned,
    "gaps": _with_gaps,
    "offset": _in_a_larger_one,
    "zero tensor": lambda values: torch._efficientzerotensor(values.shape, device=values.device),
    "opaque": Opaque,
    "refusing": lambda values: torch.Tensor._make_subclass(Refusing, values.clone()),
    "asking": lambda values: values.clone().as_subclass(Asking),
    "denying": lambda values: values.clone().as_subclass(Denying),
    "parameter": lambda values: torch.nn.Parameter(values.clone()),
    "fake": _fake,
    "two": _two,
    "shard": _shard,
    "wrapped": _wrapped,
    "inference": _inference,
    "sparse": lambda values: values.to_sparse(),
    "meta": lambda values: values.to("meta"),
    "float64": lambda values: values.double(),
    "bfloat16": lambda values: values.bfloat16(),
    "empty storage": lambda values: _shrunk(values, 0),
    "short storage": lambda values: _shrunk(values, 3),
    "part of an empty storage": lambda values: _shrunk(_in_a_larger_one(values), 0),
    "graph": lambda values: values.clone().requires_grad_() * 1,
}

# Gradients that stay in place, and become something else.
CHANGED: dict[str, Callable[[Any, Any], Any]] = {
    "kept": lambda grad, values: None,
    "summed": lambda grad, values: grad.add_(values),
    "zeroed": lambda grad, values: grad.zero_(),
    "other data": lambda grad, values: setattr(grad, "data", values.clone()),
    "negative data": lambda grad, values: setattr(grad, "data", torch._neg_view(grad.data)),
    "set": lambda grad, values: grad.set_(values.clone()),
    "turned in place": lambda grad, values: grad.t_() if grad.dim() == 2 else None,
}

NO_MEMORY = ("empty storage", "short storage", "part of an empty storage")  # torch itself reads past the end
# Gradients with which a scaler can do something.
SCALABLE = {"gaps", "none", "offset", "parameter", "plain", "turned"}
SCALE = 64.0

UNLIKE = ("two",)  # runs every op twice: what comes of it depends on which ops there are
# Where two of these meet, which of them has its say first is another matter for one op than for many.
STRANGE = (
    "asking",
    "bfloat16",
    "denying",
    "fake",
    "float64",
    "opaque",
    "refusing",
    "shard",
    "sparse",
    "two",
    "wrapped",
)

# What we refuse and torch takes, by what the message says of it.
REFUSED = re.compile(
    "has layout sparse|is float64; needed float32|has no memory of its own|gaps or overlaps in memory|"
    "another memory layout|storage of only|its gradient has shape"
)


# ---- what else happens ----


def _states(optimizer: Any, param: Any) -> dict[str, Any]:
    states: dict[str, Any] = optimizer.state.get(param) or {}
    return {k: v for k, v in states.items() if isinstance(v, torch.Tensor) and k != "step"}


def _turn(optimizer: Any, param: Any) -> None:
    for tensor in (param, *_states(optimizer, param).values()):
        if tensor.dim() == 2:
            tensor.data = tensor.data.t()
    param.grad = None


def _negate_state(optimizer: Any, param: Any) -> None:
    for name, tensor in _states(optimizer, param).items():
        if name in ("exp_avg", "momentum_buffer"):
            tensor.data = torch._neg_view(tensor.data)


def _new_states(optimizer: Any, param: Any) -> None:
    for name, tensor in _states(optimizer, param).items():
        optimizer.state[param][name] = tensor.clone()


def _other_rate(optimizer: Any, param: Any) -> None:
    optimizer.param_groups[0]["lr"] *= 0.5


def _swap_states(optimizer: Any, param: Any) -> None:
    for tensor in _states(optimizer, param).values():
        tensor.data = tensor.data.clone()


def _swap(optimizer: Any, param: Any) -> None:
    other = torch.nn.Parameter(param.detach().clone())
    if hasattr(other, "grad_dtype"):
        other.grad_dtype = None
    other.grad = param.grad
    torch.utils.swap_tensors(param, other)  # which refuses a tensor that a plan refers to


EVENTS: dict[str, Callable[[Any, Any], Any]] = {
    "nothing": lambda optimizer, param: None,
    "other data": lambda optimizer, param: setattr(param, "data", param.data.clone()),
    "negative data": lambda optimizer, param: setattr(param, "data", torch._neg_view(param.data)),
    "turned": _turn,
    "other storage": lambda optimizer, param: param.data.set_(param.data.clone()),
    "new states": _new_states,
    "states' data": _swap_states,
    "negative state": _negate_state,
    "swapped": _swap,
    "loaded": lambda optimizer, param: optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict())),
    "lr": _other_rate,
    "zero_grad": lambda optimizer, param: optimizer.zero_grad(),
    "no memory": lambda optimizer, param: None,
}


# ---- one history ----


class Side:
    """One of the two optimizers, with its parameters."""

    def __init__(self, make: Callable[..., Any], options: dict[str, Any], params: list[Any]) -> None:
        self.params = params
        self.kinds = ["none"] * len(params)  # of the gradients they have
        self.optimizer = make(params, **copy.deepcopy(options))
        for param in params:
            if hasattr(param, "grad_dtype"):
                param.grad_dtype = None  # of any

    def give(self, index: int, kind: str, values: Any) -> None:
        param = self.params[index]
        if values.shape != param.shape:
            values = values.t()
        if kind in GRADIENTS:
            param.grad, self.kinds[index] = None, "none"  # its memory may be given out again at once
            param.grad = GRADIENTS[kind](values.contiguous())
            self.kinds[index] = kind
        elif self.kinds[index] not in (*STRANGE, *NO_MEMORY, "none", "graph", "fake", "zero tensor", "inference"):
            CHANGED[kind](param.grad, values.contiguous())

    def scaled_step(self) -> None:
        """A step of GradScaler; the gradients are scaled first."""
        device = self.params[0].device.type
        with torch.no_grad():
            for param in self.params:
                if param.grad is not None:
                    param.grad.mul_(SCALE)
        scaler = torch.amp.GradScaler(device, init_scale=SCALE)
        scaler.scale(torch.ones((), device=device))
        try:
            scaler.step(self.optimizer)
        finally:  # after an error they stay at the optimizer, and count in the next step
            for name in ("grad_scale", "found_inf"):
                vars(self.optimizer).pop(name, None)

    def forget_gradients(self) -> None:
        for index, param in enumerate(self.params):
            param.grad, self.kinds[index] = None, "none"

    def tensors(self) -> list[Any]:
        states = (self.optimizer.state.get(param) or {} for param in self.params)
        return [*self.params, *(s[k] for s in states for k in sorted(s) if isinstance(s[k], torch.Tensor))]

    def snapshot(self) -> list[Any]:
        return [tensor.detach().clone() for tensor in self.tensors()]


class Failure(NamedTuple):
    """An error without its traceback: a guard of torch in a frame that one keeps alive would go on to guard."""

    kind: type[Exception]
    text: str


def _attempt(action: Callable[[], Any], device: str) -> Failure | None:
    try:
        action()
        if device == "cuda":
            torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001  # whatever it is, it is compared
        failure = Failure(type(error), str(error))
    else:
        return None
    gc.collect()
    return failure


def _alike(ours: Failure, theirs: Failure) -> bool:
    """Whether both errors are of one class."""
    return issubclass(ours.kind, theirs.kind) or issubclass(theirs.kind, ours.kind)


def _equal(ours: Any, theirs: Any, steps: int) -> bool:
    return bool(torch.allclose(ours, theirs.to(ours.dtype), rtol=2e-5 * steps, atol=4e-6 * steps, equal_nan=True))


class Mismatch(AssertionError):
    """Ours is not what torch's is."""


def history(number: int, device: str, family: str = "") -> Counter[str]:
    """Runs one history, and counts the steps by how they went. Raises Mismatch."""
    some, apart = random.Random(number), random.Random(-number - 1)
    pairs = PAIRS[family or ("gpu" if device == "cuda" else "cpu")]
    name = some.choice(sorted(pairs))
    pair = pairs[name]
    shapes = some.choices(SHAPES, k=some.randint(1, 4))
    generator = torch.Generator().manual_seed(number)

    def drawn(shape: Any) -> Any:
        return torch.randn(shape, generator=generator).to(device)

    start = [drawn(shape) for shape in shapes]
    ours, theirs = (
        Side(make, {**pair.options, **extra}, [torch.nn.Parameter(p.clone()) for p in start])
        for make, extra in ((pair.ours, {}), (pair.theirs, _plain_way(pair.theirs)))
    )
    counts: Counter[str] = Counter()
    told = [name]
    for step in range(1, some.randint(3, 7)):
        event = some.choice(sorted(EVENTS)) if some.random() < 0.4 else "nothing"
        where = some.randrange(len(shapes))
        kinds = [_kind(some) for _ in shapes] if step > 1 and some.random() < 0.8 else ["plain"] * len(shapes)
        if "fake" in kinds or any("fake" in side.kinds for side in (ours, theirs)):
            # An error for such a storage within a fake tensor's dispatch leaves torch with its keys excluded for good.
            kinds = ["plain" if kind in NO_MEMORY else kind for kind in kinds]
        told.append(f"{step}: {event} at {where}, {', '.join(kinds)}")
        for side in (ours, theirs):
            EVENTS[event](side.optimizer, side.params[where])
        for index, kind in enumerate(kinds):
            values = drawn(shapes[index])
            errors = [_attempt(lambda s=side: s.give(index, kind, values), device) for side in (ours, theirs)]  # type: ignore[misc]  # noqa: B023
            if (errors[0] is None) != (errors[1] is None):
                raise Mismatch(f"history {number}: {told}: gradient {index}: {errors}")
        scaled = apart.random() < 0.3 and SCALABLE.issuperset((*ours.kinds, *theirs.kinds))
        # Without any gradient, torch's scaler refuses the optimizers that do not know of it.
        if scaled and "negative data" not in kinds and any(param.grad is not None for param in theirs.params):
            counts[_scaled_step(f"history {number}: {told}, scaled", ours, theirs, step, device)] += 1
        else:
            counts[_step(f"history {number}: {told}", ours, theirs, step, device)] += 1
    return counts


def _kind(some: random.Random) -> str:
    return some.choice(sorted(CHANGED)) if some.random() < 0.2 else some.choice(sorted(GRADIENTS))


def _plain_way(make: Any) -> dict[str, Any]:
    return {"foreach": False} if make.__module__.startswith("torch") else {}


def _step(told: str, ours: Side, theirs: Side, steps: int, device: str) -> str:
    """One step of both, and how it went."""
    kinds = {side_kind for param, side_kind in zip(ours.params, ours.kinds, strict=True) if param.grad is not None}
    before = ours.snapshot()
    unsafe = not kinds.isdisjoint(NO_MEMORY)
    error = _attempt(ours.optimizer.step, device)
    their_error = None if unsafe else _attempt(theirs.optimizer.step, device)
    if error is not None and kinds.isdisjoint(UNLIKE):
        after = ours.tensors()
        if len(after) != len(before):  # a state that the failed step made is there, of zeros
            after, before = after[: len(ours.params)], before[: len(ours.params)]
        if not all(torch.equal(a, b) for a, b in zip(after, before, strict=True)):
            raise Mismatch(f"{told}: changed by a step that failed: {error!r}")
    if unsafe:
        if error is None:
            raise Mismatch(f"{told}: read what is not there")
        return "refused, where torch reads past the end"
    if error is None and their_error is None and kinds.isdisjoint(UNLIKE):
        _compare(told, ours, theirs, steps)
        return "equal"
    went = _errors(told, error, their_error, kinds)
    _follow(ours, theirs)
    return went


def _scaled_step(told: str, ours: Side, theirs: Side, steps: int, device: str) -> str:
    """One step of GradScaler on both sides, and how it went; both leave the same gradients."""
    errors = [_attempt(side.scaled_step, device) for side in (ours, theirs)]
    if errors == [None, None]:
        _compare(told, ours, theirs, steps)
        for a, b in zip(ours.params, theirs.params, strict=True):
            if (a.grad is None) != (b.grad is None) or (a.grad is not None and not torch.equal(a.grad, b.grad)):
                raise Mismatch(f"{told}: gradients differ: {a.grad} and {b.grad}")
        return "equal, scaled"
    went = _errors(told, *errors, set(ours.kinds))
    for side in (ours, theirs):
        side.forget_gradients()
    _follow(ours, theirs)
    return went


def _compare(told: str, ours: Side, theirs: Side, steps: int) -> None:
    for a, b in zip(ours.params, theirs.params, strict=True):
        if not _equal(a.detach(), b.detach(), steps):
            raise Mismatch(f"{told}: parameters differ: by {(a - b).abs().max()}")
        ours_states, their_states = _states(ours.optimizer, a), _states(theirs.optimizer, b)
        for key in ours_states.keys() & their_states.keys():
            if not _equal(ours_states[key], their_states[key], steps):
                raise Mismatch(f"{told}: {key} differs")


def _errors(told: str, error: Failure | None, their_error: Failure | None, kinds: set[str]) -> str:
    """What the errors of one step, or of one of the two, come to."""
    if not kinds.isdisjoint(UNLIKE):
        return "not compared"
    # All gradients are in one op of ours: of several subclasses that want a say, the first one has it.
    several = len(kinds.intersection(STRANGE)) > 1 or "shard" in kinds  # which raises as each op of its has it
    if error is None:
        if "bfloat16" not in kinds and not several:
            raise Mismatch(f"{told}: only theirs: {their_error!r}")
        return "works, where torch refuses"
    if their_error is None:
        if not REFUSED.search(error.text):
            raise Mismatch(f"{told}: only ours: {error!r}")
        return "refused, where torch works"
    if not (several or _alike(error, their_error) or REFUSED.search(error.text)):
        raise Mismatch(f"{told}: ours {error!r}, theirs {their_error!r}")
    return "the same class of error"


def _follow(ours: Side, theirs: Side) -> None:
    """Gives torch's side the parameters and states of ours: the steps after this one are compared again."""
    state = ours.optimizer.state_dict()["state"]
    loaded = theirs.optimizer.state_dict()
    with torch.no_grad():
        for a, b in zip(ours.params, theirs.params, strict=True):
            b.data = a.detach().resolve_neg().clone()
            if a.is_neg():
                b.data = torch._neg_view(-b.data)
    theirs.optimizer.load_state_dict({**loaded, "state": {k: _as_theirs(v, theirs) for k, v in state.items()}})


def _as_theirs(state: dict[str, Any], theirs: Side) -> dict[str, Any]:
    plain = isinstance(theirs.optimizer, Lamb)
    return {
        k: float(v) if plain and k == "step" else v.detach().resolve_neg().clone()
        for k, v in state.items()
        if isinstance(v, torch.Tensor)
    }


# ---- many ----


def _excluded() -> str:
    return str(torch._C._dispatch_tls_local_exclude_set())


def run(first: int, count: int, device: str, family: str = "", progress: Path | None = None) -> Counter[str]:
    """Histories in this process; the number of each is written down before it begins."""
    total: Counter[str] = Counter()
    for number in range(first, first + count):
        if progress is not None:
            progress.write_text(str(number))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            before = _excluded()
            total += history(number, device, family)
            assert _excluded() == before, f"history {number}: a step left the thread's dispatch keys changed"
    return total


def run_apart(first: int, count: int, device: str, jobs: int = 1) -> tuple[Counter[str], list[str]]:
    """Histories in so many processes at a time: how many steps went in which way, and what went wrong."""
    total: Counter[str] = Counter()
    wrong: list[str] = []
    starts = range(first, first + count, max(1, min(BATCH, -(-count // jobs))))
    with ThreadPoolExecutor(jobs) as threads:
        for counts, texts in threads.map(lambda at: _batch(at, min(starts.step, first + count - at), device), starts):
            total += counts
            wrong += texts
    return total, wrong


def _batch(first: int, count: int, device: str) -> tuple[Counter[str], list[str]]:
    """Histories one after the other; after one that ends its process, the others go on in another one."""
    total: Counter[str] = Counter()
    wrong: list[str] = []
    last = first + count
    with tempfile.TemporaryDirectory() as folder:
        progress = Path(folder) / "progress"
        while first < last:
            command = [sys.executable, "-m", "tests.ops.histories", "--child", str(progress), "--device", device]
            command += ["--first", str(first), "--count", str(last - first)]
            child = subprocess.run(command, capture_output=True, text=True, check=False)
            if child.returncode == 0:
                for line in child.stdout.splitlines():
                    how, _, number = line.rpartition(": ")
                    total[how] += int(number)
                break
            number = int(progress.read_text())
            lines = child.stderr.strip().splitlines() or [""]
            found = lines[-1] if child.returncode > 0 else "\n".join(lines[-12:])
            wrong.append(f"history {number} ended with status {child.returncode}: {found}")
            first = number + 1  # what the batch counted before is lost, and what is after it is run
    return total, wrong


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--first", type=int, default=0, help="number of the first history")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        faulthandler.enable()
        gc.collect()
        gc.freeze()  # each error of a step is collected: what was there before need not be looked at
        total = run(options.first, options.count, options.device, progress=options.child)
        wrong: list[str] = []
    else:
        total, wrong = run_apart(options.first, options.count, options.device, options.jobs)
    for how, number in total.most_common():
        print(f"{how}: {number}")
    for text in wrong:
        print(text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
