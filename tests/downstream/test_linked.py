"""Wheels in which one library links another: both are behind the manifest, and the other one is opened first."""

from __future__ import annotations

import ctypes
import importlib
import json
import platform
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from precast._builder import verdicts, wheel_file, xray, xray_verdict
from precast._cli.main import main as cli_main
from precast.build import audit, linked, platforms
from precast.core import opening, probe
from precast.core.manifest import HostKind
from precast.core.version import Release
from precast.errors import KernelError, PrebuiltRefused
from tests.downstream.finished import (
    INIT,
    MODULE,
    OPS,
    SUFFIX,
    Make,
    guarded,
    library,
    manifest,
    on_torch,
    other_torch,
    pretend,
    refused,
    this_torch,
)

pytestmark = [pytest.mark.torch, pytest.mark.compiler, pytest.mark.usefixtures("quick_trials")]

INNER = 'extern "C" int inner() {{ return {mark}; }}'
OUTER = 'extern "C" int inner();\n' + MODULE.replace("FromLong({mark})", "FromLong(inner())")
LOADS = "from pathlib import Path\ntorch.ops.load_library(Path(__file__).parent / 'lib' / '{file}')\n"


class Pair:
    """A module and the library that it links. A name is that of one test, as a process opens one library of a name."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.soname = folder, f"lib{folder.name}.so"

    def inner(self, mark: int, *options: str, soname: str | None = None, source: str = INNER) -> bytes:
        named = f"-Wl,-soname,{soname or self.soname}"
        torch_linked = source is not INNER
        return library(self.folder, source.format(mark=mark), named, *options, torch_linked=torch_linked)

    def outer(self, *options: str, name: str = "_C", soname: str | None = None, source: str = OUTER) -> bytes:
        (self.folder / "linked.so").write_bytes(self.inner(0, soname=soname))
        return library(self.folder, source.format(name=name, mark=0), str(self.folder / "linked.so"), *options)

    def files(self, mark: int = 7, *options: str, place: str = "ops.libs/") -> dict[str, bytes | str]:
        files: dict[str, bytes | str] = {"ops/__init__.py": INIT, f"ops/_C{SUFFIX}": self.outer()}
        return files | {f"{place}{self.soname}": self.inner(mark, *options)}


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def opened(name: str) -> list[str]:
    """The files of that name which this process has open."""
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    return sorted(path for path in mapped if name in Path(path).name)


def changed(wheel: Path, where: str, change: Callable[[bytes], bytes]) -> Path:
    """The wheel with one file changed, and a RECORD that fits."""
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}
    files[where] = change(files[where])
    out = wheel.parent / "changed"
    out.mkdir()
    info = next(name.partition("/")[0] for name in files if ".dist-info/" in name)
    wheel_file.write_wheel(out / wheel.name, info, files, 0)
    return out / wheel.name


@pytest.mark.parametrize("name", ["", "lib{}-1234abcd.so.1"], ids=["by its SONAME", "by the name of a renamed file"])
def test_a_module_finds_the_library_that_it_links(
    tmp_path: Path, make: Make, site: Callable[[Path], Path], pair: Pair, name: str
) -> None:
    name = name.format(tmp_path.name) or pair.soname
    files: dict[str, bytes | str] = {"ops/__init__.py": INIT, f"ops/_C{SUFFIX}": pair.outer(soname=name)}
    wheel = guarded(tmp_path / "out", make({**files, f"ops.libs/{name}": pair.inner(7)}), torch=this_torch())
    helper, module = sorted(manifest(wheel).host, key=lambda file: file.kind is HostKind.LIBRARY)
    assert helper.kind is HostKind.LINKED and helper.families == () and module.links == ((name, helper.path),)
    assert (
        manifest(wheel).linked(module) == (helper,)
        and helper.path == f"../../ops.libs/{helper.sha256[:8]}.{name}.guarded"
    )
    folder = site(wheel)
    assert not (folder / "ops.libs" / name).exists() and importlib.import_module("ops._C").built() == 7
    assert opened(name) == [str((folder / "ops" / "_C" / helper.path).resolve())]
    assert cli_main(["xray", str(wheel)]) == 0
    again = guarded(tmp_path / "again", wheel)
    assert manifest(again) == manifest(wheel) and again.name == wheel.name, "a guarded wheel is guarded already"


def test_a_library_of_ops_that_another_links_keeps_its_place(
    tmp_path: Path, make: Make, site: Callable[[Path], Path], pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It needs torch and may be opened by its path: a guard stands there, and the process has one copy of it."""
    monkeypatch.setenv("GUARDED_OPS", "")
    files = pair.files()
    del files[f"ops.libs/{pair.soname}"]
    files |= {"ops/__init__.py": INIT + LOADS.format(file=pair.soname), "ops/lib/__init__.py": ""}
    files[f"ops/lib/{pair.soname}"] = files[f"ops/lib/{pair.soname}.1.2"] = pair.inner(5, source=INNER + OPS)
    wheel = guarded(tmp_path / "out", make(files), torch=this_torch())
    inner, module = sorted(manifest(wheel).host, key=lambda file: len(file.links))
    assert inner.kind is HostKind.LIBRARY and module.links == ((pair.soname, inner.path),)
    folder = site(wheel)
    assert (folder / "ops" / "lib" / pair.soname).read_text().startswith('"""Made by precast.build')
    assert importlib.import_module("ops._C").built() == 5
    assert opened(pair.soname.partition(".")[0]) == [str((folder / "ops" / "_C" / inner.path).resolve())]


