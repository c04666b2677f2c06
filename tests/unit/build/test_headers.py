"""The pinned headers: taken from where they are equal, and refused where they are not."""

from __future__ import annotations

import hashlib
import http.server
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from precast._build import headers
from precast._build.headers import Pins
from precast.errors import KernelError

TEXTS = {"torch/a.h": b"// a\n", "torch/sub/b.h": b"// b\n" * 1000}
NOTICE = b"the licence\n"


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


PINS = Pins("2.15.0", {name: sha(data) for name, data in TEXTS.items()}, {"LICENSE": sha(NOTICE)})


def make_wheel(path: Path, texts: dict[str, bytes] = TEXTS) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("torch/lib/large.so", bytes(3_000_000), compress_type=zipfile.ZIP_STORED)
        for name, data in texts.items():
            wheel.writestr(f"torch/include/{name}", data)
        wheel.writestr("torch-2.15.0.dist-info/licenses/LICENSE", NOTICE)
    return path


@pytest.fixture
def served(tmp_path: Path) -> Iterator[SimpleNamespace]:
    """A server of one file that knows ranges, or not, and counts what it sends."""
    state = SimpleNamespace(path=tmp_path / "torch.whl", ranges=True, sent=0, url="")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = state.path.read_bytes()
            if state.ranges and "Range" in self.headers:
                first, last = (int(part) for part in self.headers["Range"].removeprefix("bytes=").split("-"))
                piece = data[first : last + 1]
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {first}-{first + len(piece) - 1}/{len(data)}")
            else:
                piece = data[:10]
                self.send_response(200)
            self.send_header("Content-Length", str(len(piece)))
            self.end_headers()
            self.wfile.write(piece)
            state.sent += len(piece)

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}/torch.whl"
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


def index_says(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setattr(headers, "_from_installed_torch", lambda pins: None)
    monkeypatch.setattr(headers, "find_wheel", lambda pins: url)


def test_headers_come_by_range_and_only_once(
    served: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(served.path)
    index_says(monkeypatch, served.url)
    include = headers.ensure_headers(tmp_path / "dest", PINS)
    assert {name: (include / name).read_bytes() for name in TEXTS} == TEXTS
    assert (tmp_path / "dest" / "LICENSE").read_bytes() == NOTICE
    assert served.sent < 1_000_000, "the large file was not read"
    monkeypatch.setattr(headers, "find_wheel", lambda pins: pytest.fail("asked again"))
    assert headers.ensure_headers(tmp_path / "dest", PINS) == include


def test_another_content_than_the_pinned_is_refused(
    served: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(served.path, {**TEXTS, "torch/a.h": b"// A\n"})
    index_says(monkeypatch, served.url)
    with pytest.raises(KernelError, match=r"include/torch/a\.h is not the file"):
        headers.ensure_headers(tmp_path / "dest", PINS)
    assert not (tmp_path / "dest").exists()


def test_a_server_without_ranges_is_named_without_its_password(
    served: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(served.path)
    served.ranges = False
    index_says(monkeypatch, served.url)
    with pytest.raises(KernelError, match="whole files only"):
        headers.ensure_headers(tmp_path / "dest", PINS)
    assert headers.without_secret("https://me:secret@index/torch.whl") == "https://index/torch.whl"


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
    monkeypatch.setattr(headers, "find_wheel", lambda pins: (_ for _ in ()).throw(KernelError("asked the index")))
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


def test_what_pip_says_is_passed_on() -> None:
    def pip(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "ERROR: No matching distribution found for torch==2.15.0")

    with pytest.raises(FileNotFoundError, match="No matching distribution"):
        headers.find_wheel("2.15.0", run=pip)


def test_without_an_index_the_error_says_what_brings_the_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere(torch: str) -> str:
        raise FileNotFoundError(f"No matching distribution found for torch=={torch}")

    monkeypatch.setattr(headers, "find_wheel", nowhere)
    with pytest.raises(KernelError, match="No matching distribution") as caught:
        headers.ensure_headers(tmp_path / "dest", PINS)
    assert "sdist" in str(caught.value)


def test_pip_is_asked_for_the_same_wheel_on_every_machine() -> None:
    asked: list[str] = []

    def pip(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.extend(command)
        report = {"install": [{"download_info": {"url": "https://index/torch.whl"}}]}
        Path(command[command.index("--report") + 1]).write_text(json.dumps(report))
        return subprocess.CompletedProcess(command, 0, "", "")

    assert headers.find_wheel("2.15.0", run=pip) == "https://index/torch.whl"
    assert "--dry-run" in asked and "torch==2.15.0" in asked and "--platform=manylinux_2_28_x86_64" in asked


def test_the_committed_pins_are_hashes_of_the_matrix_torch() -> None:
    pins = headers.load_pins()
    assert len(pins.headers) > 40 and pins.notices
    for digest in (*pins.headers.values(), *pins.notices.values()):
        assert len(digest) == 64 and int(digest, 16)


def test_pip_is_asked_away_from_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``-m`` looks there first: a pip.py, or a json.py, of somebody else would be run."""
    (tmp_path / "pip.py").write_text("raise SystemExit('code of the current directory was run')")
    monkeypatch.chdir(tmp_path)
    ran = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, text=True, check=False)
    assert "current directory was run" in ran.stderr, "the danger is real"

    def version_only(command: list[str], **how: object) -> subprocess.CompletedProcess[str]:
        again = [*command[:3], "--version"]
        done = subprocess.run(again, cwd=str(how["cwd"]), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return subprocess.CompletedProcess(command, 1, "", "enough")

    with pytest.raises(FileNotFoundError, match="enough"):
        headers.find_wheel(PINS.torch, run=version_only)


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
    from precast._build import host, sources
    from precast._build.cache import Cache

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
    threads = [
        threading.Thread(target=lambda: found.append(host.stable_headers_dir(Cache(tmp_path / "c")))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(asked) == 1 and len(found) == 8 and len(set(found)) == 1
    assert headers.complete(found[0].parent, PINS)
