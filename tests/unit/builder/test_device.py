"""Device code from somebody's source, and what is checked of an image before it is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from precast._builder import device, nvrtc, nvrtc_child
from precast._builder.cache import Artifact, Cache
from precast.core.capability import GpuTarget
from precast.errors import BuildFailed
from tests.kit import fakes
from tests.kit import hosts as ex


def test_definitions_are_sorted_lines_or_refused() -> None:
    assert device.define_lines({"N": "4", "A_1": "x y"}) == b"#define A_1 x y\n#define N 4\n"
    for name, value in (("1N", "4"), ("N M", "4"), ("N", "4\n#include <x>")):
        with pytest.raises(ValueError, match="not a macro"):
            device.define_lines({name: value})


@pytest.mark.parametrize(
    ("target", "named", "said"),
    [
        ("compute_90", "sm_90", None),
        ("compute_90", "sm_80", r"NVRTC gave code for another target\n  found   code for sm_80"),
        ("compute_90", "sm_90a", r"NVRTC gave code for another target\n  found   code for sm_90a"),
        ("compute_90a", "sm_90a", None),
        ("compute_90a", "sm_90", None),
        ("compute_90", None, r"NVRTC gave code for another target\n  found   code for no target"),
        ("sm_90", "sm_90", "NVRTC gave no usable cubin"),  # PTX, where a cubin was asked for
    ],
)
def test_an_image_is_held_against_the_target(target: str, named: str | None, said: str | None) -> None:
    image = b".version 8.8\n" + (f".target {named}\n".encode() if named else b"")
    if said is None:
        device._check(image, GpuTarget.parse(target), "f")
        return
    with pytest.raises(BuildFailed, match=f"^f for {target}: {said}"):
        device._check(image, GpuTarget.parse(target), "f")


@dataclass
class Compiler:
    """Stands in for NVRTC: gives PTX, and machine code if asked, and keeps the target of each call."""

    calls: list[str] = field(default_factory=list)
    named: int = 90  # the target in the PTX

    def compile(
        self,
        source: bytes,
        name: str,
        headers: Mapping[str, bytes],
        options: Sequence[str],
        *,
        ptx: bool,
        instances: Sequence[str],
    ) -> nvrtc.Compiled:
        target = options[0].rpartition("=")[2]
        self.calls.append(target)
        text = fakes.ptx(self.named) + b"// " + str(len(self.calls)).encode()
        return nvrtc.Compiled(text if ptx else fakes.cubin(GpuTarget.parse(target).capability.number), "", None, text)


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    made = Compiler()
    monkeypatch.setattr(nvrtc_child, "open_nvrtc", lambda _: made)
    return made


def built(folder: Path, *targets: str) -> tuple[Artifact, ...]:
    asked = [GpuTarget.parse(target) for target in targets]
    return device.build_images(
        "rms_norm", asked, ex.nvrtc("13.0.88"), cache=Cache(folder / "cache"), debug=False, jobs=2
    )


def test_one_compile_gives_the_machine_code_and_the_ptx_of_a_target(compiler: Compiler, tmp_path: Path) -> None:
    ptx, older, code = built(tmp_path, "compute_90", "sm_80", "sm_90")
    assert sorted(compiler.calls) == ["sm_80", "sm_90"]
    assert [made.path.name for made in (ptx, older, code)] == [
        *("rms_norm.compute_90.ptx", "rms_norm.sm_80.cubin", "rms_norm.sm_90.cubin")
    ]
    assert ptx.path.read_bytes().startswith(fakes.ptx(90)) and code.path.read_bytes() == fakes.cubin(90)
    assert "--gpu-architecture=sm_90" in ptx.path.with_name("build.log").read_text(), "the call that wrote it"
    assert [made.cached for made in built(tmp_path, "compute_90", "sm_90")] == [True, True]
    assert len(compiler.calls) == 2


def test_ptx_alone_is_compiled_alone_and_under_the_same_key(compiler: Compiler, tmp_path: Path) -> None:
    (alone,) = built(tmp_path, "compute_90")
    assert compiler.calls == ["compute_90"]
    ptx, _ = built(tmp_path, "compute_90", "sm_90")
    assert (ptx.key, ptx.sha256) == (alone.key, alone.sha256) and compiler.calls == ["compute_90", "sm_90"]
    built(tmp_path / "other", "sm_90")
    built(tmp_path / "other", "compute_90")
    assert compiler.calls[2:] == ["sm_90", "compute_90"], "nobody had asked for the PTX of the first"


def test_the_ptx_of_a_suffix_or_of_another_target_is_compiled_for_itself(compiler: Compiler, tmp_path: Path) -> None:
    built(tmp_path, "compute_90", "sm_90a", "sm_80")
    assert sorted(compiler.calls) == ["compute_90", "sm_80", "sm_90a"]


def test_ptx_that_machine_code_was_made_from_is_held_against_its_target(compiler: Compiler, tmp_path: Path) -> None:
    compiler.named = 80
    with pytest.raises(
        BuildFailed, match=r"^rms_norm for compute_90: NVRTC gave code for another target\n  found   code for sm_80"
    ):
        built(tmp_path, "compute_90", "sm_90")
