"""Which modules of a model a rule may replace, and the reason for each other one. Nothing is changed here."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import Module

from precast._adopt import forwards, functions, gating, instances, loss, rotation
from precast._adopt.probe import Probe, decide, probe
from precast._adopt.rules import Bound, Rule
from precast._adopt.seen import digest_of, state_of
from precast._adopt.source import Sources, Unreadable, fingerprint, owner, source_of
from precast._adopt.state import attempted
from precast.core.version import Release
from precast.errors import KernelError

# The packages whose sources have been read: the oldest version that counts, and the first that does not.
PACKAGES = {
    "torch": (Release(2, 4), Release(3, 0)),
    "transformers": (Release(4, 57), Release(6, 0)),
    "timm": (Release(1, 0), Release(2, 0)),
    "diffusers": (Release(0, 35), Release(1, 0)),
}
DEVICES = ("cpu", "cuda")
_CAUSAL = re.compile(r"(ForCausalLM|LMHeadModel)$")


@dataclass(frozen=True)
class Exact:
    """A proved replacement: the forward for a module, a line for the report, and the probe that proved it, if any."""

    bind: Callable[[Module], Bound]
    note: str
    probe: Probe | None
    device: str
    attribute: str = "forward"


@dataclass(frozen=True)
class Found:
    """One module and its fate."""

    name: str
    module: Module
    kind: str
    fingerprint: str
    fate: Exact | str
    function: str = ""  # what was examined, if not the forward of the module's class
    sources: Sources = ()


def examine(model: Module, rules: tuple[Rule, ...], *, logits: bool = True) -> Iterator[Found]:
    """Every module that a rule knows, or that a reader would expect to see; ``logits`` says whether they are needed."""
    context = _Context(rules, _device_of(model), in_fsdp(model), logits, {})
    for name, module in model.named_modules():
        yield from _tried(name, module, context)


def _tried(name: str, module: Module, context: _Context) -> list[Found]:
    found, reason = attempted(lambda: list(_examined(name, module, context)))
    return [Found(name, module, "unknown", "", f"it cannot be examined: {reason}")] if found is None else found


@dataclass(frozen=True)
class _Context:
    """What the examinations of the modules of one model have in common."""

    rules: tuple[Rule, ...]
    device: str
    gathered: set[int]
    logits: bool
    proofs: dict[object, Exact | str]


def _examined(name: str, module: Module, context: _Context) -> Iterator[Found]:
    rules, device, proofs = context.rules, context.device, context.proofs
    if isinstance(module, torch.jit.ScriptModule):
        return
    methods = _methods(type(module), rules)
    rule = next((one for one in rules if methods[one.method][0] in one.known), None)
    if rule is None:
        yield from _read_from_source(name, module, methods, context)
        return
    digest = methods[rule.method][0]
    here = next((p.device.type for p in module.parameters()), device)
    reason = _refusal(module, rule.method, here, id(module) in context.gathered)
    if reason:
        yield Found(name, module, rule.kind, digest, reason)
        return
    names = rule.known[digest]
    key = (here, state_of(module))
    if key not in proofs:
        proofs[key] = _prove(rule, module, digest, here)
    child: Any = type(module._modules.get(rule.child(names)))
    read = (source_of(child),) if issubclass(child, Module) and isinstance(proofs[key], Exact) else ()
    yield Found(name, module, rule.kind, digest, proofs[key], sources=read)


def _read_from_source(
    name: str, module: Any, methods: dict[str, tuple[str, str]], context: _Context
) -> Iterator[Found]:
    """A module whose forward no rule knows as a whole."""
    cls, device = type(module), context.device
    try:
        act, no_gate = gating.activation(module), ""
    except Unreadable as error:
        act, no_gate = "", str(error)
    if act:
        yield _gated(name, module, act, context)
        return
    bases = [base.__name__ for base in cls.__mro__]
    named = next((one for one in context.rules if any(re.search(one.named, base) for base in bases)), None)
    if named is not None and not instances.is_ours(module.__dict__.get("forward")):
        digest, unreadable = methods[named.method]
        reason = unreadable or f"no rule knows what its {named.method} does"
        reason = no_gate if named.kind == "gated_mlp" else reason
        if not unreadable and owner(cls, named.method).__module__.startswith("precast."):
            reason = "already precast's"
        yield Found(name, module, named.kind, digest, reason)
    elif hasattr(cls, "loss_function") and _CAUSAL.search(cls.__name__):
        found = _loss(name, module, device)
        yield found
        if not context.logits:
            yield from _without_logits(found, device)
    elif any(rotation.ROTARY.match(word) for word in _globals_used(cls)):
        yield _rotation(name, module, context)
    elif names := functions.called(cls):
        yield _functions(name, module, names, context)


def _gated(name: str, module: Any, act: str, context: _Context) -> Found:
    child = module._modules[act]

    def prove(device: str) -> _Proved:
        gate, note = gating.prove(module, act, device)
        return (None if gate is None else lambda one: gating.bind(one, act, gate, device)), note

    found = Found(name, module, "gated_mlp", digest_of(type(module), "forward"), "")
    return _of_copy(
        found, context, lambda: (type(module), act, state_of(child)), prove, lambda: (source_of(type(child)),)
    )


def _rotation(name: str, module: Any, context: _Context) -> Found:
    digest, norms = rotation.known(module)
    found = Found(name, module, "rotary", digest, norms if isinstance(norms, str) else "")
    if isinstance(norms, str):
        return found

    def prove(device: str) -> _Proved:
        form, note = rotation.prove(module, norms, device)
        return (None if form is None else lambda one: rotation.bind(one, norms, form, device)), note

    return _of_copy(found, context, lambda: rotation.key(module, norms), prove, lambda: rotation.sources(module, norms))


def _functions(name: str, module: Any, names: tuple[functions.Called, ...], context: _Context) -> Found:
    def prove(device: str) -> _Proved:
        proved, note = functions.prove(module, names, device)
        return (lambda one: functions.bind(one, proved, device)) if proved else None, note

    found = Found(name, module, "functions", digest_of(type(module), "forward"), "")
    key, sources = (lambda: functions.key(module, names)), (lambda: functions.sources(module, names))
    return _of_copy(found, context, key, prove, sources, own_weights=False)


_Proved = tuple[Callable[[Module], Bound] | None, str]  # what binds a copy, and a line for the report


def _of_copy(
    found: Found,
    context: _Context,
    key: Callable[[], object],
    prove: Callable[[str], _Proved],
    sources: Callable[[], Sources],
    *,
    own_weights: bool = True,
) -> Found:
    """The fate of a module that would run a copy of its forward; modules of one ``key`` have one proof."""
    module, proofs = found.module, context.proofs
    here = next((p.device.type for p in module.parameters()), context.device)
    reason = _refusal(module, "forward", here, id(module) in context.gathered, own_weights=own_weights)
    if reason:
        return dataclasses.replace(found, fate=reason)
    at = (here, key())
    if at not in proofs:
        try:
            bind, note = prove(here)
        except KernelError as error:
            bind, note = None, f"no kernel here: {str(error).splitlines()[0]}"
        proofs[at] = note if bind is None else Exact(bind, note, None, here)
    return dataclasses.replace(found, fate=proofs[at], sources=sources())


def _loss(name: str, model: Any, device: str) -> Found:
    if device not in DEVICES:
        return Found(name, model, "loss", "", f"it is on {device}; needed {' or '.join(DEVICES)}")
    try:
        forward, digest, note = loss.bound(model, device)
    except KernelError as error:
        return Found(name, model, "loss", "", f"no kernel here: {str(error).splitlines()[0]}")
    if forward is None:
        return Found(name, model, "loss", digest, note)
    own = f"{model.loss_function.__module__}.{model.loss_function.__qualname__}"
    exact = Exact(lambda _: forward, note, None, device, instances.LOSS)
    return Found(name, model, "loss", digest, exact, own, loss.sources(model.loss_function))


def _without_logits(found: Found, device: str) -> Iterator[Found]:
    """The model and its last layer, if the loss needs no logits."""
    name, model = found.name, found.module
    own = f"{type(model).__module__}.{type(model).__qualname__}"
    try:
        digest = loss.fingerprint_of(type(model))
        why, options = (
            loss.without_logits(model) if isinstance(found.fate, Exact) else (f"its loss stays: {found.fate}", ((), ()))
        )
    except Unreadable as error:
        digest, why, options = "", str(error), ((), ())
    if why:
        yield Found(name, model, "logits", digest, why)
        return
    note = "linear_cross_entropy, no logits of calls with labels"
    parts: tuple[tuple[str, Any, Callable[[Module], Bound]], ...] = (
        (name, model, lambda one: loss.with_signature(forwards.without_logits, one, device, options)),
        (
            f"{name}.lm_head".lstrip("."),
            model.lm_head,
            lambda one: functools.partial(forwards.head_with_loss, one, device),
        ),
    )
    for one, module, bind in parts:
        yield Found(one, module, "logits", digest, Exact(bind, note, None, device), own)


def _prove(rule: Rule, module: Module, digest: str, device: str) -> Exact | str:
    names = rule.known[digest]
    try:
        trials = rule.trials(module, names, device)
        if isinstance(trials, str):
            return trials
        made = probe(trials, device)
        winner, reason = decide(made, device)
    except KernelError as error:
        return f"no kernel here: {str(error).splitlines()[0]}"
    if winner is None:
        return reason
    note = f"{rule.op.format(winner)}: {reason}"
    return Exact(lambda one: rule.bind(one, names, winner, device), note, made, device, rule.method)


def _methods(cls: type[Module], rules: tuple[Rule, ...]) -> dict[str, tuple[str, str]]:
    """The fingerprint of each method that a rule asks for, and why there is none."""
    return {method: _read(cls, method) for method in {"forward", *(rule.method for rule in rules)}}


def _read(cls: type[Module], method: str) -> tuple[str, str]:
    try:
        return (fingerprint(cls, method), "") if hasattr(cls, method) else ("", f"it has no {method}")
    except Unreadable as error:
        return "", str(error)


def _refusal(module: Module, method: str, device: str, gathered: bool, *, own_weights: bool = True) -> str:
    """Why a module of a known method must stay as it is, or nothing; ``own_weights``: a replacement reads them."""
    replaced = module.__dict__.get(method)
    if replaced is not None:
        mine = instances.is_ours(replaced)
        return "it is adopted already" if mine else f"its {method} was replaced before, by {_module_of(replaced)}"
    if type(module).__call__ is not Module.__call__:
        return "its class replaces __call__"
    package = owner(type(module), method).__module__.partition(".")[0]
    if package not in PACKAGES:
        return f"its {method} is defined in {package}, which is not a known package"
    version = version_of(package)
    low, high = PACKAGES[package]
    if not low <= release_of(version) < high:
        return f"{package} {version} is not known; needed {low} or newer, and below {high}"
    if device not in DEVICES:
        return f"it is on {device}; needed {' or '.join(DEVICES)}"
    if own_weights and instances.computes_weights(module):
        return "its weight or bias is computed for each call (a parametrization, pruning)"
    if is_sharded(module) and not gathered:
        return "its parameters are DTensors of no FSDP unit (tensor or sequence parallelism)"
    return ""


def version_of(package: str) -> str:
    """The version of an installed package."""
    return torch.__version__ if package == "torch" else importlib.metadata.version(package)


def in_fsdp(model: Module) -> set[int]:
    """The modules whose parameters FSDP2 gathers before a forward, so that they are plain tensors in it."""
    return {id(module) for unit in fsdp_units(model) for module in unit.modules()}


def fsdp_units(model: Module) -> list[Any]:
    """The modules that FSDP2 gave its methods."""
    return [one for one in model.modules() if any(base.__name__ == "FSDPModule" for base in type(one).__mro__)]


def is_sharded(module: Module, *, recurse: bool = False) -> bool:
    """Whether a parameter is a DTensor or, with ``recurse``, part of a flat one, which FSDP writes back to."""
    if recurse and any(
        base.__name__ == "FullyShardedDataParallel" for m in module.modules() for base in type(m).__mro__
    ):
        return True
    dtensor = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return dtensor is not None and any(isinstance(p, dtensor) for p in module.parameters(recurse=recurse))


def _device_of(model: Module) -> str:
    return next((p.device.type for p in model.parameters()), "cpu")


def _module_of(forward: object) -> str:
    function = getattr(forward, "__func__", getattr(forward, "func", forward))
    return str(getattr(function, "__module__", type(forward).__name__))


def _globals_used(cls: type[Module]) -> tuple[str, ...]:
    code = getattr(inspect.unwrap(cls.forward), "__code__", None)
    return () if code is None else code.co_names


def release_of(version: str) -> Release:
    """The first two numbers of any package's version; a missing one is 0."""
    major, minor, *_ = (*map(int, re.findall(r"\d+", version)), 0, 0)
    return Release(major, minor)


def require_module(function: str, model: object) -> None:
    """Refuse what is no module, in the name of a public function."""
    if not isinstance(model, Module):
        raise TypeError(f"{function}: model is a {type(model).__name__}; needed a torch.nn.Module")
