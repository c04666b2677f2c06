"""The guards on made-up facts: each is shown passing, and refusing at one fact more, without a wheel that is built."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from precast._builder import catalogue, matrix, packing
from precast.core.capability import GpuTarget, TargetKind
from precast.core.manifest import BuildInfo, BuildMode, DeviceFile, HostFile, HostKind, device_path, host_path
from precast.core.reasons import Rejection
from precast.core.torch_abi import ANY_TORCH, Exact, TorchAbi
from precast.core.version import CudaVersion, Label, Release
from tools.guards import archive, libraries, manifest, targets
from tools.guards.subject import Asked, Audited, Guard, NoManifest, Verdict, judge
from tools.shared.binaries import LibraryFacts, Undefined
from tools.shared.wheel import Wheel

MATRIX = matrix.load(Path(__file__).resolve().parents[4] / "matrix.toml")
TAG = ("py3", "none", f"{MATRIX.policy}_x86_64")
GOOD = LibraryFacts(
    machine="x86_64",
    soname=None,
    needed=("libstdc++.so.6", "libc.so.6"),
    run_path=None,
    glibc=(2, 28),
    glibcxx=MATRIX.glibcxx,
    exported=frozenset({"precast_abi"}),
    undefined=(),
    families=(),
    cpu_levels=(),
    debug=False,
    compiler="12.2.0",
    text_relocations=False,
    executable_stack=False,
)
HOST = "host/kernels-x86_64.so"


def host_file(abi: TorchAbi, data: bytes = b"a library") -> HostFile:
    families = tuple(family.name for family in catalogue.FAMILIES)
    return HostFile(
        path=host_path(abi, "x86_64"),
        sha256=hashlib.sha256(data).hexdigest(),
        bytes=len(data),
        abi=abi,
        machine="x86_64",
        needed=GOOD.needed,
        glibc=Release(2, 28),
        glibcxx="3.4.22",
        cpu_levels=("baseline",),
        families=families,
    )


def audited(
    facts: LibraryFacts = GOOD,
    files: dict[str, bytes] | None = None,
    tag: tuple[str, str, str] = TAG,
    info: BuildInfo | None = None,
    asked: Asked | None = None,
) -> Audited:
    """A wheel of one host library, as far as the guards here look at it."""
    host = (host_file(ANY_TORCH),)
    info = info or BuildInfo("1.0", Label(""), BuildMode.RELEASE, "0" * 40, False, "0" * 64, host=host)
    wheel = Wheel(Path("precast-1.0.whl"), "precast", "1.0", tag, files or {}, ())
    return Audited(wheel, info, MATRIX, {HOST: facts}, asked or Asked())


def said(found: Iterable[Rejection]) -> list[tuple[str, str, str]]:
    return [(violation.reason, violation.candidate, violation.found) for violation in found]


@pytest.mark.parametrize(
    ("facts", "violations"),
    [
        (GOOD, []),
        (replace(GOOD, needed=("libpython3.11.so.1.0",)), [("needed", HOST, "libpython3.11.so.1.0")]),
        (replace(GOOD, needed=("libtorch_python.so",)), [("needed", HOST, "libtorch_python.so")]),
        (replace(GOOD, undefined=(Undefined("PyList_New", None, False),)), [("symbol", HOST, "PyList_New")]),
        (replace(GOOD, undefined=(Undefined("memcpy", "GLIBC_2.14", False),)), []),
    ],
)
def test_no_library_needs_a_python(facts: LibraryFacts, violations: list[tuple[str, str, str]]) -> None:
    assert said(libraries.check_python(audited(facts))) == violations


def test_a_wheel_of_one_python_is_refused() -> None:
    assert [v.reason for v in libraries.check_python(audited(tag=("cp311", "cp311", TAG[2])))] == ["tag"]


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("precast/_C/host/kernels-x86_64.so", None),
        ("precast/__init__.py", None),
        ("precast.libs/libgomp.so.1", "grafted"),
        ("precast/_C/host/libgomp-a1.so.1", "bundled"),
        ("precast/_C/host/libtorch.so", "bundled"),
        ("precast/_C/device/own.so.1", "strays"),
        ("precast/_C/own.so", "strays"),
    ],
)
def test_nothing_is_bundled(name: str, check: str | None) -> None:
    assert [v.reason for v in libraries.check_bundled(audited(files={name: b""}))] == ([check] if check else [])


def test_a_library_needs_the_runtime_alone_and_an_adapter_torch_besides() -> None:
    assert said(libraries.check_bundled(audited(GOOD))) == []
    more = replace(GOOD, needed=("libtorch_cpu.so", "libcudart.so.12", "libc.so.6"))
    assert [found for *_, found in said(libraries.check_bundled(audited(more)))] == [
        "libcudart.so.12",
        "libtorch_cpu.so",
    ]
    adapter = replace(host_file(Exact(Release(2, 6), cxx11=True)), path=HOST, kind=HostKind.ADAPTER)
    info = replace(audited().info, host=(adapter,))
    whole = replace(GOOD, needed=("libtorch_cpu.so", "libc10.so", "libc.so.6"))
    assert said(libraries.check_bundled(audited(whole, info=info))) == []
    part = replace(GOOD, needed=("libtorch_cpu.so", "libc.so.6"))
    assert said(libraries.check_bundled(audited(part, info=info))) == [("needed", HOST, "libtorch_cpu.so, libc.so.6")]


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        (GOOD, None),
        (replace(GOOD, glibc=(2, 27), glibcxx=(3, 4, 21)), None),
        (replace(GOOD, glibc=(2, 29)), "GLIBC_2.29"),
        (replace(GOOD, glibcxx=(*MATRIX.glibcxx[:2], MATRIX.glibcxx[2] + 1)), "GLIBCXX_"),
        (
            replace(
                GOOD,
                glibc=(2, 29),
                undefined=(
                    Undefined("exp", "GLIBC_2.29", False),
                    Undefined("memcpy", "GLIBC_2.28", False),
                    Undefined("plain", None, False),
                    Undefined("new", "GLIBCXX_3.4.29", False),
                ),
            ),
            "exp@GLIBC_2.29",
        ),
    ],
)
def test_no_symbol_is_newer_than_the_matrix(facts: LibraryFacts, found: str | None) -> None:
    assert (MATRIX.glibc, MATRIX.glibcxx) == (Release(2, 28), (3, 4, 22))
    violations = said(libraries.check_glibc(audited(facts)))
    assert [(check, where) for check, where, _ in violations] == ([("ceiling", HOST)] if found else [])
    if found == "exp@GLIBC_2.29":
        assert violations[0][2] == found
    elif found:
        assert violations[0][2].startswith(found)


@pytest.mark.parametrize(
    ("platform", "refused"),
    [
        ("manylinux_2_28_x86_64", []),
        ("manylinux_2_27_x86_64.manylinux_2_28_x86_64", []),
        ("manylinux_2_28_x86_64.manylinux_2_29_x86_64", ["manylinux_2_29_x86_64"]),
        ("linux_x86_64", []),
    ],
)
def test_no_tag_promises_an_older_system_than_is_built_for(platform: str, refused: list[str]) -> None:
    found = libraries.check_glibc(audited(tag=("py3", "none", platform)))
    assert [violation.candidate for violation in found] == refused


@pytest.mark.parametrize(
    ("facts", "check"),
    [
        (GOOD, None),
        (replace(GOOD, run_path="$ORIGIN"), "run path"),
        (replace(GOOD, text_relocations=True), "text relocations"),
        (replace(GOOD, executable_stack=True), "executable stack"),
        (replace(GOOD, exported=frozenset({"precast_abi", "helper"})), "exports"),
        (replace(GOOD, debug=True), "debug"),
    ],
)
def test_a_library_is_hardened(facts: LibraryFacts, check: str | None) -> None:
    assert [v.reason for v in libraries.check_hardening(audited(facts))] == ([check] if check else [])
    local = BuildInfo("1.0", Label(""), BuildMode.MACHINE, None, False, "0" * 64)
    found = [v.reason for v in libraries.check_hardening(audited(facts, info=local))]
    assert found == ([check] if check not in {None, "debug"} else [])


@pytest.mark.parametrize(
    ("commit", "dirty", "found"),
    [
        ("a" * 40, False, []),
        ("a" * 40, True, ["changes beside it (dirty)"]),
        (None, False, ["unknown: made outside of a checkout"]),
        (None, True, ["unknown: made outside of a checkout", "changes beside it (dirty)"]),
    ],
)
def test_a_published_wheel_is_of_a_clean_commit(commit: str | None, dirty: bool, found: list[str]) -> None:
    info = BuildInfo("1.0", Label(""), BuildMode.RELEASE, commit, dirty, "0" * 64)
    assert [violation.found for violation in manifest.check_origin(audited(info=info))] == found


def test_files_and_manifest_agree_byte_for_byte() -> None:
    listed = f"precast/_C/{host_path(ANY_TORCH, 'x86_64')}"
    good = {listed: b"a library", "precast/_C/__init__.py": b"", "precast/_C/host/__pycache__/x.pyc": b""}
    name = listed.removeprefix("precast/_C/")
    assert said(manifest._files(audited(files=good))) == []
    assert said(manifest._files(audited(files={}))) == [("files", name, "not there")]
    stray = {**good, "precast/_C/device/x.cubin": b""}
    assert said(manifest._files(audited(files=stray))) == [("files", "device/x.cubin", "not listed")]
    assert [v.reason for v in manifest._files(audited(files={**good, listed: b"a_library"}))] == ["sha256"]
    assert [v.reason for v in manifest._files(audited(files={**good, listed: b"longer than that"}))] == [
        "sha256",
        "bytes",
    ]


@pytest.mark.parametrize("mode", [BuildMode.RELEASE, BuildMode.MACHINE])
def test_a_release_has_the_pinned_headers_and_another_wheel_all_or_none(mode: BuildMode) -> None:
    digest = manifest.sources.digest_of_pairs(())
    info = BuildInfo("1.0", Label(""), mode, None, False, digest)
    stated = {f"precast/csrc/{manifest.DIGEST}": digest.encode()}
    pins = manifest.headers.load_pins()
    wanted = {f"precast/csrc/torch_stable/include/{name}" for name in pins.headers}
    wanted |= {f"precast/csrc/torch_stable/{name}" for name in pins.notices}
    none = [where for _, where, _ in said(manifest._sources(audited(files=stated, info=info)))]
    assert set(none) == (wanted if mode is BuildMode.RELEASE else set())
    one = {**stated, "precast/csrc/torch_stable/include/own.h": b"x"}
    some = said(manifest._sources(audited(files=one, info=info)))
    assert {where for _, where, _ in some} == {*wanted, "precast/csrc/torch_stable/include/own.h"}
    other = replace(info, source_digest="1" * 64)
    assert [check for check, *_ in said(manifest._sources(audited(files=stated, info=other)))][:2] == ["sources"] * 2


def ptx(*entries: str) -> bytes:
    kernels = "".join(f".visible .entry {entry}(\n" for entry in entries)
    head = "//\n// Cuda compilation tools, release 13.0, V13.0.88\n//\n.version 9.0\n.target sm_90\n"
    return f"{head}{kernels}".encode()


def device_file(family: str, image: bytes) -> DeviceFile:
    target, toolkit = GpuTarget.parse("compute_90"), CudaVersion(13, 0)
    path = device_path(family, [target])
    digest = hashlib.sha256(image).hexdigest()
    return DeviceFile(path, digest, len(image), family, target, "13.0.88", toolkit, 0, len(image), digest)


@pytest.mark.parametrize(
    ("images", "found"),
    [
        ([ptx("a", "b"), ptx("b", "a")], []),
        ([ptx("a", "b"), ptx("a", "c")], ["differs in ['b', 'c']"]),
        ([ptx("a", "b"), ptx("a", "b", "d")], ["differs in ['d']"]),
        ([ptx()], ["differs in []"]),
    ],
)
def test_the_device_files_of_a_family_have_the_same_kernels(images: list[bytes], found: list[str]) -> None:
    files = [replace(device_file("f", image), path=f"device/{number}") for number, image in enumerate(images)]
    packed = [packing.pack([image], TargetKind.PTX) for image in images]
    there = {f"precast/_C/{file.path}": data for file, data in zip(files, packed, strict=True)}
    compilers = (("nvrtc", "13.0.88"),)
    info = BuildInfo("1.0", Label(""), BuildMode.MACHINE, None, False, "0" * 64, compilers, (), tuple(files))
    violations = list(targets._device_files(audited(files=there, info=info)))
    assert [violation.found for violation in violations if violation.reason == "kernels"] == found


def test_a_file_of_device_code_holds_what_the_manifest_lists_under_a_name_that_lists_it() -> None:
    first, second = ptx("a"), ptx("b")
    one = device_file("f", first)
    digest = hashlib.sha256(second).hexdigest()
    older = replace(one, target=GpuTarget.parse("compute_80"), offset=one.end, content_sha256=digest)
    path = device_path("f", [one.target, older.target])
    files = tuple(replace(image, path=path) for image in (one, older))
    info = BuildInfo("1.0", Label(""), BuildMode.MACHINE, None, False, "0" * 64, (), (), files)
    there = {f"precast/_C/{path}": packing.pack([first, second], TargetKind.PTX)}

    def found(info: BuildInfo) -> list[tuple[str, str]]:
        return [(v.reason, v.found) for v in targets._packed_files(audited(files=there, info=info))]

    assert found(info) == []
    unnamed = replace(info, device=files[:1])  # bytes that no entry names, and a target that is in the name alone
    assert found(unnamed) == [
        ("name", path),
        ("device", f"unpacks to more than the {len(first)} bytes in the manifest"),
    ]
    turned = replace(info, device=(replace(files[0], target=older.target), replace(files[1], target=one.target)))
    assert found(turned) == [("name", path)]


def test_a_wheel_that_is_not_planned_is_refused() -> None:
    info = BuildInfo("1.0", Label(""), BuildMode.RELEASE, None, False, "0" * 64)
    found = said(targets._plan(audited(info=info)))
    assert found == [("plan", f"{MATRIX.label(Label('')).name} None", "no such cell")]


def test_what_is_missing_and_what_is_too_much_is_named() -> None:
    found = targets._differ(audited(), {"a", "x"}, needed={"a", "b"}, allowed={"a", "b", "c"}, row="the row")
    assert [(v.candidate, v.needed) for v in found] == [("b", "there, by the row"), ("x", "not there, by the row")]


def test_a_wheel_without_a_manifest_blocks_a_guard_and_passes_no_promise() -> None:
    nothing = replace(audited(), manifest=None)
    with pytest.raises(NoManifest):
        _ = nothing.info

    def asks(a: Audited) -> Iterable[Rejection]:
        yield from [Rejection("x", "z", a.info.version, "y")]

    assert judge(Guard("g", "p", asks), nothing).verdict is Verdict.BLOCKED  # type: ignore[arg-type]
    assert judge(Guard("g", "p", asks), audited()).verdict is Verdict.REFUSED  # type: ignore[arg-type]
    assert judge(Guard("g", "p", libraries.check_hardening), audited()).verdict is Verdict.PASSED
    spared = Guard("g", "p", libraries.check_hardening, lambda a: "not now")
    assert (judge(spared, audited()).verdict, judge(spared, audited()).note) == (Verdict.NOT_ASKED, "not now")


def test_what_a_wheel_is_for_and_where_it_runs() -> None:
    assert (audited().released, audited().machine) == (True, "x86_64")
    local = BuildInfo("1.0", Label(""), BuildMode.MACHINE, None, False, "0" * 64)
    assert (audited(info=local).released, audited(info=local).machine) == (False, None)


@pytest.mark.parametrize(
    ("only_torch", "released", "budget", "refused"),
    [
        ("2.13", True, 280_000, True),  # 100 kB, and 25 for each of seven adapters
        ("2.13", True, 290_000, False),
        (None, True, 280_000, False),
        (None, True, 100_000, True),
        ("2.13", False, 280_000, False),
    ],
)
def test_a_slim_wheel_is_held_to_the_budget_of_the_whole_one(
    tmp_path: Path, only_torch: str | None, released: bool, budget: int, refused: bool
) -> None:
    library = hashlib.shake_256(b"x").digest(100_000)  # nothing packs that
    path = tmp_path / "precast-0.1.0+cpu-py3-none-manylinux_2_28_x86_64.whl"
    path.write_bytes(library)
    host = (host_file(ANY_TORCH, library),)
    mode = BuildMode.RELEASE if released else BuildMode.MACHINE
    info = BuildInfo("0.1.0", Label("cpu"), mode, None, False, "0" * 64, host=host)
    wheel = Wheel(path, "precast", "0.1.0+cpu", TAG, {f"precast/_C/{HOST}": library}, ())
    tight = replace(
        MATRIX,
        max_bytes=budget,
        labels=tuple(replace(spec, max_bytes=None) for spec in MATRIX.labels),
    )
    found = list(archive.check_size(Audited(wheel, info, tight, {}, Asked(only_torch=only_torch))))
    assert len(tight.hosts("x86_64")) == 8
    # fails if a slim wheel passes although its whole wheel cannot be built
    assert bool(found) is refused
    assert not (refused and only_torch) or "with the adapters to every torch" in found[0].found
