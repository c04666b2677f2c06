"""The pinned headers: taken from where they are equal, and refused where they are not."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from precast._builder import headers, sources, torch_wheel
from precast._builder.cache import Cache
from precast._builder.headers import Pins
from precast.core.torch_abi import STABLE_FLOOR
from precast.errors import KernelError
from tests.unit.builder.ranges import NOTICE, TEXTS, Server, make_wheel, serving


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


PINS = Pins("2.15.0", {name: sha(data) for name, data in TEXTS.items()}, {"LICENSE": sha(NOTICE)})


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Server]:
    """A server of one file, which knows ranges."""
    with serving(tmp_path / "torch.whl") as server:
        yield server


def index_says(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setattr(headers, "_from_installed_torch", lambda pins: None)
    monkeypatch.setattr(torch_wheel, "find_wheel", lambda pins: url)


def test_headers_come_by_range_and_only_once(served: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(served.path)
    index_says(monkeypatch, served.url)
    include = headers.ensure_headers(tmp_path / "dest", PINS)
    assert {name: (include / name).read_bytes() for name in TEXTS} == TEXTS
    assert (tmp_path / "dest" / "LICENSE").read_bytes() == NOTICE
    assert served.sent < 1_000_000, "the large file was not read"
    monkeypatch.setattr(torch_wheel, "find_wheel", lambda pins: pytest.fail("asked again"))
    assert headers.ensure_headers(tmp_path / "dest", PINS) == include


def test_another_content_than_the_pinned_is_refused(
    served: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(served.path, {**TEXTS, "torch/a.h": b"// A\n"})
    index_says(monkeypatch, served.url)
    with pytest.raises(KernelError, match=r"include/torch/a\.h is not the file"):
        headers.ensure_headers(tmp_path / "dest", PINS)
    assert not (tmp_path / "dest").exists()


def test_a_local_wheel_needs_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index_says(monkeypatch, make_wheel(tmp_path / "a wheel.whl").as_uri())
    assert (headers.ensure_headers(tmp_path / "dest", PINS) / "torch/a.h").read_bytes() == TEXTS["torch/a.h"]


@pytest.mark.parametrize("changed", [False, True], ids=["equal", "another"])
def test_an_installed_torch_serves_only_with_equal_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: bool
) -> None:
    site = tmp_path / "site"
    files = {f"torch/include/{name}": data for name, data in TEXTS.items()}
    files["torch-2.15.0+cpu.dist-info/licenses/LICENSE"] = NOTICE
    for name, data in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(data + (b" " if changed else b""))
    spec = SimpleNamespace(submodule_search_locations=[str(site / "torch")])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(torch_wheel, "find_wheel", lambda pins: (_ for _ in ()).throw(KernelError("asked the index")))
    if changed:
        with pytest.raises(KernelError, match="asked the index"):
            headers.ensure_headers(tmp_path / "dest", PINS)
    else:
        assert headers.complete(headers.ensure_headers(tmp_path / "dest", PINS).parent, PINS)


def test_an_incomplete_folder_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index_says(monkeypatch, make_wheel(tmp_path / "torch.whl").as_uri())
    dest = tmp_path / "dest"
    headers.ensure_headers(dest, PINS)
    (dest / "include/torch/a.h").write_text("edited")
    headers.ensure_headers(dest, PINS)
    assert headers.complete(dest, PINS)


def test_without_an_index_the_error_says_what_and_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(torch: str) -> str:
        raise FileNotFoundError(f"no wheel of torch {torch} on https://index: no route to host")

    monkeypatch.setattr(torch_wheel, "find_wheel", nowhere)
    with pytest.raises(KernelError) as caught:
        headers.ensure_headers(tmp_path / "dest", PINS)
    assert "no wheel of torch 2.15.0 on https://index: no route to host" in str(caught.value)


def test_a_wheel_that_lacks_a_file_is_named(served: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(served.path, {"torch/a.h": TEXTS["torch/a.h"]})
    index_says(monkeypatch, served.url)
    with pytest.raises(KernelError) as caught:
        headers.ensure_headers(tmp_path / "dest", PINS)
    assert f"{served.url}: \"There is no item named 'torch/include/torch/sub/b.h'" in str(caught.value)


def test_a_build_with_a_local_version_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an index for one kind of GPU has it: 2.15.0+cu130."""
    index_says(monkeypatch, make_wheel(tmp_path / "a.whl", version="2.15.0+cu130").as_uri())
    assert headers.complete(headers.ensure_headers(tmp_path / "dest", PINS).parent, PINS)


