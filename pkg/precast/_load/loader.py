"""``ensure``: from a family and a device to registered kernels. Probe, decide, build what is missing, load.

This happens once per family and device; a forked process keeps what its parent has loaded. A thread that asks for a
family waits while another thread loads it. Every file is checked against the manifest before it is loaded.

A first call that a prebuilt file serves must be quick, so modules needed only by builds or errors are imported there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from precast._abi.decision import (
    OWN_FUNCTIONS,
    Binding,
    BuildAdapter,
    BuildHost,
    BuildImage,
    BuildJit,
    OwnFunctions,
    Refuse,
    UsePrebuilt,
    all_rejections,
)
from precast._builder import catalogue
from precast._load import handover, prebuilt, probe
from precast._load.choose import Choice, choose, need_of
from precast._load.handover import Define
from precast._load.library import CannotAttach, HostLibrary, adapter_table
from precast._load.source import Loaded, Source
from precast._load.system import after_fork_in_child, require_linux
from precast.core.capability import GpuTarget
from precast.core.manifest import DeviceFile, HostFile
from precast.core.reasons import Reason, Rejection, damaged
from precast.core.verify import CannotOpen
from precast.errors import KernelUnavailable

_log = logging.getLogger("precast")


class TorchDevice(Protocol):
    """A ``torch.device``. Its text is its type, optionally followed by a colon and its index."""

    @property
    def type(self) -> str:
        """Such as "cuda"."""

    @property
    def index(self) -> int | None:
        """Such as 1; None for the current one."""


class _State:
    """What this process has loaded. The dictionaries only grow; each family has its own lock."""

    def __init__(self) -> None:
        self.loaded: dict[tuple[str, str], Loaded] = {}
        self.libraries: dict[Path, HostLibrary] = {}
        self.serving: dict[tuple[str, str], HostLibrary] = {}
        self.own_functions: str | None = None  # what is wrong with those of this torch
        self.told_stale = False
        self.renew_locks()

    def renew_locks(self) -> None:
        """Also runs in a forked child, where the thread that held a lock does not exist."""
        self.locks = {family.name: threading.RLock() for family in catalogue.FAMILIES}
        self.library_lock = threading.Lock()


def _defined(_: str) -> None:
    """Do nothing: an op that is being called is already defined."""


_state = _State()
after_fork_in_child(_state.renew_locks)


def ensure(family: str, device: str, define: Define = _defined) -> Loaded:
    """Make sure that the family's kernels are registered for the device type ("cpu", "cuda"); else raise KernelError.

    ``define`` is called with the family's name just before, to define its ops. A call of an op needs no ``define``.
    """
    done = _state.loaded.get((family, device))
    if done is not None:
        return done
    require_linux()
    known = catalogue.get(family)
    if device not in (*known.devices, *known.plain):
        from precast._load import verdict

        raise verdict.wrong_device(known, device)
    with _state.locks[family]:
        done = _state.loaded.get((family, device))
        if done is None:
            try:
                done = _state.loaded[family, device] = _load(known, device, define)
            except ImportError as error:
                raise _replaced(error) from error
        return done


def _replaced(error: ImportError) -> Exception:
    """The error for a module of precast that was removed or replaced after this process started."""
    if not (error.name or "").startswith("precast."):
        return error
    return KernelUnavailable(
        "precast was removed or replaced while this process ran",
        found=str(error),
        needed="the files that were installed when this process started; kernels that are loaded still work",
        fix="restart this process; if the error comes again, install precast again",
    )


def load(op: str, device: str | TorchDevice | None = None, define: Define = _defined) -> Loaded:
    """``precast.load``; ``define`` defines the ops of a family."""
    families = families_of(op)
    kind, index = _split_device(device)
    if device is None and not any("cpu" in family.devices for family in families):
        kind = families[0].devices[0]
    able = [family for family in families if kind in (*family.devices, *family.plain)]
    try:
        first, *_ = [_load_one(family, kind, index, define) for family in able or families[:1]]
    except KernelUnavailable as error:  # the error of a family gets the name that was asked for
        error.renamed(op)
        raise
    return first


def _load_one(family: catalogue.Family, kind: str, index: int | None, define: Define) -> Loaded:
    if kind == "cuda" and "cuda" in family.devices:
        index = probe.current_gpu() if index is None else index
    loaded = ensure(family.name, kind, define)
    serving = _state.serving.get((family.name, kind))  # None for plain torch
    if kind == "cuda" and index is not None and serving is not None:
        serving.prepare(family.name, index)
    return loaded


def family_of(op: str) -> catalogue.Family:
    """The first of :func:`families_of`."""
    return families_of(op)[0]


def families_of(name: str) -> tuple[catalogue.Family, ...]:
    """The families of an op ("rms_norm", "precast::rms_norm"), a family, or a public name ("FusedAdamW").

    An op and a family are one family; a public name has those of its gradient too. A typo's error lists the names.
    """
    short = name.removeprefix(f"{handover.NAMESPACE}::")
    for family in catalogue.FAMILIES:
        if short == family.name or short in family.op_names:
            return (family,)
    from precast._builder import public

    room, _, last = short.rpartition(".")
    if last in public.rooms() and room in ("", public.rooms()[last]):
        return tuple(family for family in catalogue.FAMILIES if family.name in public.families_of(last))
    from precast._load import verdict

    raise verdict.unknown_op(name, short, tuple(public.rooms()))


def _split_device(device: str | TorchDevice | None) -> tuple[str, int | None]:
    """Type and index of a device, without asking torch, which may be missing or broken."""
    if device is None:
        return "cpu", None
    kind, colon, index = str(device).partition(":")
    if colon and not index.isdigit():
        raise KernelUnavailable(
            f"device {str(device)!r} is not understood",
            found=f"{index!r} in the place of a device number",
            needed="'cpu', 'cuda' or a name such as 'cuda:0'",
            fix=f"pass device='{kind if kind in ('cpu', 'cuda') else 'cuda'}:0'",
        )
    return kind, int(index) if index else None


def _load(family: catalogue.Family, device: str, define: Define) -> Loaded:
    started = time.perf_counter()
    settings = probe.read_settings()
    need = need_of(family.name, device)
    bad: dict[str, Rejection] = {}  # of this call alone: what is repaired serves the next one
    if _state.own_functions is not None:
        bad[OWN_FUNCTIONS] = damaged(_state.own_functions)
    while True:  # ends: each later turn has one more shipped file in `bad`
        choice = choose(need, settings, bad, certain=True)
        bad |= choice.bad
        decision = choice.decision
        if isinstance(decision, Refuse):
            from precast._load import plain, verdict

            if choice.plain:
                define(family.name)
                return plain.load(family, device, choice)
            raise verdict.refusal(choice)
        host = _host_source(choice, decision)
        try:
            library = _open(host.path, settings.cpu_level)
        except CannotOpen as error:
            _pass_over(bad, choice, decision.host, host, error)
            continue
        torch = _torch_source(choice, decision)
        try:
            _bind(library, decision.binding, torch)
        except (CannotOpen, CannotAttach) as error:
            _pass_over(bad, choice, decision.binding, torch, error)
            continue
        _warn(choice)
        images = _set_images(library, choice, decision) if device == "cuda" else ()
        define(family.name)
        _register(library, family, device.upper(), built=not isinstance(decision.host, HostFile))
        _state.serving[family.name, device] = library
        return Loaded(family.name, device, host, images, time.perf_counter() - started, torch)


def _pass_over(
    bad: dict[str, Rejection],
    choice: Choice,
    piece: BuildHost | Binding,
    source: Source | None,
    error: CannotOpen | CannotAttach,
) -> None:
    """Note what is wrong with a shipped file, or with torch's own functions; for what was built here it is an error."""
    if isinstance(piece, OwnFunctions):
        _state.own_functions = str(error)  # for good: this process has only one torch
        bad[OWN_FUNCTIONS] = damaged(str(error))
        return
    assert source is not None  # every other piece is a file
    from precast._load import unopened
    from precast.core.unopened import why

    reason = why(source.path, str(error)) if isinstance(error, CannotOpen) else None
    if reason is not None and reason.passing:
        raise unopened.passing(source.path, reason) from error
    if not isinstance(piece, HostFile):
        from precast._load import verdict

        if reason is not None:
            raise unopened.of_cache(source.path, reason) from error
        raise verdict.cannot_open(choice, source, str(error)) from error
    said = f"the dynamic linker refuses it: {error}" if isinstance(error, CannotOpen) else str(error)
    bad[piece.name] = reason or damaged(said)


