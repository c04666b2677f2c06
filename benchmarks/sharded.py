"""Optimizers and norms over the DTensors of two ranks, and FSDP2 training, beside torch's fused AdamW.

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
CASES = {
    "AdamW, 1000 tensors of 64 x 64": ["adamw", 1000, 64],
    "AdamW, 8 tensors of 2048 x 2048": ["adamw", 8, 2048],
    "clip_grad_norm_, 1000 tensors of 64 x 64": ["clip", 1000, 64],
    "AdamW that clips, 1000 tensors of 64 x 64": ["clipped", 1000, 64],
    "LAMB, 1000 tensors of 64 x 64": ["lamb", 1000, 64],  # torch has none: the peer is its AdamW after its clipping
    "FSDP2 training, 12 blocks of width 768": ["train", 12, 768],
}
TARGETS = {"AdamW, 1000 tensors of 64 x 64": ">= 4", "AdamW, 8 tensors of 2048 x 2048": ">= 0.95"}

RANK = """
import json, sys, time
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.utils import clip_grad_norm_
from precast import ops
from precast.optim import CPUAdam, FusedAdamW, FusedLAMB

store, rank, ranks, rounds, cases = json.loads(sys.argv[1])
torch.set_num_threads(1)
on_gpu = torch.cuda.device_count() >= ranks
device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if on_gpu else "gloo", init_method="file://" + store, rank=rank, world_size=ranks)
mesh = init_device_mesh(device.type, (ranks,))
ours = FusedAdamW if on_gpu else CPUAdam

def theirs(params):
    return torch.optim.AdamW(params, fused=True)

def sharded(count, size):
    placed = lambda: distribute_tensor(torch.randn(size, size, device=device), mesh, [Shard(0)])
    params = [torch.nn.Parameter(placed()) for _ in range(count)]
    for param in params:
        param.grad = placed()
    return params

def steps(kind, count, size):
    if kind == "train":
        return [training(count, size, make) for make in (ours, theirs)]
    params = sharded(count, size)
    optimizer = theirs(params)
    def clipped():
        clip_grad_norm_(params, 1.0)
        optimizer.step()
    if kind == "clip":
        return [lambda: ops.clip_grad_norm_(params, 1.0), lambda: clip_grad_norm_(params, 1.0)]
    if kind == "clipped":
        return [ours(params, max_grad_norm=1.0).step, clipped]
    if kind == "lamb":
        return [FusedLAMB(params, max_grad_norm=1.0).step, clipped]
    return [ours(params).step, optimizer.step]

def training(blocks, width, make):
    layer = lambda: torch.nn.TransformerEncoderLayer(width, 12, 4 * width, dropout=0.0, batch_first=True, device=device)
    model = torch.nn.Sequential(*(layer() for _ in range(blocks)))
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = make(model.parameters())
    x = torch.randn(2, 32, width, device=device)
    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return step

found = {}
for name, (kind, count, size) in cases.items():
    if kind in ("clipped", "lamb") and not on_gpu:
        continue  # the CPU's optimizers have neither
    torch.manual_seed(0)
    samples = [[], []]
    both = steps(kind, count, size)
    for turn in range(rounds + 3):
        for step, kept in zip(both, samples):
            dist.barrier()
            if on_gpu:
                torch.cuda.synchronize()
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
    for case in ranks[0]:
        ours, theirs = ([max(turn) for turn in zip(*(rank[case][i] for rank in ranks), strict=True)] for i in (0, 1))
        pairs = [theirs_took / ours_took for ours_took, theirs_took in zip(ours, theirs, strict=True)]
        medians = [statistics.median(times) * 1e3 for times in (ours, theirs)]
        rows.append(
            Row(
                f"{case}, {RANKS} ranks",
                medians[0],
                "ms",
                "torch fused",
                medians[1],
                target=TARGETS.get(case, ""),
                paired=statistics.median(pairs),
            )
        )
    return tuple(rows)


def main() -> Report:
    """Measure two ranks."""
    return Report("sharded", "Optimizers and norms on DTensors", summary(measured()))
