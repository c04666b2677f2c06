"""The kernel families: their sources, their ops, and the devices they serve.

A family is compiled, shipped and loaded as a unit. No code here names one: ``csrc/<folder>/family.toml`` describes
them, and everything that iterates over them (build, wheel, loader, doctor) gets them from here. A wheel has all
descriptions in one file; a checkout reads the tables.

A family is two folders: ``csrc/<family>`` has sources and the description, which is read without torch, and
``pkg/precast/ops/<family>`` has functions, formulas, reference and examples. So a new family edits no existing line.
The loader never imports the ops: each family hands its formulas down before its kernels are registered, and kernels
without formulas are refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from precast.core.value import value
from precast.errors import KernelError

GATHERED = Path(__file__).with_name("families.json")  # exists only in a wheel


@value(frozen=True)
class Family:
    """One kernel family. Paths are relative to ``csrc``; ``cpu`` sources are compiled once per CPU level."""

    name: str
    device: str | None
    host: tuple[str, ...]
    cpu: tuple[str, ...]
    ops: tuple[str, ...]  # full schemas, without the namespace
    devices: tuple[str, ...]
    late: bool = False  # its ops are defined when its folder in precast.ops is first used
    plain: tuple[str, ...] = ()  # device types on which its ops in plain torch can stand in for kernels

    @property
    def op_names(self) -> tuple[str, ...]:
        """The name of each op: ``"rms_norm(Tensor x, ...) -> Tensor"`` has ``"rms_norm"``."""
        return tuple(schema.partition("(")[0].strip() for schema in self.ops)

    @property
    def sources(self) -> tuple[str, ...]:
        """Every file of this family that is given to a compiler."""
        device = () if self.device is None else (self.device,)
        return (*device, *self.host, *self.cpu)


@value(frozen=True)
class Names:
    """Public names, by where they are, that may load the same families, for themselves or for their gradients."""

    families: tuple[str, ...]
    ops: tuple[str, ...] = ()
    optim: tuple[str, ...] = ()
    nn: tuple[str, ...] = ()


@value(frozen=True)
class Folder:
    """The families of one folder, in ``csrc`` and ``precast/ops``, and what is public over them."""

    name: str
    public_names: tuple[Names, ...]
    late: bool
    families: tuple[Family, ...]

    @property
    def public(self) -> tuple[str, ...]:
        """The folder's functions in ``precast.ops``."""
        return tuple(sorted(name for group in self.public_names for name in group.ops))


# Sources of every host library besides those of its families: the C interface, what binds it to torch, the launch
# protocol, and calls without the dispatcher.
COMMON_HOST: tuple[str, ...] = (
    "host/api.cpp",
    "host/attach.cpp",
    "host/prove.cpp",
    "host/torch.cpp",
    "host/checks.cpp",
    "cpu/cpu_level.cpp",
    "gpu/driver.cpp",
    "gpu/launch.cpp",
    "host/kind.cpp",
    "host/direct.cpp",
    "host/glibc_compat.cpp",
)

# Sources of an adapter to one torch. The first is the only one that includes torch's headers.
ADAPTER = ("host/torch_adapter.cpp", "host/checks.cpp", "host/glibc_compat.cpp")


def folders_of(described: Iterable[Mapping[str, Any]]) -> tuple[Folder, ...]:
    """Convert descriptions, from ``descriptions.read`` or the file of a wheel, to values."""
    return tuple(
        Folder(
            folder["name"],
            tuple(Names(**_frozen(group)) for group in folder["public"]),
            folder["late"],
            tuple(Family(**_frozen(family)) for family in folder["families"]),
        )
        for folder in described
    )


def _frozen(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _tuples(given) if isinstance(given, (list, tuple)) else given for name, given in values.items()}


def _tuples(given: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(tuple(item) if isinstance(item, list) else item for item in given)


def _read() -> tuple[Folder, ...]:
    try:
        text = GATHERED.read_text(encoding="utf-8")
    except FileNotFoundError:
        from precast._builder import descriptions, sources

        return folders_of(descriptions.read(sources.csrc_dir()))
    try:
        return folders_of(json.loads(text))
    except (ValueError, LookupError, TypeError) as error:
        from precast._builder import sources

        raise KernelError(
            f"{GATHERED.name} is corrupted, so the kernels are not known",
            found=f"{GATHERED}: {error!r}",
            needed=f"{GATHERED.name} as it was installed",
            fix=sources.restore_fix(),
        ) from error


FOLDERS = _read()
FAMILIES = tuple(family for folder in FOLDERS for family in folder.families)


def get(name: str) -> Family:
    """Find a family by name. The KeyError for an unknown name lists the known ones."""
    for family in FAMILIES:
        if family.name == name:
            return family
    raise KeyError(f"no kernel family {name!r}; there are: {', '.join(family.name for family in FAMILIES)}")


def folder_of(name: str) -> Folder:
    """The folder of a family, of one of its ops or of a public function; KeyError for any other name."""
    for folder in FOLDERS:
        families = ((family.name, *family.op_names) for family in folder.families)
        if name in folder.public or any(name in names for names in families):
            return folder
    raise KeyError(f"no kernel family, op or public function is named {name!r}")