def _host_source(choice: Choice, decision: UsePrebuilt | BuildJit) -> Source:
    if isinstance(decision.host, HostFile):
        return Source("prebuilt", prebuilt.C_DIR / decision.host.path, str(decision.host.abi))
    from precast._load import jit
    from precast.core import explain

    why = explain.top_reason(decision.rejections, "host")
    return jit.build_host(choice.need.family, choice.builders, choice.settings, why)


def _torch_source(choice: Choice, decision: UsePrebuilt | BuildJit) -> Source | None:
    """What gives the library torch's functions, built if it must be."""
    binding = decision.binding
    if isinstance(binding, BuildAdapter):
        from precast._load import jit
        from precast.core import explain

        why = explain.top_reason(decision.rejections, "torch")
        return jit.build_adapter(binding, choice.builders, choice.settings, why)
    if isinstance(binding, HostFile):
        return Source("prebuilt", prebuilt.C_DIR / binding.path, str(binding.abi))
    torch = choice.host.torch
    if binding is None or torch is None:
        return None
    return Source("torch", (probe.torch_lib_dir() or Path()) / OWN_FUNCTIONS, f"torch {torch.version}")


def _bind(library: HostLibrary, binding: Binding, source: Source | None) -> None:
    """Give a library the functions of torch; for its later families this changes nothing."""
    if source is None:
        return
    with _state.library_lock:
        library.attach(None if isinstance(binding, OwnFunctions) else adapter_table(source.path))
        if isinstance(binding, OwnFunctions) and binding.prove:
            from precast._load import proof

            proof.prove(library)


