"""The workflow for other repositories, run by act on a package that ``precast.build init`` made; and on a laptop."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
import yaml

from precast._abi.settings import Settings
from precast._builder.roots import default_root
from precast.build import scaffold, wheels
from tests.kit import spawn
from tests.workflows import act

CALLER = act.ROOT / "examples" / "wheels.yml"
NAME = "triangle_wave"
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


def caller(text: str) -> str:
    """The workflow that ``init`` writes, for this Python and the workflow and precast of this checkout."""
    for old, new in (
        ("OWNER/precast/.github", "./.github"),
        ("@" + "0" * 40 + " # v1.0.0", ""),
        ('"3.12"', f'"{HERE}"'),
        ("workflows/wheels.yml", "workflows/_wheels.yml"),
        (f"precast @ https://github.com/OWNER/precast/archive/{'0' * 40}.zip", "precast"),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text


def test_the_example_is_what_init_writes() -> None:
    written = scaffold.files(NAME, cpp=True, cuda=False, triton=False)[".github/workflows/wheels.yml"]
    example = CALLER.read_text(encoding="utf-8")
    assert written.partition("name: wheels")[2] == example.partition("name: wheels")[2]


@pytest.mark.parametrize("kind", ["cpp", "cuda", "triton"])
def test_each_kind_of_package_has_what_a_published_one_has(kind: str) -> None:
    found = scaffold.files(NAME, **{one: one == kind for one in ("cpp", "cuda", "triton")})
    assert {"README.md", "LICENSE", f"{NAME}/py.typed", ".github/workflows/wheels.yml"} <= found.keys()
    assert not [where for where, text in found.items() if re.search(r"(?<![\w$])@[a-z]+@", text)], "a word was left"
    jobs = yaml.safe_load(found[".github/workflows/wheels.yml"])["jobs"]
    assert list(jobs) == ["wheels", "publish"] and ("uses" in jobs["wheels"]) is (kind != "triton")
    assert f'"{NAME}" = ["py.typed"]' in found["pyproject.toml"] and 'license = "MIT"' in found["pyproject.toml"]


@pytest.fixture
def work(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository that is not this one, and an index with the precast of this checkout."""
    spawn.python("-m", "precast.build", "init", NAME, f"--{kind}", cwd=tmp_path)
    repository = (tmp_path / NAME).rename(tmp_path / "repository")
    folder = repository / ".github" / "workflows"
    if kind == "triton":
        act.commit(repository)
        return tmp_path
    text = (folder / "wheels.yml").read_text(encoding="utf-8")
    (folder / "wheels.yml").write_text(caller(text), encoding="utf-8")
    ours = (act.ROOT / ".github" / "workflows" / "wheels.yml").read_text(encoding="utf-8")
    ours = re.sub(r"^ +container: .*\n", "", ours, flags=re.MULTILINE)  # all jobs run on this machine
    (folder / "_wheels.yml").write_text(
        re.sub(r"^( +)strategy:\n", r"\g<0>\1  max-parallel: 1\n", ours, flags=re.MULTILINE)
    )
    act.commit(repository)
    source = act.copy_of(
        act.ROOT,
        tmp_path / "source",
        r"pkg/|csrc/|matrix\.toml|pyproject\.toml|setup\.py|README\.md|LICENSE|MANIFEST\.in",
    )
    spawn.python("-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path / "links", source)
    links = [str(tmp_path / "links"), *os.environ.get("PIP_FIND_LINKS", "").split()]
    monkeypatch.setenv("PIP_FIND_LINKS", " ".join(links))
    # The environments of torches are kept where other tests find them too.
    torches = default_root(Settings.from_env(os.environ)) / "torches"
    torches.mkdir(parents=True, exist_ok=True)
    (tmp_path / "builds").mkdir()
    (tmp_path / "builds" / "torches").symlink_to(torches)
    return tmp_path


@pytest.mark.long
@pytest.mark.act
@pytest.mark.torch
@pytest.mark.compiler
@pytest.mark.wheel
@pytest.mark.parametrize("kind", ["cpp", "cuda", "triton"])
def test_a_package_of_another_repository_becomes_wheels(work: Path, kind: str) -> None:
    ran = act.run("wheels.yml", work, event="push", payload={"ref": "refs/tags/v1.0"})
    assert ran.status == 0, ran.log
    assert set(ran.results("")) == {"success"}
    assert [line.split()[0] for line in ran.published] == ["gh-action-pypi-publish"]
    if kind == "triton":
        (wheel,) = (ran.store / "artifacts" / "wheels").glob("*.whl")
        assert wheel.name == f"{NAME}-1.0-py3-none-any.whl"
        return
    assert len(ran.results("test-torch2.1")) == 2 and len(ran.results("torch2.1")) == 4
    (wheel,) = (ran.store / "artifacts" / "wheels").glob("*.whl")
    assert wheel.name.startswith(f"{NAME}-1.0-") and "-manylinux_2_" in wheel.name
    assert len(list((ran.store / "artifacts").glob("part-*/*.whl"))) == 2
    # The same on a laptop: the wheel is that of the workflow, byte for byte.
    environment = spawn.environ(PRECAST_CACHE_DIR=work / "builds", PRECAST_CUDA_ARCH_LIST="8.0 9.0+PTX")
    how = {"env": environment, "cwd": work, "timeout": 1200}
    build = ("-m", "precast.build")
    spawn.python(*build, "wheels", "repository", "--torch", "2.13,2.14", "-o", "dist", **how)
    spawn.python(*build, "guard", *(work / "dist").glob("*.whl"), "-o", "out", "--manylinux", **how)
    assert (work / "out" / wheel.name).read_bytes() == wheel.read_bytes()


def test_the_plan_is_a_matrix_of_jobs(tmp_path: Path) -> None:
    (tmp_path / "setup.py").touch()
    arguments = [str(tmp_path), "--torch", "2.13,2.14", "--cuda", "cu130", "--plan", "--python", "3.11, 3.12"]
    assert wheels.main([*arguments, "--outputs", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out").read_text()
    assert text.startswith('matrix={"include": [{"name": "torch2.13.0-cu130-python3.11", "python": "3.11", ')
    assert text.count('"cuda": "cu130"') == 4 and text.endswith("\n")
    assert wheels.IMAGE in (act.ROOT / "matrix.toml").read_text(), "the image of precast's own wheels"


def test_no_default_installs_precast_by_its_name() -> None:
    """Nobody has reserved the name on a public index: whoever does would run in every repository that has a default."""
    for path in (*(act.ROOT / ".github" / "workflows").glob("*.yml"), CALLER):
        for line in path.read_text(encoding="utf-8").splitlines():
            assert not re.search(r"pip install\b.*\sprecast(?![\w./@-])", line), f"{path.name}: {line}"
            assert not re.search(r"precast:.*default: *[\"']?precast", line), f"{path.name}: {line}"
