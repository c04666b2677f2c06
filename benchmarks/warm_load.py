"""Loading a kernel family that an earlier process has built, compared with other ways to load the same kernel."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks import loaders
from benchmarks.child import CHECKOUT, environment, prebuilt_installation, run
from benchmarks.cold_jit import THEIRS, peer_arguments
from benchmarks.report import Report, Row, interleaved_medians

ROUNDS = 7

OURS = """
import sys, time
import torch
start = time.perf_counter()
import precast
loaded = precast.load("rms_norm", "cpu")
seconds = time.perf_counter() - start
assert loaded.host.kind == sys.argv[1], loaded
y = precast.ops.rms_norm(torch.ones(2, 8), torch.ones(8))
assert torch.allclose(y, torch.ones(2, 8)), y
print(seconds)
"""


def main() -> Report:
    """Build both once. Then alternate fresh processes: our cache, our wheel, and the peer's build folder."""
    target = prebuilt_installation()
    with tempfile.TemporaryDirectory(prefix="precast-bench-") as name:
        folder = Path(name)
        arguments = peer_arguments(folder)
        (folder / "build").mkdir()
        wheel = environment(PYTHONPATH=str(target), PRECAST_CACHE_DIR=str(folder / "unused"))
        cache = environment(PYTHONPATH=str(target), PRECAST_CACHE_DIR=str(folder / "cache"), PRECAST_JIT="jit")

        def theirs() -> float:
            return float(run(THEIRS, str(folder / "build"), str(CHECKOUT / "csrc"), *arguments))

        run(OURS, "jit", env=cache)
        theirs()
        others, notes = loaders.peers(folder, arguments[0], folder / "build" / "peer.so")
        seconds = interleaved_medians(
            {
                "cache": lambda: float(run(OURS, "cache", env=cache)),
                "wheel": lambda: float(run(OURS, "prebuilt", env=wheel)),
                "cpp_extension.load, warm": theirs,
                **others,
            },
            ROUNDS,
        )
    names = {"from the build cache": seconds.pop("cache"), "from the wheel": seconds.pop("wheel")}
    rows = [Row(what, ours * 1e3, "ms", peer, seconds[peer] * 1e3) for peer in seconds for what, ours in names.items()]
    return Report("warm_load", "A kernel that was built before, after import torch", tuple(rows), notes=notes)
