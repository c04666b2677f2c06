"""``precast.adopt``: examine, replace, compare, and put everything back if a comparison fails."""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import Module

from precast._adopt import compare, instances, recognise, samples
from precast._adopt.measured import Batch, Measured, measure, without_logits
from precast._adopt.noise import noises
from precast._adopt.probe import recheck
from precast._adopt.quiet import quiet, quiet_process
from precast._adopt.recognise import Exact
from precast._adopt.report import Comparison, Group, Report
from precast._adopt.rules import RULES, Rule
from precast._adopt.source import Sources
from precast._adopt.state import State, Unkept, attempted
from precast._version import __version__
from precast.errors import KernelError

_Exact = list[tuple[recognise.Found, Exact]]
# What stands around a model and calls it: by the name of its class, the attribute that has the model.
_WRAPPERS = {"DistributedDataParallel": "module", "OptimizedModule": "_orig_mod"}


def adopt(model: Module, sample: Any = None, *, dry_run: bool = False, logits: bool = True) -> Report:
    """Replace modules of a model that a kernel computes with the same rounding, and return a report.

    Only the given instance is patched. Names, ``state_dict``, hooks, pickling and copies of the model do not change,
    and :func:`precast.undo_adopt` restores every module. A module is replaced if precast recognises the source of its
    forward and if its kernel is **exact**: a probe with random inputs in bfloat16, float16 and float32 proves bit for
    bit that both round at the same steps. Only the order of sums may differ. Other modules stay, and the report
    gives the reasons. The original forward still runs in calls that the probe does not cover, such as 16-bit inputs of
    a norm under autocast. It also runs under ``torch.compile``, because Inductor fuses these modules with others.

    Then the outputs and gradients of a sample batch are compared with those of the untouched model: with a padding
    mask, with a cache, with ``num_items_in_batch``, and with parameters that are hidden outside of the forward of their
    module. If the difference of an output exceeds twice the noise of the untouched model, or that of a gradient four
    times the noise, all replacements are undone. The noise is the largest difference of the untouched model from
    itself: with its batch in another order, in a wider dtype, and with errors as large as the probe allows. An error of
    the untouched model is in ``report.not_compared``.

    After the comparison, buffers, attributes, children, classes, the sample and random states are restored. Hooks of
    torch and of model libraries are called, because they are part of the computation; other hooks are not.

    Args:
        model: the model, with its weights, on a CPU or an NVIDIA GPU. Adopt it after it has its device and before
            ``torch.compile``; with FSDP2, on all ranks.
        sample: keyword arguments of a call of the model as a mapping, or positional arguments. By default it is
            made from the configuration of models of transformers, timm and diffusers; other models need a sample to be
            compared.
        dry_run: compare and report, then undo all replacements.
        logits: False: if a causal language model is called with labels, it returns no logits, and computes its loss
            with :func:`precast.ops.linear_cross_entropy`, which does not store all logits.

    Returns:
        The report. ``print(report)`` shows it, and ``report.json()`` can be saved. ``report.ok`` is True if there are
        comparisons and all of them hold. If one fails, the model is unchanged, and ``report.undone`` has the reason. If
        nothing could be compared, the probes alone decide, and ``report.ok`` is False.

    Raises:
        TypeError: ``model`` is not a module.
        precast.errors.KernelError: ``logits=False``, and the loss of the model cannot be computed without logits.
            Errors of the model and the sample are not raised.

    Example::

        norm = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.LayerNorm(64))
        report = precast.adopt(norm, torch.randn(4, 8))
        print(report)
        precast.undo_adopt(norm)
    """
    return adopt_by(RULES, model, sample, dry_run=dry_run, logits=logits)


def undo_adopt(model: Module) -> int:
    """Restore the original forward of every module that :func:`precast.adopt` replaced.

    Args:
        model: the model, or a copy of it.

    Returns:
        The number of modules that changed.

    Raises:
        TypeError: ``model`` is not a module.

    Example::

        model = torch.nn.Sequential(torch.nn.LayerNorm(64))
        precast.adopt(model, torch.randn(4, 64))
        assert precast.undo_adopt(model) == 1
    """
    recognise.require_module("undo_adopt", model)
    return sum(map(instances.restore, model.modules()))


