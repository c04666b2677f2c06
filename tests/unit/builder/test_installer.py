"""The commands that a fix is made of: each reaches this environment, or is not offered."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from precast._abi import fixes
from precast._builder import installer, trust
from precast.core import pip
from precast.core.host import Installer
from tests.kit.wheels import make_wheel

OWN = sys.executable


def on_path(monkeypatch: pytest.MonkeyPatch, **programs: str) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None if path else programs.get(name))


def test_pip_is_named_only_as_a_shell_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    here = str(Path(OWN).parent)
    on_path(monkeypatch, pip=f"{here}/pip", python=f"{here}/python")
    assert pip.install_command() == "pip install"
    on_path(monkeypatch, pip="/usr/bin/pip", python=f"{here}/python")
    assert pip.install_command() == "python -m pip install"
    on_path(monkeypatch, pip="/usr/bin/pip", python="/usr/bin/python")
    assert pip.install_command() == f"{OWN} -m pip install"


def test_without_pip_it_is_uv_or_pip_is_installed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pip.PathFinder, "find_spec", lambda name: None)
    on_path(monkeypatch, uv="/usr/bin/uv")
    assert pip.install_command() == f"uv pip install --python {OWN}"
    on_path(monkeypatch)
    assert pip.install_command() == f"{OWN} -m ensurepip && {OWN} -m pip install"


def test_the_compiler_comes_from_the_package_manager_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for user, sudo in ((0, ""), (1000, "sudo ")):
        monkeypatch.setattr("os.geteuid", lambda user=user: user)
        on_path(monkeypatch, **{"apt-get": "/usr/bin/apt-get"})
        assert installer.compiler_command() == f"{sudo}apt-get update && {sudo}apt-get install -y g++"
        on_path(monkeypatch, dnf="/usr/bin/dnf")
        assert installer.compiler_command() == f"{sudo}dnf install -y gcc-c++"
    on_path(monkeypatch)
    assert installer.compiler_command() == "", "nothing is offered that nobody knows to be there"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package whose origin a test writes down."""
    shutil.unpack_archive(make_wheel(tmp_path, name="some_ops"), tmp_path / "site", "zip")
    monkeypatch.syspath_prepend(tmp_path / "site")
    return tmp_path / "site" / "some_ops"


def recorded(package: Path, **facts: object) -> tuple[str | None, str | None]:
    (package.parent / "some_ops-1.0.dist-info" / "direct_url.json").write_text(json.dumps(facts))
    return pip.origin("some_ops", package)


def test_what_pip_recorded_is_offered_if_it_is_still_there(package: Path, tmp_path: Path) -> None:
    assert pip.origin("some_ops", package) == (None, None), "installed by name"
    sources = tmp_path / "my sources"
    assert recorded(package, url=sources.as_uri(), dir_info={}) == (None, None), "it is gone"
    sources.mkdir()
    (sources / "setup.py").touch()
    assert recorded(package, url=sources.as_uri(), dir_info={"editable": True}) == (f"'{sources}'", None)
    wheel = tmp_path / "some_ops-1.0-py3-none-any.whl"
    wheel.touch()
    assert recorded(package, url=wheel.as_uri(), archive_info={}) == (None, str(wheel))
    vcs = {"vcs": "git", "commit_id": "0123abc"}
    assert recorded(package, url="https://host/r.git", vcs_info=vcs) == ("git+https://host/r.git@0123abc", None)
    assert recorded(package, url="https://host/a.tar.gz", archive_info={}) == ("https://host/a.tar.gz", None)


def test_the_record_of_another_copy_says_nothing_of_this_one(package: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "some_ops-1.0-py3-none-any.whl"
    wheel.touch()
    recorded(package, url=wheel.as_uri(), archive_info={})
    assert pip.origin("some_ops", tmp_path / "copy" / "some_ops") == (None, None)


def test_an_installation_whose_manifest_is_lost_is_restored_by_its_metadata() -> None:
    labelled = Installer(version="1.0+cu121", wheel="/w/a.whl", sources="/src")
    url = "https://host/precast"
    assert fixes.restore(labelled, url).endswith(f'"precast==1.0+cu121" --index-url {url}/cu121/')
    assert fixes.restore(labelled, None) == "pip install --force-reinstall --no-deps /w/a.whl"
    assert fixes.restore(Installer(sources="/src"), url).startswith("CUDA_EXT=1 pip install")
    assert fixes.restore(Installer(version="1.0+mine"), url) == "", "no label of ours"


def test_another_folder_for_builds_is_one_that_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken, open_to_all, good = tmp_path / "taken", tmp_path / "open", tmp_path / "my good"
    for folder, mode in ((taken, 0o700), (open_to_all, 0o777), (good, 0o700)):
        folder.mkdir()
        folder.chmod(mode)
    places = [taken, taken / "below", tmp_path, open_to_all, Path("relative"), Path("/proc/nowhere"), good]
    monkeypatch.setattr(trust, "_places", lambda: iter(places))
    assert trust.another(taken) == f"export PRECAST_CACHE_DIR='{good}'"
    monkeypatch.setattr(trust, "ENOUGH_BYTES", 1 << 62)
    assert trust.another(taken) == "export PRECAST_CACHE_DIR=$(mktemp -d)", "none has room"
