"""The audit refuses wheels that were tampered with, and names the row, file or symbol that is wrong."""

from __future__ import annotations

import hashlib
import json
import lzma
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from precast._builder import packing
from precast.core.capability import TargetKind
from tools import guards
from tools.guards.subject import Asked, Verdict
from tools.shared.wheel import read_wheel
from tools.verbs import audit as tools_audit

from . import libraries
from .conftest import EACH_LABEL, MATRIX, ONLY_TORCH, Run
from .tampering import (
    HOST,
    LICENCE,
    MANIFEST,
    METADATA,
    PTX,
    SBOM,
    WHEEL,
    Change,
    Files,
    at,
    drop_device,
    edit,
    edit_image,
    file_of,
    in_file_of,
    metadata,
    named,
    patched,
    repack,
    replace,
    spilling,
    tampered,
    without,
)

pytestmark = [pytest.mark.wheel, pytest.mark.compiler, pytest.mark.usefixtures("each_file_once")]

ASKED = Asked(only_torch=ONLY_TORCH)

SHIM = "precast/csrc/torch_stable/include/torch/csrc/stable/c/shim.h"
LARGE = hashlib.shake_256(b"x").digest(4_000_000)


def undescribed(files: Files) -> None:
    name = named(files, METADATA)
    files[name] = files[name].split(b"\n\n")[0] + b"\n"


def adapter(abi: str) -> Change:
    """The library of the wheel again, under the name and the ABI of an adapter."""

    def change(files: Files) -> None:
        document = json.loads(files[MANIFEST])
        path = f"host/{abi}.so"
        document["host"].append({**document["host"][0], "path": path, "abi": abi, "kind": "adapter", "families": []})
        files[MANIFEST] = json.dumps(document).encode()
        files[f"precast/_C/{path}"] = files[HOST]

    return change


def renamed(files: Files) -> None:
    """The machine code of a family under a name that does not list its targets."""
    path, other = file_of(files, "sm_90"), "precast/_C/device/rms_norm.other.cubin.xz"
    files[other] = files.pop(path)
    names = (name.removeprefix("precast/_C/").encode() for name in (path, other))
    files[MANIFEST] = files[MANIFEST].replace(*names)


