"""The kernel families: their sources, their ops, and the devices they serve.

A family is what is compiled, shipped and loaded together. Nothing here knows one by name: they are described in
``csrc/<folder>/family.toml``, and what walks them (build, wheel, loader, doctor) takes them from here. A wheel has all
descriptions in one file; a checkout reads the tables themselves.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from precast._abi.value import value
from precast.errors import KernelError

GATHERED = Path(__file__).with_name("families.json")  # only in a wheel


@value(frozen=True)
class Family:
    """One kernel family. Paths are relative to ``csrc``; ``cpu`` sources are compiled once per CPU level."""

    name: str
    device: str | None
    host: tuple[str, ...]
    cpu: tuple[str, ...]
    ops: tuple[str, ...]  # full schemas, without the namespace
    devices: tuple[str, ...]
    late: bool = False  # its ops are defined at the first use of its folder in precast.ops
    twins: tuple[str, ...] = ()  # device types on which its Triton kernels stand in for what is refused

    @property
    def sources(self) -> tuple[str, ...]:
        """Every file that is handed to a compiler for this family."""
        device = () if self.device is None else (self.device,)
        return (*device, *self.host, *self.cpu)


@value(frozen=True)
class Offer:
    """A kernel loader that a folder's families are in; without ``extensions`` the folder joins another's."""

    name: str
    about: str = ""  # its docstring
    extensions: str = ""  # what the names of its extensions begin with
    machines: tuple[tuple[str, str], ...] = ()  # how such a name ends for CPU kernels of one machine, and the machine
    aliases: tuple[tuple[str, str], ...] = ()  # former names of extensions


@value(frozen=True)
class Folder:
    """The families of one folder, in ``csrc`` and ``precast/ops``, and the functions of ``precast.ops`` it gives."""

    name: str
    public: tuple[str, ...]
    late: bool
    loader: Offer | None
    families: tuple[Family, ...]


# What every host library holds besides its families: the C interface, the adapter to torch, the launch protocol.
COMMON_HOST: tuple[str, ...] = (
    "common/api.cpp",
    "common/torch.cpp",
    "common/cpu_level.cpp",
    "common/driver.cpp",
    "common/launch.cpp",
    "common/glibc_compat.cpp",
)

# And what it holds for torch's classic C++ ABI in place of torch's own functions.
CLASSIC_ADAPTER = "common/torch_classic.cpp"


def folders_of(described: Iterable[Mapping[str, Any]]) -> tuple[Folder, ...]:
    """The values of descriptions, as ``descriptions.read`` and the file of a wheel have them."""
    return tuple(
        Folder(
            folder["name"],
            tuple(folder["public"]),
            folder["late"],
            None if folder["loader"] is None else Offer(**_frozen(folder["loader"])),
            tuple(Family(**_frozen(family)) for family in folder["families"]),
        )
        for folder in described
    )


def _frozen(values: Mapping[str, Any]) -> dict[str, Any]:
    """The lists of JSON as the tuples of a value."""
    return {name: _tuples(given) if isinstance(given, (list, tuple)) else given for name, given in values.items()}


def _tuples(given: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(tuple(item) if isinstance(item, list) else item for item in given)


def _read() -> tuple[Folder, ...]:
    try:
        text = GATHERED.read_text(encoding="utf-8")
    except FileNotFoundError:
        try:
            from precast._builder import descriptions, sources
        except ModuleNotFoundError as error:  # tomli, on Python 3.10
            raise KernelError(
                f"the kernel families of a checkout cannot be read\n"
                f"  found   {error}\n"
                f"  needed  tomli for Python 3.10; an installed wheel needs none\n"
                f"  fix     1) pip install tomli"
            ) from error
        return folders_of(descriptions.read(sources.csrc_dir()))
    return folders_of(json.loads(text))


FOLDERS = _read()
FAMILIES = tuple(family for folder in FOLDERS for family in folder.families)


def get(name: str) -> Family:
    """Find a family by name, or raise KeyError with the names there are."""
    for family in FAMILIES:
        if family.name == name:
            return family
    raise KeyError(f"no kernel family {name!r}; there are: {', '.join(family.name for family in FAMILIES)}")


def folder_of(name: str) -> Folder:
    """The folder of a family, of one of its ops or of a public function; KeyError for another name."""
    for folder in FOLDERS:
        ops = (schema.partition("(")[0] for family in folder.families for schema in family.ops)
        if name in folder.public or name in ops or any(family.name == name for family in folder.families):
            return folder
    raise KeyError(f"no kernel family has {name!r}")
