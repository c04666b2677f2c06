"""Models for ``precast.adopt`` made of features that change what a call does or leaves, and the law over them.

The law: a dry run changes nothing; adoption and undo change nothing; in between the outputs are those of an untouched
model, up to rounding, also after both were changed in one way; and nothing is raised.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

import precast
from tests.adopt.picture import changes, picture

WIDTH = 8


class Body(torch.nn.Module):
    """What is adopted, with a list of things that its forward does besides."""

    instances = 0

    def __init__(self, norm: Any, more: tuple[Callable[[Any, Any], Any], ...]) -> None:
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(WIDTH, WIDTH), norm, torch.nn.Softmax(-1)
        self.more, self.calls, self.log, self.options = more, 0, [], {"mode": "a"}
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Any) -> Any:
        y = self.norm(self.first(x))
        with torch.no_grad():
            for change in self.more:
                change(self, y)
        return self.last(y)


def counts(one: Any, y: Any) -> None:
    one.calls += 1
    one.log.append(one.calls)


def averages(one: Any, y: Any) -> None:
    one.mean.mul_(0.9).add_(y.detach().reshape(-1, WIDTH).mean(0).to(one.mean) * 0.1)


def replaces(one: Any, y: Any) -> None:
    one.mean = one.mean.clone()
    one.options["mode"] = "b"


def draws(one: Any, y: Any) -> None:
    torch.rand(1, device="cpu")
    random.random()


def of_the_class(one: Any, y: Any) -> None:
    type(one).instances += 1


def hooks_itself(one: Any, y: Any) -> None:
    if not one.first._forward_hooks:
        one.first.register_forward_hook(_nothing)


def scales_a_parameter(one: Any, y: Any) -> None:
    _linear(one).bias.mul_(1.0009765625)


def _nothing(*_: Any) -> None:
    return None


def _linear(model: Any) -> Any:
    return next(module for module in model.modules() if isinstance(module, torch.nn.Linear))


WRITES = (counts, averages, replaces, draws, of_the_class, hooks_itself, scales_a_parameter)
FIRED: list[str] = []


def _fires(*_: Any, **__: Any) -> None:
    FIRED.append("hook")


def hooked(model: Any) -> Any:
    for module in model.modules():
        module.register_forward_pre_hook(_fires)
        module.register_forward_hook(_fires)
        module.register_full_backward_hook(_fires)
    _linear(model).bias.register_hook(_fires)
    return model


def observed(model: Any) -> Any:
    model.first = torch.nn.Sequential(model.first, torch.ao.quantization.MinMaxObserver())
    return model


def spectral(model: Any) -> Any:
    torch.nn.utils.spectral_norm(_linear(model))
    return model


def batch_norm(model: Any) -> Any:
    model.first = torch.nn.Sequential(model.first, torch.nn.BatchNorm1d(WIDTH))
    return model


def frozen(model: Any) -> Any:
    return model.requires_grad_(False)


def shallow(model: Any) -> Any:
    """A copy that shares the parts, as ``copy.copy`` makes it."""
    return copy.copy(model)


def replica(model: Any) -> Any:
    """A copy that shares the parts, as DataParallel makes it."""
    return model._replicate_for_data_parallel()


def patched(model: Any) -> Any:
    """A class whose forward was replaced for all of its instances."""
    cls = type(model.norm)
    own = cls.forward
    cls.forward = lambda self, x: own(self, x) * 2


def with_eps(model: Any) -> Any:
    model.norm.eps = 0.5


def with_weights(model: Any) -> Any:
    with torch.no_grad():
        model.norm.weight.mul_(-2)


def shared(model: Any) -> Any:
    """One norm in two places."""
    model.again = model.norm
    return model


def with_gradients(model: Any) -> Any:
    y = model(torch.ones(2, WIDTH).to(_linear(model).bias)).sum()
    if y.requires_grad:
        y.backward()
    return model


def locked(model: Any) -> Any:
    """What cannot be copied."""
    import threading

    model.lock = threading.Lock()
    return model


def wrapped(model: Any) -> Any:
    """A forward that others replaced."""
    model.norm.forward = functools.partial(type(model.norm).forward, model.norm)
    return model


CHANGES = (
    *(hooked, observed, spectral, batch_norm, frozen, shallow, replica),
    *(shared, with_gradients, locked, wrapped, patched),
)
# What is done to an adopted model between two of its calls.
LATER = (patched, replica, shallow, with_eps, with_weights)
NORMS: dict[str, Callable[[], Any]] = {
    "layer norm": lambda: _of_its_own(torch.nn.LayerNorm)(WIDTH),
    "rms norm": lambda: _of_its_own(torch.nn.RMSNorm)(WIDTH, eps=1e-6),
}


def _of_its_own(cls: Any) -> Any:
    """A class that no other model has, so that it can be patched."""
    return type(cls.__name__, (cls,), {"__module__": cls.__module__})


DTYPES = (torch.float32, torch.bfloat16)
AROUND: dict[str, Callable[[str], Any]] = {
    "": lambda _: contextlib.nullcontext(),
    "autocast": lambda device: torch.autocast(device, dtype=torch.bfloat16),
    "inference_mode": lambda _: torch.inference_mode(),
    "no_grad": lambda _: torch.no_grad(),
    "default device": lambda _: torch.device("meta"),
    "default dtype": lambda _: _default_dtype(torch.float64),
}


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@dataclass(frozen=True)
class Case:
    """Features by name; ``sampled`` says whether there is a sample, and whether the model takes it."""

    norm: str
    dtype: torch.dtype
    writes: tuple[Callable[[Any, Any], Any], ...]
    changes: tuple[Callable[[Any], Any], ...]
    later: tuple[Callable[[Any], Any], ...]
    around: str
    training: bool
    sampled: str

    def __str__(self) -> str:
        names = [one.__name__ for one in (*self.writes, *self.changes)]
        later = [f"later {one.__name__}" for one in self.later]
        mode = "training" if self.training else "evaluation"
        return ", ".join([self.norm, str(self.dtype), *names, *later, self.around, mode, self.sampled])

    def made(self, device: str) -> tuple[Any, Any]:
        """The model and its sample."""
        torch.manual_seed(0)
        model: Any = Body(NORMS[self.norm](), self.writes).to(device, self.dtype).train(self.training)
        for change in self.changes:
            model = (change(model) or model).to(device)
        x = torch.randn(4, WIDTH).to(device, self.dtype)
        return model, {"right": x, "wrong": x[:, :3], "none": None}[self.sampled]


def cases(seed: int, count: int) -> list[Case]:
    """Each pair of features once, and more drawn at random."""
    drawn = random.Random(seed)
    pairs = [*itertools.combinations(WRITES, 2), *itertools.combinations(CHANGES, 2)]
    found = [_case(drawn, *_split(pair)) for pair in pairs]
    while len(found) < count:
        found.append(
            _case(
                drawn,
                tuple(drawn.sample(WRITES, drawn.randrange(3))),
                tuple(one for one in CHANGES if drawn.random() < 0.2),
            )
        )
    return found


def _split(pair: tuple[Any, Any]) -> tuple[Any, Any]:
    return (pair, ()) if pair[0] in WRITES else ((), pair)


def _case(drawn: random.Random, writes: Any, changed: Any) -> Case:
    sampled = drawn.choice(("right", "right", "right", "wrong", "none"))
    around = drawn.choice(("", "", *AROUND))
    norm, dtype, training = drawn.choice(list(NORMS)), drawn.choice(DTYPES), bool(drawn.getrandbits(1))
    later = tuple(drawn.sample(LATER, drawn.choice((0, 0, 1, 2))))
    return Case(norm, dtype, writes, changed, later, around, training, sampled)


class Broken(AssertionError):
    """What ``adopt`` did against the law."""


def judge(case: Case, device: str, adopt: Callable[..., Any] = precast.adopt) -> str:
    """What became of the model; raise Broken if the law does not hold."""
    (model, sample), (other, _) = case.made(device), case.made(device)
    FIRED.clear()
    with AROUND[case.around](device):
        before = picture(model, sample)
        for dry_run in (True, False):
            try:
                report = adopt(model, sample, dry_run=dry_run)
            except Exception as error:
                raise Broken(f"{case}: raised {type(error).__name__}: {error}") from error
            _judge_report(case, report)
            if dry_run:
                _judge_same(f"{case}: a dry run", before, picture(model, sample))
        _judge_outputs(case, device, model, other)
        precast.undo_adopt(model)
    return str(report.verdict)


def _judge_report(case: Case, report: Any) -> None:
    if FIRED:
        raise Broken(f"{case}: hooks fired")
    if report.undone or report.lost:
        raise Broken(f"{case}: undone: {report.undone} {report.lost}")
    if report.replaced and report.ok != (case.sampled == "right"):
        raise Broken(f"{case}: ok is {report.ok}: {report.not_compared}")


def _judge_same(what: str, before: Any, after: Any) -> None:
    different = [path for path in changes(before, after) if not path.endswith(".forward")]
    if different:
        raise Broken(f"{what} changed {different[:4]}")


def _judge_outputs(case: Case, device: str, adopted: Any, untouched: Any) -> None:
    """Of three calls, so that what a call leaves counts too."""
    x = torch.linspace(-2, 2, 4 * WIDTH, device=device, dtype=torch.float32).view(4, WIDTH).to(case.dtype)
    near = 2e-2 if case.dtype == torch.bfloat16 or case.around == "autocast" else 1e-5
    for call in range(3):
        for change in case.later if call == 1 else ():
            adopted, untouched = (change(model) or model for model in (adopted, untouched))
        one, other = adopted(x), untouched(x)
        if one.dtype != other.dtype or not torch.allclose(one.float(), other.float(), rtol=near, atol=near):
            raise Broken(f"{case}: outputs differ")
