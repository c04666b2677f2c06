"""The interface of an extension: one way to give a loader its kernels, and to check whether it can.

It is the interface of Colossal-AI's ``_Extension``, so classes written for that register here unchanged. If a method
has two spellings (``is_available``, ``is_hardware_available``), a subclass implements either and has both. A subclass
may set ``self._name``, ``self._support_aot``, ``self._support_jit`` and ``self.priority`` itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

_SPELLINGS = (
    ("is_available", "is_hardware_available", "is_hardware_compatible"),
    ("assert_compatible", "assert_hardware_compatible"),
)


class Extension(ABC):
    """A candidate of a loader, which loads the available candidate with the highest ``priority``."""

    backend: ClassVar[str] = "python"
    """The backend of its kernels, for display: ``precast list`` and ``precast why`` show it."""

    reference: ClassVar[bool] = False
    """Whether it is the reference for the kernels: always available, and slow. See ``KernelLoader.load``."""

    absent: ClassVar[str] = "its hardware is not here"
    """The loader's explanation if ``is_available`` returns False."""

    # For subclasses that set only some of these attributes themselves.
    _name: str = ""
    _support_aot: bool = False
    _support_jit: bool = False
    priority: int = 1

    def __init__(self, name: str, support_aot: bool, support_jit: bool, priority: int = 1) -> None:
        self._name = name
        self._support_aot = support_aot
        self._support_jit = support_jit
        self.priority = priority

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for names in _SPELLINGS:
            written = [name for name in names if name in vars(cls)]
            for name in names:
                if written and name not in written:
                    setattr(cls, name, vars(cls)[written[0]])

    @property
    def name(self) -> str:
        """The name for ``loader.load(ext_name=...)``."""
        return self._name

    @property
    def support_aot(self) -> bool:
        """Whether the extension can be built ahead of time, into a wheel."""
        return self._support_aot

    @property
    def support_jit(self) -> bool:
        """Whether the extension can be built at run time."""
        return self._support_jit

    @abstractmethod
    def is_available(self) -> bool:
        """Whether this machine has the hardware. Raises no error, builds nothing, creates no CUDA context."""

    @abstractmethod
    def assert_compatible(self) -> None:
        """Raises an error if this machine has the hardware but the extension cannot be loaded."""

    @abstractmethod
    def build_aot(self) -> Any:
        """The setuptools extension that builds the kernels ahead of time."""

    @abstractmethod
    def build_jit(self) -> Any:
        """Builds the kernels if they are not in the cache, and returns the same as ``load``."""

    @abstractmethod
    def load(self) -> Any:
        """The module-like object with the kernels: prebuilt if that fits, else from ``build_jit``."""

    def assert_build_compatible(self) -> None:
        """Raises an error if the kernels cannot be built here. Loading a prebuilt extension needs less."""
        self.assert_compatible()

    def is_hardware_available(self) -> bool:
        """The other spelling of ``is_available``."""
        return self.is_available()

    def assert_hardware_compatible(self) -> None:
        """The other spelling of ``assert_compatible``."""
        self.assert_compatible()

    @staticmethod
    def get_jit_extension_folder_path() -> str:
        """The folder for run-time builds; ``PRECAST_CACHE_DIR`` moves it."""
        from precast._builder.cache import default_root
        from precast._load import probe

        return str(default_root(probe.read_settings()))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} priority={self.priority}>"
