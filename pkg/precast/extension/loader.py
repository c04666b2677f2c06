"""The base of the loaders: a registry of extensions, and the choice of the best one for this machine."""

from __future__ import annotations

import difflib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from precast._load import probe
from precast._load.system import after_fork_in_child
from precast.errors import KernelUnavailable
from precast.extension import entry_points
from precast.extension.base import Extension
from precast.extension.judge import Candidate, judge

ExtensionClass = Callable[[], Extension]
_log = logging.getLogger("precast")
_INTERFACE = ("name", "priority", "is_available", "assert_compatible", "build_aot", "build_jit", "load")
_OURS = "precast"


class KernelLoader:
    """Base of the loaders. A subclass starts with a copy of its parent's registry, and later changes affect only it."""

    REGISTRY: ClassVar[list[ExtensionClass]] = []
    ALIASES: ClassVar[Mapping[str, str]] = {}  # former names of extensions
    _memory: ClassVar[dict[str | None, Any]] = {}
    _origins: ClassVar[dict[str, str]] = {}
    _broken: ClassVar[list[Candidate]] = []
    _asked: ClassVar[bool] = False
    _lock: ClassVar[threading.RLock] = threading.RLock()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.REGISTRY = list(cls.REGISTRY)
        cls._memory, cls._origins, cls._broken, cls._asked = {}, dict(cls._origins), [], False
        cls._lock = threading.RLock()

    @classmethod
    def register_extension(cls, extension: ExtensionClass) -> None:
        """Add an extension class to this loader only.

        Args:
            extension: a class of :mod:`precast.extension`, or one with the same methods.

        Raises:
            TypeError: it is not an extension class, or a method is missing.
            ValueError: this loader already has an extension with that name.
        """
        _check_interface(cls, extension)
        name = extension().name
        with cls._lock:
            if name in cls.names():
                raise ValueError(
                    f"{cls.__name__} already has an extension {name!r}; unregister_extension({name!r}) first"
                )
            cls.REGISTRY.append(extension)
            cls._origins[name] = getattr(extension, "__module__", "this process")
            cls._memory.clear()

    @classmethod
    def unregister_extension(cls, extension: str | ExtensionClass) -> None:
        """Remove an extension from this loader; modules that it has loaded stay loaded.

        Args:
            extension: the name or the class of the extension.

        Raises:
            ValueError: this loader has no such extension.
        """
        with cls._lock:
            cls._ask_packages()
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
        return tuple(extension.name for extension in cls.extensions())

    @classmethod
    def extensions(cls) -> list[Extension]:
        """An instance of each registered class, in the order of registration, including those of installed packages."""
        with cls._lock:
            cls._ask_packages()
            return [extension() for extension in cls.REGISTRY]

    @classmethod
    def candidates(cls) -> list[Candidate]:
        """Every extension in the order in which ``load()`` tries them, with the reason for each that cannot be used."""
        mode = probe.read_settings().jit
        judged = [judge(extension, cls.origin(extension.name), mode)[0] for extension in cls._by_priority()]
        return [*judged, *cls.broken()]

    @classmethod
    def broken(cls) -> list[Candidate]:
        """The unusable extensions that installed packages announce for this loader, with the reasons."""
        with cls._lock:
            cls._ask_packages()
            return list(cls._broken)

    @classmethod
    def origin(cls, name: str) -> str:
        """The origin of an extension: this package, another one, or the module that registered it."""
        return cls._origins.get(name, _OURS)

    def load(self, ext_name: str | None = None) -> Any:
        """Return the kernels of an extension as a module-like object; its ``source`` says where they came from.

        Plain torch is the last choice. Its use logs a warning if this machine has the hardware for a kernel. Under
        ``PRECAST_JIT=aot`` or ``jit``, which require a kernel, plain torch is not chosen.

        Args:
            ext_name: a name from :meth:`names`. None: the extension with the highest priority that can be loaded here.

        Raises:
            KernelUnavailable: there is no such extension, or none can be loaded here; the message lists the reasons.
            KernelIncompatible: a file of the installation is damaged or does not fit.

        Example::

            adam = precast.kernel_loader.CPUAdamLoader().load()
            print(adam.source)
        """
        cls = type(self)
        with cls._lock:
            if ext_name not in cls._memory:
                cls._memory[ext_name] = self._load_named(ext_name) if ext_name is not None else self._load_best()
            return cls._memory[ext_name]

    def _load_named(self, ext_name: str) -> Any:
        wanted = self.ALIASES.get(ext_name, ext_name)
        extensions = type(self).extensions()
        for extension in extensions:
            if extension.name == wanted:
                extension.assert_compatible()
                return self._remembered(extension)
        for broken in self._broken:
            if broken.name == wanted:
                raise KernelUnavailable(
                    f"{type(self).__name__} cannot use the extension {wanted!r}",
                    found=broken.reason,
                    needed="an extension class that can be imported",
                    fix="correct or uninstall the package that registers this extension",
                )
        names = [*(extension.name for extension in extensions), *self.ALIASES]
        close = difflib.get_close_matches(ext_name, names, n=1)
        raise KernelUnavailable(
            f"{type(self).__name__} cannot load the extension {ext_name!r}",
            found="no extension of that name",
            needed=f"one of {', '.join(names)}" if names else "a registered extension",
            fix=[f"{type(self).__name__}().load(ext_name={name!r})" for name in close] or ["python -m precast list"],
        )

    def _load_best(self) -> Any:
        """Try the extensions by priority, then by registration, until one can be loaded."""
        cls, mode = type(self), probe.read_settings().jit
        refusals: list[Candidate] = []
        causes: list[Exception] = []
        for extension in cls._by_priority():
            candidate, cause = judge(extension, cls.origin(extension.name), mode)
            if candidate.state == "ready":
                self._say_stand_in(candidate, [one for one in refusals if one.state == "refused"])
                return self._remembered(extension)
            refusals.append(candidate)
            causes += [] if cause is None else [cause]
        lines = [f"  {one.name}: {_indented(one.reason)}" for one in (*refusals, *self._broken)]
        what = f"none of the extensions of {cls.__name__} can be loaded here"
        raise KernelUnavailable(
            "\n".join([what, *lines]),
            found=f"{len(lines)} extensions, each with its reason above" if lines else "no registered extension",
            needed="one extension that can be loaded on this machine",
            fix="run a fix above" if lines else f"{cls.__name__}.register_extension(MyExtension)  # a class of yours",
        ) from (causes[0] if causes else None)

    def _say_stand_in(self, taken: Candidate, refused: list[Candidate]) -> None:
        """Warn if a slower extension replaces an extension whose hardware is present."""
        for other in refused:
            _log.warning(
                "%s: %s is used, as %s cannot be: %s", type(self).__name__, taken.name, other.name, other.first_line
            )

    def _remembered(self, extension: Extension) -> Any:
        """Return the same object for an extension, whether it was requested by name or chosen."""
        memory = type(self)._memory
        if extension.name not in memory:
            memory[extension.name] = extension.load()
        return memory[extension.name]

    @classmethod
    def _by_priority(cls) -> Iterator[Extension]:
        return iter(sorted(cls.extensions(), key=lambda extension: -extension.priority))

    @classmethod
    def _ask_packages(cls) -> None:
        """Register, once, the extensions that installed packages announce; report broken ones and skip them."""
        if cls._asked:
            return
        cls._asked = True
        loaders = [base.__name__ for base in cls.__mro__ if issubclass(base, KernelLoader)]
        taken = {extension().name for extension in cls.REGISTRY}
        for one in entry_points.announced(loaders):
            try:
                extension = one.load()
                _check_interface(cls, extension)
                name = extension().name
                if name in taken:
                    raise ValueError(f"{cls.__name__} already has an extension {name!r}; needed another name")
            except Exception as error:  # noqa: BLE001 - the import of any package may raise anything
                _log.warning("%s: the extension of %s is not used: %s", cls.__name__, one.origin, error)
                reason = f"{type(error).__name__}: {error}"
                cls._broken.append(Candidate(one.name, "unknown", 0, one.origin, "broken", reason))
                continue
            cls.REGISTRY.append(extension)
            cls._origins[name] = one.origin
            taken.add(name)


def _indented(reason: str) -> str:
    return reason.replace("\n", "\n      ")


def _renew_locks(loader: type[KernelLoader] = KernelLoader) -> None:
    """Replace the locks in a forked child, because the thread that held one may not exist there."""
    loader._lock = threading.RLock()
    for subclass in loader.__subclasses__():
        _renew_locks(subclass)


after_fork_in_child(_renew_locks)


def _check_interface(loader: type[KernelLoader], extension: object) -> None:
    if not isinstance(extension, type):
        raise TypeError(f"{loader.__name__}: {extension!r} is not a class; needed a subclass of Extension")
    missing = [name for name in _INTERFACE if not hasattr(extension, name)]
    if not issubclass(extension, Extension) and missing:
        raise TypeError(f"{extension.__name__} is not an extension: it lacks {', '.join(missing)}")
    abstract = sorted(getattr(extension, "__abstractmethods__", ()))
    if abstract:
        raise TypeError(f"{extension.__name__} does not define {', '.join(abstract)}, so it cannot be registered")
