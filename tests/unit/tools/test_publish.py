"""The way out of a release run: what goes where, and what stops each step. GitHub and the public index are made up."""

from __future__ import annotations

import functools
import hashlib
import http.client
import http.server
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from precast._builder import metadata
from precast._version import __version__
from tests.kit import spawn
from tools import __main__ as tools_main
from tools.shared import published, versions, wheelhouse
from tools.verbs import publish as publish_verb

TAG = f"v{__version__}"
SDIST = f"precast-{__version__}.tar.gz"
PLAIN = f"precast-{__version__}-py3-none-manylinux_2_28_x86_64.whl"
CU121 = f"precast-{__version__}+cu121-py3-none-manylinux_2_28_x86_64.whl"
GH = """#!/bin/sh
# What this project asks of gh, and no more: a list of releases in a file.
echo "$*" >> "$GH_STATE.calls"
case "$1 $2" in
    "release list") cat "$GH_STATE" ;;
    "release create") printf '[{"tagName": "%s", "isDraft": true}]' "$3" > "$GH_STATE" ;;
    "release edit") printf '[{"tagName": "%s", "isDraft": false}]' "$3" > "$GH_STATE" ;;
    "release upload") ;;
    *) exit 1 ;;
esac
"""


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A folder of finished files, as check-set passes it."""
    folder = tmp_path / "finished"
    for cell, name in (("sdist", SDIST), ("wheel-default-x86_64", PLAIN), ("wheel-cu121-x86_64", CU121)):
        made = tmp_path / name
        made.write_bytes(name.encode())
        wheelhouse.put(folder, cell, "key", made, 0.0)
    wheelhouse.clear_staging(folder)
    return folder


@pytest.fixture(autouse=True)
def addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The addresses of a release are set; this checkout may have none."""
    monkeypatch.setattr(metadata, "require_addresses", lambda root: None)


