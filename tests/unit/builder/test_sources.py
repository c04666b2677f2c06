"""Finding sources and what they reach."""

from __future__ import annotations

from pathlib import Path

import pytest

from precast._builder import catalogue, sources
from precast._builder.sources import Tree
from precast.errors import KernelError


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    for name, text in {
        "csrc/host/api.cpp": '#include <stdio.h>\n#include "a.h"\n',
        "csrc/host/a.h": '#pragma once\n  #  include "../family/b.h"\n#include <torch/t.h>\n',
        "csrc/family/b.h": '#include "b.h"\n// #include "not_there.h"\n',
        "csrc/family/other.h": "",
        "include/torch/t.h": "#include <torch/u.h>\n",
        "include/torch/u.h": "",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Tree({"csrc": tmp_path / "csrc", "torch_stable": tmp_path / "include"})


def test_the_closure_follows_includes_beside_the_file_and_in_the_roots(tree: Tree) -> None:
    names = [file.name for file in tree.reachable(["csrc/host/api.cpp"])]
    assert names == [
        "csrc/family/b.h",
        "csrc/host/a.h",
        "csrc/host/api.cpp",
        "torch_stable/torch/t.h",
        "torch_stable/torch/u.h",
    ]


def test_an_include_above_the_root_is_not_followed(tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "secret.h").write_text("")
    assert tree.resolve("csrc/host/api.cpp", "../../secret.h") is None


def test_a_digest_changes_with_content_and_name_only(tree: Tree, tmp_path: Path) -> None:
    before = sources.digest_of(tree.reachable(["csrc/host/api.cpp"]))
    (tmp_path / "csrc/family/other.h").write_text("// not reached")
    (tmp_path / "csrc/host/a.h").touch()
    assert sources.digest_of(Tree(tree.roots).reachable(["csrc/host/api.cpp"])) == before
    (tmp_path / "csrc/family/b.h").write_text("// reached")
    assert sources.digest_of(Tree(tree.roots).reachable(["csrc/host/api.cpp"])) != before


def test_the_installed_copy_comes_before_the_checkout(tmp_path: Path) -> None:
    for folder in ("installed", "checkout"):
        (tmp_path / folder / "host").mkdir(parents=True)
    (tmp_path / "checkout" / sources.MARKER).write_text("")
    places = [tmp_path / "installed", tmp_path / "checkout"]
    assert sources.csrc_dir(places) == tmp_path / "checkout", "a folder without the marker is somebody else's"
    (tmp_path / "installed" / sources.MARKER).write_text("")
    assert sources.csrc_dir(places) == tmp_path / "installed"


def test_missing_sources_are_named(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=f"{tmp_path}"):
        sources.csrc_dir([tmp_path])
    with pytest.raises(KernelError, match=r"csrc/gone\.cpp"):
        Tree({"csrc": tmp_path}).reachable(["csrc/gone.cpp"])


def test_the_catalogue_names_files_that_are_there(checkout: Path) -> None:
    for name in (*catalogue.COMMON_HOST, *(source for family in catalogue.FAMILIES for source in family.sources)):
        assert (checkout / "csrc" / name).is_file(), name


def test_an_unknown_family_lists_the_known_ones() -> None:
    assert catalogue.get("rms_norm").name == "rms_norm"
    with pytest.raises(KeyError, match=r"cpu_adam, .*rms_norm"):
        catalogue.get("rmsnorm")
