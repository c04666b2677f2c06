"""C++ sources with a Python binding, compiled against the installed torch, as by Colossal-AI's ``_CppExtension``.

A subclass names sources, include folders and flags. ``load`` takes the module that was built at install time, from the
``_C`` of the subclass' own package. If it is missing or does not fit, ``load`` builds it once, into the cache.
"""

from __future__ import annotations

import importlib
import logging
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from precast._abi.settings import JitMode
from precast._load import probe
from precast._load.source import Source
from precast.errors import KernelError, KernelIncompatible
from precast.extension.base import Extension
from precast.extension.module import KernelModule
from precast.extension.places import Places, forbidden

if TYPE_CHECKING:
    from types import ModuleType

    from setuptools import Extension as SetuptoolsExtension

    from precast.extension.native import Native

_log = logging.getLogger("precast")


class CppExtension(Places, Extension):
    """Kernels in C++. ``build_aot`` returns the ``torch.utils.cpp_extension.CppExtension`` for a setup.py."""

    backend: ClassVar[str] = "cpp"
    _support_aot = True
    _support_jit = True

    def __init__(self, name: str, priority: int = 1) -> None:
        super().__init__(name, support_aot=True, support_jit=True, priority=priority)

    # Defined by a subclass.

    @abstractmethod
    def sources_files(self) -> list[str]:
        """The files to compile, as absolute paths: see ``csrc_abs_path`` and ``pybind_abs_path``."""

    @abstractmethod
    def include_dirs(self) -> list[str]:
        """The folders to search for headers, in addition to those of torch; ``super()`` gives ``csrc``."""
        return [self.csrc_abs_path("")]

    @abstractmethod
    def cxx_flags(self) -> list[str]:
        """The flags of the C++ compiler."""

    # Called by a loader.

    def is_available(self) -> bool:
        """True, because every machine has a CPU. A subclass for one architecture overrides this method."""
        return True

    def assert_compatible(self) -> None:
        """Raises an error if the kernels cannot be loaded. Only without an installed module, this needs build tools."""
        settings = probe.read_settings()
        if settings.jit is JitMode.NONE:
            raise forbidden(self.name, self.prebuilt_import_path, "load a kernel", settings.jit)
        if settings.jit is JitMode.JIT or not self.prebuilt_file() is not None:
            if settings.jit is JitMode.AOT:
                raise forbidden(self.name, self.prebuilt_import_path, "build one", settings.jit)
            self.assert_build_compatible()

    def assert_build_compatible(self) -> None:
        """Raises KernelUnavailable unless a compiler, ninja, torch and setuptools are here; lists the searches."""
        from precast.extension import native

        native.assert_can_build(self._native())

    def import_op(self) -> ModuleType:
        """The module that was built at install time. An ImportError is passed on unchanged."""
        return importlib.import_module(self.prebuilt_import_path)

    def build_aot(self) -> SetuptoolsExtension:
        """Torch's ``CppExtension`` for ``setup(ext_modules=[...])``."""
        from precast.extension import native

        return native.setuptools_extension(self.aot_name(), self._native())

    def build_jit(self) -> KernelModule:
        """The module from the cache, built on a miss. The key covers sources, flags, headers, torch and tools."""
        return self._build(f"{self.prebuilt_import_path} is not there")

    def load(self) -> KernelModule:
        """The module that was built at install time, or a run-time build if that is missing or does not fit."""
        settings = probe.read_settings()
        if settings.jit is JitMode.NONE:
            raise forbidden(self.name, self.prebuilt_import_path, "load a kernel", settings.jit)
        if settings.jit is JitMode.JIT:
            return self._build("PRECAST_JIT=jit")
        try:
            module = self.import_op()
        except KernelIncompatible as error:  # the guard of a wheel made by precast.build: nothing was opened
            if settings.jit is JitMode.AOT:
                raise
            why = ": ".join(line.strip() for line in str(error).splitlines()[:2])
            _log.warning("%s: the module built at install time is not used: %s", self.name, why)
            return self._build(why)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{self.prebuilt_import_path}.".startswith(f"{error.name}."):
                raise self._broken(error) from error  # it exists, but something that it imports is missing
            if settings.jit is JitMode.AOT:
                raise forbidden(self.name, self.prebuilt_import_path, "build one", settings.jit) from error
            return self._build(f"{self.prebuilt_import_path} is not there")
        except ImportError as error:
            raise self._broken(error) from error
        place = Path(getattr(module, "__file__", None) or self.prebuilt_import_path)
        return self._module(module, Source("prebuilt", place, self.prebuilt_import_path))

    # Internal.

    def _native(self) -> Native:
        """The subclass' settings as one value."""
        from precast.extension.native import Native  # only imported if something has to be built

        return Native(
            self.name,
            tuple(self.strip_empty_entries(self.sources_files())),
            tuple(self.strip_empty_entries(self.include_dirs())),
            tuple(self.strip_empty_entries(self.cxx_flags())),
        )

    def _build(self, why: str) -> KernelModule:
        from precast.extension import native

        source = native.build(self._native(), why)
        return self._module(native.import_from(self.name, source.path), source)

    def _module(self, module: ModuleType, source: Source) -> KernelModule:
        members = {name: value for name, value in vars(module).items() if not name.startswith("__")}
        return KernelModule(self.name, members, source)

    def _broken(self, error: ImportError) -> KernelError:
        return KernelIncompatible(
            f"{self.name}: the module built at install time cannot be imported",
            found=f"{type(error).__name__}: {error}",
            needed=f"{self.prebuilt_import_path}, built for this Python and torch",
            fix=[
                f"install the package of {self.prebuilt_import_path} again, with this torch",
                "export PRECAST_JIT=jit  # builds it here and keeps it",
            ],
        )
