"""The public loaders: each holds its extensions, and loads the best one that fits this machine.

``CPUAdamLoader().load()`` gives a module-like object. Which extension that is, is decided once and remembered until one
is registered or unregistered. A named extension, ``load(ext_name=...)``, goes through the very same checks.
"""

from __future__ import annotations

import difflib
import logging
import threading
from collections.abc import Callable
from typing import Any, ClassVar

from precast._load.system import after_fork_in_child
from precast._load.verdict import assert_not_pure
from precast.errors import KernelError, KernelUnavailable
from precast.extension.base import Extension
from precast.extension.builtin import (
    ActivationsCpuExtension,
    ActivationsCudaExtension,
    CpuAdamArmExtension,
    CpuAdamX86Extension,
    LayerNormCpuExtension,
    LayerNormCudaExtension,
    RmsNormCpuExtension,
    RmsNormCudaExtension,
    SoftmaxCpuExtension,
    SoftmaxCudaExtension,
)
from precast.extension.twins import (
    ActivationsTritonExtension,
    LayerNormTritonExtension,
    RmsNormTritonExtension,
    SoftmaxTritonExtension,
)

__all__ = [
    "ActivationsLoader",
    "CPUAdamLoader",
    "KernelLoader",
    "LayerNormLoader",
    "RMSNormLoader",
    "SoftmaxLoader",
    "assert_not_pure",
]

ExtensionClass = Callable[[], Extension]
_log = logging.getLogger("precast")
_ABSENT = "its hardware is not here"
_INTERFACE = ("name", "priority", "is_available", "assert_compatible", "build_aot", "build_jit", "load")


