"""AdamW on the DTensors of two ranks, ours beside torch's fused step. Both update local shards and communicate nothing.

Two GPUs over NCCL if there are two, else two CPU processes over gloo. The slower rank counts in each round.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile

from benchmarks.child import environment, prebuilt_installation
from benchmarks.report import Report, Row

RANKS = 2
ROUNDS = 15
CASES = {"1000 tensors of 64 x 64": (1000, 64), "8 tensors of 2048 x 2048": (8, 2048)}
TARGETS = {"1000 tensors of 64 x 64": ">= 4", "8 tensors of 2048 x 2048": ">= 0.95"}

RANK = """
import json, sys, time
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from precast.optim import CPUAdam, FusedAdamW

store, rank, ranks, rounds, cases = json.loads(sys.argv[1])
torch.set_num_threads(1)
on_gpu = torch.cuda.device_count() >= ranks
device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if on_gpu else "gloo", init_method="file://" + store, rank=rank, world_size=ranks)
mesh = init_device_mesh(device.type, (ranks,))
found = {}
for name, (count, size) in cases.items():
    torch.manual_seed(0)
    placed = lambda: distribute_tensor(torch.randn(size, size, device=device), mesh, [Shard(0)])
    params = [torch.nn.Parameter(placed()) for _ in range(count)]
    for param in params:
        param.grad = placed()
    steps = [make.step for make in ((FusedAdamW if on_gpu else CPUAdam)(params), torch.optim.AdamW(params, fused=True))]
    samples = [[], []]
    for turn in range(rounds + 3):
        for step, kept in zip(steps, samples):
            dist.barrier()
            start = time.perf_counter()
            step()
            if on_gpu:
                torch.cuda.synchronize()
            if turn > 2:
                kept.append(time.perf_counter() - start)
    found[name] = samples
dist.destroy_process_group()
print(json.dumps(found))
"""


def measured() -> list[dict[str, list[list[float]]]]:
    """For each rank and case, the times of our step and of torch's."""
    env = environment(PYTHONPATH=str(prebuilt_installation()), OMP_NUM_THREADS="1")
    with tempfile.TemporaryDirectory(prefix="precast-bench-") as folder:
        children = [
            subprocess.Popen(
                [sys.executable, "-c", RANK, json.dumps([f"{folder}/store", rank, RANKS, ROUNDS, CASES])],
                env=env,
                cwd=folder,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(RANKS)
        ]
        answers = [child.communicate(timeout=600)[0] for child in children]
    if any(child.returncode for child in children):
        raise SystemExit("benchmark: a rank failed, its message is above")
    return [json.loads(answer.splitlines()[-1]) for answer in answers]


def summary(ranks: list[dict[str, list[list[float]]]]) -> tuple[Row, ...]:
    """A row for each case, from the slower rank of each round."""
    rows = []
    for case in CASES:
        ours, theirs = ([max(turn) for turn in zip(*(rank[case][i] for rank in ranks), strict=True)] for i in (0, 1))
        pairs = [theirs_took / ours_took for ours_took, theirs_took in zip(ours, theirs, strict=True)]
        medians = [statistics.median(times) * 1e3 for times in (ours, theirs)]
        rows.append(
            Row(
                f"AdamW, {case}, {RANKS} ranks",
                medians[0],
                "ms",
                "torch fused",
                medians[1],
                target=TARGETS[case],
                paired=statistics.median(pairs),
            )
        )
    return tuple(rows)


def main() -> Report:
    """Measure two ranks."""
    return Report("sharded", "AdamW on DTensors", summary(measured()))