# What is done to a wheel: the guard that refuses it, and what its refusal names.
TAMPERED: dict[str, tuple[Change, str, str]] = {
    "a library cut short": (replace(HOST, lambda data: data[:9000]), "manifest", "host/kernels-x86_64.so"),
    "a library for another machine": (replace(HOST, at(18, b"\xb7")), "manifest", "aarch64"),
    "a library of another glibc": (replace(HOST, patched(b"GLIBC_2.14\0", b"GLIBC_2.99\0")), "manifest", "2.99"),
    "a library without a family": (edit("host.0.families", ["rms_norm"]), "targets", "layer_norm"),
    "fewer CPU levels than claimed": (edit("host.0.cpu_levels", ["baseline", "avx2"]), "manifest", "avx512"),
    "another ceiling than claimed": (edit("host.0.glibcxx", "3.4.11"), "manifest", "3.4.11"),
    "another library needed than claimed": (edit("host.0.needed", ["libtorch_cpu.so"]), "manifest", "libm.so.6"),
    "a debug build that is none": (edit("host.0.debug", True), "manifest", "host/kernels-x86_64.so"),
    "another compiler than its own": (edit("compilers", [{"name": "g++", "version": "4.8.5"}]), "manifest", "4.8.5"),
    "a library gone": (lambda f: f.pop(HOST), "manifest", "host/kernels-x86_64.so"),
    "a file nobody lists": (
        lambda f: f.update({"precast/_C/device/x.sm_90.cubin.xz": b"x"}),
        "manifest",
        "x.sm_90.cubin",
    ),
    "another digest": (lambda f: f.update({"precast/csrc/DIGEST": b"0" * 64}), "manifest", "precast/csrc/DIGEST"),
    "an edited source": (lambda f: f.update({"precast/csrc/host/api.cpp": b"// mine"}), "manifest", "precast/csrc"),
    "an edited header": (lambda f: f.update({SHIM: b"// mine"}), "manifest", "stable/c/shim.h"),
    "a header too many": (lambda f: f.update({f"{SHIM}.h": b"// mine"}), "manifest", "stable/c/shim.h.h"),
    "a header gone": (lambda f: f.pop(SHIM), "manifest", "stable/c/shim.h"),
    "an adapter that nobody planned": (adapter("torch-2.99-cxx1"), "targets", "adapter-torch-2.99-cxx1-x86_64"),
    "an adapter that needs no torch": (adapter("torch-2.9-cxx1"), "bundled", "libtorch_cpu.so and libc10.so"),
    "no manifest": (lambda f: f.pop(MANIFEST), "manifest", "no such file"),
    "a manifest with an unknown key": (edit("extra", 1), "manifest", "extra"),
    "a pure wheel with binaries": (edit("mode", "pure"), "manifest", "a pure build lists no files"),
    "another version": (edit("version", "9.9"), "manifest", "9.9"),
    "another label": (edit("label", "cu121"), "manifest", "+cu121"),
    "no device code for the label": (edit("label", "cu121"), "targets", "softmax sm_70"),
    "a grafted library": (lambda f: f.update({"precast.libs/libgomp-a34b.so.1": b"x"}), "bundled", "libgomp-a34b.so.1"),
    "a copy of torch": (lambda f: f.update({"precast/_C/host/libtorch_cpu.so": b"x"}), "bundled", "libtorch_cpu.so"),
    "a copy of CUDA": (lambda f: f.update({"precast/libnvrtc.so.12": b"x"}), "bundled", "libnvrtc.so.12"),
    "a library in a stray place": (lambda f: f.update({"precast/ops/x.so": b"x"}), "bundled", "precast/ops/x.so"),
    "a library that needs torch": (replace(HOST, patched(b"\0libm.so.6\0", b"\0libc10.so\0")), "bundled", "libc10.so"),
    "a stray export": (replace(HOST, patched(b"precast_refuse\0", b"postcast_refus\0")), "hardening", "postcast_refus"),
    "a build path": (replace(HOST, lambda d: d + b"\0/home/me/csrc/x.cpp\0"), "paths", "/home/me/csrc/x.cpp"),
    "too large": (lambda f: f.update({"precast/data": LARGE}), "size", "(labels.cpu.max_bytes)"),
    "marked as pure": (metadata("Purelib: false", "Purelib: true", WHEEL), "metadata", "true"),
    "another tag inside": (metadata("py3-none", "cp311-cp311", WHEEL), "metadata", "cp311-cp311"),
    "a ceiling on torch": (metadata("torch>=2.4.1", "torch<2.16"), "metadata", "torch<2.16"),
    "another Python": (metadata("Requires-Python: >=3.10", "Requires-Python: >=3.12"), "metadata", ">=3.12"),
    "a version that is none": (metadata("Version: 0", "Version: zero"), "metadata", "version"),
    "no licence": (without(LICENCE), "metadata", "licenses"),
    "a description that no index shows": (metadata("text/markdown", "text/x-rst"), "metadata", "line "),
    "no description": (undescribed, "metadata", "`long_description` missing"),
    "no metadata": (without(METADATA), "metadata", "metadata"),
}

# The same for what only a wheel with device code can lie about.
DEVICE: dict[str, tuple[Change, str, str]] = {
    "a flipped bit in a cubin": (
        in_file_of("sm_90", lambda path: lambda f: f.update({path: at(5000, b"\xff")(f[path])})),
        "manifest",
        "sm_90",
    ),
    "a cubin gone": (in_file_of("sm_90", lambda path: lambda f: f.pop(path)), "manifest", "sm_90"),
    "a cubin cut short": (repack("sm_90", lambda data: data[:3000]), "targets", "rms_norm.sm_90.cubin"),
    "a cubin for another GPU": (repack("sm_90", at(49, b"\x50")), "targets", "sm_80"),
    "a cubin of another layout": (repack("sm_90", at(7, b"\x33\x07")), "targets", "rms_norm.sm_90.cubin"),
    "a kernel with a stack": (repack("sm_90", spilling), "targets", "64 bytes"),
    "PTX for another GPU": (repack("compute_90", patched(b".target sm_90", b".target sm_80")), "targets", "compute_80"),
    "PTX of another ISA": (repack("compute_90", patched(b".version 9.0", b".version 8.1")), "targets", "8.1"),
    "PTX of another compiler": (repack("compute_90", patched(b"V13.0.88", b"V13.0.48")), "targets", "13.0.48"),
    "PTX without a kernel": (
        repack("compute_90", patched(b".entry rms_norm_f32_v4", b".entri rms_norm_f32_v4")),
        "targets",
        "_v4",
    ),
    "device code as it is": (replace(PTX, lzma.decompress), "targets", "not an .xz that precast packed"),
    "device code behind device code": (replace(PTX, lambda data: data + data), "targets", "behind the end"),
    "device code cut short": (replace(PTX, lambda data: data[:3000]), "targets", "ends early"),
    "device code that unpacks without end": (
        replace(PTX, lambda _: packing.pack([bytes(9**7)], TargetKind.PTX)),
        "targets",
        "more than",
    ),
    "another size than claimed": (edit_image("compute_90", content_bytes=9**7), "targets", f"{9**7}"),
    "another image than claimed": (edit_image("sm_80", content_sha256="0" * 64), "targets", "of the unpacked image"),
    "images that overlap": (edit_image("sm_80", offset=1), "manifest", "'device/rms_norm.sm_80.cubin' needed at"),
    "images that no entry names": (drop_device("sm_80"), "targets", "unpacks to more than the"),
    "a file with another name than its images": (renamed, "targets", "device/rms_norm.other.cubin.xz"),
    "a build path in packed device code": (
        repack("compute_90", lambda data: data + b"\n// /home/me/x.cu"),
        "paths",
        "/home/me/x.cu",
    ),
    "another driver than the compiler's": (edit("device.0.min_driver", "12.0"), "targets", "12.0"),
    "another NVRTC than the label's": (edit("device.0.nvrtc", "13.0.48"), "targets", "13.0.48"),
    "a target of the label missing": (drop_device("sm_80"), "targets", "softmax sm_80"),
    "a target of another label": (edit("device.0.target", "sm_70"), "targets", "sm_70"),
    "the set of another label": (edit("label", "cu121"), "targets", "labels.cu121"),
}

