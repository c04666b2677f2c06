"""What real pip and real uv take from the index, row by row of the install guide, over HTTP, with made-up wheels."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

import pytest

from tests.kit.loopback import served
from tests.kit.wheels import make_wheel
from tools.verbs import index

from .conftest import CHECKOUT

pytestmark = pytest.mark.wheel

GUIDE = (CHECKOUT / "docs/guides/install.md").read_text()
TABLES = (CHECKOUT / "tests/wheel/RESOLVE.md").read_text()
REQUIRES = ("torch>=2.4.1", "ninja")
LABELS = ("", "cu121", "cu130")
# What would send an installer somewhere else than to the two servers here.
_FOREIGN = ("PIP_", "UV_", "VIRTUAL_ENV", "PYTHONPATH")


def rows(heading: str) -> list[tuple[str, str, str, str]]:
    """The table after a line: what is asked for, with what, what pip installs, what uv does."""
    _, found, rest = TABLES.partition(heading)
    assert found, heading
    table = rest.partition("| --- | --- | --- | --- |\n")[2].partition("\n\n")[0]
    cells = [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return [(asked, words, pip, uv) for asked, words, pip, uv in cells]


EMPTY = rows("What an installer makes of that, from an empty environment")
WITH_TORCH = rows("Where torch and ninja are installed already")


@dataclass(frozen=True)
class World:
    """Two indexes, PyPI's and ours, an empty environment, and one that has torch and ninja."""

    pypi: str
    index: str
    asked: list[str]
    empty: Path
    with_torch: Path
    uv: str
    work: Path

    def environment(self, **more: str) -> dict[str, str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
        env |= {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": f"{self.pypi}/", "PIP_NO_CACHE_DIR": "1"}
        env |= {"UV_NO_CONFIG": "1", "UV_INDEX_URL": f"{self.pypi}/", "UV_NO_CACHE": "1", "INDEX": self.index}
        return env | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "UV_PYTHON_DOWNLOADS": "never", **more}

    def run(self, *command: object, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        words = list(map(str, command))
        env = self.environment(**env)
        folder = cwd or self.work
        return subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True, timeout=300, check=False)

    def pip(self, *words: object, python: Path | None = None) -> str:
        """The version of precast that pip would install; "refused" and why."""
        done = self.run(*self.pip_in(python or self.empty), "-q", "--report", "-", *words)
        if done.returncode:
            return f"refused: {done.stderr}"
        found = {
            entry["metadata"]["name"]: entry["metadata"]["version"] for entry in json.loads(done.stdout)["install"]
        }
        return str(found["precast"])

    def pip_in(self, environment: Path) -> list[str]:
        """A dry run of this environment's pip, in another environment: the option --python would start Python twice."""
        lend = f"import sys; sys.path.append({str(self.work / 'lent')!r}); from pip._internal.cli.main import main; "
        return [f"{environment}/bin/python", "-c", f"{lend}sys.exit(main(sys.argv[1:]))", "install", "--dry-run"]

    def uv_pip(self, *words: object, python: Path | None = None) -> str:
        """The same for uv."""
        done = self.run(self.uv, "pip", "install", "--dry-run", "--python", python or self.empty, *words)
        found = re.search(r"^ \+ precast==(\S+)$", done.stderr, re.MULTILINE)
        return f"refused: {done.stderr}" if done.returncode or found is None else found[1]

    def uv_project(self, asked: str, folder: Path) -> str:
        """What uv locks for the project of the guide, with another requirement."""
        (project,) = re.findall(r"^```toml\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
        text = project.replace("precast==$VERSION+cu129", asked).replace("$INDEX/cu129/", f"{self.index}/cu121/")
        (folder / "pyproject.toml").write_text(text)
        done = self.run(self.uv, "lock", "--python", sys.executable, cwd=folder)
        assert done.returncode == 0, done.stderr
        entry = r'^name = "(.+)"\nversion = "(.+)"\nsource = { registry = "(.+)" }$'
        locked = {name: found for name, *found in re.findall(entry, (folder / "uv.lock").read_text(), re.MULTILINE)}
        assert locked["torch"] == ["2.13.0", f"{self.pypi}/"]
        version, source = locked["precast"]
        assert source == f"{self.index}/cu121/"
        return str(version)


def flat_index(folder: Path) -> None:
    """Pages for the wheels of a folder, one project a folder, as a normal index has them."""
    for project in folder.iterdir():
        names = sorted(path.name for path in project.glob("*.whl"))
        links = [f'<a href="{escape(name.replace("+", "%2B"))}">{escape(name)}</a>' for name in names]
        (project / "index.html").write_text(f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>")


def our_index(folder: Path) -> Path:
    """Three releases, one after the other: 0.9, which is yanked, 1.0, and a candidate for 1.1."""
    for version in ("0.9", "1.0", "1.1rc1"):
        house = folder / version
        for label in LABELS:
            make_wheel(house, version=f"{version}+{label}" if label else version, requires=REQUIRES)
        yanks = folder / "yanked.toml"
        yanks.write_text('[yanked]\n"0.9" = "wrong numbers on odd sizes"\n')
        words = [str(house), "--out", str(folder / "site"), "--version", version, "--yanked", str(yanks)]
        assert index.main(words) == 0
    return folder / "site"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, uv: str) -> Iterator[World]:
    work = tmp_path_factory.mktemp("resolve")
    (work / "lent").mkdir()
    # Not `import pip`: where setuptools is imported already, its hook for that import warns.
    (work / "lent" / "pip").symlink_to(str(importlib.metadata.distribution("pip").locate_file("pip")))
    pypi = work / "pypi"
    for name, version in (("torch", "2.13.0"), ("ninja", "1.13.2")):
        make_wheel(pypi / name, name=name, version=version, tag="py3-none-any")
    for version in ("1.0", "1.1rc1"):
        make_wheel(pypi / "precast", version=version, requires=REQUIRES)
    flat_index(pypi)
    with contextlib.ExitStack() as stack:
        normal, _ = stack.enter_context(served(pypi))
        ours, asked = stack.enter_context(served(our_index(work)))
        found = World(normal, ours, asked, work / "empty", work / "with_torch", uv, work)
        for folder in (found.empty, found.with_torch):
            done = found.run(uv, "venv", "-q", "--python", sys.executable, folder)
            assert done.returncode == 0, done.stderr
        done = found.run(uv, "pip", "install", "-q", "--python", found.with_torch, "torch", "ninja")
        assert done.returncode == 0, done.stderr
        yield found


def filled(text: str, world: World) -> list[str]:
    return shlex.split(text.replace("$INDEX", world.index))


def agrees(found: str, wanted: str) -> bool:
    return found.startswith("refused") if wanted == "refused" else found == wanted.replace("X", "1.0")


@pytest.mark.parametrize(("asked", "words", "by_pip", "by_uv"), EMPTY)
def test_from_an_empty_environment(
    world: World, tmp_path: Path, asked: str, words: str, by_pip: str, by_uv: str
) -> None:
    requirement = asked.replace("X", "1.0")
    if words == "explicit":
        assert not by_pip and world.uv_project(requirement, tmp_path) == by_uv.replace("X", "1.0")
        return
    found = (world.pip(requirement, *filled(words, world)), world.uv_pip(requirement, *filled(words, world)))
    assert agrees(found[0], by_pip) and agrees(found[1], by_uv), found


@pytest.mark.parametrize(("asked", "words", "by_pip", "by_uv"), WITH_TORCH)
def test_where_torch_is_present(world: World, asked: str, words: str, by_pip: str, by_uv: str) -> None:
    line = [asked.replace("X", "1.0"), *filled(words, world)]
    found = (world.pip(*line, python=world.with_torch), world.uv_pip(*line, python=world.with_torch))
    assert agrees(found[0], by_pip) and agrees(found[1], by_uv), found


def test_what_is_refused_is_refused_for_the_right_reason(world: World) -> None:
    extra = ["--extra-index-url", f"{world.index}/cu130/"]
    assert "No matching distribution found for precast==1.0+cu121" in world.pip("precast==1.0+cu121", *extra)
    assert "there is no version of precast==1.0+cu121" in world.uv_pip("precast==1.0+cu121", *extra)
    alone = ["precast==1.0+cu121", "--index-url", f"{world.index}/cu121/"]
    assert "No matching distribution found for torch>=2.4.1" in world.pip(*alone)
    assert "torch was not found in the package registry" in world.uv_pip(*alone)


def test_when_pypi_is_ahead(world: World, tmp_path: Path) -> None:
    for name in ("torch", "ninja"):
        make_wheel(tmp_path / name, name=name, version="2.13.0", tag="py3-none-any")
    make_wheel(tmp_path / "precast", version="1.0.post1", requires=REQUIRES)
    flat_index(tmp_path)
    extra = ["precast", "--extra-index-url", f"{world.index}/cu121/"]
    with served(tmp_path) as (ahead, _):
        assert world.pip(*extra, "--index-url", f"{ahead}/") == "1.0.post1"
        assert world.uv_pip(*extra, "--default-index", f"{ahead}/") == "1.0+cu121"


def test_a_candidate_is_taken_when_it_is_asked_for(world: World) -> None:
    extra = ["--extra-index-url", f"{world.index}/cu121/"]
    assert world.pip("precast==1.1rc1+cu121", *extra) == world.uv_pip("precast==1.1rc1+cu121", *extra) == "1.1rc1+cu121"
    assert world.pip("--pre", "precast", *extra) == "1.1rc1+cu121"
    assert world.uv_pip("--prerelease", "allow", "precast", *extra) == "1.1rc1+cu121"


def test_a_yanked_release_is_passed_over_unless_it_is_named(world: World) -> None:
    extra = ["--extra-index-url", f"{world.index}/cu121/"]
    assert world.pip("precast<1.0", *extra).startswith("refused")
    assert "yanked" in world.uv_pip("precast<1.0", *extra)
    done = world.run(*world.pip_in(world.empty), "precast==0.9+cu121", *extra)
    assert "Would install" in done.stdout and "wrong numbers on odd sizes" in done.stderr
    done = world.run(world.uv, "pip", "install", "--dry-run", "--python", world.empty, "precast==0.9+cu121", *extra)
    assert " + precast==0.9+cu121" in done.stderr and "wrong numbers on odd sizes" in done.stderr


def test_resolving_asks_for_the_metadata_and_not_for_the_wheel(world: World) -> None:
    before = len(world.asked)
    assert world.uv_pip("precast==1.0+cu121", "--extra-index-url", f"{world.index}/cu121/") == "1.0+cu121"
    asked = world.asked[before:]
    assert [path for path in asked if path.endswith(".whl.metadata")]
    assert not [path for path in asked if path.endswith(".whl")]


def test_a_python_that_is_too_old_is_not_served(world: World) -> None:
    extra = ["--extra-index-url", f"{world.index}/cu121/"]
    refused = world.pip("precast==1.0+cu121", *extra, "--python-version", "3.9", "--only-binary=:all:", "--target", "x")
    assert "require a different python version" in refused


def test_json_says_what_html_says(world: World) -> None:
    with served(world.work / "site", json=True) as (address, asked):
        for wanted, words in (("1.0", f"{address}/"), ("1.0+cu130", f"{address}/cu130/")):
            assert world.pip("precast==1.0", "--extra-index-url", words) == wanted
            assert world.uv_pip("precast==1.0", "--extra-index-url", words) == wanted
    assert [path for path in asked if path.endswith(".whl.metadata")]


def test_hash_checking_mode(world: World, tmp_path: Path) -> None:
    def line(name: str, path: Path) -> str:
        return f"{name} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"

    (ours,) = (world.work / "site/cu121/precast").glob("precast-1.0+*.whl")
    others = {path.name.split("-")[0]: path for path in world.work.glob("pypi/[tn]*/*.whl")}
    right, wrong, bare = tmp_path / "right.txt", tmp_path / "wrong.txt", tmp_path / "bare.txt"
    good = line("torch==2.13.0", others["torch"]) + line("ninja==1.13.2", others["ninja"])
    right.write_text(good + line("precast==1.0+cu121", ours))
    wrong.write_text(good + f"precast==1.0+cu121 --hash=sha256:{'0' * 64}\n")
    bare.write_text(good + line("precast==1.0", ours))
    extra = ["--require-hashes", "--extra-index-url", f"{world.index}/cu121/"]
    with_pip = [sys.executable, "-m", "pip", "install", "-q", "--target"]
    with_uv = [world.uv, "pip", "install", "--python", sys.executable, "--target"]
    for number, installer in enumerate((with_pip, with_uv)):
        target = tmp_path / f"site{number}"
        done = world.run(*installer, target, *extra, "-r", right)
        assert done.returncode == 0, done.stderr
        assert (target / "precast-1.0+cu121.dist-info").is_dir()
        done = world.run(*installer, tmp_path / f"no{number}", *extra, "-r", wrong)
        assert done.returncode and re.search(r"hash", done.stderr, re.IGNORECASE), done.stderr
        assert not (tmp_path / f"no{number}" / "precast").exists()
        done = world.run(*installer, tmp_path / f"bare{number}", *extra, "-r", bare)
        assert (done.returncode == 0) == (installer is with_pip), "without the label only pip takes the wheel with one"


def test_other_bytes_than_the_page_promises_are_refused(world: World, tmp_path: Path) -> None:
    """The hash on the link protects those who check no hashes themselves."""
    path = next((world.work / "site/cu130/precast").glob("precast-1.0+*.whl"))
    honest = path.read_bytes()
    path.write_bytes(honest + b"\0")
    try:
        extra = ["--no-deps", "precast==1.0+cu130", "--extra-index-url", f"{world.index}/cu130/"]
        done = world.run(sys.executable, "-m", "pip", "install", "-q", "--target", tmp_path / "pip", *extra)
        assert done.returncode and "DO NOT MATCH THE HASHES" in done.stderr
        done = world.run(world.uv, "pip", "install", "--python", sys.executable, "--target", tmp_path / "uv", *extra)
        assert done.returncode and "Hash mismatch" in done.stderr
    finally:
        path.write_bytes(honest)
