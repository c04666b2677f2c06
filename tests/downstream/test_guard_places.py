"""Where guard writes and what it leaves: never onto an input, nothing after a failure, each library in its folder."""

from __future__ import annotations

import importlib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from precast.build import __main__ as build_main
from precast.build import audit
from precast.core.manifest import SCHEMA
from precast.core.version import TorchVersion
from tests.downstream.finished import (
    INIT,
    MODULE,
    OPS,
    SUFFIX,
    Make,
    guarded,
    library,
    other_torch,
    refused,
    this_torch,
)
from tests.downstream.test_linked import changed
from tests.kit import forked, spawn

pytestmark = [pytest.mark.torch, pytest.mark.compiler, pytest.mark.usefixtures("quick_trials")]

# Looks for a plug-in beside itself by its RPATH, and for a data file beside the file that it was loaded from.
LOOKS = """
#include <Python.h>
#include <dlfcn.h>
#include <string>
namespace at { int get_num_threads(); }
static PyObject* built(PyObject*, PyObject*) {
  at::get_num_threads();
  void* plugin = dlopen("PLUGIN", RTLD_NOW);
  if (!plugin) return PyErr_Format(PyExc_OSError, "%s", dlerror());
  Dl_info info;
  dladdr(reinterpret_cast<void*>(&built), &info);
  std::string file = info.dli_fname;
  FILE* data = fopen((file.substr(0, file.rfind('/')) + "/data.txt").c_str(), "r");
  if (!data) return PyErr_Format(PyExc_OSError, "no data beside %s", info.dli_fname);
  int read = 0;
  if (fscanf(data, "%d", &read) != 1) read = -1;
  fclose(data);
  return PyLong_FromLong(read + reinterpret_cast<int (*)()>(dlsym(plugin, "more"))());
}
static PyMethodDef methods[] = {{"built", built, METH_NOARGS, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, methods};
PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&module); }
"""


