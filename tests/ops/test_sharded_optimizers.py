"""The optimizers on DTensors, in two processes over gloo; on GPUs over NCCL."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.kit import forked

torch = pytest.importorskip("torch")

from tests.ops import ranks  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler, pytest.mark.fsdp2]

MODULE = "tests.ops.sharded_cases"
CASES = (
    "fsdp2_trains_as_torch",
    "elementwise_steps_are_those_of_the_whole",
    "a_new_shard_is_noticed",
    "other_gradients_are_redistributed",
    "a_gradient_that_is_still_underway",
    "tensor_parallel_steps",
    "fsdp1_trains_as_torch",
    "a_scaled_loss",
    "tensors_are_swapped",
    "masters_of_a_sharded_model",
    "what_does_not_fit_is_refused",
    "copies_and_pickles",
)
NORMS = (
    "lamb_adapts_to_the_whole_parameter",
    "lamb_with_masters_and_without_clipping",
    "adamw_clips_by_the_norm_of_all_shards",
    "clip_grad_norm_is_torchs",
    "partial_gradients_are_added_before_they_are_squared",
    "clipped_training_is_torchs",
)


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """How each case went on each of two ranks."""
    return ranks.run(MODULE, "cpu", tmp_path_factory.mktemp("ranks"), 2, CASES)


@pytest.mark.parametrize("case", CASES)
def test_two_ranks(on_two: list[dict[str, str]], case: str) -> None:
    for found in on_two:
        assert found.get(case, "an earlier case failed") == ""


def failures(module: str, kind: str, folder: Path, count: int, cases: Sequence[str]) -> list[str]:
    """What failed on one of the ranks."""
    found = ranks.run(module, kind, folder, count, cases)
    return [f"{case}: {text}" for rank in found for case, text in rank.items() if text]


def failures_of_checkpoints(module: str, kind: str, folder: Path) -> list[str]:
    """One rank saves; two resume, and save; one and two resume. Every rule."""
    cases = ["resumes_every_rule_from_one_rank", "saves_by_every_rule", "resumes_from_two_ranks"]
    return [
        *failures(module, kind, folder, 1, ["saves_by_every_rule"]),
        *failures(module, kind, folder, 2, cases),
        *failures(module, kind, folder, 1, ["resumes_every_rule_from_two_ranks_without_shards"]),
    ]


def test_checkpoints_go_to_other_numbers_of_ranks_and_to_torch(tmp_path: Path) -> None:
    module = "tests.ops.sharded_checkpoints"
    assert failures(module, "cpu", tmp_path, 1, ["saves"]) == []
    cases = ["resumes_from_one_rank", "saves", "passes_on_a_full_state"]
    assert failures(module, "cpu", tmp_path, 2, cases) == []
    assert failures(module, "cpu", tmp_path, 1, ["resumes_from_two_ranks_without_shards"]) == []


@pytest.mark.long
def test_checkpoints_of_every_rule(tmp_path: Path) -> None:
    assert failures_of_checkpoints("tests.ops.sharded_checkpoints", "cpu", tmp_path) == []


def test_the_package_imports_no_dtensor(tmp_path: Path) -> None:
    code = "import sys, precast.nn, precast.optim; sys.exit('torch.distributed.tensor' in sys.modules)"
    assert forked.run(code, env=os.environ, cwd=tmp_path).returncode == 0


def failures_on_gpus(folder: Path, count: int) -> list[str]:
    """Over NCCL; the CPU optimizer with an offloaded model too."""
    cases = [*CASES, "an_offloaded_model_trains_as_torch"]
    return [
        *failures(MODULE, "cuda", folder, count, cases),
        *failures("tests.ops.sharded_norms", "cuda", folder, count, NORMS),
    ]


@pytest.mark.gpu
def test_one_gpu_as_a_mesh(tmp_path: Path) -> None:
    assert failures_on_gpus(tmp_path, 1) == []


@pytest.mark.gpu(2)
def test_two_gpus(tmp_path: Path) -> None:
    assert failures_on_gpus(tmp_path, 2) == []


@pytest.mark.gpu(2)
def test_checkpoints_of_two_gpus(tmp_path: Path) -> None:
    assert failures_of_checkpoints("tests.ops.sharded_checkpoints", "cuda", tmp_path) == []
