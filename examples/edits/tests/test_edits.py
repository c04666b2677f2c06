"""Numbers against the recurrence in plain Python, graphs, bad input, and what the wheel promises."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path

import pytest
import torch

import edits


def expected(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """The definition."""

    @functools.cache
    def distance(i: int, j: int) -> int:
        if i == 0 or j == 0:
            return i + j
        return min(distance(i - 1, j) + 1, distance(i, j - 1) + 1, distance(i - 1, j - 1) + (a[i - 1] != b[j - 1]))

    return distance(len(a), len(b))


@pytest.mark.parametrize(("batch", "m", "n"), [(1, 1, 1), (7, 5, 9), (64, 20, 13), (3, 0, 4), (2, 4, 0), (0, 3, 3)])
def test_numbers(batch: int, m: int, n: int) -> None:
    torch.manual_seed(0)
    a, b = torch.randint(4, (batch, m)), torch.randint(4, (batch, n))
    a_lengths, b_lengths = torch.randint(m + 1, (batch,)), torch.randint(n + 1, (batch,))
    rows = zip(a.tolist(), a_lengths.tolist(), b.tolist(), b_lengths.tolist(), strict=True)
    wanted = [expected(tuple(x[:i]), tuple(y[:j])) for x, i, y, j in rows]
    assert edits.edit_distance(a, b, a_lengths, b_lengths).tolist() == wanted


def test_words() -> None:
    kitten, sitting = (torch.tensor([list(map(ord, word))]) for word in ("kitten", "sitting"))
    assert edits.edit_distance(kitten, sitting).tolist() == [3]
    assert edits.edit_distance(kitten.expand(2, 6), torch.stack([kitten[0], kitten[0].flip(0)])).tolist() == [0, 4]


def test_graphs_know_the_op() -> None:
    arguments = (torch.ones(2, 3).long(), torch.tensor([3, 2]), torch.zeros(2, 4).long(), torch.tensor([4, 4]))
    torch.library.opcheck(torch.ops.edits.edit_distance.default, arguments)
    compiled = torch.compile(edits.edit_distance, backend="aot_eager", fullgraph=True)
    assert compiled(arguments[0], arguments[2]).tolist() == [4, 4]


def test_what_makes_no_sense_is_refused() -> None:
    a, b = torch.ones(2, 3).long(), torch.ones(2, 4).long()
    for complaint, call in {
        r"b must be \(2, length\)": lambda: edits.edit_distance(a, b[:1]),
        "a and its lengths must be int64": lambda: edits.edit_distance(a.float(), b),
        "length 1 of b is 5, beyond 0 to 4": lambda: edits.edit_distance(a, b, None, torch.tensor([0, 5])),
        "length 0 of a is -1": lambda: edits.edit_distance(a, b, torch.tensor([-1, 0])),
    }.items():
        with pytest.raises(RuntimeError, match=complaint):
            call()


def test_one_library_for_every_torch_and_python() -> None:
    """What is installed is the stable library, without any word of this Python or this torch in it."""
    (manifest,) = Path(edits.__file__).parent.glob("_C/build_info.json")
    (library,) = json.loads(manifest.read_text())["host"]
    assert (library["python"], library["abi"]) == ("none", "torch-stable-2.10")
    from edits import kernels

    assert Path(kernels.library).parts[-3:] == ("_C", "host", "kernels.so")


def test_a_damaged_library_is_refused_before_it_is_opened(tmp_path: Path) -> None:
    import shutil
    import subprocess

    copy = Path(shutil.copytree(Path(edits.__file__).parent, tmp_path / "edits"))
    (library,) = copy.glob("_C/host/*.so")
    library.write_bytes(library.read_bytes() + b"\0")
    done = subprocess.run(
        [sys.executable, "-c", "import edits"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "PrebuiltRefused: edits.kernels is damaged" in done.stderr
