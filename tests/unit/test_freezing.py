"""What PyInstaller is told of precast: every prebuilt file as data, at its place, and what is imported by name."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import ModuleType

import pytest

import precast
from precast.build import freezing

HELD = ("_C/build_info.json", "_C/host/kernels-x86_64.so", "_C/device/a.xz", "csrc/a/setup.py", "py.typed")
LEFT = ("_C/__init__.py", "__init__.py", "ops/__init__.py", "ops/__pycache__/__init__.cpython-312.pyc")


def test_the_prebuilt_files_are_collected_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*HELD, *LEFT):
        (tmp_path / "precast" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "precast" / name).touch()
    hooks = ModuleType("PyInstaller.utils.hooks")
    names = ("precast", "precast.build", "precast.build.wheels", "precast.ops.rms_norm")
    vars(hooks)["collect_submodules"] = lambda package, **how: [name for name in names if how["filter"](name)]
    for name in ("PyInstaller", "PyInstaller.utils"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, hooks.__name__, hooks)
    monkeypatch.setattr(precast, "__file__", str(tmp_path / "precast" / "__init__.py"))
    (folder,) = freezing.get_hook_dirs()
    said = runpy.run_path(str(Path(folder, "hook-precast.py")))
    wanted = {(str(tmp_path / "precast" / name), str(Path("precast", name).parent)) for name in HELD}
    assert set(said["datas"]) == wanted
    assert said["hiddenimports"] == ["precast", "precast.build", "precast.ops.rms_norm"]