def _open(path: Path, level: str | None) -> HostLibrary:
    """The library of a file, mapped once for all its families."""
    with _state.library_lock:
        if path not in _state.libraries:
            library = HostLibrary(path)
            if level is not None:
                library.use_level(level)
            _state.libraries[path] = library
        return _state.libraries[path]


def _set_images(
    library: HostLibrary, choice: Choice, decision: UsePrebuilt | BuildJit
) -> tuple[tuple[int, Source], ...]:
    """Hand over the device code of every visible GPU, and the refusal for each GPU without any."""
    family = choice.need.family
    capabilities = {gpu.index: gpu.capability for gpu in choice.host.gpus}
    targets = list(dict.fromkeys(image.target for _, image in decision.images if isinstance(image, BuildImage)))
    built: Mapping[GpuTarget, Source] = {}
    if targets:
        from precast._load import jit
        from precast.core import explain

        why = explain.top_reason(r for r in decision.rejections if r.piece != "host")
        built = jit.build_images(family, targets, choice.builders, choice.settings, why)
    sources: list[tuple[int, Source]] = []
    for index, image in decision.images:
        if isinstance(image, DeviceFile):
            source = Source("prebuilt", prebuilt.C_DIR / image.path, str(image.target))
            content = choice.contents[image.name]
        else:
            source = built[image.target]
            content = source.path.read_bytes()
        library.set_image(family, index, content, image.target, capabilities[index])
        sources.append((index, source))
    for index, rejections in decision.refused:
        from precast._load import verdict

        library.refuse(family, index, str(verdict.gpu_refusal(choice, index, rejections)))
    return tuple(sources)


def _register(library: HostLibrary, family: catalogue.Family, key: str, *, built: bool) -> None:
    """Register the kernels. A library built here is checked for misspelt names; a wheel was checked at its build."""
    formulas = handover.formulas_of(family)
    handover.refuse_foreign_kernels(formulas.ops, key)
    if not built:
        library.register(family.name, key)
    else:
        from precast.core import dangling

        with dangling.refused(library.path):
            library.register(family.name, key)
    formulas.bind(library, key)


def _path(choice: Choice, candidate: str) -> str:
    """The file that a candidate is in, relative to ``precast/_C``."""
    images = choice.build_info.device if choice.build_info is not None else ()
    return next((image.path for image in images if image.name == candidate), candidate)


def _warn(choice: Choice) -> None:
    """Warn once about damaged or stale files, GPUs that are left out, and costs to expect."""
    for rejection in all_rejections(choice.decision):
        if rejection.reason is Reason.DAMAGED:
            _log.warning(
                "%s is corrupted, so it is not used (%s)",
                prebuilt.C_DIR / _path(choice, rejection.candidate),
                rejection.found,
            )
        elif rejection.reason is Reason.UNOPENED:
            _log.warning("%s is intact, but is not used: %s", prebuilt.C_DIR / rejection.candidate, rejection.found)
    stale = choice.host.stale
    if stale is not None and not _state.told_stale:
        _state.told_stale = True
        from precast._load import verdict

        command = verdict.stale_fix(choice.host, choice.build_info, choice.settings)
        fix = f"; fix: {command}" if command else ""
        _log.warning(
            "%s is out of date, and what is missing is built: needs %s; found %s%s",
            *(prebuilt.C_DIR, stale.needed, stale.found, fix),
        )
    if isinstance(choice.decision, Refuse):
        return
    for note in choice.decision.notes:
        _log.warning("%s: %s", choice.need.family, note)
    for index, rejections in choice.decision.refused:
        from precast.core import explain

        why = explain.top_reason(rejections)
        _log.warning("%s does not run on GPU %d: %s", choice.need.family, index, why)
