"""matrix.toml: what it may say, and that everything else agrees with it."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from precast._abi.served import LABELS
from precast._builder import flags, headers, matrix
from precast._builder.matrix import MatrixError
from precast.core.torch_abi import ANY_TORCH, STABLE_FLOOR, Exact
from precast.core.version import Label, Release

DIGEST = "@sha256:" + "0" * 64
GOOD: dict[str, Any] = {
    "schema": 2,
    "python": {"versions": ["3.10", "3.11", "3.12"]},
    "torch": {
        "floor": "2.4.1",
        "stable_floor": "2.10",
        "headers": "2.15.0",
        "index": "https://example.org/whl",
        "classic": {"built": [], "not_built": "not written"},
        "without_label": {"cu118": "cu130"},
        "releases": [
            {
                "version": "2.9.1",
                "python": ["3.9", "3.11"],
                "cxx_standard": 17,
                "pypi": {"x86_64": "cpu"},
                "x86_64": {"cpu": 0, "cu118": 1},
            },
            {
                "version": "2.10.0",
                "python": {"x86_64": ["3.12", "3.14"]},
                "cxx_standard": 20,
                "pypi": {"x86_64": "cu130"},
                "x86_64": {"cpu": 1, "cu130": 1},
            },
        ],
    },
    "device": {"readers": ["nvidia-cuda-cuobjdump==13.2.86", "nvidia-cuda-nvdisasm==13.2.86"]},
    "wheel": {"policy": "manylinux_2_28", "glibc": "2.28", "glibcxx": "3.4.22", "max_bytes": 5_000_000},
    "gpu": {"runner": "our-gpu"},
    "machines": {"x86_64": {"runner": "ubuntu-24.04", "image": "example.org/manylinux_2_28_x86_64" + DIGEST}},
    "labels": {
        "cu130": {
            "nvrtc": "13.0.88",
            "package": "nvidia-cuda-nvrtc",
            "reports": ["7.5", "9.0", "10.0"],
            "isa": "9.0",
            "sass": ["9.0"],
            "ptx": ["9.0"],
            "driver": {"sass": "13.0", "ptx": "13.0"},
            "max_bytes": 4_000_000,
        },
        "cpu": {},
        "default": {"take": {"cu130": ["sm_90"]}, "not_built": "not yet"},
    },
    "events": {"pr": {"labels": ["cpu"], "tests": "torch"}, "release": {"tests": "torch, label"}},
}


def changed(path: str, value: Any) -> dict[str, Any]:
    document = copy.deepcopy(GOOD)
    *tables, key = path.split(".")
    inner = document
    for table in tables:
        inner = inner[int(table) if table.isdigit() else table]
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
    default = known.label(Label(""))
    assert (default.name, default.requirement, [str(target) for target in default.targets]) == (
        "default",
        None,
        ["sm_90"],
    )
    assert [known.max_bytes_of(Label(text)) for text in ("cu130", "cpu")] == [4_000_000, 5_000_000]
    assert [spec.name for spec in known.events] == ["pr", "release"]
    assert known.event("release").labels == (Label("cu130"), Label("cpu"), Label(""))


def test_the_builds_of_torch_are_read() -> None:
    known = matrix.parse(GOOD)
    old, new = known.releases
    assert [str(python) for python in old.pythons["x86_64"]] == ["3.10", "3.11"], "3.9 is not supported"
    assert [str(python) for python in new.pythons["x86_64"]] == ["3.12"], "3.14 is not in the list"
    assert [str(known.binding_of(old, build)) for build in old.builds["x86_64"]] == ["torch-2.9-cxx0", "torch-2.9-cxx1"]
    assert {str(known.binding_of(new, build)) for build in new.builds["x86_64"]} == {"torch-table-1"}
    assert known.not_built(ANY_TORCH) is None
    assert known.not_built(Exact(Release(2, 9), True)) == "not written"
    written = matrix.parse(changed("torch.classic.built", ["torch-2.9-cxx1"]))
    assert written.not_built(Exact(Release(2, 9), True)) is None
    assert written.not_built(Exact(Release(2, 9), False)) == "not written"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("schema", 1, "schema: needed 2, found 1"),
        ("schema", None, "schema is missing"),
        ("torch.floor", None, "torch: floor is missing"),
        ("torch.stable_floor", "new", "stable_floor"),
        ("torch.ceiling", "3.0", "unknown keys: ceiling"),
        ("wheel.max_bytes", "5 MB", "needed int"),
        ("wheel.max_bytes", True, "needed int"),
        ("python.versions", [1], "list of texts"),
        ("python.versions", ["3"], "not a release"),
        ("machines.x86_64.image", "example.org/manylinux_2_28_x86_64:latest", "by its sha256"),
        ("machines.x86_64.image", "example.org/manylinux_2_28_aarch64" + DIGEST, "image for x86_64"),
        ("machines.x86_64.runner", None, "runner is missing"),
        ("torch.releases", [1], "list of tables"),
        ("torch.releases.0.version", "2.10.0", "2.10 after 2.10: needed each minor once"),
        ("torch.releases.0.version", "2.11.0", "2.10 after 2.11: needed each minor once"),
        ("torch.releases.0.version", "two", r"releases\[two\].version: not a torch version"),
        ("torch.releases.0.python", ["3.11"], "needed a first and a last version"),
        ("torch.releases.0.python", ["3.11", "3.10"], "needed a first and a last version"),
        ("torch.releases.0.python", ["3.8", "3.9"], "needed some of 3.10, 3.11, 3.12 for x86_64"),
        ("torch.releases.1.python", {}, "x86_64 is missing"),
        ("torch.releases.0.cxx_standard", 14, "needed one of"),
        ("torch.releases.0.pypi", {"x86_64": "cu130"}, "x86_64 has no build cu130"),
        ("torch.releases.0.x86_64", {"cpu": 2}, "the cxx11 ABI is 0 or 1"),
        ("torch.releases.0.x86_64", {"cpu": 1, "gpu": 1}, "not a label"),
        ("torch.releases.0.x86_64", {"cpu": 1, "cu121": 1}, "torch 2.9.1 on x86_64: no label fits its build cu121"),
        ("torch.releases.0.riscv64", {"cpu": 1}, "unknown keys: riscv64"),
        ("torch.without_label.cu118", "cu121", "cu121 must be in labels"),
        ("torch.without_label.cu130", "cu130", "cu130 must not"),
        ("torch.classic.built", ["2.9"], "not a torch ABI"),
        ("wheel.policy", "manylinux_2_34", "not that of glibc 2.28"),
        ("labels.cu13", {}, "not a label"),
        ("labels.cu130.nvrtc", "13.2.75", "needed an NVRTC of CUDA 13.0, found 13.2.75"),
        ("labels.cu130.nvrtc", "new", "not a CUDA version"),
        ("labels.cu130.sass", [], "found an empty list"),
        ("labels.cu130.sass", ["7.0"], "needed GPUs from 7.5 on in sass and in ptx, found sm_70"),
        ("labels.cu130.sass", ["8.0"], "NVRTC 13.0.88 does not report sm_80"),
        ("labels.cu130.reports", [], "reports is empty; copy another label's, then run python -m tools nvrtc"),
        ("labels.cu130.reports", None, "reports is missing"),
        ("labels.cu130.isa", None, "isa is missing"),
        ("labels.cu130.ptx", None, "ptx is missing"),
        ("labels.cu130.sass", ["9.0", "9.0"], "the target sm_90 is listed twice"),
        ("labels.cu130.arch", "9.0", "unknown keys: arch"),
        ("labels.cu130.driver", {"sass": "12.0", "ptx": "13.0"}, "needed sass 13.0 and ptx 13.0 .*, found sass 12.0"),
        ("labels.cu130.driver", None, "driver is missing"),
        ("labels.cu130.max_bytes", 6_000_000, "above the 5000000 of any wheel"),
        ("labels.default.take", {"cu130": ["sm_100"]}, "cu130 has no sm_100"),
        ("labels.default.take", {"cu121": ["sm_90"]}, "no label 'cu121'"),
        ("labels.default.take", None, "take is missing"),
        ("events.pr.labels", ["cu126"], "no such label: cu126"),
        ("events.pr.tests", "all", "needed 'torch'"),
        ("events.pr.nightly", 1, "needed bool"),
        ("labels.cpu.sass", ["9.0"], "unknown keys: sass"),
        ("extra", {}, "unknown keys: extra"),
    ],
)
def test_what_cannot_be_is_refused(path: str, value: Any, message: str) -> None:
    with pytest.raises(MatrixError, match=message):
        matrix.parse(changed(path, value))


def test_an_unknown_label_lists_the_known_ones() -> None:
    with pytest.raises(MatrixError, match="cu130, cpu, default"):
        matrix.parse(GOOD).label(Label("cu126"))
    with pytest.raises(MatrixError, match="no event 'tag'; it has: pr, release"):
        matrix.parse(GOOD).event("tag")


def test_a_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    for content in (b"schema = = 1", b"schema = '\xff'"):
        (tmp_path / "matrix.toml").write_bytes(content)
        with pytest.raises(MatrixError, match=r"matrix\.toml"):
            matrix.load(tmp_path / "matrix.toml")


def test_everything_else_agrees_with_the_matrix(checkout: Path) -> None:
    known = matrix.load(checkout / "matrix.toml")
    assert known.stable_floor == STABLE_FLOOR
    assert known.headers == headers.load_pins().torch
    assert (known.glibc, known.glibcxx) == (flags.GLIBC_CEILING, flags.GLIBCXX_CEILING)
    assert set(known.machines) <= set(flags.CPU_LEVELS)
    assert [spec.label for spec in known.labels] == [*LABELS, Label("cpu"), Label("")]
    project = (checkout / "pyproject.toml").read_text()
    assert f'"torch>={known.torch_floor}"' in project and f'requires-python = ">={known.pythons[0]}"' in project
    assert str(known.releases[0].version) == known.torch_floor and known.releases[-1].version == known.headers


def test_the_workflow_uses_the_runners_of_the_matrix(checkout: Path) -> None:
    known = matrix.load(checkout / "matrix.toml")
    named = set(re.findall(r"ubuntu-[\w.-]+", (checkout / ".github/workflows/ci.yml").read_text()))
    assert named <= set(known.runners.values())
