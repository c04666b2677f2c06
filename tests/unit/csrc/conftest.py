"""Builds for the tests of csrc: the device code as C++ for the emulator, and small libraries around single sources."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CSRC = HERE.parents[2] / "csrc"
DEVICE_FILES = ("rms_norm/device.cu", "rms_norm/backward.cu", "layer_norm/device.cu", "layer_norm/backward.cu")
HEADERS = ("common/device.cuh", "common/norm.cuh", "rms_norm/row.cuh", "rms_norm/args.h")
HEADERS += ("layer_norm/row.cuh", "layer_norm/args.h")
HOST_FILES = ("common/torch.cpp", "common/cpu_level.cpp", "rms_norm/host.cpp", "rms_norm/backward.cpp")
HOST_FILES += ("layer_norm/host.cpp", "layer_norm/backward.cpp")

# What stands in for the lines of PTX that a CPU cannot run, by the instruction they begin with.
PTX_AS_CPP = {
    "ld.global.v4": "memcpy(&v, p, 16);",
    "ld.global.nc.v4": "memcpy(&v, p, 16);",
    "st.global.v4": "memcpy(p, &v, 16);",
    "cp.async.bulk": "",
    "cvt.f32.f16": "v = static_cast<float>(same_bits<_Float16>(bits));",
    "cvt.rn.f16.f32": "bits = same_bits<u16>(static_cast<_Float16>(v));",
    "cvt.rn.f16x2": "",  # these two are behind #if for a newer GPU
    "cvt.rn.bf16": "",
}
ASM = re.compile(r'asm(?: volatile)?\("([\w.:]+).*?\);\n', re.DOTALL)


def entry_points(source: str) -> list[str]:
    """The names of the kernels that a device source defines."""
    return re.findall(r"^KERNEL\((\w+)", source, re.MULTILINE)


def for_emulator(source: str) -> str:
    """Device code as C++: PTX replaced, and an entry point made a function of its arguments' address."""

    def replacement(match: re.Match[str]) -> str:
        (cpp,) = [cpp for ptx, cpp in PTX_AS_CPP.items() if match[1].startswith(ptx)]
        return cpp + "\n"

    source = ASM.sub(replacement, source)
    start = source.find("#define KERNEL")
    if start >= 0:
        source = source[:start] + (
            "#define KERNEL(name, Args, threads, resident, ...) \\\n"
            "  static void name(const void* address) { \\\n"
            "    using namespace precast; \\\n"
            "    if (blockDim.x * blockDim.y > threads) throw std::runtime_error(#name); \\\n"
            "    NORM_NAMESPACE::__VA_ARGS__(*static_cast<const NORM_NAMESPACE::Args*>(address)); \\\n"
            "  }\n"
        )
    return source


def run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}"


@pytest.fixture(scope="session")
def stable_headers() -> Path:
    from precast._abi.settings import Settings
    from precast._build import host
    from precast._build.cache import Cache, default_root

    return host.stable_headers_dir(Cache(default_root(Settings.from_env(os.environ))))


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory, stable_headers: Path) -> Path:
    """The library of emulated_ops.cpp."""
    work = tmp_path_factory.mktemp("emulated")
    for name in (*HEADERS, *DEVICE_FILES):
        target = work / "csrc" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(for_emulator((CSRC / name).read_text()))
    # One file after the other, each with its own family's name in KERNEL.
    kernels = work / "kernels.inc"
    kernels.write_text(
        "".join(
            f'#undef NORM_NAMESPACE\n#define NORM_NAMESPACE {Path(f).parent}\n#include "csrc/{f}"\n'
            for f in DEVICE_FILES
        )
    )
    table = "".join(f'{{"{name}", {name}}},' for f in DEVICE_FILES for name in entry_points((CSRC / f).read_text()))
    device = [f'-DDEVICE_CODE="{kernels}"']
    common = ["g++", "-std=c++17", "-fPIC", "-O1", "-fno-strict-aliasing", f"-I{CSRC}", f"-I{stable_headers}"]
    common += ["-DTORCH_TARGET_VERSION=0x020a000000000000"]
    units = {HERE / "emulated_device.cpp": [*device, f"-DKERNEL_TABLE={table}"], HERE / "emulated_ops.cpp": []}
    units |= {CSRC / f: [] for f in HOST_FILES}
    objects = []
    for unit, options in units.items():
        objects.append(str(work / f"{unit.parent.name}.{unit.stem}.o"))
        run([*common, *options, "-c", str(unit), "-o", objects[-1]])
    import torch

    library = work / "emulated.so"
    torch_lib = Path(torch.__file__).parent / "lib"
    run(
        ["g++", "-shared", *objects, "-o", str(library), f"-L{torch_lib}", "-Wl,--no-as-needed", "-ltorch_cpu", "-lc10"]
    )
    return library


class Emulated:
    """The ops of the emulated library, and what they launched."""

    def __init__(self, path: Path) -> None:
        import torch

        from precast._build import catalogue

        self.library = torch.library.Library("precast_emulated", "DEF")
        for family in catalogue.FAMILIES:
            if family.device in DEVICE_FILES:
                for schema in family.ops:
                    self.library.define(schema)
        self.c = ctypes.CDLL(str(path))
        self.c.emulated_launches.restype = ctypes.c_char_p
        self.c.emulated_register(b"precast_emulated")
        self.ops = torch.ops.precast_emulated

    def launches(self) -> str:
        text: bytes = self.c.emulated_launches()
        return text.decode().strip()


@pytest.fixture(scope="session")
def gpu(emulated: Path) -> Emulated:
    return Emulated(emulated)
