"""Finished wheels as any build system leaves them, and what is asked of them once they are guarded."""

from __future__ import annotations

import platform
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from precast.build import __main__ as build_main
from precast.core import probe
from precast.core.host import Host
from precast.core.manifest import BuildInfo
from precast.core.version import TorchVersion
from tests.kit import spawn

# Python's own interface and one name of torch's classic C++, compiled without torch's headers.
MODULE = """
#include <Python.h>
namespace at {{ int get_num_threads(); }}
static PyObject* built(PyObject*, PyObject*) {{ at::get_num_threads(); return PyLong_FromLong({mark}); }}
static PyMethodDef methods[] = {{{{"built", built, METH_NOARGS, ""}}, {{nullptr, nullptr, 0, nullptr}}}};
static PyModuleDef module = {{PyModuleDef_HEAD_INIT, "{name}", nullptr, -1, methods}};
PyMODINIT_FUNC PyInit_{name}() {{ return PyModule_Create(&module); }}
"""
# A library that torch.ops.load_library opens; it tells by the environment that it ran.
OPS = """
#include <stdlib.h>
namespace at {{ int get_num_threads(); }}
__attribute__((constructor)) static void start() {{ at::get_num_threads(); setenv("GUARDED_OPS", "{mark}", 1); }}
"""
HERE = f"cp{sys.version_info.major}{sys.version_info.minor}"
SUFFIX = f".cpython-{sys.version_info.major}{sys.version_info.minor}-{platform.machine()}-linux-gnu.so"
PLATFORM = f"linux_{platform.machine()}"
INIT = '"""Ops."""\nfrom __future__ import annotations\nimport torch\n'


def library(folder: Path, source: str, *options: str, torch_linked: bool = True) -> bytes:
    import torch

    include, libraries = sysconfig.get_paths()["include"], Path(torch.__file__).parent / "lib"
    linked = ["-Wl,--no-as-needed", *(["-ltorch_cpu", "-lc10"] if torch_linked else []), *options]
    return spawn.library(folder / "code.so", source, f"-I{include}", "-O1", f"-L{libraries}", *linked).read_bytes()


Make = Callable[..., Path]


def guarded(out: Path, *wheels: Path, torch: str | None = None, options: Sequence[str] = ()) -> Path:
    arguments = ["guard", *map(str, wheels), "-o", str(out), *(["--torch", torch] if torch else []), *options]
    assert build_main.main(arguments) == 0
    (made,) = out.iterdir()
    return made


def refused(capsys: pytest.CaptureFixture[str], out: Path, *arguments: object) -> str:
    assert build_main.main(["guard", *map(str, arguments), "-o", str(out)]) in (1, 2)
    assert not out.exists() or not list(out.iterdir())
    said = capsys.readouterr()
    return said.out + said.err


def this_torch() -> str:
    import torch

    return torch.__version__


def named_after(torch: str) -> str:
    """The local part of the version of a wheel for one torch, whose CUDA is known; PyPI takes only the others."""
    version = TorchVersion.parse(torch)
    return f"+{version.local}.torch{version.release}" if version.local else ""


def other_torch(minor: int) -> str:
    release = TorchVersion.parse(this_torch()).release
    return f"{release.major}.{release.minor + minor}.0"


def pretend(monkeypatch: pytest.MonkeyPatch, change: Callable[[Host], Host]) -> None:
    host = change(probe.host(with_gpus=False))
    monkeypatch.setattr(probe, "host", lambda with_gpus: host)


def on_torch(version: str) -> Callable[[Host], Host]:
    def change(host: Host) -> Host:
        assert host.torch is not None
        return replace(host, torch=replace(host.torch, version=TorchVersion.parse(version)))

    return change


def manifest(wheel: Path, where: str = "ops/_C/build_info.json") -> BuildInfo:
    with zipfile.ZipFile(wheel) as archive:
        return BuildInfo.from_json(archive.read(where).decode())
