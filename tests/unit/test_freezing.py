"""What PyInstaller is told of precast: every prebuilt file as data, at its place, and what is imported by name."""

from __future__ import annotations

import runpy
import sys
from functools import partial
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

import precast
from precast.build import freezing

HELD = ("_C/build_info.json", "_C/host/kernels-x86_64.so", "_C/device/a.xz", "csrc/a/setup.py", "py.typed")
# Of a package that was guarded, as vesin-torch: a guard that torch opens, its library, its manifest; its code is found.
OTHERS = {
    "vesin_torch/torch-2.13/lib/libvesin_torch.so": True,
    "vesin_torch/torch-2.13/lib/libvesin_torch.torch-2.13.guarded": True,
    "vesin_torch/torch-2.13/lib/_C/build_info.json": True,
    "vesin_torch/_C/host/cpu.so": True,
    "vesin_torch/_C/code.py": False,
    "vesin_torch/__init__.py": False,
    "vesin_torch-1.0.dist-info/METADATA": False,
    "plain_ops/_ops.so": False,
    "precast/_C/build_info.json": False,  # as collected from its folder
}
LEFT = ("_C/__init__.py", "__init__.py", "ops/__init__.py", "ops/__pycache__/__init__.cpython-312.pyc")


def test_the_prebuilt_files_are_collected_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*HELD, *LEFT):
        (tmp_path / "precast" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "precast" / name).touch()
    hooks = ModuleType("PyInstaller.utils.hooks")
    names = ("precast", "precast.build", "precast.build.wheels", "precast.ops.norm")
    vars(hooks)["collect_submodules"] = lambda package, **how: [name for name in names if how["filter"](name)]
    for name in ("PyInstaller", "PyInstaller.utils"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, hooks.__name__, hooks)
    site = tmp_path / "site"
    for name in OTHERS:
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).touch()
    for package in ("vesin_torch", "plain_ops", "precast"):
        (site / f"{package}-1.0.dist-info").mkdir(exist_ok=True)
        record = "".join(f"{name},,\n" for name in OTHERS if name.startswith(package))
        (site / f"{package}-1.0.dist-info" / "RECORD").write_text(record)
    monkeypatch.setattr(metadata, "distributions", partial(metadata.distributions, path=[str(site)]))
    monkeypatch.setattr(precast, "__file__", str(tmp_path / "precast" / "__init__.py"))
    (folder,) = freezing.get_hook_dirs()
    said = runpy.run_path(str(Path(folder, "hook-precast.py")))
    wanted = {(str(tmp_path / "precast" / name), str(Path("precast", name).parent)) for name in HELD}
    wanted |= {(str(site / name), str(Path(name).parent)) for name, taken in OTHERS.items() if taken}
    assert set(said["datas"]) == wanted
    assert said["hiddenimports"] == ["precast", "precast.build", "precast.ops.norm"]