def adopt_by(
    rules: tuple[Rule, ...], model: Module, sample: Any = None, *, dry_run: bool = False, logits: bool = True
) -> Report:
    """:func:`adopt` by these rules."""
    recognise.require_module("adopt", model)
    started = time.perf_counter()
    bare = model
    while type(bare).__name__ in _WRAPPERS:
        bare = getattr(bare, _WRAPPERS[type(bare).__name__])
    with quiet_process(), torch.inference_mode(False):
        try:
            state, unkept = State(bare, sample), ""
        except Unkept as error:
            state, unkept = State(), f"no outputs: {error}"
        found = list(recognise.examine(model, rules, logits=logits))
        if not (logits or dry_run):
            _require_no_logits(bare, found)
        exact = [(one, one.fate) for one in found if isinstance(one.fate, Exact)]
        with quiet(bare, state.fill) as silent:
            before, missing = (_NOTHING, [unkept]) if unkept else (_NOTHING, [])
            if exact and not unkept:
                before, missing = _examined(bare, sample, state, exact)
            compared, undone = _replaced(bare, exact, before, state, dry_run=dry_run)
        lost = state.lost()
        if lost and not undone:
            undone = f"a call of the model wrote {lost[0]}, and it cannot be put back"
            _patch(state, exact, bind=False)
    return Report(
        model=_name(type(bare)),
        replaced=_groups(one for one in found if isinstance(one.fate, Exact)),
        left=_groups(one for one in found if not isinstance(one.fate, Exact)),
        compared=compared,
        not_compared=(*missing, *(silent if before.found else ())),
        undone=undone,
        dry_run=dry_run,
        versions=versions(type(module) for module in model.modules()),
        device=device_name(model),
        seconds=round(time.perf_counter() - started, 3),
        lost=lost,
    )


def _require_no_logits(model: Module, found: list[recognise.Found]) -> None:
    """Raise KernelError if no loss of the model can be computed without logits."""
    kinds = [one.fate for one in found if one.kind == "logits" or (one.kind == "unknown" and one.module is model)]
    done = any(isinstance(fate, Exact) for fate in kinds)
    if done or any(
        instances.is_ours(one.__dict__.get("forward")) and hasattr(one, "lm_head") for one in model.modules()
    ):
        return
    raise KernelError(
        f"{_name(type(model))} cannot give its loss without logits",
        found="; ".join(str(fate) for fate in kinds) or "no causal language model of transformers",
        needed="a causal language model whose lm_head is a torch.nn.Linear, and whose logits only its loss reads",
        fix="precast.adopt(model)  # keeps the logits",
    )


@dataclass(frozen=True)
class _Before:
    """The untouched model on a batch; ``found`` is None if there is nothing to compare."""

    batch: Batch
    found: Measured | None
    noises: list[Measured]


_NOTHING = _Before({}, None, [])


def _examined(model: Module, sample: Any, state: State, exact: _Exact) -> tuple[_Before, list[str]]:
    """What the untouched model computes, and what cannot be compared."""
    make = (
        functools.partial(samples.sample, model) if sample is None else functools.partial(samples.named, model, sample)
    )
    made, reason = attempted(make)
    if made is None:
        return _NOTHING, [f"no outputs: {reason or 'precast.adopt(model, sample) takes the arguments of a call'}"]
    batches: Iterable[Batch] = samples.variants(made) if sample is None else [made]
    found, first = None, ""
    for batch in batches:
        found = measure(model, batch, state)
        if "outputs" not in found.failed:
            break
        first = first or found.failed["outputs"]
    if found is None or "outputs" in found.failed:
        whose = "the sample" if sample is not None else "a random sample"
        return _NOTHING, [f"no outputs: the untouched model does not take {whose}: {first}"]
    if not found.outputs:
        return _NOTHING, ["no outputs: the model returns no floating-point tensors"]
    state.watches = False  # what a call writes is known now
    around, reasons = noises(model, batch, found, state, [(one.module, fate) for one, fate in exact])
    missing = [*found.missing, *(f"{name}: no element is finite" for name in compare.endless(found)), *reasons]
    if "labels" in batch and any(one.kind == "logits" for one, _ in exact):
        missing.append("logits of calls with labels: there are none")
        found = without_logits(found)
    return _Before(batch, found, around), missing


