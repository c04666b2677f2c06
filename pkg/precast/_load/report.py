"""Gather what the doctor prints: this host, this installation, and the loader's choice for each kernel family.

Nothing is built or loaded, and anything missing or broken is part of the answer. The values are plain JSON;
docs/reference/doctor.md describes them.
"""

from __future__ import annotations

import errno
import os
from dataclasses import fields, replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any

from precast._abi import fixes
from precast._abi.decision import (
    OWN_FUNCTIONS,
    BuildAdapter,
    BuildHost,
    BuildImage,
    OwnFunctions,
    Refuse,
    all_rejections,
)
from precast._abi.settings import VARIABLES, JitMode, Settings, is_on
from precast._builder.catalogue import Family
from precast._load import prebuilt, probe, verdict
from precast._load.choose import Choice, choose_on, need_of
from precast._version import __version__
from precast.core import explain, gpus, verify
from precast.core.host import Host
from precast.core.manifest import BuildInfo, BuildMode, DeviceFile, HostFile
from precast.core.reasons import Rejection
from precast.errors import KernelError, KernelUnavailable

Json = dict[str, Any]

# The answer for a kernel of another kind of machine.
NOT_HERE: Json = {
    "verdict": "not-here",
    "cached": None,
    "pieces": [],
    "rejections": [],
    "notes": [],
    "error": None,
    "problem": None,
}
# What a person should know of plain torch in place of kernels.
PLAIN = "plain torch stands in for what was passed over: slower, and with more memory"
# The least space that a build takes, in bytes: the objects and the library of rms_norm are 316 kB.
_LEAST = 256 << 10
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
_PLACES = ("home", "xdg_cache_home")  # always set; the folders derived from them are under `cache`


class Examination:
    """One examination of the host, shared by all parts of the report."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @cached_property
    def host(self) -> Host:
        """The host, with its GPUs, its builders and its installer."""
        host = prebuilt.judged(probe.probe_host(self.settings, gpus=True), self.manifest[0])
        if host.system != "Linux":
            return host
        installer = host.installer or probe.probe_installer()
        return replace(host, builders=probe.probe_builders(self.settings), installer=installer)

    @cached_property
    def manifest(self) -> tuple[BuildInfo | None, KernelError | None]:
        """The manifest, or what is wrong with it."""
        try:
            return prebuilt.load_build_info(), None
        except KernelError as error:
            return None, error

    @property
    def has_gpu(self) -> bool:
        """Whether CUDA kernels should work here: a GPU is visible, and torch is not a ROCm build."""
        torch = self.host.torch
        return bool(self.host.gpus) and (torch is None or torch.hip is None)

    def choice(self, family: Family, device: str) -> Choice | KernelError:
        """The loader's choice for a family on a device type, or the error it would raise before it chooses."""
        info, error = self.manifest
        if self.settings.jit is JitMode.JIT:
            info = None
        elif error is not None:
            return error
        try:
            return choose_on(self.host, info, self.settings, need_of(family.name, device))
        except KernelUnavailable as refused:  # a setting rules out every file
            return refused


def describe_host(examination: Examination) -> Json:
    """The machine, its torch, its GPUs and its builders."""
    host, settings = examination.host, examination.settings
    torch, builders = host.torch, host.builders
    nvrtc = builders.nvrtc if builders else None
    compiler = builders.compiler if builders else None
    note = gpus.forecast(settings.visible_devices, settings.device_order).note if host.driver else ""
    return {
        "system": host.system,
        "machine": host.machine,
        "python": str(host.python),
        "glibc": _text(host.glibc),
        "glibcxx": host.glibcxx,
        "torch": None
        if torch is None
        else {
            "version": str(torch.version),
            "git": torch.version.git,
            "cxx11": torch.cxx11,
            "cuda": _text(torch.cuda),
            "hip": torch.hip,
            "xpu": torch.xpu,
        },
        "torch_error": host.torch_error,
        "driver": _text(host.driver),
        "gpus": [
            {"index": gpu.index, "capability": str(gpu.capability), "name": gpu.name, "uuid": gpu.uuid}
            for gpu in host.gpus
        ],
        "gpu_note": note,
        "compiler": compiler and {"path": compiler.path, "kind": compiler.kind, "version": compiler.version},
        "ninja": builders.ninja if builders else None,
        "nvrtc": nvrtc and {"path": nvrtc.path, "version": nvrtc.version, "found_via": nvrtc.found_via},
        "looked_at": list(builders.looked_at) if builders else [],
        "cache": _describe_cache(settings, host.system),
    }


