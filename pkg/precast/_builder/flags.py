"""Every compiler option, as pure functions. The results of ``*_options`` contain no path and are part of the key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from precast.core.capability import GpuTarget
from precast.core.host import named_level as level_named
from precast.core.torch_abi import Exact
from precast.core.version import Release

# The ceilings of manylinux_2_28 (AlmaLinux 8), which torch also keeps.
GLIBC_CEILING = Release(2, 28)
GLIBCXX_CEILING = (3, 4, 22)

# What a host library may need: the C and C++ runtime. It calls torch through a table, and finds CUDA at run time.
RUNTIME = frozenset(
    {
        *("libstdc++.so.6", "libgcc_s.so.1", "libm.so.6", "libc.so.6", "libdl.so.2", "libpthread.so.0"),
        *("ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"),
    }
)
# What an adapter needs besides, so that its symbols are found: torch's libraries are in no global scope.
TORCH = ("libtorch_cpu.so", "libc10.so")
_CXX20_SINCE = Release(2, 13)  # its headers stop with an #error below C++20


@dataclass(frozen=True, slots=True)
class CpuLevel:
    """One instruction set that a family's ``cpu`` sources are compiled for. The library chooses a level at run time.

    ``features`` are the processor features it needs, as ``probe.cpu_features`` names them. A ``small`` level is
    compiled for size, because hardly any processor needs it. ``mark`` matches an instruction that the kernels of this
    level use and those of other levels do not; an audit uses it to find the level in a library.
    """

    name: str
    features: tuple[str, ...]
    options: tuple[str, ...]
    small: bool = False
    mark: bytes | None = None


# One fused multiply-add with a 512-bit register (EVEX, map 0F38, L'L = 2), a 256-bit one (VEX, map 0F38, L = 1) and
# of four floats on ARM (Arm ARM, FMLA (vector)).
_FMA_512 = (
    rb"\x62[\x02\x12\x22\x32\x42\x52\x62\x72\x82\x92\xa2\xb2\xc2\xd2\xe2\xf2][\x00-\xff]"
    rb"[\x40-\x5f\xc0-\xdf][\x98\xa8\xb8]"
)
_FMA_256 = (
    rb"\xc4[\x02\x22\x42\x62\x82\xa2\xc2\xe2]"
    rb"[\x05\x0d\x15\x1d\x25\x2d\x35\x3d\x45\x4d\x55\x5d\x65\x6d\x75\x7d][\x98\xa8\xb8]"
)
_FMA_NEON = rb"[\x00-\xff][\xcc-\xcf][\x20-\x3f]\x4e"


def _x86(name: str, mark: bytes, *features: str) -> CpuLevel:
    return CpuLevel(name, features, tuple(f"-m{feature}" for feature in features), mark=mark)


def _sve(bits: int, mark: bytes) -> CpuLevel:
    """The mark is the instruction for "all lanes of a vector of this length" (Arm ARM, PTRUE with VL16, VL32, VL64)."""
    options = ("-march=armv8.2-a+sve", f"-msve-vector-bits={bits}")
    return CpuLevel(f"sve{bits}", (f"sve{bits}",), options, mark=mark)


# Also listed for C++ in csrc/cpu/cpu_level.h.
CPU_LEVELS: Mapping[str, tuple[CpuLevel, ...]] = {
    "x86_64": (
        CpuLevel("baseline", (), (), small=True),  # for processors from before 2013
        _x86("avx2", _FMA_256, "avx2", "fma", "f16c"),
        _x86("avx512", _FMA_512, "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx2", "fma", "f16c"),
    ),
    # A processor has exactly one of the vector lengths. NEON is part of the architecture.
    "aarch64": (
        CpuLevel("neon", (), (), mark=_FMA_NEON),
        _sve(128, rb"[\x20-\x2f]\xe1\x18\x25"),
        _sve(256, rb"[\x40-\x4f]\xe1\x18\x25"),
        _sve(512, rb"[\x60-\x6f]\xe1\x18\x25"),
    ),
}


def cpu_levels(machine: str) -> tuple[CpuLevel, ...]:
    """The levels of one machine, lowest first; ValueError if it has no CPU kernels."""
    if machine not in CPU_LEVELS:
        raise ValueError(f"no CPU kernels for {machine!r}; there are some for {', '.join(CPU_LEVELS)}")
    return CPU_LEVELS[machine]


def best_level(machine: str, features: frozenset[str]) -> CpuLevel:
    """The level that a processor with these features would choose at run time."""
    return levels_of(machine, features)[-1]


def named_level(machine: str, features: frozenset[str], name: str) -> CpuLevel:
    """The level that a setting names. ValueError if the processor does not have it."""
    here = {level.name: level for level in levels_of(machine, features)}
    return here[level_named(tuple(here), name)]


def levels_of(machine: str, features: frozenset[str]) -> tuple[CpuLevel, ...]:
    """The levels that a processor with these features has, lowest first."""
    return tuple(level for level in cpu_levels(machine) if features.issuperset(level.features))


def torch_target_version(floor: Release) -> str:
    """The define that limits the stable headers to the functions of torch ``floor``: 0xMMmm000000000000."""
    return f"-DTORCH_TARGET_VERSION=0x{floor.major:02x}{floor.minor:02x}000000000000"


def adapter_options(abi: Exact) -> tuple[str, ...]:
    """Extra options for an adapter to torch's C++, which depends on torch's minor and C++ ABI.

    The adapter is not linked with OpenMP: a repaired wheel would then bring its own runtime, with a second pool of
    threads. Code compiled with -fopenmp uses the runtime of libtorch_cpu.so.
    """
    standard = ("-std=c++20",) if abi.release >= _CXX20_SINCE else ()
    version = abi.release.major * 100 + abi.release.minor
    return (*standard, f"-DPRECAST_TORCH={version}", f"-D_GLIBCXX_USE_CXX11_ABI={int(abi.cxx11)}", "-fopenmp")


def host_options(kind: str, *, debug: bool) -> tuple[str, ...]:
    """The options of every C++ unit for a compiler of that kind ("g++", "clang++")."""
    common = (
        "-std=c++17",
        "-fPIC",
        "-fvisibility=hidden",
        "-fvisibility-inlines-hidden",
        # Unique symbols would bind across libraries. Only GCC makes them; clang does not know the option.
        *(("-fno-gnu-unique",) if kind == "g++" else ()),
        "-Wall",
        "-Wextra",
    )
    # No compiler switches in the debug information, because they name folders.
    return (*common, "-O0", "-g", "-gno-record-gcc-switches") if debug else (*common, "-O2", "-DNDEBUG")


def cpu_options(level: CpuLevel, *, debug: bool) -> tuple[str, ...]:
    """Options for a ``cpu`` source at one level, in addition to ``host_options``."""
    if debug:
        return (f"-DPRECAST_CPU_LEVEL={level.name}", *level.options)
    # Nothing throws through these kernels, and the tables for it would be a twentieth of a library.
    size = ("-fno-exceptions", "-fno-asynchronous-unwind-tables", *(("-Os", "-DPRECAST_SMALL") if level.small else ()))
    return (f"-DPRECAST_CPU_LEVEL={level.name}", *size, *level.options)


def level_defines(levels: tuple[CpuLevel, ...]) -> tuple[str, ...]:
    """Tells a unit that the library has only one level and chooses nothing at run time."""
    return (f"-DPRECAST_ONLY_CPU_LEVEL={levels[0].name}",) if len(levels) == 1 else ()


def host_compile_command(
    compiler: str,
    options: tuple[str, ...],
    *,
    source: str,
    output: str,
    roots: Mapping[str, str],
    includes: tuple[str, ...],
    system: tuple[str, ...],
    build_dir: str,
    seed: str,
) -> tuple[str, ...]:
    """The command of one compile. ``roots`` maps stable names to folders, so that no local path stays in the object.

    ``system`` are folders of third-party headers, for which the compiler prints no warnings.
    """
    maps = (f"-ffile-prefix-map={folder}={name}" for name, folder in sorted(roots.items()))
    return (
        compiler,
        *options,
        f"-frandom-seed={seed}",
        *maps,
        f"-ffile-prefix-map={build_dir}=.",
        *(f"-I{folder}" for folder in includes),
        *(argument for folder in system for argument in ("-isystem", folder)),
        "-c",
        source,
        "-o",
        output,
    )


def link_options(*, debug: bool) -> tuple[str, ...]:
    """The options of any link. Missing symbols show at load time, because ``-z now`` resolves all symbols then."""
    return (
        "-shared",
        "-fPIC",
        "-Wl,-z,relro,-z,now",
        "-Wl,-z,noexecstack",
        "-Wl,--build-id=sha1",
        "-Wl,--exclude-libs,ALL",
        *(() if debug else ("-Wl,--strip-all",)),
    )


def host_link_command(
    compiler: str,
    options: tuple[str, ...],
    *,
    objects: tuple[str, ...],
    output: str,
    soname: str,
    exports: str,
    stubs: tuple[str, ...],
) -> tuple[str, ...]:
    """The command of one link. The stubs stand for torch's libraries, which are not global, so NEEDED names them.

    Without stubs a symbol that is not the runtime's is an error of the link.
    """
    return (
        compiler,
        *options,
        *(() if stubs else ("-Wl,-z,defs",)),
        f"-Wl,-soname,{soname}",
        f"-Wl,--version-script={exports}",
        "-o",
        output,
        *objects,
        "-Wl,--no-as-needed",
        *stubs,
        "-Wl,--as-needed",
        "-ldl",
    )


def stub_command(compiler: str, soname: str, output: str) -> tuple[str, ...]:
    """The command for an empty library with a SONAME, which is all that linking against torch needs."""
    return (compiler, "-shared", "-nostdlib", "-fPIC", f"-Wl,-soname,{soname}", "-o", output, "-x", "c++", "/dev/null")


def nvrtc_options(target: GpuTarget, *, debug: bool) -> tuple[str, ...]:
    """The options of one device compile. Parameters are #define lines, as NVRTC's header breaks on one-letter -D.

    A debug build (-G) is not optimised and includes line and variable information, so it needs no -lineinfo.
    """
    return (f"--gpu-architecture={target}", "--std=c++17", *(("-G",) if debug else ()))