@pytest.fixture
def gh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for gh, and the file that holds its releases."""
    program = tmp_path / "bin" / "gh"
    program.parent.mkdir()
    program.write_text(GH)
    program.chmod(0o755)
    state = tmp_path / "releases"
    state.write_text("[]")
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.setenv("GH_STATE", str(state))
    return state


@pytest.fixture
def site(tmp_path: Path, finished: Path) -> Iterator[tuple[Path, str]]:
    """A published index with the finished files, and its address."""
    folder = tmp_path / "site"
    for place, name in (("precast", PLAIN), ("precast", SDIST), ("cu121/precast", CU121)):
        (folder / place).mkdir(parents=True, exist_ok=True)
        shutil.copy2(finished / name, folder / place)
    for page in (folder / "precast", folder / "cu121/precast"):
        files = [
            {
                "filename": path.name,
                "url": path.name.replace("+", "%2B"),
                "hashes": {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()},
            }
            for path in sorted(page.iterdir())
        ]
        meta = (
            {"api-version": "1.1", publish_verb.LABELS: ["cu121"]} if page.parent == folder else {"api-version": "1.1"}
        )
        (page / "index.json").write_text(json.dumps({"meta": meta, "files": files}))
    (folder / "docs").mkdir()
    (folder / "docs/1.0.zip").write_bytes(b"pages")
    entry = {"version": "1.0", "properties": {"sha256": hashlib.sha256(b"pages").hexdigest()}}
    (folder / "docs/versions.json").write_text(json.dumps([entry]))

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def publish(*arguments: object) -> int:
    return tools_main.main(["publish", *map(str, arguments)])


def test_pypi_takes_what_has_no_label(finished: Path, tmp_path: Path) -> None:
    assert publish("stage", finished, "--out", tmp_path / "pypi") == 0
    assert sorted(path.name for path in (tmp_path / "pypi").iterdir()) == sorted([PLAIN, SDIST])


def test_a_release_that_tells_nobody_where_to_report_is_refused(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()  # of the addresses
    monkeypatch.setattr(publish_verb, "ROOT", tmp_path)
    for written, missing in (
        ('repository = ""\nsecurity = ""', 'repository = "", security = ""'),
        ('repository = "https://host/us/x"\nsecurity = ""', 'found   security = ""'),
    ):
        (tmp_path / "pyproject.toml").write_text(f"[tool.precast]\n{written}\n")
        assert publish("draft", finished, "--tag", TAG) == 1
        assert missing in capsys.readouterr().err


def test_a_release_is_a_draft_first(finished: Path, gh: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert publish("open", "--tag", TAG) == 1
    assert f"{TAG} has no draft" in capsys.readouterr().err
    assert publish("draft", finished, "--tag", TAG) == 0
    assert json.loads(gh.read_text()) == [{"tagName": TAG, "isDraft": True}]
    created = gh.with_name("releases.calls").read_text().splitlines()[-1]
    assert "--draft --verify-tag" in created and all(name in created for name in (PLAIN, CU121, SDIST, "SHA256SUMS"))
    sums = (finished / "SHA256SUMS").read_text().splitlines()
    assert f"{hashlib.sha256(CU121.encode()).hexdigest()}  {CU121}" in sums and len(sums) == 3
    assert publish("draft", finished, "--tag", TAG) == 0, "a second try fills the same draft"
    assert "release upload" in gh.with_name("releases.calls").read_text()
    assert publish("open", "--tag", TAG) == publish("open", "--tag", TAG) == 0
    assert capsys.readouterr().out.endswith(f"{TAG}: public\n{TAG}: public already\n")
    assert publish("draft", finished, "--tag", TAG) == 1
    assert "is public already" in capsys.readouterr().err


@pytest.mark.parametrize("step", ["stage", "draft"])
def test_a_file_that_changed_is_refused(
    step: str, finished: Path, tmp_path: Path, gh: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (finished / CU121).write_bytes(b"other")
    assert publish(step, finished, *(["--tag", TAG] if step == "draft" else ["--out", tmp_path / "pypi"])) == 1
    assert f"{CU121}: sha256 " in capsys.readouterr().err
    assert not (tmp_path / "pypi").exists() and json.loads(gh.read_text()) == []


def test_what_cannot_be_a_release_is_refused(
    finished: Path, tmp_path: Path, gh: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert publish("draft", finished, "--tag", "v99") == 1
    assert "the tag is 'v99', and this is version" in capsys.readouterr().err
    assert publish("stage", tmp_path / "bin", "--out", tmp_path / "pypi") == 1
    assert "no finished files" in capsys.readouterr().err
    (finished / "sdist.json").unlink()
    assert publish("stage", finished, "--out", tmp_path / "pypi") == 1
    assert "no sdist" in capsys.readouterr().err
    (tmp_path / "pypi").mkdir()
    assert publish("stage", finished, "--out", tmp_path / "pypi") == 1
    assert "is there already" in capsys.readouterr().err
    gh.unlink()
    assert publish("draft", finished, "--tag", TAG) == 1
    assert "gh release list failed" in capsys.readouterr().err


def test_the_way_out_needs_python_alone(finished: Path, gh: Path, checkout: Path) -> None:
    """Jobs that may write install nothing."""
    for arguments in (["draft", str(finished)], ["open"]):
        lent = "import sys; sys.path.insert(0, 'pkg'); import tools.__main__ as tools; "
        lent += "from precast._builder import metadata; "
        lent += "metadata.require_addresses = lambda root: None; sys.exit(tools.main(sys.argv[1:]))"
        spawn.python("-S", "-c", lent, "publish", *arguments, "--tag", TAG, cwd=checkout)
    assert json.loads(gh.read_text()) == [{"tagName": TAG, "isDraft": False}]


def test_the_pages_of_the_index_are_read_as_they_are_written() -> None:
    assert publish_verb.LABELS == published.LABELS and publish_verb.PROJECT == published.PROJECT


def test_without_githubs_program_it_says_so(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert publish("draft", finished, "--tag", TAG) == 1
    assert "gh is not on PATH" in capsys.readouterr().err


def test_the_public_index_is_copied_whole(site: tuple[Path, str], tmp_path: Path) -> None:
    folder, address = site
    assert publish("previous", "--index", address, "--out", tmp_path / "previous") == 0
    wanted = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    found = tmp_path / "previous"
    assert {path.relative_to(found): path.read_bytes() for path in found.rglob("*") if path.is_file()} == wanted


def test_before_the_first_release_there_is_an_empty_index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert publish("previous", "--index", "none", "--out", tmp_path / "previous") == 0
    assert json.loads((tmp_path / "previous/precast/index.json").read_text()) == {"files": []}
    assert versions.read(tmp_path / "previous/docs") == {}
    assert publish("previous", "--index", "", "--out", tmp_path / "other") == 1
    assert "the address of the index is ''" in capsys.readouterr().err


def test_a_public_index_that_is_not_whole_is_refused(
    site: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, address = site
    (folder / "cu121/precast" / CU121).write_bytes(b"other")
    assert publish("previous", "--index", address, "--out", tmp_path / "a") == 1
    assert f"{CU121}: sha256 " in capsys.readouterr().err
    (folder / "cu121/precast" / CU121).unlink()
    assert publish("previous", "--index", address, "--out", tmp_path / "b") == 1
    assert "404" in capsys.readouterr().err
    (folder / "cu121/precast/index.json").unlink()
    assert publish("previous", "--index", address, "--out", tmp_path / "e") == 1
    assert "/cu121/precast/index.json: HTTP Error 404" in capsys.readouterr().err
    (folder / "precast/index.json").write_text('{"meta": {"_labels": ["../.."]}, "files": []}')
    assert publish("previous", "--index", address, "--out", tmp_path / "f") == 1
    assert "its labels are no labels: ../.." in capsys.readouterr().err
    (folder / "precast/index.json").write_text('{"files": [{"filename": "a", "url": "../../a", "hashes": {}}]}')
    assert publish("previous", "--index", address, "--out", tmp_path / "c") == 1
    assert "must lie beside it, found ../../a" in capsys.readouterr().err
    (folder / "precast/index.json").unlink()
    assert publish("previous", "--index", address, "--out", tmp_path / "d") == 1
    assert "/precast/index.json: HTTP Error 404" in capsys.readouterr().err


def test_a_step_that_fails_leaves_nothing_and_can_be_repeated(
    site: tuple[Path, str], finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, address = site
    out, wheel, content = tmp_path / "out", folder / "cu121/precast" / CU121, CU121.encode()
    for step in (("previous", "--index", address), ("fetch", finished, "--index", address), ("stage", finished)):
        wheel.unlink()
        (finished / CU121).unlink()
        assert publish(*step, "--out", out) == 1
        assert "cu121-py3-none" in capsys.readouterr().err
        assert not out.exists() and not list(tmp_path.glob(".out.*"))
        wheel.write_bytes(content)
        (finished / CU121).write_bytes(content)
        assert publish(*step, "--out", out) == 0
        shutil.rmtree(out)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_step_that_is_cancelled_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    # A shell's background job has SIGINT ignored, and hands that on.
    code = (
        "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "runpy.run_module('tools', run_name='__main__')"
    )
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        words = ("publish", "previous", "--index", address, "--out", tmp_path / "out")
        env = spawn.environ(PYTHONPATH=spawn.search_path(spawn.CHECKOUT))
        with spawn.started(sys.executable, "-c", code, *words, env=env, stderr=subprocess.PIPE) as step:
            spawn.wait_for(lambda: list(tmp_path.iterdir()))
            time.sleep(0.2)
            step.send_signal(number)
            said = step.communicate(timeout=30)[1]
    assert step.returncode == 128 + number and not list(tmp_path.iterdir()) and not said


def test_an_answer_that_ends_early_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def ends(url: str, timeout: float) -> None:
        raise http.client.IncompleteRead(b"half")

    monkeypatch.setattr(publish_verb.urllib.request, "urlopen", ends)
    assert publish("previous", "--index", "http://127.0.0.1:1", "--out", Path("nowhere")) == 1
    assert "index.json: IncompleteRead" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("listed", "says"),
    [
        ('[{"version": "1.0", "properties": {"sha256": "0"}}]', "docs/1.0.zip: sha256 "),
        ('[{"version": "1.1", "properties": {"sha256": "0"}}]', "/docs/1.1.zip: HTTP Error 404"),
        ('[{"version": "../1.0", "properties": {"sha256": "0"}}]', "'../1.0' is not a version"),
        ("[1]", "docs/versions.json: not the list of a documentation"),
        ("", "docs/versions.json: not the list of a documentation"),
    ],
)
def test_documentation_that_is_not_whole_is_refused(
    listed: str, says: str, site: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, address = site
    (folder / "docs/versions.json").write_text(listed)
    assert publish("previous", "--index", address, "--out", tmp_path / "out") == 1
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("../x.whl", "../x.whl"),
        ("..", ".."),
        ("/x.whl", "/x.whl"),
        ("a/x.whl", "a/x.whl"),
        ("../x.whl", "..%2Fx.whl"),
        (".x.whl", ".x.whl"),
        ("index.json", "index.json"),
        ("x.whl", "y.whl"),
        ("x+1.whl", "x+1.whl"),
        ("", ""),
    ],
)
def test_a_page_cannot_say_where_a_file_is_written(
    name: str, url: str, site: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the page names is there to be had, with the right hash, so that nothing else stops it."""
    folder, address = site
    sha256 = hashlib.sha256(b"taken").hexdigest()
    for place in (folder / "precast" / "x.whl", folder / "x.whl", folder / "precast" / ".x.whl"):
        place.write_bytes(b"taken")
    page = {"files": [{"filename": name, "url": url, "hashes": {"sha256": sha256}}]}
    (folder / "precast/index.json").write_text(json.dumps(page))
    assert publish("previous", "--index", address, "--out", tmp_path / "deep" / "out") == 1
    assert "its files must lie beside it" in capsys.readouterr().err
    assert not [path for path in (tmp_path / "deep").rglob("*") if path.is_file() and path.name != "index.json"]


@pytest.mark.parametrize("labels", [["cu121", "../.."], ["../..", "cu121"], ["cu121", ""], ["cu 121"]])
def test_one_bad_label_among_good_ones_is_refused(
    labels: list[str], site: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, address = site
    page = json.loads((folder / "precast/index.json").read_text())
    page["meta"][publish_verb.LABELS] = labels
    (folder / "precast/index.json").write_text(json.dumps(page))
    assert publish("previous", "--index", address, "--out", tmp_path / "out") == 1
    assert "its labels are no labels" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_what_is_public_is_compared_with_what_was_made(
    finished: Path, site: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, address = site
    assert publish("fetch", finished, "--index", address, "--out", tmp_path / "fetched") == 0
    assert sorted(path.name for path in (tmp_path / "fetched").iterdir()) == sorted([PLAIN, CU121])
    (folder / "cu121/precast" / CU121).write_bytes(b"other")
    assert publish("fetch", finished, "--index", address, "--out", tmp_path / "again") == 1
    assert "and this release has" in capsys.readouterr().err
