"""Building the host libraries of all families from nothing, compared with an extension of the same CPU kernels."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.child import CHECKOUT, environment, prebuilt_installation, run
from benchmarks.report import Report, Row, interleaved_medians

ROUNDS = 3
BINDING = Path(__file__).parent / "peers" / "binding.cpp"

# Both sides compile only for the best instruction set of this machine, as a run-time build does.
LEVELS = {
    "AVX512": ("avx512", "-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c"),
    "AVX2": ("avx2", "-mavx2 -mfma -mf16c"),
}

OURS = """
import sys, time
import torch
start = time.perf_counter()
import precast
loaded = [precast.load(op, "cpu") for op in ("rms_norm", "rms_norm_backward", "adam_")]
seconds = time.perf_counter() - start
kinds = {each.host.kind for each in loaded}
assert kinds == {sys.argv[1]}, kinds
print(seconds)
"""

THEIRS = """
import sys, time
import torch
folder, csrc, flags, *files = sys.argv[1:]
start = time.perf_counter()
from torch.utils.cpp_extension import load
module = load("peer", files, extra_cflags=flags.split(), extra_include_paths=[csrc], build_directory=folder)
seconds = time.perf_counter() - start
y, _ = module.forward(torch.ones(2, 8), None, torch.ones(8), 1e-6)
assert torch.allclose(y, torch.ones(2, 8)), y
print(seconds)
"""


def peer_arguments(folder: Path) -> list[str]:
    """The flags and sources of the peer: a binding, and our CPU kernels under different names."""
    import torch

    level, flags = LEVELS.get(torch.backends.cpu.get_cpu_capability(), ("baseline", ""))
    sources = [str(BINDING)]
    for source in ("norm/rms_norm_cpu.cpp", "cpu_optim/cpu.cpp"):
        path = folder / f"peer_{source.replace('/', '_')}"
        path.write_text(f'#include "{source}"\n')
        sources.append(str(path))
    return [f"-O3 -DNDEBUG -DPRECAST_CPU_LEVEL={level} {flags}", *sources]


def main() -> Report:
    """Time each build in a fresh process with an empty cache, alternating; then again with the files it left."""
    target = prebuilt_installation()
    with tempfile.TemporaryDirectory(prefix="precast-bench-") as name:
        folder = Path(name)
        arguments = peer_arguments(folder)
        count = iter(range(1000))

        def ours(kind: str, cache: Path) -> float:
            env = environment(PYTHONPATH=str(target), PRECAST_JIT="jit", PRECAST_CACHE_DIR=str(cache))
            return float(run(OURS, kind, env=env))

        def theirs(build: Path) -> float:
            build.mkdir(exist_ok=True)
            return float(run(THEIRS, str(build), str(CHECKOUT / "csrc"), *arguments))

        cold = interleaved_medians(
            {
                "ours": lambda: ours("jit", folder / f"cache{next(count)}"),
                "theirs": lambda: theirs(folder / f"build{next(count)}"),
            },
            ROUNDS,
        )
        warm_cache, warm_build = folder / "cache0", folder / "build1"
        warm = interleaved_medians(
            {"ours": lambda: ours("cache", warm_cache), "theirs": lambda: theirs(warm_build)}, ROUNDS
        )
    peer = "cpp_extension.load, pybind11"
    rows = (
        Row("empty cache, all kernels", cold["ours"], "s", peer, cold["theirs"], target=">= 6"),
        Row("built before, fresh process", warm["ours"], "s", peer, warm["theirs"]),
    )
    return Report("cold_jit", "Host library built at run time, CPU", rows)
