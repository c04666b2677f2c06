"""Installed packages announce extensions of theirs: found once, told by name, and a broken one breaks nothing."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.kit import spawn

PKG = Path(__file__).resolve().parents[3] / "pkg"
MODULE = """
from precast.base_extension import _Extension


class Better(_Extension):
    def __init__(self):
        self._name = "better"
        self._support_aot = False
        self._support_jit = False
        self.priority = 10

    def is_hardware_available(self):
        return True

    def assert_hardware_compatible(self):
        pass

    def build_aot(self):
        raise NotImplementedError

    build_jit = build_aot

    def load(self):
        return ["better"]


class Taken(Better):
    def __init__(self):
        super().__init__()
        self._name = "cpu_adam_torch"


class Open(_Extension):
    pass
"""
ENTRIES = """
[precast.extensions]
MoeLoader.better = somebody.ext:Better
CPUAdamLoader.taken = somebody.ext:Taken
CPUAdamLoader.missing = somebody.ext:Missing
RMSNormLoader.broken = somebody.broken:Anything
RMSNormLoader.typo = somebody.typo:Anything
SoftmaxLoader.open = somebody.ext:Open
NoSuchLoader.better = somebody.ext:Better
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with an installed package."""
    (tmp_path / "somebody").mkdir()
    (tmp_path / "somebody" / "__init__.py").touch()
    (tmp_path / "somebody" / "ext.py").write_text(MODULE)
    (tmp_path / "somebody" / "broken.py").write_text("raise OSError('libnowhere.so: cannot open')\n")
    (tmp_path / "somebody" / "typo.py").write_text("Anything = undefined\n")
    info = tmp_path / "some_kernels-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-kernels\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    return tmp_path


def child(site: Path, *command: str) -> subprocess.CompletedProcess[str]:
    env = spawn.environ(PYTHONPATH=f"{PKG}{os.pathsep}{site}", PRECAST_CACHE_DIR=site / "cache")
    return spawn.python(*command, env=env, status=None)


def test_an_installed_package_serves_a_loader_of_ours(site: Path) -> None:
    code = """
        import json, sys
        import precast.kernel_loader as k
        from precast.errors import KernelUnavailable
        before = "importlib.metadata" in sys.modules
        out = {"loaded": k.MoeLoader().load(), "names": k.MoeLoader.names(), "from": k.MoeLoader.origin("better")}
        out["once"] = k.MoeLoader().load() is k.MoeLoader().load(ext_name="better")
        class Child(k.MoeLoader):
            pass
        out["child"] = Child.names()
        out["adam"] = k.CPUAdamLoader.names()
        out["broken"] = {c.name: c.reason for loader in k.loaders() for c in loader.broken()}
        k.MoeLoader.unregister_extension("better")
        out["after"] = k.MoeLoader.names()
        try:
            k.RMSNormLoader().load(ext_name="broken")
        except KernelUnavailable as error:
            out["refusal"] = str(error)
        print(json.dumps(out))
        """
    lines = "\n".join(line.removeprefix("        ") for line in code.splitlines())
    done = child(site, "-c", lines)
    assert done.returncode == 0, done.stderr
    out: dict[str, Any] = json.loads(done.stdout)
    assert out["loaded"] == ["better"] and out["once"] and out["from"] == "some-kernels (somebody.ext:Better)"
    ours = ["moe_cuda", "moe_cpu", "moe_torch"]
    assert out["names"] == [*ours, "better"] and out["after"] == ours
    assert out["child"] == [*ours, "better"], "a subclass of a loader has what its parent has, once"
    assert "taken" not in out["adam"] and "missing" not in out["adam"]
    assert out["broken"] == {
        "taken": "ValueError: CPUAdamLoader already has an extension 'cpu_adam_torch'; needed another name",
        "missing": "AttributeError: module 'somebody.ext' has no attribute 'Missing'",
        "broken": "OSError: libnowhere.so: cannot open",
        "typo": "NameError: name 'undefined' is not defined",
        "open": "TypeError: Open does not define assert_compatible, build_aot, build_jit, is_available, load, "
        "so it cannot be registered",
    }
    assert "libnowhere.so" in out["refusal"]
    assert "the extension of some-kernels (somebody.broken:Anything) is not used" in done.stderr


@pytest.mark.torch
def test_they_are_listed_and_explained(site: Path) -> None:
    listed = child(site, "-m", "precast", "list")
    assert listed.returncode == 0, listed.stderr
    _, _, extensions = listed.stdout.partition("\n\n")
    rows = {line.split()[1]: line for line in extensions.splitlines()}
    assert "some-kernels (somebody.ext:Better)" in rows["better"] and "broken" in rows["broken"]
    why = child(site, "-m", "precast", "why", "MoeLoader")
    assert why.returncode == 0, why.stderr
    assert "MoeLoader: better would be loaded" in why.stdout and "moe_cpu" in why.stdout
    assert "better" in child(site, "-m", "precast", "why", "better", "--json").stdout
    broken = child(site, "-m", "precast", "why", "broken")
    assert broken.returncode == 0 and "OSError: libnowhere.so: cannot open" in broken.stdout, broken.stdout


@pytest.mark.torch
def test_the_ops_do_not_bring_them(site: Path) -> None:
    """tests/load/test_start.py holds a first call to the same."""
    code = "import sys, precast.ops, precast.optim, precast.nn; "
    code += "assert not {'precast.extension.entry_points', 'precast.kernel_loader'} & sys.modules.keys()"
    done = child(site, "-c", code)
    assert done.returncode == 0, done.stderr
