"""Jobs of many ranks on the GPUs of one node: one build of each missing piece, no hang, the right numbers.

Usage: python tests/gpu/ranks.py WHEEL... [--ranks 2 8] [--json FILE]. Each case is a torchrun with an empty cache, over
NCCL; without a GPU over gloo, to try the runner itself. Exit status 0 only if every case of every wheel held.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LIMIT_S = 240
# A program that uses NVLink multicast can put the GPUs of a shared host out of service: it is never switched on.
SAFE = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
# A compiler that writes down each of its runs: a witness of the builds outside of what is tested.
WITNESS = '#!/bin/sh\necho "$*" >> "$PRECAST_WITNESS"\nexec g++ "$@"\n'


@dataclass(frozen=True)
class Case:
    """A scenario of rank.py in so many ranks; ``cold`` builds everything, else the wheel's files serve."""

    scenario: str
    ranks: int
    cold: bool = True

    @property
    def name(self) -> str:
        state = "cold" if self.cold else "prebuilt"
        return f"{self.ranks} rank{'s' if self.ranks > 1 else ''} {state}, {self.scenario.replace('_', ' ')}"


def cases(sizes: Iterable[int]) -> Iterator[Case]:
    """One rank first, as the measure of the others."""
    yield Case("first_call", 1)
    for ranks in sizes:
        yield Case("first_call", ranks, cold=False)
        yield from (Case(scenario, ranks) for scenario in ("first_call", "prebuild", "collective_under_way"))


def run_case(case: Case, site: Path, work: Path) -> tuple[str | None, list[dict[str, Any]]]:
    """Start the ranks with an empty cache; what is wrong (or None), and what each rank saw."""
    shutil.rmtree(work, ignore_errors=True)
    (work / "said").mkdir(parents=True)
    (work / "witness.txt").touch()
    compiler = work / "g++"
    compiler.write_text(WITNESS, encoding="utf-8")
    compiler.chmod(0o755)
    env = os.environ | SAFE | {
        "PYTHONPATH": str(site),
        "PRECAST_CACHE_DIR": str(work / "cache"),
        "PRECAST_JIT": "jit" if case.cold else "aot",
        "PRECAST_WITNESS": str(work / "witness.txt"),
        "CXX": str(compiler),
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    job = ["--standalone", f"--nproc-per-node={case.ranks}", str(HERE / "rank.py"), case.scenario, str(work / "said")]
    status, output = run_limited([sys.executable, "-m", "torch.distributed.run", *job], env, work)
    if status is None:
        return f"a hang: not over after {LIMIT_S} s\n{output[-4000:]}", []
    if status:
        return output[-4000:], []
    seen = [json.loads((work / "said" / f"rank{rank}.json").read_text()) for rank in range(case.ranks)]
    return judge(case, seen, work), seen


def run_limited(command: list[str], env: dict[str, str], work: Path) -> tuple[int | None, str]:
    """Status and output; None for the status of a job that had to be ended."""
    log = work / "output.txt"
    with log.open("w", encoding="utf-8") as output:
        job = subprocess.Popen(command, env=env, cwd=work, stdout=output, stderr=output, start_new_session=True)
        try:
            status: int | None = job.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            status = None
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
    return status, log.read_text(encoding="utf-8", errors="replace")


def judge(case: Case, seen: list[dict[str, Any]], work: Path) -> str | None:
    """What does not hold: of each piece one build on the node, and by the compiler's own account no file twice."""
    pieces = {"host": [one["host"] for one in seen]}
    if any(one["images"] for one in seen):
        pieces["device code"] = ["+".join(one["images"]) for one in seen]
    wanted = ["cache"] * (case.ranks - 1) + ["jit"] if case.cold else ["prebuilt"] * case.ranks
    for piece, kinds in pieces.items():
        if sorted(kinds) != wanted:
            return f"the {piece} of the ranks came from {sorted(kinds)}, expected {wanted}"
    runs = compilations(work / "witness.txt")
    twice = [output for output, count in runs.items() if count > 1]
    if twice or bool(runs) is not case.cold:
        return f"the compiler ran {runs.total()} times, twice for {twice}"
    left = list((work / "cache").glob("v1/.staging/*"))
    return f"left behind: {left}" if left else None


def compilations(witness: Path) -> Counter[str]:
    """How often each object was compiled, by what the compiler wrote down of itself."""
    lines = witness.read_text(encoding="utf-8").splitlines()
    return Counter(found[1] for line in lines if " -c " in f" {line} " and (found := re.search(r"-o (\S+)", line)))


def install(wheel: Path, target: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([*command, str(wheel)], check=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", nargs="+", type=Path)
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 8], help="the sizes of the jobs")
    parser.add_argument("--json", type=Path, help="write everything that was seen to this file")
    options = parser.parse_args(argv)
    import torch

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    print(f"{', '.join(gpus) or 'no GPU: over gloo'}; torch {torch.__version__}; {os.cpu_count()} CPUs", flush=True)
    failed, record = 0, []
    for wheel in options.wheels:
        with tempfile.TemporaryDirectory(prefix="precast-ranks-") as folder:
            install(wheel.resolve(), Path(folder) / "site")
            for case in cases(options.ranks):
                started = time.monotonic()
                wrong, seen = run_case(case, Path(folder) / "site", Path(folder) / "work")
                failed += wrong is not None
                record.append({"wheel": wheel.name, "case": case.name, "wrong": wrong, "ranks": seen})
                slowest = max((one["seconds"] for one in seen), default=0.0)
                took = f"slowest rank {slowest:6.2f} s after the barrier, {time.monotonic() - started:5.1f} s in all"
                print(f"{'FAIL' if wrong else 'ok  '} {wheel.name.split('-')[1]:14} {case.name:42} {took}", flush=True)
                if wrong:
                    print("     " + wrong.replace("\n", "\n     "), flush=True)
    if options.json:
        facts = {"gpus": gpus, "torch": torch.__version__, "cpus": os.cpu_count(), "cases": record}
        options.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(f"{len(record) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