def held(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_module_finds_what_lies_beside_it(
    tmp_path: Path, make: Make, site: Callable[[Path], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = f"libplugin_{tmp_path.name}.so"
    code = library(tmp_path, LOOKS.replace("PLUGIN", plugin), "-Wl,-rpath,$ORIGIN")
    beside = library(tmp_path, 'extern "C" int more() { return 2; }', torch_linked=False)
    files: dict[str, bytes | str] = {"ops/__init__.py": INIT, f"ops/_C{SUFFIX}": code, "ops/data.txt": "40"}
    site(guarded(tmp_path / "out", make({**files, f"ops/{plugin}": beside}), torch=this_torch()))
    assert f"left as it is, because neither import nor torch opens it: ops/{plugin}\n" in capsys.readouterr().out
    module = importlib.import_module("ops._C")
    assert module.built() == 42 and Path(str(module.__file__)).parent == tmp_path / "site" / "ops"
    assert [path.name for path in (tmp_path / "site" / "ops").glob("*.so*")] == [plugin], (
        "no finder sees what is guarded"
    )


def test_a_file_that_code_opens_by_its_name_gets_no_guard(
    tmp_path: Path, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    code = library(tmp_path, LOOKS.replace("PLUGIN", "libwith_torch.so"))
    beside = library(tmp_path, OPS.format(mark=1))
    files: dict[str, bytes | str] = {"ops/__init__.py": INIT, f"ops/_C{SUFFIX}": code, "ops/libwith_torch.so": beside}
    said = refused(capsys, tmp_path / "out", make(files), "--torch", this_torch())
    assert f"found   its file name in ops/_C{SUFFIX}, as code has that opens it with dlopen" in said


@pytest.mark.parametrize("fails", [False, True])
def test_the_input_stays_whatever_the_output_is(
    tmp_path: Path, make: Make, capsys: pytest.CaptureFixture[str], fails: bool
) -> None:
    """A wheel that is guarded already keeps its name, so its own folder is no place for the output."""
    plain = make({"ops/__init__.py": INIT, f"ops/_C{SUFFIX}": library(tmp_path, MODULE.format(name="_C", mark=1))})
    wheel = guarded(tmp_path / "one", plain, torch=this_torch())
    if fails:
        wheel = changed(wheel, "ops/__init__.py", lambda text: text + b"raise ValueError\n")
    before = wheel.read_bytes()
    assert build_main.main(["guard", str(wheel), "-o", str(wheel.parent)]) == 2
    assert "an output would replace its input" in capsys.readouterr().err
    assert wheel.read_bytes() == before and list(wheel.parent.iterdir()) == [wheel]
    if fails:
        assert "ops._C: import" in refused(capsys, tmp_path / "two", wheel) and not (tmp_path / "two").exists()


def test_what_has_no_place_in_a_guarded_wheel_is_one_sentence(
    tmp_path: Path, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    module, ops = library(tmp_path, MODULE.format(name="_C", mark=1)), library(tmp_path, OPS.format(mark=1))
    torch = ("--torch", this_torch())
    top = make({f"lone{SUFFIX}": library(tmp_path, MODULE.format(name="lone", mark=1)), "libhostops.so": ops})
    assert "ops of torch at the top of the wheel, in no package" in refused(capsys, tmp_path / "out", top, *torch)
    placed = make({"ops/__init__.py": INIT, f"ops-1.0.data/platlib/ops/_C{SUFFIX}": module})
    assert "a library below ops-1.0.data" in refused(capsys, tmp_path / "out", placed, *torch)
    for soname in ("lib/libinner.so", "lib\ninner.so"):
        inner = library(tmp_path, "int inner() { return 1; }", f"-Wl,-soname,{soname}", torch_linked=False)
        (tmp_path / "linked.so").write_bytes(inner)
        outer = library(tmp_path, MODULE.format(name="_C", mark=1), str(tmp_path / "linked.so"))
        wheel = make({"ops/__init__.py": INIT, f"ops/_C{SUFFIX}": outer, "ops/lib/libinner.so": inner})
        assert "needed  a file name as its SONAME" in refused(capsys, tmp_path / "out", wheel, *torch)
    (tmp_path / "file").touch()
    plain = make({"ops/__init__.py": INIT, f"ops/_C{SUFFIX}": module})
    assert build_main.main(["guard", str(plain), "-o", str(tmp_path / "file"), *torch]) == 2
    assert "File exists" in capsys.readouterr().err


def test_a_wheel_for_another_torch_is_held_to_its_line(tmp_path: Path, make: Make) -> None:
    """None of its libraries can be opened here, so the place of the line is all that can be checked."""
    source = '"""Ops."""; L = __import__("torch").ops.load_library\nL(__file__[:-11] + "_ops.so")\n'
    wheel = guarded(
        tmp_path / "out",
        make({"ops/__init__.py": source, "ops/_ops.so": library(tmp_path, OPS.format(mark=1))}),
        torch=other_torch(-1),
        options=("--patch-loader",),
    )
    lines = held(wheel)["ops/__init__.py"].decode().splitlines()
    assert lines[1].startswith("__import__('_precast.patching'") and lines[2].startswith("L = ")
    for change, why in (
        (lambda text: b"import os\n" + text, "another statement before it"),
        (lambda text: text.replace(b"patch_loader()", b"images()"), "no such statement"),
        (lambda text: text + b"x = \n", "invalid syntax"),
    ):
        other = tmp_path / why.replace(" ", "-")
        other.mkdir()
        (other / wheel.name).write_bytes(wheel.read_bytes())
        violations, _ = audit.audit(changed(other / wheel.name, "ops/__init__.py", change))
        assert [one.reason for one in violations] == ["answer"] and why in violations[0].found


def test_the_copy_of_a_package_that_only_calls_is_compared_too(tmp_path: Path, make: Make) -> None:
    source = "import os, torch\ntorch.ops.load_library(os.path.dirname(__file__) + '/../ops/_ops.so')\n"
    files = {"ops/__init__.py": INIT, "ops/_ops.so": library(tmp_path, OPS.format(mark=1)), "other/__init__.py": source}
    wheel = guarded(tmp_path / "out", make(files), torch=other_torch(-1))
    assert {"ops/_precast/verify.py", "other/_precast/verify.py"} <= held(wheel).keys()
    violations, _ = audit.audit(changed(wheel, "other/_precast/verify.py", lambda text: text + b"\n"))
    assert [(one.reason, one.candidate) for one in violations] == [("core", "other/_precast")]


METADATA = "ops-1.0.dist-info/METADATA"


def test_metadata_with_line_ends_of_windows_keeps_everything(tmp_path: Path, make: Make) -> None:
    plain = make({"ops/__init__.py": INIT, f"ops/_C{SUFFIX}": library(tmp_path, MODULE.format(name="_C", mark=1))})
    more = "Requires-Dist: numpy>=1\nRequires-Dist: Torch[opt-einsum] (>=2)\n"
    more += "requires-python: >=3.9\nAuthor: \u00e9\n\nText\n"

    def windows(text: bytes) -> bytes:
        head = text.replace(b"Requires-Dist: torch\n", b"").partition(b"\n\n")[0]
        return b"\r\n".join([*head.splitlines(), *more.encode().splitlines()])

    wheel = guarded(tmp_path / "out", changed(plain, METADATA, windows), torch=other_torch(-1))
    said = next(data for name, data in held(wheel).items() if name.endswith("/METADATA")).decode()
    for line in ("Requires-Dist: numpy>=1", "requires-python: >=3.9", "Author: \u00e9"):
        assert f"\n{line}" in said
    assert said.count("torch") == 1 and "\nRequires-Dist: torch[opt-einsum]>=2." in said and said.endswith("\n\nText")


def test_what_wheels_say_differently_is_not_lost(
    tmp_path: Path, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    single = []
    for mark, torch in ((1, this_torch()), (2, other_torch(-2))):
        code = library(tmp_path, MODULE.format(name="_C", mark=mark))
        plain = make({"ops/__init__.py": INIT, f"ops/_C{SUFFIX}": code})
        single.append(guarded(tmp_path / f"single{mark}", plain, torch=torch))
    for line, why in (
        (b"Requires-Python: <3.12\n", "METADATA with requires-python: "),
        (b"Requires-Dist: numpy\n", "METADATA with requires-dist: "),
    ):
        folder = tmp_path / why.split()[-1]
        folder.mkdir()
        other = folder / single[1].name
        other.write_bytes(single[1].read_bytes())
        where = next(name for name in held(other) if name.endswith("/METADATA"))
        other = changed(other, where, lambda text, line=line: text.replace(b"Requires", line + b"Requires", 1))
        said = refused(capsys, tmp_path / "out", single[0], other)
        assert f"found   {why}" in said and line.decode().split(": ")[1].strip() in said


def test_programs_stay_programs_and_two_modes_are_not_merged(
    tmp_path: Path, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    code = library(tmp_path, MODULE.format(name="_C", mark=1))
    plain = make({"ops/__init__.py": INIT, f"ops/_C{SUFFIX}": code, "ops/run.sh": "#!/bin/sh\n"})
    program = tmp_path / "program" / plain.name
    program.parent.mkdir()
    with zipfile.ZipFile(plain) as archive, zipfile.ZipFile(program, "w") as other:
        for entry in archive.infolist():
            data = archive.read(entry)
            entry.external_attr = (0o100775 if entry.filename == "ops/run.sh" else 0o100664) << 16
            other.writestr(entry, data)
    wheel = guarded(tmp_path / "out", program, torch=this_torch())
    with zipfile.ZipFile(wheel) as archive:
        modes = {entry.filename: oct(entry.external_attr >> 16) for entry in archive.infolist()}
    assert {name for name, mode in modes.items() if mode == "0o100755"} == {"ops/run.sh"}
    assert set(modes.values()) == {"0o100755", "0o100644"}
    said = refused(capsys, tmp_path / "no", plain, program, "--torch", this_torch())
    assert "found   ops/run.sh, not the same in " in said and "needed  the same mode in both" in said


def test_a_wider_tag_keeps_the_python_that_was_promised(tmp_path: Path, make: Make) -> None:
    code = library(tmp_path, OPS.format(mark=1))
    source = INIT + "torch.ops.load_library(__file__[:-11] + '_ops.so')\n"
    wheel = guarded(tmp_path / "out", make({"ops/__init__.py": source, "ops/_ops.so": code}, python="cp311"),
                    torch=this_torch())  # fmt: skip
    assert "-py3-none-" in wheel.name
    said = next(data for name, data in held(wheel).items() if name.endswith("/METADATA")).decode()
    assert "\nRequires-Python: >=3.11\n" in said


FOLDERS = INIT + "torch.ops.load_library(__import__('os').path.dirname(__file__) + '/{}/lib/libops.so')\n"


@pytest.mark.parametrize("named", [True, False])
def test_each_of_several_libraries_is_for_the_torch_of_its_folder(
    tmp_path: Path, make: Make, site: Callable[[Path], Path], capsys: pytest.CaptureFixture[str], named: bool
) -> None:
    """As in vesin-torch, whose own Python takes the folder of its torch; or a pattern says which torch that is."""
    code = {mark: library(tmp_path, OPS.format(mark=mark), "-Wl,-soname,libops.so") for mark in ("new", "newer", "old")}
    this, other = TorchVersion.parse(this_torch()).release, TorchVersion.parse(other_torch(-1)).release
    folders = {mark: mark for mark in code}
    if named:
        folders = {"new": f"torch-{this}", "newer": f"torch-{other}", "old": "torch-2.3"}
    files: dict[str, bytes | str] = {"ops/__init__.py": FOLDERS.format(folders["new"])}
    wheel = make(files | {f"ops/{folders[mark]}/lib/libops.so": data for mark, data in code.items()})
    stated = () if named else (f"*/new/*={this_torch()}", f"ops/newer/lib/libops.so={other}", "*/old/*=2.3")
    options = [word for text in stated for word in ("--torch", text)]
    assert build_main.main(["guard", str(wheel), *options, "-o", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert f"is for torch 2.4 and newer: ops/{folders['old']}/lib/libops.so, for 2.3\n" in said
    assert "2 libraries, 1 imported here" in said
    (made,) = (tmp_path / "out").iterdir()
    assert made.name.startswith("ops-1.0-") and not any(f"/{folders['old']}/" in name for name in held(made))
    site(made)
    importlib.import_module("ops")
    import torch

    (opened,) = [path for path in torch.ops.loaded_libraries if str(tmp_path) in path]
    assert f"/{folders['new']}/lib/libops.torch-{this}" in opened


def test_a_torch_that_is_stated_for_no_library_or_twice_is_refused(
    tmp_path: Path, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    code = library(tmp_path, OPS.format(mark=1))
    files: dict[str, bytes | str] = {"ops/__init__.py": INIT, "ops/one/_ops.so": code, "ops/two/_more.so": code}
    wheel = make(files)
    said = refused(capsys, tmp_path / "out", wheel, "--torch", "*/three/*=2.13")
    assert f"--torch '*/three/*=2.13.0' matches no library of {wheel.name}" in said
    assert "found   ops/one/_ops.so, ops/two/_more.so\n" in said
    said = refused(capsys, tmp_path / "out", wheel, "--torch", this_torch(), "--torch", "ops/one/*=2.3")
    assert "ops/one/_ops.so cannot be guarded\n  found   a build for torch 2.3\n" in said, "nothing stands in for it"
    for torches, why in ((("2.13", "2.12"), "2.13.0 and 2.12.0 for all"), (("*=new",), "not a torch version")):
        options = [f"--torch={text}" for text in torches]
        with pytest.raises(SystemExit):
            build_main.main(["guard", str(wheel), *options, "-o", str(tmp_path / "out")])
        assert why in capsys.readouterr().err


def test_each_of_several_packages_that_wrap_the_loader_opens_its_own(tmp_path: Path, make: Make) -> None:
    """Each reads its own manifest, which may have a form that another core does not know."""
    code, source = library(tmp_path, OPS.format(mark=1)), "torch.ops.load_library(__file__[:-11] + '_ops.so')\n"
    for name in ("one", "two"):
        wheel = make({f"{name}/__init__.py": INIT + source, f"{name}/_ops.so": code}, name=name)
        with zipfile.ZipFile(
            guarded(tmp_path / name, wheel, torch=this_torch(), options=["--patch-loader"])
        ) as archive:
            archive.extractall(tmp_path / "site")
    schema = f"SCHEMA = {SCHEMA}\n"
    core = tmp_path / "site" / "two" / "_precast" / "manifest.py"
    core.write_text(core.read_text().replace(schema, f"SCHEMA = {SCHEMA + 1}\n"))
    manifest = tmp_path / "site" / "two" / "_C" / "build_info.json"
    manifest.write_text(manifest.read_text().replace(f'"schema": {SCHEMA}', f'"schema": {SCHEMA + 1}'))
    for order in ("one, two", "two, one"):
        code = f"import {order}, torch; print(*torch.ops.loaded_libraries)"
        done = forked.run(code, env=spawn.environ(PYTHONPATH=tmp_path / "site"), cwd=tmp_path)
        assert done.returncode == 0 and done.stdout.count("/_ops.torch-2.") == 2, done.stderr


def test_a_guarded_package_in_a_zip_says_so_in_one_sentence(tmp_path: Path, make: Make) -> None:
    code = library(tmp_path, MODULE.format(name="_C", mark=1))
    wheel = guarded(tmp_path / "out", make({"ops/__init__.py": INIT, f"ops/_C{SUFFIX}": code}), torch=this_torch())
    done = forked.run("import torch, ops._C", env=spawn.environ(PYTHONPATH=wheel), cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"ImportError: ops cannot be used from the archive {wheel}: ")
