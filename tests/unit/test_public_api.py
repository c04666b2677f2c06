"""The public API as one text, so that no change of it goes unseen: names, signatures, loaders and their extensions."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
Snapshot = Callable[[str, str], None]

PARTS = ("ops", "optim", "nn", "extension", "build", "errors")
OLDER = ("base_extension", "jit", "kernel_loader", "compat.deepspeed", "compat.fla", "compat.op", "compat.vllm")


def signature(value: Any) -> str:
    """The parameters of a function, or of a class by its constructor; nothing for a module, a number or an error."""
    plain = not callable(value) or (isinstance(value, type) and issubclass(value, Exception))
    return "" if plain else str(inspect.signature(value))


def lines() -> Iterator[str]:
    for name in ("precast", *(f"precast.{part}" for part in (*PARTS, *OLDER))):
        module = importlib.import_module(name)
        public = getattr(module, "__all__", [key for key in vars(module) if key[0].isupper()])
        for key in sorted(public):
            yield f"{name}.{key}{signature(getattr(module, key))}"
    kernel_loader = importlib.import_module("precast.kernel_loader")
    for loader in kernel_loader.loaders():
        for extension in loader.extensions():
            yield f"{loader.__name__}: {extension.name}, priority {extension.priority}, {extension.backend}"
        members = {tuple(sorted(one.members)) for one in loader.extensions() if getattr(one, "families", ())}
        yield from (
            f"{loader.__name__}: gives {', '.join(names)}" for names in sorted(members)
        )  # one line if all agree
        for former, name in loader.ALIASES.items():
            yield f"{loader.__name__}: {former} is {name}"


def test_the_public_api_is_known(snapshot: Snapshot) -> None:
    # fails if a name, a signature or an extension is not what it was
    snapshot("public-api.txt", "\n".join(lines()) + "\n")


def test_the_page_of_the_api_names_everything_with_its_arguments() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    names = [name for part in ("ops", "nn") for name in importlib.import_module(f"precast.{part}").__all__]
    alike = {name for name in names if name.endswith("_") and name[:-1] in names}  # the page says it of all
    assert [name for name in names if name not in alike and not re.search(rf"\b{name}\b", page)] == []
    precast = importlib.import_module("precast")
    for name, given in re.findall(r"^## `precast\.(\w+)\((.*)\)`$", page, re.MULTILINE):
        parameters = inspect.signature(getattr(precast, name)).parameters.values()
        bare = inspect.Signature([one.replace(annotation=one.empty) for one in parameters])
        assert f"({given})" == str(bare)


def test_old_import_paths_resolve() -> None:
    for path in (
        *("precast.base_extension._Extension", "precast.base_extension._CppExtension", "precast.jit.bias_gelu_impl"),
        *("precast._C.cpu_adam_x86", "precast.kernel_loader.CPUAdamLoader", "precast.extension.Extension"),
        *("precast.ops.norm.rms_norm", "precast.ops.softmax.FullyMasked", "precast.optim.CPUAdamOptimizer"),
    ):
        module, _, name = path.rpartition(".")
        assert name in dir(importlib.import_module(module)), path
