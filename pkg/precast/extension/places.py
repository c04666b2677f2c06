"""The places of an extension's sources, and of the files built from them at install time."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from precast._abi.settings import JitMode
from precast.core import opening, verify
from precast.errors import JitDisabled, KernelError, KernelIncompatible

_log = logging.getLogger("precast")


class Places:
    """The base of the classes that compile something. A subclass can also set the properties as plain attributes."""

    name: str

    @functools.cached_property
    def prebuilt_module_path(self) -> str:
        """The package with what was built at install time: ``_C`` in the subclass' own package."""
        return f"{type(self).__module__.partition('.')[0]}._C"

    @functools.cached_property
    def prebuilt_import_path(self) -> str:
        """The module that was built at install time, which is also the name under which ``build_aot`` builds it."""
        return f"{self.prebuilt_module_path}.{self.name}"

    def aot_name(self) -> str:
        """The name under which ``build_aot`` builds. Raises KernelError for a class that is in no package.

        Such a class, in a setup.py or another script, has no ``_C`` that a wheel could own and a loader could find.
        """
        module = type(self).__module__
        in_package = "." in module or hasattr(sys.modules.get(module), "__path__")
        if not in_package and self.prebuilt_module_path == f"{module}._C":
            raise KernelError(
                f"{self.name} cannot be built ahead of time",
                found=f"class {type(self).__qualname__} in {module}, which is not in a package",
                needed="a class in a module of your package, such as my_package.kernels",
                fix="move the class, and import it in setup.py",
            )
        return self.prebuilt_import_path

    @property
    def version_dependent_macros(self) -> list[str]:
        """Macros that older sources expect. Every supported torch is newer than the versions in them."""
        return ["-DVERSION_GE_1_1", "-DVERSION_GE_1_3", "-DVERSION_GE_1_5"]

    def relative_to_abs_path(self, code_path: str) -> str:
        """A path in the nearest folder that contains it, searching upwards from the subclass' file."""
        home = Path(inspect.getfile(type(self))).resolve().parent
        folders = (home, *home.parents)
        return str(next((folder / code_path for folder in folders if (folder / code_path).exists()), home / code_path))

    def csrc_abs_path(self, path: str) -> str:
        """A path in ``csrc/kernel``, else in ``csrc``, which an empty path means."""
        inside = Path(self.relative_to_abs_path(f"csrc/kernel/{path}"))
        return str(inside) if path and inside.exists() else self.relative_to_abs_path(f"csrc/{path}")

    def pybind_abs_path(self, path: str) -> str:
        """A path in ``pybind``."""
        return self.relative_to_abs_path(f"pybind/{path}")

    @staticmethod
    def strip_empty_entries(args: Sequence[str]) -> list[str]:
        """The list without its empty strings."""
        return [arg for arg in args if arg]

    def prebuilt_file(self) -> Path | None:
        """The file that was built at install time, or None. Imports the file's package, but does not open the file.

        In a wheel of ``precast.build`` a guard takes the file's place. The result is then the library behind it, if it
        fits.
        """
        try:
            spec = importlib.util.find_spec(self.prebuilt_import_path)
        except ModuleNotFoundError:
            return None
        if spec is None or not spec.origin:
            return None
        found = Path(spec.origin)
        if found.suffix != ".py" or not (found.parent / verify.MANIFEST).is_file():
            return found
        try:
            return opening.library_file(self.prebuilt_module_path, self.name)
        except KernelIncompatible as error:
            _log.warning("%s: the module built at install time is not used: %s", self.name, error)
            return None


def forbidden(name: str, place: str, what: str, mode: JitMode) -> JitDisabled:
    """The exception to raise if only a setting forbids a build."""
    return JitDisabled(
        f"{name} cannot be loaded here: PRECAST_JIT={mode.value} forbids to {what}",
        found=f"nothing usable under {place}",
        needed="a build while installing, or PRECAST_JIT=auto",
        fix="unset PRECAST_JIT",
    )
