"""One rank of a job of many, run by torchrun for ranks.py; writes what it saw as JSON into the folder it is given.

Usage: rank.py SCENARIO FOLDER. Rank r computes on GPU r modulo their number while GPU 0 is current; without a GPU, on
the CPU over gloo. Every check is an assertion. A rank that waits too long shows where it stands and ends.
"""

from __future__ import annotations

import datetime as dt
import faulthandler
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

PATIENCE_S = 150
GPUS = torch.cuda.device_count()


class Rank:
    """Where this rank computes, with whom it may use NCCL, and what was built in it."""

    def __init__(self) -> None:
        self.number, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.device = torch.device("cuda", self.number % GPUS) if GPUS else torch.device("cpu")
        timeout = dt.timedelta(seconds=PATIENCE_S)
        dist.init_process_group("gloo", timeout=timeout)
        # NCCL takes each GPU once in a group, so ranks that share GPUs meet in groups of as many as there are GPUs.
        width = min(GPUS, self.size) if GPUS else self.size
        groups = [list(range(first, min(first + width, self.size))) for first in range(0, self.size, width)]
        made = [dist.new_group(ranks, timeout, "nccl" if GPUS else "gloo") for ranks in groups]
        self.mates = len(groups[self.number // width])
        self.group = made[self.number // width]

    def start(self) -> float:
        """A barrier of all ranks, after all imports; then the clock."""
        dist.barrier()
        return time.perf_counter()

    def sum_of_ones(self) -> tuple[torch.Tensor, Any]:
        """An all-reduce over NCCL that is under way; on the GPU it spins until every mate has come."""
        ones = torch.ones(1 << 20, device=self.device)
        return ones, dist.all_reduce(ones, group=self.group, async_op=True)


def compute(rank: Rank) -> dict[str, Any]:
    """One call of an op on this rank's device, against float64, and where its kernels came from."""
    import precast
    from precast._load import loader

    torch.manual_seed(rank.number)
    x = torch.randn(64, 1024, device=rank.device)
    weight = torch.randn(1024, device=rank.device)
    y = precast.ops.rms_norm(x, weight, eps=1e-6)
    wide = x.double()
    expected = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight.double()
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)
    assert not GPUS or torch.cuda.current_device() == 0, "an op has changed the current GPU"
    loaded = loader.ensure("rms_norm", rank.device.type)
    images = sorted({source.kind for _, source in loaded.images})
    return {"host": loaded.host.kind, "images": images, "device": str(y.device), "load_s": round(loaded.seconds, 3)}


def first_call(rank: Rank) -> dict[str, Any]:
    """Every rank calls at the same moment; an all-reduce over NCCL before and after gives what it should."""
    for _ in range(2):
        ones, work = rank.sum_of_ones()
        work.wait()
        assert ones.unique().tolist() == [rank.mates]
        seen = compute(rank)
    return seen


def prebuild(rank: Rank) -> dict[str, Any]:
    """One rank of the node builds for the group, and the others wait in a collective for it."""
    import precast

    if GPUS:
        torch.cuda.set_device(rank.device)  # all_gather_object over NCCL takes the current GPU
    precast.prebuild(rank.group, ops=["rms_norm"], device=rank.device)
    if GPUS:
        torch.cuda.set_device(0)
    return compute(rank)


def collective_under_way(rank: Rank) -> dict[str, Any]:
    """The last rank of a group comes late to an all-reduce in which the others already wait while they load kernels."""
    late = rank.number % rank.mates == rank.mates - 1
    early = None if late else rank.sum_of_ones()
    seen = load_after(rank, 1.0 if late else 0.0)
    ones, work = early or rank.sum_of_ones()
    work.wait()
    assert ones.unique().tolist() == [rank.mates]
    return seen


def load_after(rank: Rank, seconds: float) -> dict[str, Any]:
    """Load the kernels; what runs on the stream of the all-reduce comes after it, so only the load is checked here."""
    import precast

    time.sleep(seconds)
    loaded = precast.load("rms_norm", rank.device)
    images = sorted({source.kind for _, source in loaded.images})
    return {"host": loaded.host.kind, "images": images, "device": str(rank.device), "load_s": round(loaded.seconds, 3)}


SCENARIOS: dict[str, Callable[[Rank], dict[str, Any]]] = {
    f.__name__: f for f in (first_call, prebuild, collective_under_way)
}


def main(scenario: str, folder: Path) -> None:
    """Run a scenario and write down what was seen."""
    faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
    torch.set_num_threads(1)
    if GPUS:
        assert os.environ.get("NCCL_NVLS_ENABLE") == "0", "NVLink multicast must stay off"
        torch.cuda.set_device(0)
    rank = Rank()
    started = rank.start()
    seen = SCENARIOS[scenario](rank)
    seen["seconds"] = round(time.perf_counter() - started, 3)
    dist.barrier()
    (folder / f"rank{rank.number}.json").write_text(json.dumps(seen), encoding="utf-8")
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # threads of gloo that let go of tensors while Python ends would abort


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
