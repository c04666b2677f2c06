"""Builds for the tests of csrc: the device code as C++ for the emulator, and small libraries around single sources."""

from __future__ import annotations

import functools
import gc
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from precast._builder import catalogue
from tests.kit import spawn
from tests.unit.csrc.emulated import Emulated
from tests.unit.csrc.entry_points import entry_points

HERE = Path(__file__).parent
CSRC = HERE.parents[2] / "csrc"

# What stands in for the lines of PTX that a CPU cannot run, by the instruction they begin with.
PTX_AS_CPP = {
    "ld.global.v4": "memcpy(&v, p, 16);",
    "ld.global.nc.v4": "memcpy(&v, p, 16);",
    "ld.global.v2": "memcpy(word, p, 8);",
    "ld.global.nc.v2": "memcpy(word, p, 8);",
    "ld.global.nc.u32": "memcpy(word, p, 4);",
    "st.global.v4": "memcpy(p, &v, 16);",
    "st.global.v2": "memcpy(p, word, 8);",
    "st.global.cs.v4": "memcpy(p, &v, 16);",
    "cp.async.bulk": "",
    "prefetch.global": "",
    "cp.async.cg": "memcpy(reinterpret_cast<char*>(ring_memory) + to, p, 16);",
    "st.shared.v4": "memcpy(reinterpret_cast<char*>(ring_memory) + to, &v, 16);",
    "ld.shared.v4": "memcpy(&v, reinterpret_cast<char*>(ring_memory) + from, 16);",
    "ldmatrix.": "",  # these two are behind #if for a newer GPU
    "mma.sync": "",
    "cp.async.commit": "",
    "cp.async.wait": "",
    "griddepcontrol": "",
    "mov.u32": "",  # these are behind #if for clusters
    "barrier.cluster": "",
    "mapa.": "",
    "ld.shared::cluster": "",
    "mbarrier.": "",
    "fence.mbarrier": "",
    "ex2.approx": "result = exp2f(power);",
    "rcp.approx": "result = 1.0f / value;",
    "cvt.f32.f16": "v = static_cast<float>(same_bits<_Float16>(bits));",
    "cvt.rn.f16.f32": "bits = same_bits<u16>(static_cast<_Float16>(v));",
    "cvt.rn.f16x2": "",  # these are behind #if for a newer GPU
    "cvt.rn.bf16": "",
    "max.": "",
    "fma.rn.": "",
}
NOT_EMULATED = {"decode_attention"}  # its matrix instructions are those of a whole warp
ASM = re.compile(r'asm(?: volatile)?\("([\w.:]+).*?\);\n', re.DOTALL)


def for_emulator(source: str) -> str:
    """Device code as C++: PTX replaced, and an entry point made a function of its arguments' address."""

    def replacement(match: re.Match[str]) -> str:
        (cpp,) = [cpp for ptx, cpp in PTX_AS_CPP.items() if match[1].startswith(ptx)]
        return cpp + "\n"

    source = ASM.sub(replacement, source)
    source = re.sub(r"extern __shared__ (.*)\[\];", r"static \1[1 << 14];", source)
    start = source.find("#define KERNEL")
    if start >= 0:
        source = source[:start] + (
            "#define KERNEL(name, Args, threads, resident, registers, shared, ...) \\\n"
            "  static void name(const void* address) { \\\n"
            "    if (blockDim.x * blockDim.y > threads) throw std::runtime_error(#name); \\\n"
            "    __VA_ARGS__(*static_cast<const Args*>(address)); \\\n"
            "  }\n"
        )
    return source


def namespace_of(family: catalogue.Family) -> str:
    """The namespace of a family's device code, within ``precast``."""
    _, inner, *_ = re.findall(r"^namespace (\w+) \{$", (CSRC / str(family.device)).read_text(), re.MULTILINE)
    return str(inner)


