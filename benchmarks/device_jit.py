"""Building the device code of one family from nothing on a GPU machine, compared with nvcc on the same kernels."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from benchmarks.child import CHECKOUT, environment, prebuilt_installation, run
from benchmarks.report import Report, Row, interleaved_medians

TITLE = "Device code of one family built at run time"
ROUNDS, PEER_ROUNDS = 5, 1
SOURCE = Path(__file__).parent / "peers" / "device.cu"

OURS = """
import time
import torch
torch.zeros(1, device="cuda")
start = time.perf_counter()
import precast
loaded = precast.load("rms_norm", "cuda")
seconds = time.perf_counter() - start
assert (loaded.host.kind, {image.kind for _, image in loaded.images}) == ("prebuilt", {"jit"}), loaded
print(seconds)
"""

THEIRS = """
import sys, time
import torch
folder, csrc, source = sys.argv[1:]
x, weight = torch.ones(2, 8, device="cuda"), torch.ones(8, device="cuda")
start = time.perf_counter()
from torch.utils.cpp_extension import load
module = load("peer", [source], extra_include_paths=[csrc], build_directory=folder)
seconds = time.perf_counter() - start
assert torch.allclose(module.forward(x, weight, 1e-6), x), "the peer is wrong"
print(seconds)
"""


def main() -> Report:
    """Ours is the full cost of a first use if the wheel has no code for this GPU. The peer needs a toolkit."""
    import torch

    if not torch.cuda.is_available() or torch.version.hip is not None:
        return Report("device_jit", TITLE, skipped="torch sees no NVIDIA GPU")
    from torch.utils.cpp_extension import CUDA_HOME

    with tempfile.TemporaryDirectory(prefix="precast-bench-") as name:
        folder = Path(name)
        target = folder / "site"
        shutil.copytree(prebuilt_installation(), target)
        shutil.rmtree(target / "precast" / "_C" / "device")
        count = iter(range(1000))

        def ours() -> float:
            cache = folder / f"cache{next(count)}"
            return float(run(OURS, env=environment(PYTHONPATH=str(target), PRECAST_CACHE_DIR=str(cache))))

        def theirs() -> float:
            build = folder / f"build{next(count)}"
            build.mkdir()
            return float(run(THEIRS, str(build), str(CHECKOUT / "csrc"), str(SOURCE)))

        median = interleaved_medians({"ours": ours}, ROUNDS)["ours"]
        what = "empty cache, first use of rms_norm"
        if CUDA_HOME is None:
            return Report("device_jit", TITLE, (Row(what, median, "s"),), notes=("No nvcc here: no peer.",))
        peer = interleaved_medians({"theirs": theirs}, PEER_ROUNDS)["theirs"]
    row = Row(what, median, "s", "cpp_extension.load, nvcc", peer, target=">= 50")
    return Report("device_jit", TITLE, (row,))
