"""The names a user may give a kernel by: its family, one of its ops, or an extension."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from precast._build.catalogue import FAMILIES, Family
from precast._load import loader
from precast.errors import KernelUnavailable

if TYPE_CHECKING:
    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]  # what add_subparsers returns has no public name


def families(names: Iterable[str]) -> tuple[Family, ...]:
    """The families of these names, each once, in the catalogue's order; all of them for no name at all."""
    wanted = {family.name for name in names for family in _named(name)}
    return tuple(family for family in FAMILIES if not wanted or family.name in wanted)


def kernel(text: str) -> str:
    """An argument that must name a kernel; argparse prints the refusal."""
    try:
        _named(text)
    except KernelUnavailable as error:
        raise argparse.ArgumentTypeError(str(error).replace("\n", "\n  ")) from error
    return text


def _named(name: str) -> tuple[Family, ...]:
    from precast.extension.builtin import BUILTIN

    for extension in BUILTIN:
        if extension.extension_name == name:
            return extension.families
    return (loader.family_of(name),)