def test_the_committed_pins_are_hashes_of_the_matrix_torch() -> None:
    pins = headers.load_pins()
    assert len(pins.headers) > 40 and pins.notices
    for digest in (*pins.headers.values(), *pins.notices.values()):
        assert len(digest) == 64 and int(digest, 16)


def test_the_folders_of_the_headers_are_for_their_owner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index_says(monkeypatch, make_wheel(tmp_path / "a wheel.whl").as_uri())
    before = os.umask(0)
    try:
        headers.ensure_headers(tmp_path / "cache" / "headers" / "dest", PINS)
    finally:
        os.umask(before)
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in ("cache", "cache/headers")} == {0o700}


def test_ranks_that_start_cold_fetch_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a lock one would remove the folder that another has just filled and compiles with."""
    asked: list[int] = []

    def fetch(pins: Pins) -> dict[str, bytes]:
        asked.append(1)
        time.sleep(0.2)
        return {f"include/{name}": data for name, data in TEXTS.items()} | dict.fromkeys(pins.notices, NOTICE)

    monkeypatch.setattr(headers, "load_pins", lambda: PINS)
    monkeypatch.setattr(headers, "_from_installed_torch", lambda pins: None)
    monkeypatch.setattr(headers, "_from_index", fetch)
    monkeypatch.setattr(sources, "csrc_dir", lambda: tmp_path / "csrc")
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(headers.pinned(Cache(tmp_path / "c")))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(asked) == 1 and len(found) == 8 and len(set(found)) == 1
    assert headers.complete(found[0].parent, PINS)


@pytest.fixture
def torch_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], Path]:
    """Pretends that a torch of a version, or one without headers, is installed beside a precast without headers."""
    monkeypatch.setattr(sources, "csrc_dir", lambda: tmp_path / "csrc")
    headers._warn_of_leak.cache_clear()

    def install(version: str | None) -> Path:
        place = tmp_path / f"torch-{version}"
        (place / "include").mkdir(parents=True)
        if version is not None:
            major, minor = version.split(".")
            path = place / "include" / "torch/headeronly/version.h"
            path.parent.mkdir(parents=True)
            path.write_text(f"#define TORCH_VERSION_MAJOR {major}\n#define TORCH_VERSION_MINOR {minor}\n")
        spec = SimpleNamespace(submodule_search_locations=[str(place)])
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
        return place / "include"

    return install


@pytest.mark.parametrize(("version", "leaks"), [("2.10", True), ("2.13", True), ("2.14", False), ("2.15", False)])
def test_extensions_take_the_headers_of_the_installed_torch(
    torch_here: Callable[[str | None], Path], caplog: pytest.LogCaptureFixture, version: str, leaks: bool
) -> None:
    include = torch_here(version)
    assert [headers.for_extensions() for _ in range(3)] == [include] * 3
    assert [record.getMessage().partition(" leak memory")[0] for record in caplog.records] == (
        [f"the headers of torch {version}"] if leaks else []
    ), "once"


@pytest.mark.parametrize(
    ("version", "found"), [("2.9", "torch 2.9"), (None, "without headers")], ids=["older", "no headers"]
)
def test_without_headers_for_extensions_the_error_says_how_to_get_them(
    torch_here: Callable[[str | None], Path], version: str | None, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_here(version)
    monkeypatch.setattr(torch_wheel, "find_wheel", lambda torch: pytest.fail("an extension's build asks no index"))
    with pytest.raises(KernelError, match=found) as caught:
        headers.for_extensions()
    assert " 'torch>=2.14'" in str(caught.value)


def test_the_headers_that_precast_brings_come_first(
    torch_here: Callable[[str | None], Path],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch_here("2.13")
    monkeypatch.setattr(headers, "load_pins", lambda: PINS)
    files = {f"include/{name}": data for name, data in TEXTS.items()} | {"LICENSE": NOTICE}
    headers.write(tmp_path / "csrc" / headers.FOLDER, files)
    assert headers.for_extensions() == tmp_path / "csrc" / headers.FOLDER / "include" and not caplog.records
    (tmp_path / "csrc" / headers.FOLDER / "LICENSE").write_text("edited")
    assert headers.for_extensions() != tmp_path / "csrc" / headers.FOLDER / "include", "only the very files"


@pytest.mark.torch
def test_the_leak_is_in_the_text_of_the_headers_that_are_warned_of() -> None:
    """The defect: the copy that torch's conversion makes of a string argument is on the heap, and stays there."""
    for include in (place / "include" for place in headers.installed_torch()):
        release = headers._release_of(include)
        if release is not None and release >= STABLE_FLOOR:
            text = (include / "torch/csrc/stable/stableivalue_conversions.h").read_text()
            assert ("new std::string(data, length)" in text) is (release < headers.LEAK_FIXED)
