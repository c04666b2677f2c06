"""What the runner of many ranks refuses; the ranks themselves are in tests/gpu."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

RUNNER = Path(__file__).resolve().parents[1] / "gpu" / "ranks.py"


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_ranks", RUNNER)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_ranks", module)
    spec.loader.exec_module(module)
    return module


def seen(*hosts: str, images: str | None = "cache") -> list[dict[str, Any]]:
    kinds = [images] * (len(hosts) - 1) + ["jit"] if images == "cache" else [images] * len(hosts)
    return [{"host": host, "images": [kind] if kind else []} for host, kind in zip(hosts, kinds, strict=True)]


COMPILED = "-O3 -c a.cpp -o a.o\n-O3 -c b.cpp -o b.o\n-shared a.o b.o -o lib.so\n--version\n"


@pytest.mark.parametrize(
    ("said", "witness", "wrong"),
    [
        (seen("jit", "cache"), COMPILED, None),
        (seen("jit", "cache", images=None), COMPILED, None),
        (seen("jit", "jit"), COMPILED, "the host of the ranks came from ['jit', 'jit']"),
        (seen("cache", "cache"), COMPILED, "the host of the ranks came from ['cache', 'cache']"),
        (seen("jit", "cache", images="jit"), COMPILED, "the device code of the ranks came from ['jit', 'jit']"),
        (seen("jit", "cache"), COMPILED * 2, "twice for ['a.o', 'b.o']"),
        (seen("jit", "cache"), "--version\n", "the compiler ran 0 times"),
    ],
)
def test_one_build_of_each_piece_and_no_more(
    ranks: ModuleType, tmp_path: Path, said: list[dict[str, Any]], witness: str, wrong: str | None
) -> None:
    (tmp_path / "witness.txt").write_text(witness)
    found = ranks.judge(ranks.Case("first_call", 2), said, tmp_path)
    assert found is None if wrong is None else wrong in found


def test_what_is_left_behind_and_a_compiler_beside_prebuilt_files_are_wrong(ranks: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "witness.txt").write_text(COMPILED)
    prebuilt = seen("prebuilt", "prebuilt", images="prebuilt")
    assert "the compiler ran 2 times" in ranks.judge(ranks.Case("first_call", 2, cold=False), prebuilt, tmp_path)
    (tmp_path / "cache" / "v1" / ".staging" / "x").mkdir(parents=True)
    assert "left behind" in ranks.judge(ranks.Case("first_call", 2), seen("jit", "cache"), tmp_path)


def test_a_job_that_hangs_is_ended_and_told(ranks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "LIMIT_S", 0.5)
    command = [sys.executable, "-c", "import time; print('waiting', flush=True); time.sleep(60)"]
    assert ranks.run_limited(command, {}, tmp_path)[0] is None


def test_multicast_stays_off(ranks: ModuleType) -> None:
    assert ranks.SAFE["NCCL_NVLS_ENABLE"] == "0"
