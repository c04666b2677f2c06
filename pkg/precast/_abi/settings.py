"""Every environment variable that precast reads, in one frozen class; they are read once and passed on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from precast.core.capability import GpuTarget
from precast.core.manifest import is_index_url
from precast.core.value import Words, value
from precast.core.version import MACHINES, Label, Release


class JitMode(Words):
    """What precast may do if no prebuilt file fits."""

    AUTO = "auto"
    AOT = "aot"
    JIT = "jit"
    NONE = "none"


# Former names, still accepted with a warning. "off" was taken for "no compiling", which is "aot".
FORMER_MODES = {"off": JitMode.NONE}


LINE_BREAKS = "\n\r\0"
_ON = ("1", "true", "yes", "on")
_OFF = ("0", "false", "no", "off")


def is_on(text: str) -> bool:
    """Whether a switch is on; any unknown value means off."""
    return text.lower() in _ON


# The readers of values: each returns the value of a text that is not empty, or raises ValueError with what it accepts.


def _mode(text: str) -> JitMode:
    if text.lower() not in {*FORMER_MODES, *JitMode}:
        raise ValueError("one of " + ", ".join(mode.value for mode in JitMode))
    return FORMER_MODES.get(text.lower()) or JitMode(text.lower())


def _flag(text: str) -> bool:
    if text.lower() not in (*_ON, *_OFF):
        raise ValueError("1 or 0 (or true, yes, on, false, no, off)")
    return is_on(text)


def _folder(text: str) -> str:
    if any(character in text for character in LINE_BREAKS):
        raise ValueError("a name without a line break: the files of ninja have no way to write one")
    return text


def _count(text: str) -> int:
    return _number(text, 1, "a whole number")


def _seconds(text: str) -> int:
    return _number(text, 0, "a whole number of seconds")


def _number(text: str, least: int, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and int(text) >= least):
        raise ValueError(f"{what} from {least} to 999999")
    return int(text)


def _release(text: str) -> Release:
    try:
        return Release.parse(text)
    except ValueError:
        raise ValueError("a minor version such as '2.6'") from None


def _label(text: str) -> Label:
    try:
        return Label.parse("" if text == "default" else text)
    except ValueError:
        raise ValueError("'cpu', 'default' or a label such as 'cu130'") from None


def _index_url(text: str) -> str | None:
    url = text.rstrip("/")
    if url in ("", "none"):  # the release workflow passes "none" as long as there is no index
        return None
    if not is_index_url(url):
        raise ValueError("a URL such as https://host/precast, without a query, or none")
    return url


def _arch(text: str) -> str:
    if text not in MACHINES:
        raise ValueError(" or ".join(MACHINES))
    return text


@value(frozen=True)
class Variable:
    """``field`` is the attribute of :class:`Settings` that holds the value; docs/reference/settings.md has the meaning.

    ``when`` is when the variable is read: while something is built from source, or while kernels are loaded.
    """

    name: str
    field: str
    when: str
    read: Callable[[str], Any] = str


VARIABLES: tuple[Variable, ...] = (
    Variable("PRECAST_JIT", "jit", "run", _mode),
    Variable("PRECAST_CACHE_DIR", "cache_dir", "build, run", _folder),
    Variable("PRECAST_CUDA_ARCH_LIST", "arch_list", "build, run"),
    Variable("TORCH_CUDA_ARCH_LIST", "arch_list", "build, run"),
    Variable("PRECAST_CACHE_PATH", "cache_path", "run", _folder),
    Variable("PRECAST_JIT_WAIT", "jit_wait_s", "build, run", _seconds),
    Variable("MAX_JOBS", "max_jobs", "build, run", _count),
    Variable("PRECAST_CPU_LEVEL", "cpu_level", "run"),
    Variable("PRECAST_DEBUG", "debug", "build, run", _flag),
    Variable("PRECAST_QUIET", "quiet", "run", _flag),
    Variable("NO_COLOR", "no_color", "run", bool),
    Variable("PRECAST_LABEL", "label", "build", _label),
    Variable("PRECAST_INDEX_URL", "index_url", "build, run", _index_url),
    Variable("PRECAST_PARTS", "parts", "build"),
    Variable("PRECAST_ONLY_TORCH", "only_torch", "build", _release),
    Variable("PRECAST_ARCH", "arch", "build", _arch),
    Variable("CUDA_EXT", "cuda_ext", "build", _flag),
    Variable("CXX", "cxx", "build, run"),
    Variable("CUDA_HOME", "cuda_home", "build, run"),
    Variable("XDG_CACHE_HOME", "xdg_cache_home", "build, run"),
    Variable("HOME", "home", "build, run"),
    Variable("CUDA_VISIBLE_DEVICES", "visible_devices", "build, run"),
    Variable("CUDA_DEVICE_ORDER", "device_order", "build, run"),
    Variable("TRITON_INTERPRET", "triton_interpret", "run", is_on),
)


@value(frozen=True)
class Settings:
    """The values of :data:`VARIABLES`; None for a variable that is not set."""

    jit: JitMode = JitMode.AUTO
    cache_dir: str | None = None
    cache_path: str | None = None
    jit_wait_s: int = 1800
    arch_list: str | None = None
    max_jobs: int | None = None
    cpu_level: str | None = None
    debug: bool = False
    quiet: bool = False
    no_color: bool = False
    label: Label | None = None
    index_url: str | None = None
    parts: str | None = None
    only_torch: Release | None = None
    arch: str | None = None
    cuda_ext: bool = False
    cxx: str | None = None
    cuda_home: str | None = None
    xdg_cache_home: str | None = None
    home: str | None = None
    visible_devices: str | None = None
    device_order: str | None = None
    triton_interpret: bool = False

    @classmethod
    def from_env(cls, env: Mapping[str, str], *, at_run: bool = False) -> Settings:
        """Read the variables; ``at_run`` keeps the defaults of those that only a build reads.

        An empty variable counts as not set, except ``CUDA_VISIBLE_DEVICES``, where it means no GPU. A bad value raises
        ValueError with the variable, its value and the accepted values. The lists of GPUs are checked only when they
        are used, by :meth:`targets`.
        """
        found: dict[str, Any] = {}
        for variable in VARIABLES:
            text = env.get(variable.name)
            if not text and (text is None or variable.field != "visible_devices"):
                continue
            if at_run and variable.when == "build":
                continue
            try:
                found.setdefault(variable.field, variable.read(text))
            except ValueError as error:
                raise ValueError(f"{variable.name}={text!r} is not accepted; needed {error}") from None
        return cls(**found)

    def targets(self) -> tuple[GpuTarget, ...]:
        """The targets of ``arch_list``; empty if it is not set. Raises ValueError if it cannot be read."""
        if self.arch_list is None:
            return ()
        from precast._abi.arch_list import parse_arch_list  # only builds ask

        refusal = f"PRECAST_CUDA_ARCH_LIST or TORCH_CUDA_ARCH_LIST={self.arch_list!r} is not accepted"
        try:
            found = parse_arch_list(self.arch_list)
        except ValueError as error:
            raise ValueError(f"{refusal}: {error}") from None
        if not found:
            raise ValueError(f"{refusal}: it names no GPU architecture; needed one such as '9.0'")
        return found