def describe_build(examination: Examination) -> Json:
    """This installation: the content of its manifest, or why it has none."""
    info, error = examination.manifest
    if info is None:
        mode, note = None, "" if error else "no manifest: a checkout, or an installation that was never built"
        fix = ""
    else:
        mode = info.mode.value
        note, fix = _note(info, examination)
    return {
        "version": info.version if info else __version__,
        "label": info.label.text if info else None,
        "mode": mode,
        "commit": info.commit if info else None,
        "dirty": info.dirty if info else None,
        "source_digest": info.source_digest if info else None,
        "compilers": dict(info.compilers) if info else {},
        "host_files": [file.path for file in info.host] if info else [],
        "device_files": [image.name for image in info.device] if info else [],
        "device_paths": {image.name: image.path for image in info.device} if info else {},
        "manifest": str(prebuilt.C_DIR / verify.MANIFEST),
        "manifest_error": _text(error),
        "note": note,
        "fix": fix,
    }


def _note(info: BuildInfo, examination: Examination) -> tuple[str, str]:
    """A note about an installation with a manifest, and the command that helps."""
    if info.mode is BuildMode.PURE:
        return _pure_note(), verdict.prebuilt_fix(info)
    stale = examination.host.stale
    if stale is None:
        return "", ""
    fix = verdict.stale_fix(examination.host, info, examination.settings)
    return f"the prebuilt files are not used: needed {stale.needed}; found {stale.found}", fix


def _pure_note() -> str:
    """Why nothing is prebuilt. If CUDA_EXT=1 is set now, pip or uv has probably reused an older wheel."""
    note = "pure wheel: CUDA_EXT was not seen at build time"
    if not is_on(describe_variables().get("CUDA_EXT", "")):
        return note
    return f"{note}; CUDA_EXT=1 is set now and was without effect, as pip and uv reuse the wheel of an earlier build"


def describe_settings(settings: Settings) -> Json:
    """The settings that differ from their defaults."""
    default = Settings()
    changed = {field.name: getattr(settings, field.name) for field in fields(settings) if field.name not in _PLACES}
    return {name: _plain(value) for name, value in changed.items() if value != getattr(default, name)}


def describe_variables() -> Json:
    """The environment variables that precast reads and that are set, with their raw values."""
    return {v.name: os.environ[v.name] for v in VARIABLES if v.name in os.environ and v.field not in _PLACES}


def describe_kernel(examination: Examination, family: Family, device: str) -> Json:
    """The source of each piece, every rejected candidate, and the error that a call would raise, if any."""
    choice = examination.choice(family, device)
    if isinstance(choice, KernelError):
        return {**NOT_HERE, **_refused("refused", choice)}
    decision = choice.decision
    fix = verdict.fixer(choice)
    facts = {**NOT_HERE, "rejections": [_describe_rejection(one, fix(one)) for one in all_rejections(decision)]}
    if choice.plain:
        pieces = [{"piece": device, "source": "torch", "what": "plain torch"}]
        return {**facts, "verdict": "torch", "pieces": pieces, "notes": [PLAIN]}
    if isinstance(decision, Refuse):
        return {**facts, **_refused("refused", verdict.refusal(choice))}
    pieces = [_describe_piece("host", decision.host)]
    if decision.binding is not None:
        pieces.append(_describe_piece("torch", decision.binding))
    pieces += [_describe_piece(f"cuda:{index}", image) for index, image in decision.images]
    facts |= {"pieces": pieces, "notes": list(decision.notes)}
    if decision.refused:
        refusals = [verdict.gpu_refusal(choice, index, why) for index, why in decision.refused]
        return {**facts, **_refused("partly", *refusals)}
    if all(piece["source"] != "jit" for piece in pieces):
        return {**facts, "verdict": "prebuilt"}
    return {**facts, **_describe_build(examination, family, choice)}


