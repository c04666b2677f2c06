"""What a finished wheel holds."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from precast._builder import catalogue, headers, matrix
from precast._version import __version__
from precast.core.manifest import BuildInfo, BuildMode

from .conftest import CHECKOUT, EACH_LABEL, LABELS, LATER, MATRIX, QUICK_LABELS, Run

pytestmark = [pytest.mark.wheel, pytest.mark.compiler]

RELEASED = matrix.load(CHECKOUT / "matrix.toml")


def manifest(wheel: Path) -> BuildInfo:
    with zipfile.ZipFile(wheel) as archive:
        return BuildInfo.from_json(archive.read("precast/_C/build_info.json").decode())


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


@pytest.mark.parametrize("label", EACH_LABEL)
def test_a_label_holds_one_library_and_every_target(repaired: Mapping[str, Path], label: str) -> None:
    wheel = repaired[label]
    assert wheel.name.startswith(f"precast-{__version__}+{label}-py3-none-") and "manylinux_2_28" in wheel.name
    spec = MATRIX.label(matrix.Label(label))
    images = {
        f"device/{family.name}.{target}.{'ptx' if str(target).startswith('compute') else 'cubin'}"
        for family in catalogue.FAMILIES
        if family.device is not None
        for target in spec.targets
    }
    in_c = {name for name in names(wheel) if name.startswith("precast/_C/")}
    own = {"precast/_C/__init__.py", "precast/_C/build_info.json", "precast/_C/host/kernels-x86_64.so"}
    info = manifest(wheel)
    assert {image.name for image in info.device} == images
    assert in_c == own | {f"precast/_C/{image.path}" for image in info.device}
    assert (info.mode, str(info.label), info.version) == (BuildMode.RELEASE, label, __version__)
    assert wheel.stat().st_size < MATRIX.max_bytes_of(spec.label)


def test_each_wheel_of_a_release_is_like_one_that_is_built_here() -> None:
    """The audit of a slim wheel computes the size of the whole one, so that no commit outgrows a budget unnoticed.

    `make test` builds +cpu, and +cu130 for fewer GPUs, and the long tests +cu121, +cu128 and +cu132. Each other label
    has the targets and the budget of one of these, and the margin of the guard covers what its compiler makes of them.
    """
    built = {(MATRIX.label(matrix.Label(label)).targets, MATRIX.max_bytes_of(matrix.Label(label))) for label in LABELS}
    # fails if a label is added whose wheel is like none that a test builds
    for spec in RELEASED.labels:
        if spec.take:  # its images are those of other labels; each takes its share of that label's budget
            shares = [
                (
                    len(targets) / len(source.targets),
                    RELEASED.max_bytes_of(source.label),
                    (source.targets, source.max_bytes),
                )
                for source, targets in RELEASED.device_sources(spec.label)
            ]
            assert all(like in built for *_, like in shares), spec.name
            assert sum(share * most for share, most, _ in shares) <= RELEASED.max_bytes_of(spec.label), spec.name
        else:
            assert (spec.targets, RELEASED.max_bytes_of(spec.label)) in built, spec.name


def test_the_pure_wheel_holds_sources_and_no_binary(built: Mapping[str, Path]) -> None:
    wheel = built[""]
    assert wheel.name == f"precast-{__version__}-py3-none-any.whl"
    assert {name for name in names(wheel) if name.startswith("precast/_C/")} == {
        "precast/_C/__init__.py",
        "precast/_C/build_info.json",
    }
    assert {"precast/csrc/host/api.cpp", "precast/csrc/DIGEST"} <= names(wheel)
    assert not [name for name in names(wheel) if "torch_stable" in name], "a checkout has none, and none are fetched"
    assert manifest(wheel).mode is BuildMode.PURE


def test_a_release_carries_the_headers_for_extensions(repaired: Mapping[str, Path], sdist: Path, run: Run) -> None:
    pins = headers.load_pins()
    wanted = {f"torch_stable/include/{name}" for name in pins.headers} | {f"torch_stable/{n}" for n in pins.notices}
    for label in QUICK_LABELS:
        found = {name.removeprefix("precast/csrc/") for name in names(repaired[label])}
        assert wanted <= found, label
    listed = {name.partition("/csrc/")[2] for name in run("tar", "tf", sdist).stdout.splitlines()}
    assert wanted <= listed


@pytest.mark.parametrize("labels", [QUICK_LABELS, pytest.param(LABELS, marks=LATER)], ids=["two", "all"])
def test_the_labels_hold_the_same_library(repaired: Mapping[str, Path], labels: tuple[str, ...]) -> None:
    assert len({manifest(repaired[label]).host[0].sha256 for label in labels}) == 1


def test_wheel_and_sdist_remember_the_commit(sdist: Path, built: Mapping[str, Path], tree: Path, run: Run) -> None:
    head = run("git", "-C", tree, "rev-parse", "HEAD").stdout.strip()
    recorded = json.loads(run("tar", "xfO", sdist, f"precast-{__version__}/source.json").stdout)["commit"]
    assert recorded == manifest(built["cu130"]).commit == head


def test_a_build_leaves_the_tree_as_it_was(built: Mapping[str, Path], sdist: Path, tree: Path) -> None:
    assert not (tree / "build").exists() and not list(tree.rglob("*.egg-info"))
    assert [path.name for path in (tree / "pkg/precast/_C").iterdir() if path.is_file()] == ["__init__.py"]
    assert not (tree / "csrc/torch_stable").exists()


def test_a_label_that_is_not_in_the_matrix_is_refused(run: Run, tree: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", tmp_path, tree]
    done = run(*command, expect=1, PRECAST_LABEL="cu125")
    assert "matrix.toml has no label 'cu125'" in done.stdout + done.stderr


def test_a_label_and_cuda_ext_together_are_refused(run: Run, tree: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", tmp_path, tree]
    done = run(*command, expect=1, PRECAST_LABEL="cu130", CUDA_EXT="1")
    assert "ask for different wheels" in done.stdout + done.stderr
