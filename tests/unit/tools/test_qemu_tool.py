"""The parts of ``tools qemu`` that need no emulator: the distance between results, and what is refused."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.kit.hosts import build_info, host_file
from tools.shared import arm_root, kernel_results
from tools.verbs import qemu

NAN = 0x7FC00001


def written(path: Path, **records: list[int]) -> kernel_results.Results:
    path.write_bytes(
        b"".join(
            f"{name} 0 {len(bits)}\n".encode() + struct.pack(f"<{len(bits)}I", *bits) for name, bits in records.items()
        )
    )
    return kernel_results.read(path)


def test_the_distance_is_in_last_places_across_zero_and_any_nan_is_one(tmp_path: Path) -> None:
    one = written(tmp_path / "one", a=[0x3F800000, 0x00000001, NAN], b=[0])
    other = written(tmp_path / "other", a=[0x3F800001, 0x80000001, NAN | 0x80000000], b=[0])
    assert kernel_results.furthest(one, one) == {}
    assert kernel_results.furthest(one, other) == {"a": 2}
    assert (
        kernel_results.furthest(written(tmp_path / "nan", a=[NAN]), written(tmp_path / "number", a=[0x3F800000]))["a"]
        > 1e9
    )


def test_unlike_results_are_not_compared(tmp_path: Path) -> None:
    one = written(tmp_path / "one", a=[0])
    for other in (written(tmp_path / "name", b=[0]), written(tmp_path / "length", a=[0, 0])):
        with pytest.raises(ValueError, match=r"not the same results|1 and 2 numbers"):
            kernel_results.furthest(one, other)


def test_the_torch_is_the_newest_that_needs_no_cuda() -> None:
    assert qemu.newest_cpu_torch() == "2.10.0"


def test_it_takes_a_wheel_for_each_architecture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert qemu.main([str(tmp_path / "a.whl"), str(tmp_path / "b.whl")]) == 1
    assert "not the name of a wheel" in capsys.readouterr().err


def test_without_the_emulator_its_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from precast.errors import KernelError
    from tools.shared.wheel import Wheel

    monkeypatch.setenv("PATH", str(tmp_path))
    wheel = Wheel(tmp_path / "x.whl", "precast", "1", ("py3", "none", "any"), {}, ())
    with pytest.raises(KernelError, match="apt-get install qemu-user"):
        qemu.run(wheel, wheel, tmp_path)


def test_a_program_sees_torch_and_what_is_added(tmp_path: Path) -> None:
    root = arm_root.Root(tmp_path, tmp_path / "usr/bin/python3.11", tmp_path / "torch")
    command = root.command("max,sve-max-vq=2", "check.py", env={"PYTHONPATH": "/wheel", "PRECAST_JIT": "aot"})
    assert root.version == "3.11" and command[:5] == ["qemu-aarch64", "-cpu", "max,sve-max-vq=2", "-L", str(tmp_path)]
    assert f"PYTHONPATH=/wheel:{tmp_path / 'torch'}" in command and "PRECAST_JIT=aot" in command


def test_a_crash_and_a_library_that_was_not_prebuilt_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "results"
    with pytest.raises(qemu.RanWrong, match="ended with 3 on here"):
        qemu._check("here", "neon", ["/bin/sh", "-c", "exit 3"], path, {})
    facts = ["/bin/sh", "-c", """echo '{"host": "jit /x.so", "machine": "aarch64"}'"""]
    with pytest.raises(qemu.RanWrong, match=r"not the prebuilt one: jit /x\.so"):
        qemu._check("here", "neon", facts, path, {})
    written(path, a=[0x3F800000])
    reference = tmp_path / "reference"
    written(reference, a=[0x3F800002])
    facts[2] = facts[2].replace("jit", "prebuilt")
    with pytest.raises(qemu.RanWrong, match="more than one unit in the last place"):
        qemu._check("here", "neon", facts, path, {}, reference)


def test_the_record_names_the_library_that_was_mapped(tmp_path: Path) -> None:
    info = build_info("", host_files=(host_file("torch-2.4-cxx0"), host_file("torch-table-1")))
    library = tmp_path / "precast" / "_C" / "host" / "kernels-x86_64.so"
    assert str(qemu.mapped_abi(info, str(library))) == "torch-table-1"
    with pytest.raises(qemu.RanWrong, match=r"cache/x\.so was mapped, and is none of the wheel's: host/torch-2"):
        qemu.mapped_abi(info, "/cache/x.so")
