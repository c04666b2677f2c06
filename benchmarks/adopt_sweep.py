"""What adopt does with every causal language model of the transformers that is installed, each small, in bfloat16.

``python -m benchmarks.adopt_sweep`` prints a line for each and the counts. It needs a CPU and half an hour; words are
parts of names of classes to try. ``--form CLASS`` prints what is read of the forward of a class instead, such as
``transformers.models.llama.modeling_llama.LlamaAttention``: names of variables are gone, and those of globals whole.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import inspect
import logging
import pkgutil
import resource
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import torch

from precast._adopt import samples, source
from precast._adopt.run import adopt, undo_adopt
from precast._adopt.small import small
from precast._adopt.state import attempted
from precast.errors import KernelError

_MEMORY = 8 << 30  # some parts of configurations stay as large as they are
ENDS = ("ForCausalLM", "LMHeadModel")


def classes() -> Iterator[Any]:
    """The classes of causal language models."""
    models = importlib.import_module("transformers.models")
    for one in pkgutil.iter_modules(models.__path__):
        try:
            module = importlib.import_module(f"transformers.models.{one.name}.modeling_{one.name}")
        except ImportError:  # no such file, or a package that is not here
            continue
        for name, cls in sorted(vars(module).items()):
            here = inspect.isclass(cls) and cls.__module__ == module.__name__ and hasattr(cls, "config_class")
            if here and name.endswith(ENDS):
                yield cls


def tried(cls: Any, modules: dict[str, Counter[str]]) -> str:
    """What became of one class, in a word and more; its modules are counted by kind."""
    torch.manual_seed(0)
    try:
        model = small(cls).to(torch.bfloat16).eval()
        batch, before = first_taken(model)
    except Exception as error:  # noqa: BLE001 - whatever a class of others raises in a configuration of ours
        return f"not run: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    report = adopt(model)
    for fate, groups in (("taken", report.replaced), ("left", report.left)):
        for group in groups:
            modules[group.kind][fate] += len(group.modules)
            if fate == "left":
                modules["reasons"][f"{group.kind}: {group.note}"] += len(group.modules)
    if report.undone:
        return f"put back: {report.undone}"
    if not report.compared:
        return f"not compared: {'; '.join(report.not_compared)}"
    bits = "equal" if torch.equal(before, logits(model, batch)) else "close"
    undo_adopt(model)
    if not torch.equal(before, logits(model, batch)):
        return "error: undo does not restore it"
    try:
        without = "without logits" if adopt(model, logits=False).ok else "not without logits"
    except KernelError as error:
        without = f"with logits: {error.found}"
    return f"adopted, {bits}, {without}"


def first_taken(model: Any) -> tuple[Any, torch.Tensor]:
    """The batch that adopt compares a model with, and the logits of it."""
    made = samples.sample(model)
    assert made is not None, "no sample"
    reason = ""
    for batch in samples.variants(made):
        found, why = attempted(functools.partial(logits, model, batch))
        if found is not None:
            return batch, found
        reason = reason or why
    raise RuntimeError(reason)


def logits(model: Any, batch: Any) -> torch.Tensor:
    """The logits of a batch."""
    with torch.no_grad():
        return model(**batch).logits  # type: ignore[no-any-return]


def form(name: str) -> str:
    """The forward of a class, or a function, as it is read."""
    holder, _, last = name.rpartition(".")
    found = getattr(importlib.import_module(holder), last)
    return source.plain(inspect.unwrap(getattr(found, "forward", found)))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adopt_sweep", description=__doc__)
    parser.add_argument("words", nargs="*", help="parts of names of classes")
    parser.add_argument("--form", metavar="CLASS", help="print what is read of a forward, or of a function")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    warnings.simplefilter("ignore")
    logging.disable()
    if options.form:
        print(form(options.form))
        return
    fates, modules = Counter[str](), defaultdict[str, Counter[str]](Counter)
    for cls in classes():
        if not options.words or any(word in cls.__name__ for word in options.words):
            fate = tried(cls, modules)
            fates[fate.partition(":")[0]] += 1
            print(f"{cls.__name__}: {fate}", flush=True)
    print(*(f"{count} {fate}" for fate, count in fates.most_common()), sep="\n")
    reasons = modules.pop("reasons", Counter[str]())
    print(*(f"{kind}: {of['taken']} of {of.total()}" for kind, of in sorted(modules.items())), sep="\n")
    print(*(f"{count} x {reason}" for reason, count in reasons.most_common()), sep="\n")


if __name__ == "__main__":
    main()
