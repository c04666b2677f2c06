"""Finds kernels by the names that the command line accepts, such as public names, families, ops and loaders."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from precast._builder import public
from precast._builder.catalogue import FAMILIES, FOLDERS, Family
from precast._load import loader
from precast.errors import KernelUnavailable, block

if TYPE_CHECKING:
    from precast.kernel_loader import KernelLoader

    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]  # the return type of add_subparsers has no public name


def families(names: Iterable[str]) -> tuple[Family, ...]:
    """The families of these names, each once, in the catalogue's order; without names, all families."""
    given = list(names)
    wanted = {family.name for name in given for family in _named(name)}
    return tuple(family for family in FAMILIES if not given or family.name in wanted)


def loaders(name: str) -> list[type[KernelLoader]]:
    """The loaders for a name: the loader with this name, or those that have the extension or the family."""
    from precast import kernel_loader

    every = kernel_loader.loaders()
    named = [one for one in every if name in _known(one)]
    if named:
        return named
    wanted = set(_named(name))
    return [one for one in every if any(wanted & set(_families_of(extension)) for extension in one.extensions())]


def _known(one: type[KernelLoader]) -> set[str]:
    """Every name that selects a loader."""
    return {one.__name__, *one.ALIASES, *one.names(), *(broken.name for broken in one.broken())}


def kernel(verb: str) -> Callable[[str], str]:
    """The argparse type of a ``verb`` argument that must name a kernel; argparse prints the error."""

    def name(text: str) -> str:
        short = _short(text)
        try:
            _named(short)
        except KernelUnavailable as error:
            raise argparse.ArgumentTypeError(_unknown(verb, text)) from error
        return short

    return name


def known() -> tuple[str, ...]:
    """Every accepted kernel name: public names, families, their folders, ops, loaders and their extensions."""
    from precast import kernel_loader

    ops = [op for family in FAMILIES for op in family.op_names]
    of_loaders = [name for one in kernel_loader.loaders() for name in (one.__name__, *sorted(_known(one)))]
    kernels = [*(folder.name for folder in FOLDERS), *(family.name for family in FAMILIES), *ops]
    return tuple(dict.fromkeys((*public.rooms(), *kernels, *of_loaders)))


def _short(text: str) -> str:
    """The last part of a public dotted name: ``precast.ops.silu_and_mul`` -> ``silu_and_mul``."""
    folder, _, name = text.rpartition(".")
    return name if folder in (*public.ROOMS, "precast.kernel_loader") else text


def _unknown(verb: str, text: str) -> str:
    """The error message, with the command that the user probably meant."""
    lower = {name.lower(): name for name in known()}
    close = difflib.get_close_matches(_short(text).lower(), lower, n=1)
    fix = f"precast {verb} {lower[close[0]]}" if close else "precast list"
    return block(f"there is no kernel {text!r}", needed="a name that precast list shows", fix=fix)


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
    try:
        return loader.families_of(name)
    except KernelUnavailable:
        for folder in FOLDERS:  # the rows of the doctor
            if folder.name == name:
                return folder.families
        raise


def _families_of(extension: object) -> tuple[Family, ...]:
    found: tuple[Family, ...] = getattr(extension, "families", ())
    return found