def test_libraries_open_after_those_that_they_link(
    tmp_path: Path, make: Make, site: Callable[[Path], Path], pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    def named(letter: str) -> str:
        return f"lib{letter}{tmp_path.name}.so"

    def chained(letter: str, links: str, source: str) -> bytes:
        (tmp_path / "next.so").write_bytes(pair.inner(0, soname=named(links)))
        return library(tmp_path, source, f"-Wl,-soname,{named(letter)}", str(tmp_path / "next.so"), torch_linked=False)

    files: dict[str, bytes | str] = {"ops/__init__.py": INIT, f"ops/_C{SUFFIX}": pair.outer(soname=named("a"))}
    ends = 'extern "C" int {}(); extern "C" int {}() {{ return {}() + 1; }}'
    files[f"ops.libs/{named('a')}"] = chained("a", "b", ends.format("second", "inner", "second"))
    files[f"ops.libs/{named('b')}"] = chained("b", "c", ends.format("third", "second", "third"))
    last = 'extern "C" int third() { return 40; }'
    circle = files | {f"ops.libs/{named('c')}": chained("c", "a", last)}
    assert "which link each other" in refused(capsys, tmp_path / "no", make(circle), "--torch", this_torch())
    files[f"ops.libs/{named('c')}"] = library(tmp_path, last, f"-Wl,-soname,{named('c')}", torch_linked=False)
    wheel = guarded(tmp_path / "out", make(files), torch=this_torch())
    (module,) = (file for file in manifest(wheel).host if file.kind is HostKind.LIBRARY)
    assert [name for name, _ in module.links] == [named("c"), named("b"), named("a")]
    site(wheel)
    assert importlib.import_module("ops._C").built() == 42


def test_what_is_wrong_with_a_linked_library_is_said_before_anything_is_opened(
    tmp_path: Path, make: Make, site: Callable[[Path], Path], pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = guarded(tmp_path / "out", make(pair.files()), torch=this_torch())
    path = site(wheel) / "ops" / "_C" / next(f.path for f in manifest(wheel).host if f.kind is HostKind.LINKED)
    data = path.read_bytes()
    for damage, why in ((data[:-1] + b"x", "checksum mismatch"), (data[:-1], "it has"), (None, "missing")):
        path.unlink()
        if damage is not None:
            path.write_bytes(damage)
        with pytest.raises(PrebuiltRefused, match=rf"(?s)ops\._C is damaged\n.*{path.name}.*{why}"):
            importlib.import_module("ops._C")
        path.touch()
    path.write_bytes(data)
    needy = [replace(file, glibc=Release(2, 99) if file.links == () else file.glibc) for file in manifest(wheel).host]
    text = replace(manifest(wheel), host=tuple(needy)).to_json()
    (tmp_path / "site" / "ops" / "_C" / "build_info.json").write_text(text)
    with pytest.raises(PrebuiltRefused, match=r"rejected \(glibc\): needs glibc 2\.99"):
        importlib.import_module("ops._C")
    assert not opened(pair.soname)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the instructions are those of x86_64")
def test_a_processor_without_the_instructions_of_a_linked_library_is_refused(
    tmp_path: Path, make: Make, site: Callable[[Path], Path], pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = INNER + "void f(double* a) {{ for (int i = 0; i < 64; i++) a[i] += 1; }}"
    files = pair.files()
    code = library(tmp_path, wide.format(mark=1), f"-Wl,-soname,{pair.soname}", "-O3", "-mavx512f",
                   "-mprefer-vector-width=512", torch_linked=False)  # fmt: skip
    site(guarded(tmp_path / "out", make({**files, f"ops.libs/{pair.soname}": code}), torch=this_torch()))
    monkeypatch.setattr("precast.core.probe.cpu_features", lambda: frozenset({"avx", "avx2"}))
    with pytest.raises(PrebuiltRefused, match=r"rejected \(cpu-level\): needs a processor with .*avx512f"):
        opening.library_file("ops", "_C")


def test_each_torch_of_a_merged_wheel_has_the_library_that_its_own_links(
    tmp_path: Path, make: Make, site: Callable[[Path], Path], pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = [make(pair.files(mark)) for mark in (1, 2)]
    torches = this_torch(), other_torch(1)
    one, two = (guarded(tmp_path / f"out{i}", wheel, torch=torches[i]) for i, wheel in enumerate(plain))
    made = manifest(guarded(tmp_path / "both", two, one))
    assert sorted(file.kind.value for file in made.host) == ["library", "library", "linked", "linked"]
    assert made == manifest(guarded(tmp_path / "turned", one, two))
    site(next((tmp_path / "both").iterdir()))
    pretend(monkeypatch, on_torch(torches[1]))
    assert f"torch-{Release(*map(int, torches[1].split('.')[:2]))}" in opening.library_file("ops", "_C").name
    pretend(monkeypatch, on_torch(torches[0]))
    assert importlib.import_module("ops._C").built() == 1


def test_what_cannot_be_linked_is_refused(
    tmp_path: Path, make: Make, capsys: pytest.CaptureFixture[str], pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, torch = pair.files(), ("--torch", this_torch())
    again = {f"ops/lib/{pair.soname}": pair.inner(8)}
    assert f"ops.libs/{pair.soname} and ops/lib/{pair.soname}, both linked as" in refused(
        capsys, tmp_path / "out", make({**files, **again}), *torch
    )
    renamed = {f"ops/_D{SUFFIX}": pair.outer(name="_D", soname="libnew.so"), "ops.libs/libnew.so": pair.inner(8)}
    two_names = {name: data for name, data in files.items() if ".libs" not in name} | renamed
    assert f"linked as libnew.so and as {pair.soname}" in refused(capsys, tmp_path / "out", make(two_names), *torch)
    elsewhere = {f"more/{pair.soname}": pair.inner(8, source=INNER + OPS), "more/__init__.py": INIT}
    apart = {name: data for name, data in files.items() if ".libs" not in name} | elsewhere
    said = refused(capsys, tmp_path / "out", make(apart), *torch)
    assert f"found   a link to more/{pair.soname} of another package" in said
    named = {f"ops/_C{SUFFIX}": pair.outer(soname="libnew.so"), "ops.libs/libnew.so": pair.inner(8)}
    monkeypatch.setattr(linked.shutil, "which", lambda *_, **__: None)
    said = refused(capsys, tmp_path / "out", make({"ops/__init__.py": INIT, **named}), *torch)
    assert (
        f"ops.libs/libnew.so, whose SONAME is {pair.soname}" in said and " patchelf  # then repeat the command" in said
    )
    monkeypatch.setattr(linked.shutil, "which", lambda *_, **__: "/bin/false")
    said = refused(capsys, tmp_path / "out", make({"ops/__init__.py": INIT, **named}), *torch)
    assert "and patchelf failed" in said


def test_the_audit_finds_links_that_are_missing_or_wrong(
    tmp_path: Path, make: Make, pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = guarded(tmp_path / "out", make(pair.files()), torch=this_torch())
    where = "ops/_C/build_info.json"

    def without(text: bytes) -> bytes:
        found = json.loads(text)
        for file in found["host"]:
            file["links"] = []
        return json.dumps(found).encode()

    violations, _ = audit.audit(changed(wheel, where, without))
    (one,) = [one for one in violations if one.reason == "links"]
    assert one.candidate == next(file.path for file in manifest(wheel).host if file.links)
    assert one.needed == f"{pair.soname}, which it needs"
    assert one.found == "a library of that SONAME that it does not list"
    other = guarded(tmp_path / "other", make(pair.files(3)), torch=this_torch())
    violations, _ = audit.audit(changed(other, where, lambda text: text.replace(b'"soname": "lib', b'"soname": "x')))
    assert any(one.reason == "links" for one in violations)


def test_copies_of_cuda_under_their_own_names_are_no_second_ones() -> None:
    own = ("libcudart-5a077122.so.12.0.107", "libcudart.faf08d9a.so.13", "libnvjpeg.36e11081.so.13")
    second = (
        "libcudart.so.12",
        "libcudart.so.12.0.107",
        "libgomp-24e2ab19.so.1.0.0",
        "libc10-faf08d9a.so",
        "libtorch.so",
    )
    assert [xray_verdict.is_foreign(name) for name in own] == [False] * 3
    assert [xray_verdict.is_foreign(name) for name in second] == [True] * 5


def test_linked_libraries_are_part_of_the_verdict_and_of_the_manylinux_policy(
    tmp_path: Path, make: Make, pair: Pair
) -> None:
    wheel = guarded(tmp_path / "out", make(pair.files()), torch=this_torch())
    assert platforms.manylinux("linux_x86_64", manifest(wheel).host).startswith("manylinux_2_")
    alone = [replace(file, links=()) for file in manifest(wheel).host]
    with pytest.raises(KernelError, match=pair.soname):
        platforms.manylinux("linux_x86_64", alone)
    here = probe.host(with_gpus=False).torch
    assert here is not None
    machine = verdicts.Machine(torch=replace(here.version, local=""))
    assert xray_verdict.overall(xray.read(wheel), machine).answer == "yes"
    assert xray_verdict.overall(xray.read(wheel), replace(machine, glibc=Release(2, 1))).answer == "no"


def test_a_library_that_only_ctypes_can_open_stays_where_it_is(
    tmp_path: Path, make: Make, site: Callable[[Path], Path], pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    files, alone, torch = pair.files(), pair.inner(9, soname=f"libalone{tmp_path.name}.so"), ("--torch", this_torch())
    plain = make({**files, "ops/lib/libalone.so": alone})
    wheel = guarded(tmp_path / "out", plain, torch=this_torch())
    said = capsys.readouterr().out
    assert f"{wheel.name}: left as it is, because neither import nor torch opens it: ops/lib/libalone.so\n" in said
    folder = site(wheel)
    assert ctypes.CDLL(str(folder / "ops" / "lib" / "libalone.so")).inner() == 9
    assert importlib.import_module("ops._C").built() == 7
    calls = 'extern "C" int inner();\nextern "C" int twice() { return 2 * inner(); }'
    (tmp_path / "inner.so").write_bytes(pair.inner(7))
    outside = library(tmp_path, calls, str(tmp_path / "inner.so"), torch_linked=False)
    both = guarded(tmp_path / "both", make({**files, "ops/lib/libtwice.so": outside}), torch=this_torch())
    with zipfile.ZipFile(both) as archive:
        names = archive.namelist()
    assert f"ops.libs/{pair.soname}" in names and sum(pair.soname in name for name in names) == 2, (
        "it is there for both"
    )
    said = refused(capsys, tmp_path / "no", make({"ops/__init__.py": INIT, "ops/lib/libalone.so": alone}), *torch)
    assert (
        "has nothing to guard" in said and "found   ops/lib/libalone.so, which neither import nor torch opens" in said
    )
    python = library(
        tmp_path, "#include <Python.h>\nlong size(PyObject* o) { return PyObject_Size(o); }", torch_linked=False
    )
    said = refused(capsys, tmp_path / "no", make({**files, "ops/lib/libpython_too.so": python}), *torch)
    assert "Python's C API, but no PyInit" in said
    (tmp_path / "torch.so").write_bytes(pair.inner(5, soname="libwith_torch.so", source=INNER + OPS))
    outside = library(tmp_path, calls, str(tmp_path / "torch.so"), torch_linked=False)
    more = {"ops/lib/libwith_torch.so": (tmp_path / "torch.so").read_bytes(), "ops/lib/libtwice.so": outside}
    said = refused(capsys, tmp_path / "no", make({**files, **more}), *torch)
    assert "found   a link to ops/lib/libwith_torch.so, which a guard replaces" in said
    violations, _ = audit.audit(changed(wheel, "ops/lib/libalone.so", lambda _: (tmp_path / "torch.so").read_bytes()))
    assert [one.reason for one in violations] == ["unguarded"]
