"""How other projects load a prebuilt kernel, each with its files prepared in a folder.

The kernel is ours, so only the loading differs. flashinfer loads its builds with ``tvm_ffi.load_module``. Kernels of a
hub are loaded by ``kernels.get_local_kernel`` after the download. Both packages run without a GPU; flashinfer itself
does not, because it requires one on import.
"""

from __future__ import annotations

import importlib.util
import json
import platform
import shutil
from collections.abc import Callable
from pathlib import Path

from benchmarks.child import CHECKOUT, environment, run

BINDING = Path(__file__).parent / "peers" / "tvm_binding.cpp"

_BUILD_TVM = """
import sys
from tvm_ffi import cpp
folder, csrc, flags, *files = sys.argv[1:]
options = {"extra_cflags": flags.split(), "extra_include_paths": [csrc], "build_directory": folder}
print(cpp.build("peer", cpp_files=files, **options))
"""

_LOAD_TVM = """
import sys, time
import torch
start = time.perf_counter()
import tvm_ffi
forward = tvm_ffi.load_module(sys.argv[1]).forward
seconds = time.perf_counter() - start
y = torch.empty(2, 8)
forward(torch.ones(2, 8), torch.ones(8), y, 1e-6)
assert torch.allclose(y, torch.ones(2, 8)), y
print(seconds)
"""

_LOAD_HUB = """
import sys, time
import torch
from pathlib import Path
start = time.perf_counter()
from kernels import get_local_kernel
forward = get_local_kernel(Path(sys.argv[1])).forward
seconds = time.perf_counter() - start
y, _ = forward(torch.ones(2, 8), None, torch.ones(8), 1e-6)
assert torch.allclose(y, torch.ones(2, 8)), y
print(seconds)
"""

Peer = Callable[[], float]


def peers(folder: Path, flags: str, library: Path) -> tuple[dict[str, Peer], tuple[str, ...]]:
    """The load time in seconds of each installed loader, by name, and a note for each missing one.

    ``flags`` compile for this machine; ``library`` is the extension that the usual peer has built and loads.
    """
    known: dict[tuple[str, str], Callable[[], Peer]] = {
        ("tvm_ffi", "tvm_ffi.load_module, as flashinfer"): lambda: _tvm(folder / "tvm", flags),
        ("kernels", "kernels.get_local_kernel"): lambda: _hub(folder / "hub", library),
    }
    ready: dict[str, Peer] = {}
    notes = []
    for (package, name), prepare in known.items():
        if importlib.util.find_spec(package) is None:
            notes.append(f"{name}: not measured, as the package {package} is not installed; `make bench` tries to")
        else:
            ready[name] = prepare()
    return ready, tuple(notes)


def _tvm(folder: Path, flags: str) -> Peer:
    folder.mkdir()
    kernel = folder / "rms_norm_cpu.cpp"
    kernel.write_text('#include "norm/rms_norm_cpu.cpp"\n', encoding="utf-8")
    arguments = (str(folder), str(CHECKOUT / "csrc"), flags, str(BINDING), str(kernel))
    library = run(_BUILD_TVM, *arguments)
    return lambda: float(run(_LOAD_TVM, library))


def _hub(folder: Path, library: Path) -> Peer:
    offline, hub = environment(HF_HUB_OFFLINE="1"), str(hub_folder(folder, library))
    return lambda: float(run(_LOAD_HUB, hub, env=offline))


def hub_folder(folder: Path, library: Path) -> Path:
    """The folder as the package downloads it, with this library: one folder per torch, C++ ABI and machine."""
    import torch

    release = "".join(torch.__version__.split(".")[:2])
    variant = folder / "build" / f"torch{release}-cxx11-cpu-{platform.machine()}-linux"
    variant.mkdir(parents=True)
    shutil.copyfile(library, variant / "peer.so")
    (variant / "__init__.py").write_text("from .peer import forward\n", encoding="utf-8")
    facts = {"id": "peer", "name": "peer", "version": 1, "license": "Apache-2.0"}
    facts |= {"backend": {"type": "cpu"}, "python-depends": []}
    (variant / "metadata.json").write_text(json.dumps(facts), encoding="utf-8")
    return folder