def _refused(answer: str, *errors: KernelError) -> Json:
    """The errors as a call raises them, and as a report shows them that has the machine in it."""
    problem = "\n".join(error.brief(verdict.DOCTOR) for error in errors)
    return {"verdict": answer, "error": "\n".join(map(str, errors)), "problem": problem}


def _describe_build(examination: Examination, family: Family, choice: Choice) -> Json:
    """What a build at the first use would find: the pieces in the cache, or the problem that stops it."""
    from precast._builder import roots, sources, trust
    from precast._load import cached

    nothing: Json = {"pieces": [], "notes": []}
    try:
        sources.csrc_dir()
        root = roots.planned_root(examination.settings)
        if root is None:  # the first build creates and checks the last resort
            return {"verdict": "jit", "cached": False}
        trust.require_own(root)
    except KernelError as error:
        return {**nothing, **_refused("refused", error)}
    complete = all(piece["state"] == "hit" for piece in cached.describe(family, choice))
    why = None if complete else _why_not_written(root)
    if why is None:
        return {"verdict": "jit", "cached": complete}
    unwritten = KernelError(
        "the build cache cannot be written",
        about=f"{family.name}:",
        found=f"{root}: {why}",
        needed="a folder this user can write, with space left",
        fix=trust.another(root),
    )
    return {**nothing, **_refused("refused", unwritten)}


def _why_not_written(root: Path) -> str | None:
    """Why builds cannot be written below a folder, or below its nearest existing parent; None if they can.

    Makes an unnamed file with the space that a build needs; closing it removes it. On file systems without such files
    (NFS, overlays before Linux 6.1) only the mode is checked.
    """
    there = next(folder for folder in (root, *root.parents) if folder.exists())
    if not there.is_dir():
        return f"{there} is not a folder"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{there} cannot be written"
    try:
        unnamed = os.open(there, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(unnamed, 0, _LEAST)
        finally:
            os.close(unnamed)
    except OSError as error:
        return error.strerror if error.errno in _NO_ROOM else None
    return None


def environment_line(examination: Examination) -> str:
    """The host in one line, as in the errors."""
    return explain.environment(examination.host, fixes.judge(examination.manifest[0]))


def _describe_piece(
    piece: str, what: HostFile | DeviceFile | BuildHost | BuildAdapter | BuildImage | OwnFunctions
) -> Json:
    if isinstance(what, (HostFile, DeviceFile)):
        return {"piece": piece, "source": "prebuilt", "what": what.name}
    if isinstance(what, OwnFunctions):
        return {"piece": piece, "source": "torch", "what": OWN_FUNCTIONS}
    built = what.abi if isinstance(what, BuildAdapter) else what.target if isinstance(what, BuildImage) else "any torch"
    return {"piece": piece, "source": "jit", "what": str(built)}


def _describe_rejection(rejection: Rejection, fix: str) -> Json:
    return {
        "piece": rejection.piece,
        "candidate": rejection.candidate,
        "reason": str(rejection.reason),
        "needed": rejection.needed,
        "found": rejection.found,
        "fix": fix,
    }


def _describe_cache(settings: Settings, system: str) -> Json:
    """The cache folder, its content, and the builds in progress. Creates nothing: the first build makes the folder."""
    nothing: Json = {"path": None, "writable": False, "entries": 0, "bytes": 0, "locks": []}
    if system != "Linux":  # nothing is built elsewhere, and the code that reads a cache needs Linux
        return nothing
    from precast._builder import cache_tools, lock, roots

    root = roots.planned_root(settings)
    if root is None:
        return nothing

    entries, size = cache_tools.usage(root)
    return {
        "path": str(root),
        "writable": _why_not_written(root) is None,
        "entries": entries,
        "bytes": size,
        "locks": [{"name": name, "holder": holder} for name, holder in lock.held(root)],
    }


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    return value if isinstance(value, (bool, int)) else str(value)
