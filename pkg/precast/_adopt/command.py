"""Helps ``precast adopt``: builds a model by name, measures it before and after, checks a saved report."""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import Module

from precast._adopt import instances, loss, recognise, samples
from precast._adopt.report import Group, Report
from precast._adopt.rules import RULES
from precast._adopt.seen import digest_of
from precast._adopt.small import small
from precast._adopt.source import Unreadable, fingerprint_of_name
from precast._version import __version__
from precast.errors import KernelError

_ROUNDS = 5
_NEW = 32  # tokens that are generated
_MEASURED = 512  # tokens of a sequence


@dataclass(frozen=True)
class Speed:
    """What was measured, in which unit, before and after."""

    what: str
    unit: str
    before: float
    after: float


def build(target: str) -> Module:
    """The model that ``MODULE:NAME`` makes: a function that returns it, or a small one of a class of transformers.

    Raises:
        KernelError: there is no such name, or what it makes is no module.
    """
    module, _, name = target.partition(":")
    try:
        maker = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise _not_built(target, str(error)) from error
    model = small(maker) if hasattr(maker, "config_class") else maker()
    if not isinstance(model, Module):
        raise _not_built(target, f"a {type(model).__name__}")
    return model.cuda() if torch.cuda.is_available() else model


def drift(report: Report) -> tuple[str, ...]:
    """What is not as the report says: versions, the GPU, the sources of the replaced forwards."""
    found = []
    for package, version in report.versions:
        try:
            here = __version__ if package == "precast" else recognise.version_of(package)
        except ModuleNotFoundError:
            here = "none"
        if here != version:
            found.append(f"{package} {version} then, {here} here")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    if report.device not in ("cpu", device):
        found.append(f"{report.device} then, {device} here")
    for group in report.replaced:
        read = [(name, digest, _or_none(fingerprint_of_name, name)) for name, digest in group.sources]
        for name, then, now in ((group.cls, group.fingerprint, _or_none(_fingerprint_of, group)), *read):
            if now != then:
                found.append(f"{name} has another source: {then} then, {now} here")
    return tuple(dict.fromkeys(found))


def measure(model: Module) -> tuple[Speed, ...]:
    """The speed of an adopted model and, in turns, of the same model without what was replaced.

    Raises:
        KernelError: no sample batch can be made for the model.
    """
    batch = samples.sample(model, _MEASURED)
    if batch is None:
        raise KernelError(
            "no sample batch can be made for this model",
            found=f"a {type(model).__name__} without a configuration that describes its input",
            needed="a model of transformers, timm or diffusers",
            fix="none: precast.adopt(model, sample) in Python takes a batch, but measures nothing",
        )
    items = batch["input_ids"].numel() if "input_ids" in batch else len(next(iter(batch.values())))
    unit = "tokens/s" if "input_ids" in batch else "samples/s"
    found = [_measured(model, "training", unit, items, lambda: _train(model, batch))]
    with torch.no_grad():
        found.append(_measured(model, "inference", unit, items, lambda: model(**batch)))
        if hasattr(model, "generate") and "input_ids" in batch:
            ids = batch["input_ids"][:, : max(1, batch["input_ids"].shape[1] - _NEW)]
            options = {"max_new_tokens": _NEW, "min_new_tokens": _NEW, "do_sample": False, "pad_token_id": 0}
            decode = lambda: model.generate(ids, attention_mask=torch.ones_like(ids), **options)  # type: ignore[operator]  # noqa: E731
            found.append(_measured(model, "decoding", "tokens/s", len(ids) * _NEW, decode))
    return tuple(found)


def _measured(model: Module, what: str, unit: str, items: int, function: Callable[[], Any]) -> Speed:
    """Medians of turns, so that a machine that slows down does so for both."""
    adopted = instances.patched(model)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(_ROUNDS + 1):
        for after in (False, True):
            for module, name, forward in adopted:
                instances.take(module, name)
                if after:
                    instances.put(module, name, forward)
            started = time.perf_counter()
            function()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seconds[after].append(time.perf_counter() - started)
    before, later = (items / statistics.median(seconds[after][1:]) for after in (False, True))
    return Speed(what, unit, before, later)


def _train(model: Module, batch: Mapping[str, Any]) -> None:
    result = model(**batch)
    values = result.values() if isinstance(result, Mapping) else [result]
    own = result["loss"] if isinstance(result, Mapping) and "loss" in result else None
    sums = [value.float().sum() for value in values if isinstance(value, torch.Tensor)]
    (torch.stack(sums).sum() if own is None else own).backward()
    model.zero_grad()


def _fingerprint_of(group: Group) -> str:
    module, _, cls = group.cls.rpartition(".")
    method = next((rule.method for rule in RULES if rule.kind == group.kind), "forward")
    found = getattr(importlib.import_module(module), cls)
    by_rule = isinstance(found, type) and group.kind not in ("logits", "rotary")
    return digest_of(found, method) if by_rule else loss.fingerprint_of(found)


def _or_none(read: Callable[[Any], str], of: Any) -> str:
    try:
        return read(of)
    except (ImportError, AttributeError, Unreadable) as error:
        return f"none ({str(error).splitlines()[0]})"


def _not_built(target: str, found: str) -> KernelError:
    return KernelError(
        f"no model can be built from {target}",
        found=found,
        needed="MODULE:NAME, a function that returns a torch.nn.Module, or a model class of transformers",
        fix="precast adopt --dry-run transformers:LlamaForCausalLM  # an example that works",
    )