def _replaced(
    model: Module, exact: _Exact, before: _Before, state: State, *, dry_run: bool
) -> tuple[tuple[Comparison, ...], str]:
    """Replace, compare, and undo it if that fails, with the reason."""
    compared: tuple[Comparison, ...] = ()
    kept, changed = False, set(state.changed_classes)
    try:
        _patch(state, exact, bind=True)
        state.put_back()
        adopted = None
        if before.found is not None:
            adopted = measure(model, before.batch, state)
            compared = compare.compare(before.found, adopted, before.noises)
        undone = _verdict(exact, compared, state.changed_classes - changed, _worse(before.found, adopted))
        kept = not (undone or dry_run)
    finally:
        if not kept:
            _patch(state, exact, bind=False)
        state.put_back()
    return compared, undone


def _patch(state: State, exact: _Exact, *, bind: bool) -> None:
    for one, fate in exact:
        with state.patching(one.module):
            if bind:
                instances.put(one.module, fate.attribute, fate.bind(one.module))
            else:
                instances.take(one.module, fate.attribute)


def _worse(untouched: Measured | None, adopted: Measured | None) -> str:
    """What the adopted model cannot do, and the untouched one can."""
    if untouched is None or adopted is None:
        return ""
    return next((f"{what}: {why}" for what, why in adopted.failed.items() if what not in untouched.failed), "")


def versions(classes: Iterable[type[Any]]) -> tuple[tuple[str, str], ...]:
    """Those of this package, torch, and the known packages that define the classes."""
    packages = {base.__module__.partition(".")[0] for cls in classes for base in cls.__mro__}
    known = sorted((packages & recognise.PACKAGES.keys()) | {"torch"})
    versions = {name: attempted(functools.partial(recognise.version_of, name))[0] or "unknown" for name in known}
    return (("precast", __version__), *versions.items())


def device_name(model: Module) -> str:
    """The name of the GPU of the first parameter, or ``cpu``."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _verdict(exact: _Exact, compared: tuple[Comparison, ...], changed: set[type[Any]], worse: str) -> str:
    """Why everything must be put back, or nothing."""
    if changed:
        return f"the class {changed.pop().__qualname__} was changed, and so were all its instances"
    for one, fate in {id(fate): (one, fate) for one, fate in exact}.values():
        bound: Any = one.module.__dict__[fate.attribute]
        wrong = recheck(fate.probe, bound, fate.device) if fate.probe is not None else ""
        if wrong:
            return f"{one.name} rounds in another order: {wrong}"
    failed = [one for one in compared if not one.holds]
    differs = next((one for one in failed if not math.isnan(one.difference)), None)
    if worse and differs is None:
        return f"{worse}, which does not happen in the untouched model"
    if not failed:
        return ""
    first = differs or failed[0]
    return f"{first.output} differs by {first.difference:.2g}, and the model's own noise is {first.noise:.2g}"


def _groups(found: Iterable[recognise.Found]) -> tuple[Group, ...]:
    def key(one: recognise.Found) -> tuple[str, str, str, str, Sources]:
        note = one.fate.note if isinstance(one.fate, Exact) else one.fate
        return one.kind, one.function or _name(type(one.module)), one.fingerprint, note, one.sources

    ordered = sorted(found, key=key)
    return tuple(
        Group(kind, cls, digest, tuple(one.name for one in members), note, sources)
        for (kind, cls, digest, note, sources), members in itertools.groupby(ordered, key)
    )


def _name(cls: type[Any]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
