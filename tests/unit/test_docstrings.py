"""Every public name says what each argument is, what it raises, and how to call it; its signature hides nothing."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import pytest

from precast._builder import public

NAMES = [f"{room}.{name}" for name, room in public.rooms().items()]
METHODS = [
    "precast.optim.CPUAdam.step",
    "precast.optim.FusedAdamW.step",
    "precast.kernel_loader.KernelLoader.load",
    "precast.kernel_loader.KernelLoader.register_extension",
    "precast.kernel_loader.KernelLoader.unregister_extension",
]


def find(name: str) -> Any:
    """The object of a dotted name."""
    found: Any = importlib.import_module("precast")
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    return found


def arguments(thing: Any) -> dict[str, inspect.Parameter]:
    return {name: p for name, p in inspect.signature(thing).parameters.items() if name not in ("self", "cls")}


def faults(thing: Any) -> list[str]:
    """What a docstring or a signature leaves open."""
    text = inspect.getdoc(thing) or ""
    first, _, rest = text.partition("\n")
    args = rest.partition("Args:\n")[2].partition("\n\n")[0]
    found = [] if len(first) <= 116 and first.endswith((".", "::")) else ["the first line is no sentence"]
    for name, parameter in arguments(thing).items():
        if not re.search(rf"^    {name}: \S", args, re.MULTILINE):
            found.append(f"{name} is not described")
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            found.append(f"{name} hides what may be given")
        if parameter.annotation in (parameter.empty, "Any", Any):
            found.append(f"{name} has no type")
    described = set(re.findall(r"^    (\w+): ", args, re.MULTILINE))
    found += [f"there is no {name}" for name in sorted(described - set(arguments(thing)))]
    return found + ([] if "Raises:\n" in text else ["nothing is said of errors"])


@pytest.mark.torch
@pytest.mark.parametrize("name", [*NAMES, *METHODS])
def test_a_public_name_says_all(name: str) -> None:
    assert faults(find(name)) == []
    if name in NAMES:
        assert len(example(find(name)).splitlines()) >= 2


def example(thing: Any) -> str:
    """The code under ``Example::``."""
    return inspect.cleandoc((inspect.getdoc(thing) or "").partition("Example::\n\n")[2])


def test_what_is_left_open_is_found() -> None:
    def bad(x, **options):  # type: ignore[no-untyped-def]
        """Does something

        Args:
            y: gone.
        """

    assert faults(bad) == [
        "the first line is no sentence",
        "x is not described",
        "x has no type",
        "options is not described",
        "options hides what may be given",
        "options has no type",
        "there is no y",
        "nothing is said of errors",
    ]


def needs_gpu(name: str) -> bool:
    """GPU kernels alone serve it."""
    return public.families_of(name.rpartition(".")[2]) == ("multi_tensor",)


@pytest.mark.torch
@pytest.mark.compiler
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.gpu) if needs_gpu(name) else name for name in NAMES]
)
def test_the_example_runs(name: str) -> None:
    import torch

    import precast

    device = "cuda" if needs_gpu(name) else "cpu"
    model, x = torch.nn.Linear(8, 8, device=device), torch.ones(2, 8, device=device)
    model(x).sum().backward()
    # fails if the example raises
    exec(example(find(name)), {"torch": torch, "precast": precast, "model": model, "x": x})  # noqa: S102
