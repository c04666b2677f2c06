"""The extensions that a setup.py declares: setuptools objects, checked before anything is built."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from setuptools import Extension

from precast._abi.settings import Settings
from precast._cubin.code import DeviceCode
from precast._load import probe
from precast.build import wheel
from precast.core import pip
from precast.core.torch_abi import STABLE_FLOOR, Stable
from precast.core.version import Release
from precast.errors import KernelError

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", re.ASCII)  # a module of a package


class StableExtension(Extension):  # type: ignore[misc]  # setuptools has no types
    """C++ on the stable ABI of torch: one library for every torch from ``floor`` on and for every Python.

    A released precast ships the headers for it, so the build needs no torch. Any other precast uses the headers of the
    installed torch. The code must not use the C API of Python or the classic C++ of torch (at:: or c10::). It registers
    its ops with STABLE_TORCH_LIBRARY.
    """

    def __init__(
        self,
        name: str,
        sources: Sequence[str],
        *,
        floor: str = str(STABLE_FLOOR),
        include_dirs: Sequence[str] = (),
        define_macros: Sequence[tuple[str, str | None]] = (),
        extra_compile_args: Sequence[str] = (),
        extra_link_args: Sequence[str] = (),
        depends: Sequence[str] = (),
    ) -> None:
        super().__init__(
            name,
            list(sources),
            include_dirs=list(include_dirs),
            define_macros=list(define_macros),
            extra_compile_args=list(extra_compile_args),
            extra_link_args=list(extra_link_args),
            depends=list(depends),
            language="c++",
        )
        self.abi = Stable(Release.parse(floor))
        if self.abi.floor < STABLE_FLOOR:
            raise _bad(name, f"floor {floor}", f"{STABLE_FLOOR} or newer: older torches have no stable ABI to speak of")


def ext_modules(*extensions: Any) -> list[Extension]:
    """Return the extensions to compile, for ``setup(ext_modules=...)``; nested lists are flattened.

    Each argument is a setuptools extension (also a CUDAExtension or CppExtension of torch), or a class or
    object with ``build_aot()``, as in precast.extension. Each must be a module of a package, which holds its manifest.
    """
    known: list[Extension] = []
    for extension in _flat(extensions):
        made = _made(extension)
        if not isinstance(made, Extension):
            raise _bad(repr(extension), type(made).__name__, "a setuptools extension, or an object with build_aot()")
        known.append(made)
    refuse_names(known)
    return known


def refuse_names(extensions: Sequence[Extension]) -> None:
    """Raise KernelError for the first name that is not a module of a package, or that is used twice."""
    seen = set[str]()
    for extension in extensions:
        if _NAME.fullmatch(extension.name) is None:
            raise _bad(
                extension.name,
                "a name without a package",
                "the dotted name of a module of a package, such as 'my_package._C'",
            )
        if extension.name in seen:
            raise _bad(extension.name, "two extensions of that name", "one extension of that name")
        seen.add(extension.name)


def labelled(version: str, extensions: Iterable[Extension]) -> str:
    """Add the CUDA and torch that the wheel needs to a version: ``"1.0+cu130.torch2.13"``, or no change.

    So wheels for different torch versions get different file names. PyPI refuses such versions; other indexes do not.
    """
    every = map(_made, extensions)
    bound = [e for e in every if not isinstance(e, DeviceCode) and declared_floor(e) is None]
    if not bound:
        return version
    torch = probe.probe_host(Settings(), gpus=False).torch
    if torch is None:
        install = pip.install_command()
        fix = f"{install} torch && {install} --no-build-isolation ."
        raise _bad(bound[0].name, "no torch in the environment of the build", "the torch to build for", fix)
    return f"{version}+{wheel.local_of(wheel.label_of_torch(torch), torch.version.release)}"


def declared_floor(extension: Extension) -> Stable | None:
    """The oldest torch for an extension on the stable ABI, from its class or its TORCH_TARGET_VERSION define."""
    if isinstance(extension, StableExtension):
        return extension.abi
    for name, text in extension.define_macros:
        if name == "TORCH_TARGET_VERSION" and text:
            number = int(text, 16)
            return Stable(Release(number >> 56, (number >> 48) & 0xFF))
    return None


def _made(extension: Any) -> Any:
    made = extension() if isinstance(extension, type) else extension
    return made.build_aot() if not isinstance(made, Extension) and hasattr(made, "build_aot") else made


def _flat(extensions: Iterable[Any]) -> Iterable[Any]:
    for extension in extensions:
        if isinstance(extension, (list, tuple)):
            yield from _flat(extension)
        else:
            yield extension


def _bad(name: str, found: str, needed: str, fix: str = "correct the extension in setup.py") -> KernelError:
    return KernelError(f"{name} cannot be built into a wheel", found=found, needed=needed, fix=fix)
