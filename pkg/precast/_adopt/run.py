"""``precast.adopt``: examine, replace, compare, and put everything back if a comparison fails."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn import Module

from precast._adopt import compare, instances, recognise, samples
from precast._adopt.probe import recheck
from precast._adopt.recognise import Exact
from precast._adopt.report import Comparison, Group, Report
from precast._adopt.rules import RULES, Rule
from precast._adopt.source import Sources
from precast._version import __version__


def adopt(model: Module, sample: Any = None, *, dry_run: bool = False, logits: bool = True) -> Report:
    """Replace what the kernels of this package compute exactly, inside any model, and certify the result.

    Only instances are patched: names, ``state_dict``, hooks, pickling and copies of the model stay as they are, and
    :func:`precast.undo_adopt` puts every instance back. A module is replaced if the source of its forward is known and
    its kernel is **exact**: the same steps are rounded, proved bit for bit by a probe of random inputs in bfloat16,
    float16 and float32. What remains is the order of sums, which is what the noise below measures. All other modules
    stay, and the report says why. Calls that the probe does not cover, such as 16-bit inputs of a norm under autocast,
    run the module's own forward, and so does ``torch.compile``, because Inductor fuses these modules with others.

    Then the outputs and gradients of a sample batch are compared with the untouched model's: with a padding mask, from
    a cache, with ``num_items_in_batch``, with each parameter hidden outside its module's forward. If an output differs
    by more than two noises of the untouched model, or a gradient by more than four, everything is put back. The noise
    is what the untouched model shows with its batch in another order and in a wider dtype, in a copy of it.

    Args:
        model: the model, with its weights, on a CPU or an NVIDIA GPU. Adopt it after it has its device and before
            ``torch.compile``; with FSDP2, on all ranks.
        sample: keyword arguments of a call of the model as a mapping, or positional arguments. By default made from the
            configuration of models of transformers, timm and diffusers; for others nothing is compared without it.
        dry_run: put everything back in the end.
        logits: False: a causal language model that is called with labels returns no logits, and its loss is
            :func:`precast.ops.linear_cross_entropy`, which never has all of them.

    Returns:
        The certificate. ``print(report)`` shows it, ``report.json()`` is for keeping, ``report.ok`` says whether all
        comparisons hold. If not, the model is as it was and ``report.undone`` says why.

    Raises:
        TypeError: ``model`` is not a module.

    Example::

        norm = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.LayerNorm(64))
        report = precast.adopt(norm, torch.randn(4, 8))
        print(report)
        precast.undo_adopt(norm)
    """
    return adopt_by(RULES, model, sample, dry_run=dry_run, logits=logits)


def undo_adopt(model: Module) -> int:
    """Give every module that :func:`precast.adopt` replaced its own forward again.

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


@torch.inference_mode(False)
def adopt_by(
    rules: tuple[Rule, ...], model: Module, sample: Any = None, *, dry_run: bool = False, logits: bool = True
) -> Report:
    """:func:`adopt` by these rules."""
    recognise.require_module("adopt", model)
    started = time.perf_counter()
    found = list(recognise.examine(model, rules, logits=logits))
    exact = [(one, one.fate) for one in found if isinstance(one.fate, Exact)]
    bare = getattr(model, "module", model) if type(model).__name__ == "DistributedDataParallel" else model
    batch = samples.sample(bare) if sample is None else samples.named(bare, sample)
    missing: list[str] = []
    if batch is None:
        missing.append("no outputs: precast.adopt(model, sample) takes the arguments of a call")
    classes = {type(module): _attributes(type(module)) for module in model.modules()}
    untouched = None if batch is None or not exact else compare.measure(bare, batch)
    noises: list[compare.Measured] = []
    if batch is not None and untouched is not None:
        noises, reasons = compare.noises(bare, batch, untouched)
        missing += [*untouched.missing, *reasons]
        if "labels" in batch and any(one.kind == "logits" for one, _ in exact):
            missing.append("logits of calls with labels: there are none")
            untouched = compare.without_logits(untouched)
    compared: tuple[Comparison, ...] = ()
    kept = False
    try:
        for one, fate in exact:
            instances.put(one.module, fate.attribute, fate.bind(one.module))
        if batch is not None and untouched is not None:
            compared = compare.compare(untouched, compare.measure(bare, batch), noises)
        undone = _verdict(exact, compared, [cls for cls, before in classes.items() if _attributes(cls) != before])
        kept = not (undone or dry_run)
    finally:
        if not kept:
            for one, fate in exact:
                instances.take(one.module, fate.attribute)
    return Report(
        model=_name(type(bare)),
        replaced=_groups(one for one in found if isinstance(one.fate, Exact)),
        left=_groups(one for one in found if not isinstance(one.fate, Exact)),
        compared=compared,
        not_compared=tuple(missing),
        undone=undone,
        dry_run=dry_run,
        versions=versions(type(module) for module in model.modules()),
        device=device_name(model),
        seconds=round(time.perf_counter() - started, 3),
    )


def versions(classes: Iterable[type[Any]]) -> tuple[tuple[str, str], ...]:
    """Those of this package, torch, and the known packages that define the classes."""
    packages = {base.__module__.partition(".")[0] for cls in classes for base in cls.__mro__}
    known = sorted((packages & recognise.PACKAGES.keys()) | {"torch"})
    return (("precast", __version__), *((name, recognise.version_of(name)) for name in known))


def device_name(model: Module) -> str:
    """The name of the GPU of the first parameter, or ``cpu``."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _verdict(
    exact: list[tuple[recognise.Found, Exact]], compared: tuple[Comparison, ...], changed: list[type[Module]]
) -> str:
    """Why everything must be put back, or nothing."""
    if changed:
        return f"the class {changed[0].__qualname__} was changed, and so were all its instances"
    for one, fate in {id(fate): (one, fate) for one, fate in exact}.values():
        bound: Any = one.module.__dict__[fate.attribute]
        wrong = recheck(fate.trials, bound, fate.device) if fate.trials is not None else ""
        if wrong:
            return f"{one.name} rounds in another order: {wrong}"
    failed = next((one for one in compared if not one.holds), None)
    if failed is None:
        return ""
    return f"{failed.output} differs by {failed.difference:.2g}, and the model's own noise is {failed.noise:.2g}"


def _attributes(cls: type[Any]) -> dict[str, Any]:
    """What a class defines, without the list that the first copy of an instance writes down."""
    return {name: value for name, value in vars(cls).items() if name != "__slotnames__"}


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
