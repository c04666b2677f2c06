"""The names a user may give a kernel by: its family, one of its ops, an extension, or a loader."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from precast._build.catalogue import FAMILIES, Family
from precast._load import loader
from precast.errors import KernelUnavailable

if TYPE_CHECKING:
    from precast.kernel_loader import KernelLoader

    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]  # what add_subparsers returns has no public name


def families(names: Iterable[str]) -> tuple[Family, ...]:
    """The families of these names, each once, in the catalogue's order; all of them for no name at all."""
    given = list(names)
    wanted = {family.name for name in given for family in _named(name)}
    return tuple(family for family in FAMILIES if not given or family.name in wanted)


def loaders(name: str) -> list[type[KernelLoader]]:
    """The loaders that a name is about: the one so called, or those that have the extension or the family."""
    from precast import kernel_loader

    every = kernel_loader.loaders()
    named = [one for one in every if name in _known(one)]
    if named:
        return named
    wanted = set(_named(name))
    return [one for one in every if any(wanted & set(_families_of(extension)) for extension in one.extensions())]


def _known(one: type[KernelLoader]) -> set[str]:
    """Every name that a loader answers to."""
    return {one.__name__, *one.ALIASES, *one.names(), *(broken.name for broken in one.broken())}


def kernel(text: str) -> str:
    """An argument that must name a kernel; argparse prints the refusal."""
    try:
        _named(text)
    except KernelUnavailable as error:
        raise argparse.ArgumentTypeError(str(error).replace("\n", "\n  ")) from error
    return text


def _named(name: str) -> tuple[Family, ...]:
    from precast import kernel_loader

    for one in kernel_loader.loaders():
        extensions = one.extensions()
        if name == one.__name__:
            return tuple(dict.fromkeys(family for extension in extensions for family in _families_of(extension)))
        wanted = one.ALIASES.get(name, name)
        for extension in extensions:
            if extension.name == wanted:
                return _families_of(extension)
        if any(candidate.name == name for candidate in one.broken()):
            return ()
    return (loader.family_of(name),)


def _families_of(extension: object) -> tuple[Family, ...]:
    found: tuple[Family, ...] = getattr(extension, "families", ())
    return found
