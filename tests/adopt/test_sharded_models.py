"""DDP, FSDP2 and sequence parallelism over two ranks on the CPU: :mod:`tests.adopt.sharded_models` has the cases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.ops import ranks

pytestmark = [pytest.mark.torch, pytest.mark.compiler, pytest.mark.models, pytest.mark.fsdp2]
CASES = ("data_parallel", "adopted_before_sharding", "adopted_after_sharding", "sharded_without_logits")
CASES += ("flat_parameters", "sequence_parallel_is_refused")


@pytest.fixture(scope="module")
def went(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[str]]:
    """How a case went on each rank; all run in the same two processes."""
    folder: Path = tmp_path_factory.mktemp("ranks")
    found = ranks.run("tests.adopt.sharded_models", "cpu", folder, 2, CASES)
    return lambda case: [rank.get(case, "it did not run") for rank in found]


@pytest.mark.parametrize("case", CASES)
def test_two_ranks(case: str, went: Callable[[str], list[str]]) -> None:
    assert went(case) == ["", ""]