# A fault of a host library, in every other respect as good as this test can make it.
FAULTS = {
    "newer_glibc": ("glibc", "memfd_secret@GLIBC_2.99"),
    "newer_glibcxx": ("glibc", "_ZSt5fancyv@GLIBCXX_3.4.31"),
    "text_relocation": ("hardening", "text relocations"),
    "executable_stack": ("hardening", "executable stack"),
    "run_path": ("hardening", "$ORIGIN/../../torch/lib"),
    "python_symbol": ("python", "PyLong_AsLong"),
    "python_needed": ("python", "libpython3.12.so.1.0"),
    "openmp_needed": ("bundled", "libgomp.so.1"),
    "torch_internal": ("symbols", "_ZN2at15get_num_threadsEv"),
    "torch_function": ("symbols", "aoti_torch_get_dim"),
}


def refusals(wheel: Path) -> Iterator[tuple[str, str]]:
    """The guards that refuse a wheel, each with all that it says."""
    for result in guards.judge_wheel(read_wheel(wheel), MATRIX, ASKED):
        if result.verdict is Verdict.REFUSED:
            yield result.guard, "\n".join(f"{v.reason} {v.candidate} {v.needed} {v.found}" for v in result.violations)


@pytest.mark.parametrize("name", [*TAMPERED, *DEVICE])
def test_a_tampered_wheel_is_refused(repaired: Mapping[str, Path], tmp_path: Path, name: str) -> None:
    label = "cpu" if name in TAMPERED else "cu130"
    change, guard, named = (TAMPERED | DEVICE)[name]
    said = dict(refusals(tampered(repaired[label], tmp_path, change)))
    assert named in said[guard], said


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_library_is_refused(repaired: Mapping[str, Path], tmp_path: Path, fault: str) -> None:
    guard, named = FAULTS[fault]
    made = getattr(libraries, fault)(tmp_path)
    said = dict(refusals(tampered(repaired["cpu"], tmp_path, replace(HOST, lambda data: made))))
    assert named in said[guard], said
    # The manifest describes the library that was there; what is of Python is neither of torch nor of the system.
    others = {"symbols", "bundled"} if guard == "python" else set()
    assert set(said) <= {guard, "manifest", *others}


def test_the_library_without_a_fault_is_not(repaired: Mapping[str, Path], tmp_path: Path) -> None:
    made = libraries.library(tmp_path)
    said = dict(refusals(tampered(repaired["cpu"], tmp_path, replace(HOST, lambda data: made))))
    assert set(said) == {"manifest"}, said


def test_an_untouched_copy_passes(repaired: Mapping[str, Path], tmp_path: Path) -> None:
    copy = tampered(repaired["cpu"], tmp_path, lambda files: None)
    assert dict(refusals(copy)) == {} and copy.read_bytes() == repaired["cpu"].read_bytes()


def test_a_changed_file_contradicts_its_record(repaired: Mapping[str, Path], tmp_path: Path) -> None:
    def change(files: dict[str, bytes]) -> None:
        files["precast/errors.py"] += b"\n"
        del files["precast/py.typed"]
        files["precast/new.py"] = b""

    wheel = tampered(repaired["cpu"], tmp_path, change, honest_record=False)
    found = {v.candidate for v in tools_audit.audit(wheel, MATRIX, only_torch=ONLY_TORCH) if v.reason == "record"}
    assert found == {"precast/errors.py", "precast/py.typed", "precast/new.py"}
    assert "form" in dict(refusals(wheel))["reproducible"], "it also has the moments of whoever wrote it"


