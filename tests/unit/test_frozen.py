"""House rule: values are frozen dataclasses. What has to change is no dataclass, or is named here."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

# A record that is filled in while something happens, by its name alone: modules may be renamed.
MUTABLE: set[str] = set()


def is_frozen(kind: type) -> bool:
    names = [field.name for field in dataclasses.fields(kind)]
    try:
        kind.__setattr__(object.__new__(kind), names[0] if names else "new", 1)
    except dataclasses.FrozenInstanceError:
        return True
    return False


def modules() -> Iterator[ModuleType]:
    """Every module of the private parts of the package, and of the guards."""
    parts = [f"precast.{found.name}" for found in pkgutil.iter_modules(importlib.import_module("precast").__path__)]
    for name in [
        *(part for part in parts if part.startswith(("precast._", "precast.core")) and part != "precast._C"),
        "tools.guards",
    ]:
        part = importlib.import_module(name)
        yield part
        for found in pkgutil.walk_packages(getattr(part, "__path__", ()), f"{name}."):
            yield importlib.import_module(found.name)


def test_every_value_is_frozen() -> None:
    values = {
        there
        for module in modules()
        for there in vars(module).values()
        if isinstance(there, type) and dataclasses.is_dataclass(there) and there.__module__ == module.__name__
    }
    assert len(values) > 50
    assert {there.__name__ for there in values if not is_frozen(there)} == MUTABLE
