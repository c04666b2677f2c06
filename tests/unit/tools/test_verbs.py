"""What the verbs of a release refuse, and the second reading of cubins; nothing is compiled or fetched here."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

import pytest

from precast._abi.settings import Settings
from precast._builder import matrix
from precast._builder.cache import Cache
from precast.core.version import Release
from precast.errors import KernelError
from tools.shared import build_drivers, packages, second_reader
from tools.verbs import build, device, host, smoke

MACHINE = platform.machine()


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def readers(tmp_path: Path) -> tuple[Path, Path]:
    """Two readers that know what a file is by its content."""
    listed = 'grep -q new "$2" && echo "ELF file    1: x.$(cut -d" " -f2 "$2").cubin"; exit 0'
    flags = 'echo "	.headerflags	@\\"EF_CUDA_64BIT_ADDRESS EF_CUDA_SM90 EF_CUDA_VIRTUAL_SM(EF_CUDA_SM90)\\""'
    old = f'grep -q old "$2" && {flags}; exit 0'
    return program(tmp_path / "cuobjdump", listed), program(tmp_path / "nvdisasm", old)


def test_cubins_are_held_against_what_another_program_reads(readers: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "a.cubin").write_text("new sm_120\n")
    (tmp_path / "b.cubin").write_text("old\n")
    right = [(tmp_path / "a.cubin", "sm_120"), (tmp_path / "b.cubin", "sm_90")]
    assert second_reader.check(readers, right) == 2
    with pytest.raises(KernelError, match=r"a\.cubin is not code for sm_90\n  found   sm_120"):
        second_reader.check(readers, [(tmp_path / "a.cubin", "sm_90")])
    (tmp_path / "c.cubin").write_text("neither\n")
    with pytest.raises(KernelError, match=r"found   nothing that cuobjdump or nvdisasm can read"):
        second_reader.check(readers, [(tmp_path / "c.cubin", "sm_90")])


@pytest.mark.parametrize("label", ["cpu", "default", "cu999", "nonsense"])
def test_a_label_without_device_code_makes_no_part(
    label: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert device.main(["--label", label, "--out", str(tmp_path / "out")]) == 1
    assert label in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.parametrize(("abi", "machine"), [("torch-1.9-cxx0", MACHINE), ("torch-table-1", "riscv64"), ("x", "y")])
def test_a_host_library_of_no_wheel_is_refused(
    abi: str, machine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert host.main(["--abi", abi, "--arch", machine, "--out", str(tmp_path / "out")]) == 1
    assert (abi in (said := capsys.readouterr().err) or machine in said) and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--label", "cu130", "--arch", "riscv64"], "no wheel for 'riscv64'"),
        (["--label", "cu999"], "no label 'cu999'"),
        (["--label", "cpu", "--only-torch", "1.9"], "and torch 1.9"),
        (["--label", "cpu", "--only-torch", "newest"], "newest"),
    ],
)
def test_a_wheel_that_nobody_plans_is_refused(
    arguments: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build.main([*arguments, "--parts", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    assert named in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_cibuildwheel_is_asked_only_for_what_it_can_build(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = matrix.load(checkout / "matrix.toml")
    other = next(name for name in known.machines if name != MACHINE)
    env: Mapping[str, str] = {"PRECAST_PARTS": "/parts"}
    with pytest.raises(build_drivers.BuildStopped, match=f"needed  {other}"):
        build_drivers.by_cibuildwheel(tmp_path / "x.tar.gz", other, known, tmp_path, env)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build_drivers.BuildStopped, match=r"neither docker nor podman on PATH"):
        build_drivers.by_cibuildwheel(tmp_path / "x.tar.gz", MACHINE, known, tmp_path, env)


def test_cibuildwheel_gets_the_image_of_the_matrix_and_the_parts_where_it_mounts_them(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = matrix.load(checkout / "matrix.toml")
    program(tmp_path / "podman", "exit 0")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    told: dict[str, str] = {}

    def run(command: list[str], cwd: Path, env: Mapping[str, str]) -> None:
        told.update(env)
        (cwd / "wheelhouse").mkdir(exist_ok=True)
        (cwd / "wheelhouse" / "a.whl").touch()

    monkeypatch.setattr(build_drivers, "run", run)
    image = f"CIBW_MANYLINUX_{MACHINE.upper()}_IMAGE"
    env = {"PRECAST_PARTS": "/parts"}
    build_drivers.by_cibuildwheel(tmp_path / "x.tar.gz", MACHINE, known, tmp_path, env)
    (spec,) = (spec for spec in known.machine_specs if spec.name == MACHINE)
    assert (told[image], told["PRECAST_PARTS"]) == (spec.image, "/host/parts")
    build_drivers.by_cibuildwheel(tmp_path / "x.tar.gz", MACHINE, known, tmp_path, {**env, image: "localhost/own"})
    assert told[image] == "localhost/own"


def test_a_failed_step_shows_what_it_said(tmp_path: Path) -> None:
    with pytest.raises(build_drivers.BuildStopped, match="the reason"):
        build_drivers.run(["sh", "-c", "echo the reason; exit 3"], tmp_path, os.environ)


def test_only_exact_packages_are_kept(tmp_path: Path) -> None:
    for loose in ("numpy", "numpy>=2", "numpy==2.*", "../numpy==2"):
        with pytest.raises(ValueError, match="not an exact requirement"):
            packages.folder_of(loose, Cache(tmp_path))
    kept = tmp_path / "packages" / "numpy-2.0"
    kept.mkdir(parents=True)
    assert packages.folder_of("numpy==2.0", Cache(tmp_path)) == kept


def test_a_package_that_pip_does_not_bring_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(KernelError, match=r"pip does not bring precast-has-no-such-part==1\.0"):
        packages.folder_of("precast-has-no-such-part==1.0", Cache(tmp_path))
    assert list((tmp_path / "packages").iterdir()) == []


def test_a_wheel_is_tried_where_it_can_run() -> None:
    name = "precast-1-py3-none-manylinux_2_17_{0}.manylinux_2_28_{0}.whl"
    assert smoke.runs_here(Path(name.format(MACHINE)))
    assert not smoke.runs_here(Path(name.format("aarch64" if MACHINE == "x86_64" else "x86_64")))


def test_a_slim_wheel_is_tried_beside_a_torch_of_its_minor_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = tmp_path / "torch-2.13.0+cpu.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0+cpu\n")
    monkeypatch.setattr(smoke, "torch_site", lambda *_: tmp_path)
    monkeypatch.setattr(smoke, "smoke", lambda wheel, site: "it was tried")
    wheel = Path(f"precast-0.1.0+cpu-py3-none-manylinux_2_28_{MACHINE}.whl")
    said = []
    for only in (None, Release(2, 13), Release(2, 6)):
        build._try(wheel, only, Settings())
        said.append(capsys.readouterr().out.strip())
    assert said[:2] == ["it was tried"] * 2
    assert said[2].startswith(f"{wheel}: not tried, as it is for torch 2.6 and this is torch 2.13.0+cpu; ")
    assert said[2].endswith("python -m tools smoke WHEEL --torch 2.6.0 tries it")


def test_a_torch_that_is_not_there_is_not_smoked(tmp_path: Path) -> None:
    with pytest.raises(smoke.SmokeFailed, match="needed one torch, found 0"):
        smoke.torch_in(tmp_path)