def build_emulated(folders: tuple[str, ...], work: Path) -> Path:
    """The library of emulated_ops.cpp for folders of csrc; the first one names the header of stand-ins."""
    families = [family for family in catalogue.FAMILIES if str(family.device).partition("/")[0] in folders]
    device_files = [str(family.device) for family in families]
    host_files = [file for f in folders for file in sorted((CSRC / f).glob("*.cpp")) if not file.stem.endswith("cpu")]
    headers = [file for end in ("cuh", "h") for file in CSRC.glob(f"*/*.{end}")]  # a family may rest on another's
    headers = [file for file in headers if not file.name.startswith("simd")]  # vectors of the CPU
    headers = [file for file in headers if file.parent.name not in NOT_EMULATED]
    for source in (*headers, *(CSRC / name for name in device_files)):
        target = work / "csrc" / source.relative_to(CSRC)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(for_emulator(source.read_text()))
    kernels = work / "kernels.inc"
    kernels.write_text("".join(f'#include "csrc/{name}"\n' for name in device_files))
    table = "".join(
        f'{{"{point.name}", precast::{namespace_of(family)}::{point.name}}},'
        for family in families
        for point in entry_points(family)
    )
    # Without the checks of longjmp, which expects to stay on one stack.
    common = ["g++", "-std=c++17", "-fPIC", "-O1", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE", f"-I{CSRC}"]
    units = {
        HERE / "emulated_device.cpp": [f'-DDEVICE_CODE="{kernels}"', f"-DKERNEL_TABLE={table}"],
        HERE / "emulated_ops.cpp": [f'-DNO_CPU_CODE="{HERE}/no_cpu_{folders[0]}.h"'],
    }
    host = ("host/attach", "host/checks", "host/kind", "host/torch", "cpu/cpu_level")
    units |= {CSRC / f"{name}.cpp": [] for name in host}
    units |= {file: [] for file in host_files}
    objects = []
    for unit, options in units.items():
        # What has no options of its own is the same in every library.
        objects.append((work if options else work.parent) / f"emulated.{unit.parent.name}.{unit.stem}.o")
        if not objects[-1].exists():
            spawn.run(*common, *options, "-c", unit, "-o", objects[-1])
    library = work / "emulated.so"
    spawn.run("g++", "-shared", *objects, "-o", library)
    return library


@pytest.fixture(scope="session")
def emulated_library(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The library of folders of csrc, built once."""
    return functools.cache(lambda *folders: build_emulated(folders, tmp_path_factory.mktemp("emulated")))


@pytest.fixture(scope="session")
def emulator(emulated_library: Callable[..., Path]) -> Callable[..., Emulated]:
    """The ops of folders of csrc."""

    def ops_of(*folders: str) -> Emulated:
        families = [family for family in catalogue.FAMILIES if str(family.device).partition("/")[0] in folders]
        return Emulated(emulated_library(*folders), families)

    return functools.cache(ops_of)


@pytest.fixture(scope="module")
def gpu(request: pytest.FixtureRequest, emulator: Callable[..., Emulated]) -> Emulated:
    """The ops of the folders that a module lists as ``EMULATED``."""
    return emulator(*request.module.EMULATED)


class EmulatedLists:
    """The emulated ops over lists of tensors, and what they launched."""

    counts = True  # launches

    def __init__(self, path: Path) -> None:
        self._library = Emulated(path, [catalogue.get("multi_tensor")])
        self.ops = self._library.ops

    def launched(self) -> list[str]:
        """Since it was asked last."""
        return [launch.partition("<")[0].removeprefix("multi_tensor_") for launch in self._library.launches().split()]

    def check_launches(self, expected: list[str]) -> None:
        assert self.launched() == expected


class PlainLists:
    """The ops over lists in plain torch, which stand in for kernels, behind the dispatcher as those are."""

    counts = False

    def __init__(self) -> None:
        import torch

        import precast.ops.multi_tensor  # noqa: F401 - which hands them over
        from precast._dispatch import namespace

        family = catalogue.get("multi_tensor")
        self._library = torch.library.Library("precast_plain", "DEF")
        for schema, name in zip(family.ops, family.op_names, strict=True):
            self._library.define(schema)
            self._library.impl(name, namespace.plain(name), "CPU")
        self.ops = torch.ops.precast_plain

    def launched(self) -> list[str]:
        return []

    def check_launches(self, expected: list[str]) -> None:
        pass


@pytest.fixture(scope="session", params=["emulated", "plain"])
def _list_ops(request: pytest.FixtureRequest) -> EmulatedLists | PlainLists:
    return (
        PlainLists()
        if request.param == "plain"
        else EmulatedLists(request.getfixturevalue("emulated_library")("multi_tensor"))
    )


@pytest.fixture
def list_gpu(
    _list_ops: EmulatedLists | PlainLists, monkeypatch: pytest.MonkeyPatch
) -> Iterator[EmulatedLists | PlainLists]:
    """Tensors in CPU memory count as on a GPU, and the optimizers call the emulated ops."""
    from precast.ops import multi_tensor
    from precast.optim import _gathered

    for module in (_gathered, multi_tensor):
        monkeypatch.setattr(module, "on_gpu", lambda tensor: tensor.is_cpu)
    for name in ("plan", "step_", "forget"):
        op = getattr(_list_ops.ops, f"multi_tensor_{name}")
        monkeypatch.setattr(multi_tensor, name, op.default._op if hasattr(op, "default") else op)
    _list_ops.launched()
    yield _list_ops
    gc.collect()  # the plans go while there are ops to forget them with
