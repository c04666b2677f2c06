"""matrix.toml: what it may say, and that everything else agrees with it."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from precast._abi.label import LABELS, Label
from precast._abi.torch_abi import STABLE_FLOOR
from precast._build import flags, headers, matrix
from precast._build.matrix import MatrixError

GOOD: dict[str, Any] = {
    "schema": 1,
    "torch": {"floor": "2.4.1", "stable_floor": "2.10", "headers": "2.15.0"},
    "wheel": {
        "policy": "manylinux_2_28",
        "glibc": "2.28",
        "glibcxx": "3.4.22",
        "max_bytes": 5_000_000,
        "machines": ["x86_64"],
    },
    "runners": {"x86_64": "ubuntu-24.04"},
    "labels": {
        "cu130": {"nvrtc": "13.0.88", "package": "nvidia-cuda-nvrtc", "sass": ["9.0"], "ptx": ["9.0"]},
        "cpu": {},
    },
}


def changed(path: str, value: Any) -> dict[str, Any]:
    document = copy.deepcopy(GOOD)
    *tables, key = path.split(".")
    inner = document
    for table in tables:
        inner = inner[table]
    if value is None:
        del inner[key]
    else:
        inner[key] = value
    return document


def test_a_good_matrix_is_read() -> None:
    known = matrix.parse(GOOD)
    spec = known.label(Label("cu130"))
    assert spec.requirement == "nvidia-cuda-nvrtc==13.0.88"
    assert [str(target) for target in spec.targets] == ["sm_90", "compute_90"]
    assert known.label(Label("cpu")).requirement is None and known.label(Label("cpu")).targets == ()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("schema", 2, "schema must be 1"),
        ("schema", None, "schema is missing"),
        ("torch.floor", None, "torch: floor is missing"),
        ("torch.stable_floor", "new", "stable_floor"),
        ("torch.ceiling", "3.0", "nobody reads ceiling"),
        ("wheel.max_bytes", "5 MB", "wanted int"),
        ("wheel.max_bytes", True, "wanted int"),
        ("wheel.machines", [1], "list of texts"),
        ("wheel.policy", "manylinux_2_34", "not that of glibc 2.28"),
        ("labels.cu13", {}, "not a label"),
        ("labels.cu130.nvrtc", "13.2.75", "not the NVRTC of cu130"),
        ("labels.cu130.nvrtc", "new", "not a CUDA version"),
        ("labels.cu130.sass", [], "must not be empty"),
        ("labels.cu130.sass", ["7.0"], "below 7.5"),
        ("labels.cu130.ptx", None, "ptx is missing"),
        ("labels.cu130.sass", ["9.0", "9.0"], "listed twice"),
        ("labels.cu130.arch", "9.0", "nobody reads arch"),
        ("labels.cpu.sass", ["9.0"], "nobody reads sass"),
        ("extra", {}, "nobody reads extra"),
    ],
)
def test_what_cannot_be_is_refused(path: str, value: Any, message: str) -> None:
    with pytest.raises(MatrixError, match=message):
        matrix.parse(changed(path, value))


def test_an_unknown_label_lists_the_known_ones() -> None:
    with pytest.raises(MatrixError, match="cu130, cpu"):
        matrix.parse(GOOD).label(Label("cu126"))


def test_a_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    (tmp_path / "matrix.toml").write_text("schema = = 1")
    with pytest.raises(MatrixError, match=r"matrix\.toml"):
        matrix.load(tmp_path / "matrix.toml")


def test_everything_else_agrees_with_the_matrix(checkout: Path) -> None:
    known = matrix.load(checkout / "matrix.toml")
    assert known.stable_floor == STABLE_FLOOR
    assert known.headers == headers.load_pins().torch
    assert (known.glibc, known.glibcxx) == (flags.GLIBC_CEILING, flags.GLIBCXX_CEILING)
    assert set(known.machines) <= set(flags.CPU_LEVELS)
    assert {spec.label for spec in known.labels} <= {*LABELS, Label("cpu")}
    assert f'"torch>={known.torch_floor}"' in (checkout / "pyproject.toml").read_text()


def test_the_workflow_uses_the_runners_of_the_matrix(checkout: Path) -> None:
    known = matrix.load(checkout / "matrix.toml")
    named = set(re.findall(r"ubuntu-[\w.-]+", (checkout / ".github/workflows/ci.yml").read_text()))
    assert named <= set(known.runners.values())
