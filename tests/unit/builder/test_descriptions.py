"""The descriptions of kernel families: read strictly, the same in a checkout and in a wheel."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from precast._builder import catalogue, descriptions
from precast.errors import KernelError
from tests.kit import spawn

GOOD = """
[[public]]
families = ["half"]
ops = ["halve"]

[autocast]
ours = "dtype of `x`"
torch = "float32"

[family.half]
host = ["half/host.cpp"]
devices = ["cpu"]
ops = ["halve(Tensor x) -> Tensor"]
"""


@pytest.fixture
def csrc(tmp_path: Path) -> Path:
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "host.cpp").touch()
    (tmp_path / "half" / "family.toml").write_text(GOOD)
    return tmp_path


def test_a_description_becomes_a_folder(csrc: Path) -> None:
    (folder,) = catalogue.folders_of(descriptions.read(csrc))
    family = catalogue.Family("half", None, ("half/host.cpp",), (), ("halve(Tensor x) -> Tensor",), ("cpu",))
    assert folder == catalogue.Folder("half", (catalogue.Names(("half",), ("halve",)),), False, (family,))
    assert folder.public == ("halve",)


def test_a_wheel_has_the_same_in_one_file(checkout: Path) -> None:
    assert catalogue.folders_of(json.loads(descriptions.gathered(checkout / "csrc"))) == catalogue.FOLDERS


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("devices", "device_types", r"csrc/half/family\.toml\.family\.half: devices is missing"),
        ("[[public]]", "late = 1\n[[public]]", r"csrc/half/family\.toml\.late: needed bool, found 1"),
        ("[[public]]", "order = 3\n[[public]]", r"csrc/half/family\.toml: unknown keys: order"),
        ("ours", "mine", r"csrc/half/family\.toml\.autocast: ours is missing"),
        ("[autocast]", "[replaces.third]\n[autocast]", r"csrc/half/family\.toml\.replaces: third is no public"),
        (
            "[autocast]",
            "[replaces.halve]\ntf = 'x'\n[autocast]",
            r"csrc/half/family\.toml\.replaces\.halve: unknown keys: tf",
        ),
        ("[autocast]", "[loader]\n[autocast]", r"csrc/half/family\.toml: unknown keys: loader"),
        ("host.cpp", "gone.cpp", r"csrc/half/family\.toml\.family\.half: there is no half/gone\.cpp in csrc"),
        ('"cpu"', '"gpu"', r"csrc/half/family\.toml\.family\.half: there is no device 'gpu'"),
        (
            '[[public]]\nfamilies = ["half"]\nops = ["halve"]',
            'late = true\n[[public]]\nfamilies = ["half"]\nops = ["half"]',
            r"a folder with late = true cannot have a function of its own name",
        ),
        (
            'families = ["half"]',
            'families = ["whole"]',
            r"public names load the family 'whole', which no description has",
        ),
        (
            'ops = ["halve"]\n',
            "",
            r"public\[\['half'\]\]: needed .* public names in ops or optim or nn",
        ),
        ('ops = ["halve"]\n', 'ops = ["halve"]\nnn = ["halve"]\n', r"two descriptions have a public name 'halve'"),
    ],
)
def test_a_mistake_is_refused_with_its_place(csrc: Path, old: str, new: str, said: str) -> None:
    path = csrc / "half" / "family.toml"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(KernelError, match=said):
        descriptions.read(csrc)


@pytest.mark.parametrize(("old", "new", "what"), [("halve", "third", "family 'half'"), (".half", ".third", "'halve'")])
def test_a_name_that_two_folders_give_is_refused(csrc: Path, old: str, new: str, what: str) -> None:
    (csrc / "other").mkdir()
    (csrc / "other" / "family.toml").write_text(GOOD.replace(old, new))
    with pytest.raises(KernelError, match=f"two descriptions have a .*{what}"):
        descriptions.read(csrc)


def test_every_order_of_families_is_the_one_of_their_names(checkout: Path) -> None:
    names = [folder.name for folder in catalogue.FOLDERS]
    assert names == sorted(names) == sorted(path.parent.name for path in (checkout / "csrc").glob("*/family.toml"))


def test_without_tomli_an_error_says_what_to_install() -> None:
    code = """
import sys
sys.modules["tomli"] = sys.modules["tomllib"] = None
try:
    import precast._builder.catalogue
except Exception as error:
    print(error)
"""
    assert " install tomli" in spawn.python("-c", code).stdout
