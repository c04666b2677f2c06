"""The optimizers of the GPU on DTensors, in two processes, with their device code run on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.ops import ranks  # noqa: E402
from tests.ops.test_sharded_optimizers import CASES, NORMS, failures, failures_of_checkpoints  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler, pytest.mark.fsdp2]


@pytest.fixture(scope="session")
def emulated_lists(emulated_library: Callable[..., Path]) -> Path:
    return emulated_library("multi_tensor")


@pytest.fixture(scope="module")
def on_two(emulated_lists: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """How each case went on each of two ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "library").write_text(str(emulated_lists))
    return ranks.run("tests.unit.csrc.emulated_ranks", "emulated", folder, 2, (*CASES, *NORMS))


@pytest.mark.parametrize("case", [*CASES, *NORMS])
def test_two_ranks(on_two: list[dict[str, str]], case: str) -> None:
    for found in on_two:
        assert found.get(case, "an earlier case failed") == ""


def test_one_rank_unscales_a_gradient_once(emulated_lists: Path, tmp_path: Path) -> None:
    """Its redistributed gradient could have the memory of the gradient itself."""
    (tmp_path / "library").write_text(str(emulated_lists))
    cases = ["a_scaled_loss", "other_gradients_are_redistributed"]
    assert failures("tests.unit.csrc.emulated_ranks", "emulated", tmp_path, 1, cases) == []


@pytest.mark.long
def test_checkpoints_go_to_other_numbers_of_ranks_and_to_torch(emulated_lists: Path, tmp_path: Path) -> None:
    (tmp_path / "library").write_text(str(emulated_lists))
    assert failures_of_checkpoints("tests.unit.csrc.emulated_ranks", "emulated", tmp_path) == []