class KernelLoader:
    """Base of the loaders. Every subclass starts with a copy of its parent's registry; later changes stay its own."""

    REGISTRY: ClassVar[list[ExtensionClass]] = []
    _memory: ClassVar[dict[str | None, Any]] = {}
    _lock: ClassVar[threading.RLock] = threading.RLock()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.REGISTRY = list(cls.REGISTRY)
        cls._memory = {}
        cls._lock = threading.RLock()

    @classmethod
    def register_extension(cls, extension: ExtensionClass) -> None:
        """Adds a class of extensions to this loader alone; refuses what is no extension, and a name that is taken."""
        _check_interface(cls, extension)
        name = extension().name
        with cls._lock:
            if name in cls.names():
                raise ValueError(
                    f"{cls.__name__} already has an extension {name!r}; unregister_extension({name!r}) first"
                )
            cls.REGISTRY.append(extension)
            cls._memory.clear()

    @classmethod
    def unregister_extension(cls, extension: str | ExtensionClass) -> None:
        """Takes an extension out again, by name or class; what it has loaded stays loaded."""
        with cls._lock:
            for known in cls.REGISTRY:
                if known is extension or known().name == extension:
                    cls.REGISTRY.remove(known)
                    cls._memory.clear()
                    return
            wanted = extension if isinstance(extension, str) else getattr(extension, "__name__", extension)
            raise ValueError(f"{cls.__name__} has no extension {wanted!r}; it has {', '.join(cls.names()) or 'none'}")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of the registered extensions, in the order of registration."""
        return tuple(extension().name for extension in cls.REGISTRY)

    def load(self, ext_name: str | None = None) -> Any:
        """The kernels of the named extension, or of the one with the highest priority that can be loaded here."""
        cls = type(self)
        with cls._lock:
            if ext_name not in cls._memory:
                cls._memory[ext_name] = self._load_named(ext_name) if ext_name is not None else self._load_best()
            return cls._memory[ext_name]

    def _load_named(self, ext_name: str) -> Any:
        for extension in self._candidates():
            if extension.name == ext_name:
                extension.assert_compatible()
                return extension.load()
        names = type(self).names()
        close = difflib.get_close_matches(ext_name, names, n=1)
        raise KernelUnavailable(
            f"{type(self).__name__} has no extension {ext_name!r}\n"
            f"  needed  one of {', '.join(names) or 'none, as none is registered'}"
            + (f"\n  fix     1) {type(self).__name__}().load(ext_name={close[0]!r})" if close else "")
        )

    def _load_best(self) -> Any:
        """In order of priority, ties by registration; an extension that cannot be loaded gives way to the next."""
        refusals: list[tuple[Extension, str]] = []
        causes: list[Exception] = []
        for extension in sorted(self._candidates(), key=lambda candidate: -candidate.priority):
            if not extension.is_available():
                refusals.append((extension, _ABSENT))
                continue
            try:
                extension.assert_compatible()
            except (KernelError, AssertionError) as error:  # AssertionError: what older extensions raise
                refusals.append((extension, str(error).replace("\n", "\n      ")))
                causes.append(error)
                continue
            self._say_stand_in(extension, causes, refusals)
            return self._remembered(extension)
        lines = [f"  {extension.name}: {why}" for extension, why in refusals]
        raise KernelUnavailable(
            "\n".join([f"none of the extensions of {type(self).__name__} can be loaded here", *lines])
        ) from (causes[0] if causes else None)

    def _say_stand_in(
        self, extension: Extension, causes: list[Exception], refusals: list[tuple[Extension, str]]
    ) -> None:
        """A slower extension in the place of one whose hardware is here is never taken in silence."""
        refused = [(other, why) for other, why in refusals if why != _ABSENT]
        for (other, _), cause in zip(refused, causes, strict=True):
            why = ": ".join(line.strip() for line in str(cause).splitlines()[:2])
            _log.warning("%s: %s is used, as %s cannot be: %s", type(self).__name__, extension.name, other.name, why)

    def _remembered(self, extension: Extension) -> Any:
        """One object per extension, whether it was asked for by name or not."""
        memory = type(self)._memory
        if extension.name not in memory:
            memory[extension.name] = extension.load()
        return memory[extension.name]

    def _candidates(self) -> list[Extension]:
        return [extension() for extension in type(self).REGISTRY]


def _renew_locks(loader: type[KernelLoader] = KernelLoader) -> None:
    """In a forked child the thread that held a lock does not exist any more."""
    loader._lock = threading.RLock()
    for subclass in loader.__subclasses__():
        _renew_locks(subclass)


after_fork_in_child(_renew_locks)


def _check_interface(loader: type[KernelLoader], extension: object) -> None:
    if not isinstance(extension, type):
        raise TypeError(f"{loader.__name__} registers classes of extensions, and {extension!r} is none")
    missing = [name for name in _INTERFACE if not hasattr(extension, name)]
    if not issubclass(extension, Extension) and missing:
        raise TypeError(f"{extension.__name__} is no extension: it lacks {', '.join(missing)}")
    abstract = sorted(getattr(extension, "__abstractmethods__", ()))
    if abstract:
        raise TypeError(f"{extension.__name__} leaves {', '.join(abstract)} open, so it cannot be registered")


class CPUAdamLoader(KernelLoader):
    """Adam and AdamW on the CPU."""

    REGISTRY = [CpuAdamX86Extension, CpuAdamArmExtension]  # noqa: RUF012 - annotated in the base


class RMSNormLoader(KernelLoader):
    """RMS norm, alone and fused with the addition of a residual: on the GPU where there is one, else on the CPU."""

    REGISTRY = [  # noqa: RUF012 - annotated in the base
        RmsNormCudaExtension,
        RmsNormTritonExtension,
        RmsNormCpuExtension,
    ]


class LayerNormLoader(KernelLoader):
    """Layer norm: on the GPU where there is one, else on the CPU."""

    REGISTRY = [  # noqa: RUF012 - annotated in the base
        LayerNormCudaExtension,
        LayerNormTritonExtension,
        LayerNormCpuExtension,
    ]


class ActivationsLoader(KernelLoader):
    """Gated activations: on the GPU where there is one, else on the CPU."""

    REGISTRY = [  # noqa: RUF012 - annotated in the base
        ActivationsCudaExtension,
        ActivationsTritonExtension,
        ActivationsCpuExtension,
    ]


class SoftmaxLoader(KernelLoader):
    """Scaled softmax: plain, masked, causal: on the GPU where there is one, else on the CPU."""

    REGISTRY = [  # noqa: RUF012 - annotated in the base
        SoftmaxCudaExtension,
        SoftmaxTritonExtension,
        SoftmaxCpuExtension,
    ]