def test_without_a_manifest_no_guard_that_needs_one_passes(repaired: Mapping[str, Path], tmp_path: Path) -> None:
    wheel = read_wheel(tampered(repaired["cpu"], tmp_path, lambda files: files.pop(MANIFEST)))
    verdicts = {result.guard: result.verdict for result in guards.judge_wheel(wheel, MATRIX, ASKED)}
    assert {verdicts[name] for name in ("targets", "symbols", "glibc", "sbom", "size")} == {Verdict.BLOCKED}


@pytest.mark.parametrize("label", EACH_LABEL)
def test_the_audit_has_nothing_to_object_to(run: Run, tree: Path, repaired: Mapping[str, Path], label: str) -> None:
    done = run(sys.executable, "-m", "tools", "audit", "--only-torch", ONLY_TORCH, repaired[label], PYTHONPATH=tree)
    assert f"{repaired[label].name}: {repaired[label].stat().st_size} bytes, 0 violations" in done.stdout
    assert "refused" not in done.stdout and done.stdout.count("not asked") == 1, "origin alone is for --publish"


def origin(commit: str | None, *, dirty: bool) -> Change:
    def change(files: Files) -> None:
        edit("commit", commit)(files)
        edit("dirty", dirty)(files)

    return change


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (origin("a" * 40, dirty=False), []),
        (origin("a" * 40, dirty=True), ["changes beside it (dirty)"]),
        (origin(None, dirty=False), ["unknown: made outside of a checkout"]),
    ],
)
def test_what_nobody_can_trace_is_not_published(
    repaired: Mapping[str, Path], tmp_path: Path, change: Change, found: list[str]
) -> None:
    wheel = read_wheel(tampered(repaired["cpu"], tmp_path, change))
    results = guards.judge_wheel(wheel, MATRIX, Asked(only_torch=ONLY_TORCH, publishing=True))
    (said,) = (result for result in results if result.guard == "origin")
    assert [violation.found for violation in said.violations] == found
    assert said.verdict is (Verdict.REFUSED if found else Verdict.PASSED)
    (said,) = (result for result in guards.judge_wheel(wheel, MATRIX, ASKED) if result.guard == "origin")
    assert said.verdict is Verdict.NOT_ASKED, "a developer's own wheel may be of anything"


def test_publishing_is_what_the_command_line_asks(
    repaired: Mapping[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = tampered(repaired["cpu"], tmp_path, origin(None, dirty=True))
    assert tools_audit.main(["--publish", "--only-torch", ONLY_TORCH, str(wheel)]) == 1
    assert "changes beside it (dirty)" in capsys.readouterr().out


def test_a_pure_wheel_passes_what_it_is_asked(built: Mapping[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert tools_audit.main(["--unrepaired", "--json", str(built[""])]) == 0
    _, wheel = json.loads(capsys.readouterr().out)
    verdicts = {result["guard"]: result["verdict"] for result in wheel["results"]}
    assert verdicts.pop("glibc") == verdicts.pop("sbom") == verdicts.pop("origin") == "not asked"
    assert set(verdicts.values()) == {"passed"}


def test_an_unrepaired_wheel_is_refused_by_its_tag(
    built: Mapping[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert tools_audit.main(["--only-torch", ONLY_TORCH, str(built["cpu"])]) == 1
    said = capsys.readouterr().out
    assert "manylinux_2_28_x86_64" in said and SBOM in said
    assert tools_audit.main(["--only-torch", ONLY_TORCH, "--unrepaired", str(built["cpu"])]) == 0


def test_a_result_for_each_guard_as_json(repaired: Mapping[str, Path], tmp_path: Path, run: Run, tree: Path) -> None:
    broken = tampered(repaired["cpu"], tmp_path, lambda files: files.update({"precast/ops/x.so": b"x"}))
    command = [sys.executable, "-m", "tools", "audit", "--only-torch", ONLY_TORCH, "--json", repaired["cpu"], broken]
    checkout, good, bad = json.loads(run(*command, expect=1, PYTHONPATH=tree).stdout)
    assert [result["guard"] for result in checkout["results"]] == ["workflows"]
    assert [result["guard"] for result in good["results"]] == [guard.name for guard in guards.GUARDS]
    assert {result["guard"] for result in good["results"] if result["verdict"] != "passed"} == {"origin"}
    refused = {result["guard"]: result["violations"] for result in bad["results"] if result["verdict"] == "refused"}
    assert refused["bundled"][0]["candidate"] == "precast/ops/x.so"
