"""Every environment variable that precast reads, in one frozen class; they are read once and passed on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum

from precast._abi.capability import GpuTarget, parse_arch_list
from precast._abi.label import MACHINES, Label
from precast._abi.value import value
from precast._abi.version import Release


class JitMode(str, Enum):
    """What precast may do if no prebuilt file fits."""

    AUTO = "auto"
    AOT = "aot"
    JIT = "jit"
    NONE = "none"


# Former names, still accepted with a warning. "off" was taken for "no compiling", which is "aot".
FORMER_MODES = {"off": JitMode.NONE}


@value(frozen=True)
class Variable:
    """One row of the documentation; ``field`` is the attribute of :class:`Settings` that holds the value."""

    name: str
    field: str
    default: str
    meaning: str
    when: str


VARIABLES: tuple[Variable, ...] = (
    Variable(
        "PRECAST_JIT",
        "jit",
        "`auto`",
        "`auto`: prebuilt if it fits, else build what is missing; `aot`: prebuilt only, compile nothing; `jit`: always "
        "build; `none`: load no kernel (`off` means the same, with a warning)",
        "run",
    ),
    Variable(
        "PRECAST_CACHE_DIR",
        "cache_dir",
        "`$XDG_CACHE_HOME/precast`",
        "Where built files are kept",
        "build, run",
    ),
    Variable(
        "PRECAST_CUDA_ARCH_LIST",
        "arch_list",
        "the visible GPUs",
        "The GPUs to build device code for, such as `8.0;9.0+PTX` or `sm_90 compute_90`",
        "build, run",
    ),
    Variable(
        "TORCH_CUDA_ARCH_LIST",
        "arch_list",
        "the visible GPUs",
        "The same, when `PRECAST_CUDA_ARCH_LIST` is not set",
        "build, run",
    ),
    Variable(
        "PRECAST_CACHE_PATH",
        "cache_path",
        "none",
        "Filled caches, separated by colons, that are searched first and never written",
        "run",
    ),
    Variable(
        "PRECAST_JIT_WAIT",
        "jit_wait_s",
        "`1800`",
        "Seconds to wait for another process's build before building it too",
        "build, run",
    ),
    Variable(
        "MAX_JOBS",
        "max_jobs",
        "the usable CPUs, as far as memory reaches",
        "How many compilers run at once",
        "build, run",
    ),
    Variable(
        "PRECAST_CPU_LEVEL",
        "cpu_level",
        "the best of this machine",
        "The CPU kernels' instruction set, such as `baseline`, `avx2`, `neon` or `sve`; one that this machine lacks "
        "is refused",
        "run",
    ),
    Variable(
        "PRECAST_DEBUG",
        "debug",
        "`0`",
        "`1`: build for a debugger (`-O0 -g`, device code with `-G`); with `PRECAST_JIT=jit` also what is prebuilt",
        "build, run",
    ),
    Variable(
        "PRECAST_QUIET",
        "quiet",
        "`0`",
        "`1`: run-time builds print nothing on standard error but warnings; the logger `precast` still gets every "
        "message",
        "run",
    ),
    Variable(
        "NO_COLOR",
        "no_color",
        "none",
        "Anything: `precast doctor` prints no colours",
        "run",
    ),
    Variable(
        "PRECAST_LABEL",
        "label",
        "none",
        "Build the release wheel of this label: `cpu`, one such as `cu130`, or `default` for the one without a label",
        "build",
    ),
    Variable(
        "PRECAST_INDEX_URL",
        "index_url",
        "the one that the wheel records",
        "The package index, such as `https://host/precast`. A build records it, and errors offer its wheels as a "
        "fix; `none`: there is none",
        "build, run",
    ),
    Variable(
        "PRECAST_PARTS",
        "parts",
        "none",
        "The folder of finished parts that a release wheel takes instead of compiling",
        "build",
    ),
    Variable(
        "PRECAST_ONLY_TORCH",
        "only_torch",
        "all of them",
        "A slim release wheel for this minor of torch, such as `2.6`",
        "build",
    ),
    Variable(
        "PRECAST_ARCH",
        "arch",
        "this machine's",
        "The CPU architecture of a release wheel, `x86_64` or `aarch64`; another one is cross-compiled by "
        "`aarch64-linux-gnu-g++` or `CXX`",
        "build",
    ),
    Variable(
        "CUDA_EXT",
        "cuda_ext",
        "`0`",
        "`1`: build for this machine when the package is installed from source",
        "build",
    ),
    Variable(
        "CXX",
        "cxx",
        "`g++`, `c++`, `clang++`",
        "The C++ compiler",
        "build, run",
    ),
    Variable(
        "CUDA_HOME",
        "cuda_home",
        "that of `nvcc`, else `/usr/local/cuda`",
        "The toolkit to take NVRTC from if neither torch nor a pip package has one",
        "build, run",
    ),
    Variable(
        "XDG_CACHE_HOME",
        "xdg_cache_home",
        "`$HOME/.cache`",
        "The cache's parent if `PRECAST_CACHE_DIR` is not set",
        "build, run",
    ),
    Variable(
        "HOME",
        "home",
        "none",
        "The parent of `.cache` if `XDG_CACHE_HOME` is not set; without either, builds go to a private temporary "
        "folder",
        "build, run",
    ),
    Variable(
        "CUDA_VISIBLE_DEVICES",
        "visible_devices",
        "all GPUs",
        "The GPUs that this process sees; empty: none",
        "build, run",
    ),
    Variable(
        "CUDA_DEVICE_ORDER",
        "device_order",
        "`FASTEST_FIRST`",
        "How CUDA numbers the GPUs; `PCI_BUS_ID`: by their place on the bus",
        "build, run",
    ),
    Variable(
        "TRITON_INTERPRET",
        "triton_interpret",
        "`0`",
        "`1`: Triton runs its kernels on the CPU, for tests without a GPU",
        "run",
    ),
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
        env = {v.name: env[v.name] for v in VARIABLES if v.name in env and not (at_run and v.when == "build")}
        return cls(
            jit=_mode(env),
            cache_dir=_folder(env, "PRECAST_CACHE_DIR"),
            cache_path=_folder(env, "PRECAST_CACHE_PATH"),
            jit_wait_s=_seconds(env, "PRECAST_JIT_WAIT", 1800),
            arch_list=env.get("PRECAST_CUDA_ARCH_LIST") or env.get("TORCH_CUDA_ARCH_LIST") or None,
            max_jobs=_count(env, "MAX_JOBS"),
            cpu_level=env.get("PRECAST_CPU_LEVEL") or None,
            debug=_flag(env, "PRECAST_DEBUG"),
            quiet=_flag(env, "PRECAST_QUIET"),
            no_color=bool(env.get("NO_COLOR")),  # a convention of many programs: any value counts
            label=_label(env),
            index_url=_index_url(env),
            parts=env.get("PRECAST_PARTS") or None,
            only_torch=_release(env, "PRECAST_ONLY_TORCH"),
            arch=_arch(env),
            cuda_ext=_flag(env, "CUDA_EXT"),
            cxx=env.get("CXX") or None,
            cuda_home=env.get("CUDA_HOME") or None,
            xdg_cache_home=env.get("XDG_CACHE_HOME") or None,
            home=env.get("HOME") or None,
            visible_devices=env.get("CUDA_VISIBLE_DEVICES"),
            device_order=env.get("CUDA_DEVICE_ORDER") or None,
            triton_interpret=is_on(env.get("TRITON_INTERPRET", "")),  # Triton's variable, so no value is refused here
        )

    def targets(self) -> tuple[GpuTarget, ...]:
        """The targets of ``arch_list``; empty if it is not set. Raises ValueError if it cannot be read."""
        if self.arch_list is None:
            return ()
        refusal = f"PRECAST_CUDA_ARCH_LIST or TORCH_CUDA_ARCH_LIST={self.arch_list!r} is not accepted"
        try:
            found = parse_arch_list(self.arch_list)
        except ValueError as error:
            raise ValueError(f"{refusal}: {error}") from None
        if not found:
            raise ValueError(f"{refusal}: it names no GPU architecture")
        return found


def is_on(text: str) -> bool:
    """Whether a switch is on; any unknown value means off."""
    return text.lower() in _ON


def settings_table() -> str:
    """The table of docs/reference/settings.md."""
    lines = ["| Variable | Default | Read at | Meaning |", "| --- | --- | --- | --- |"]
    lines += [f"| `{v.name}` | {v.default} | {v.when} | {v.meaning} |" for v in VARIABLES]
    return "\n".join(lines) + "\n"


LINE_BREAKS = "\n\r\0"
_ON = ("1", "true", "yes", "on")
_OFF = ("0", "false", "no", "off")


def _bad(name: str, value: str, accepted: str) -> ValueError:
    return ValueError(f"{name}={value!r} is not accepted; wanted {accepted}")


def _mode(env: Mapping[str, str]) -> JitMode:
    value = env.get("PRECAST_JIT", "")
    if not value:
        return JitMode.AUTO
    try:
        return FORMER_MODES.get(value.lower()) or JitMode(value.lower())
    except ValueError:
        raise _bad("PRECAST_JIT", value, "one of " + ", ".join(mode.value for mode in JitMode)) from None


def _flag(env: Mapping[str, str], name: str) -> bool:
    value = env.get(name, "")
    if is_on(value):
        return True
    if not value or value.lower() in _OFF:
        return False
    raise _bad(name, value, "1 or 0 (or true, yes, on, false, no, off)")


def _folder(env: Mapping[str, str], name: str) -> str | None:
    value = env.get(name, "")
    if any(character in value for character in LINE_BREAKS):
        raise _bad(name, value, "a name without a line break: the files of ninja have no way to write one")
    return value or None


def _count(env: Mapping[str, str], name: str) -> int | None:
    value = env.get(name, "")
    if not value:
        return None
    if not (value.isascii() and value.isdigit() and len(value) <= 6 and int(value) > 0):
        raise _bad(name, value, "a whole number from 1 to 999999")
    return int(value)


def _seconds(env: Mapping[str, str], name: str, default: int) -> int:
    value = env.get(name, "")
    if not value:
        return default
    if not (value.isascii() and value.isdigit() and len(value) <= 6):
        raise _bad(name, value, "a whole number of seconds from 0 to 999999")
    return int(value)


def _release(env: Mapping[str, str], name: str) -> Release | None:
    value = env.get(name, "")
    try:
        return Release.parse(value) if value else None
    except ValueError:
        raise _bad(name, value, "a minor such as '2.6'") from None


def _label(env: Mapping[str, str]) -> Label | None:
    value = env.get("PRECAST_LABEL", "")
    if not value:
        return None
    try:
        return Label.parse("" if value == "default" else value)
    except ValueError:
        raise _bad("PRECAST_LABEL", value, "'cpu', 'default' or one such as 'cu130'") from None


def is_index_url(text: str) -> bool:
    """Whether a text is the URL of an index. It is printed in commands, so the check is strict."""
    return re.fullmatch(r"(?:https?|file)://[A-Za-z0-9/._~:@%+-]+", text) is not None


def _index_url(env: Mapping[str, str]) -> str | None:
    value = env.get("PRECAST_INDEX_URL", "").rstrip("/")
    if value in ("", "none"):  # the release workflow passes "none" as long as there is no index
        return None
    if not is_index_url(value):
        raise _bad("PRECAST_INDEX_URL", value, "a URL such as https://host/precast, without a query, or none")
    return value


def _arch(env: Mapping[str, str]) -> str | None:
    value = env.get("PRECAST_ARCH", "")
    if value and value not in MACHINES:
        raise _bad("PRECAST_ARCH", value, " or ".join(MACHINES))
    return value or None
