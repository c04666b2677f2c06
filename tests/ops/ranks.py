"""Start a module of cases in several processes, and collect how each case went in each process."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

from tests.kit import forked, spawn

SECONDS = 240
RANK = "import sys, warnings; warnings.simplefilter('ignore')\nfrom tests.ops import ranks; ranks.main(*sys.argv[1:])"


def run(module: str, kind: str, folder: Path, ranks: int, cases: Sequence[str]) -> list[dict[str, str]]:
    """For each rank: the cases that ended, each with its traceback or an empty text."""
    environment = spawn.environ(PYTHONPATH=spawn.search_path(spawn.CHECKOUT), OMP_NUM_THREADS=1)
    start = forked.run_anew if kind == "cuda" else forked.run
    (folder / "store").unlink(missing_ok=True)

    def rank(number: int) -> subprocess.CompletedProcess[str]:
        words = (module, kind, str(folder), str(number), str(ranks), *cases)
        return start(RANK, *words, env=environment, cwd=folder, timeout=SECONDS)

    with ThreadPoolExecutor(ranks) as pool:
        done = list(pool.map(rank, range(ranks)))
    results = [folder / f"found{rank}.json" for rank in range(ranks)]
    assert not any(one.returncode for one in done), "\n".join(one.stdout + one.stderr for one in done)
    return [json.loads(result.read_text()) for result in results]


def main(module: str, kind: str, folder: str, rank: str, ranks: str, *cases: str) -> None:
    """One rank. It stops at the first case that fails, because the other ranks may wait for it."""
    import torch.distributed as dist

    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    place = {"rank": int(rank), "world_size": int(ranks), "timeout": timedelta(seconds=60)}
    dist.init_process_group(backend, init_method=f"file://{folder}/store", **place)  # type: ignore[arg-type]
    library = importlib.import_module(module)
    library.prepare(kind, Path(folder))
    found: dict[str, str] = {}
    try:
        for case in cases:
            getattr(library, case)()
            found[case] = ""
    except Exception:  # noqa: BLE001  # the parent shows it
        found[case] = traceback.format_exc()
    (Path(folder) / f"found{rank}.json").write_text(json.dumps(found))
    if all(text == "" for text in found.values()):
        dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # a rank that failed leaves no peer to say goodbye to
