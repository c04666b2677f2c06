"""A value behaves as the standard library's frozen dataclass of the same fields."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from precast.core.value import Words, value


@value(frozen=True, order=True)
class Ours:
    """Two fields, the second with a default."""

    name: str
    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"count is {self.count}")


@dataclasses.dataclass(frozen=True, order=True)
class Theirs:
    """The same, made by the standard library."""

    name: str
    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"count is {self.count}")


@value(frozen=True)
class Other:
    """Equal to ``Ours`` in its fields alone."""

    name: str
    count: int = 1


def test_it_is_made_shown_and_taken_apart_like_a_dataclass() -> None:
    for make in (lambda cls: cls("a"), lambda cls: cls(count=2, name="a"), lambda cls: cls("a", count=2)):
        ours, theirs = make(Ours), make(Theirs)
        assert repr(ours) == repr(theirs).replace("Theirs", "Ours")
        assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert [field.name for field in dataclasses.fields(Ours)] == ["name", "count"]
    assert dataclasses.replace(Ours("a", 2), name="b") == Ours("b", 2)
    match Ours("a", 3):
        case Ours(name, count):
            assert (name, count) == ("a", 3)


def test_it_is_equal_hashed_and_sorted_by_its_fields() -> None:
    assert Ours("a") == Ours("a", 1) and hash(Ours("a")) == hash(Ours("a", 1)) and Ours("a") != Ours("a", 2)
    assert Ours("a") != Other("a") and Ours("a") != ("a", 1)
    pairs = [("b", 1), ("a", 2), ("a", 1)]
    assert sorted(Ours(*pair) for pair in pairs) == [Ours(*pair) for pair in sorted(pairs)]
    assert Ours("a") < Ours("b") <= Ours("b") and Ours("b") > Ours("a") >= Ours("a")
    with pytest.raises(TypeError):
        assert Ours("a") < Other("b")  # type: ignore[operator]
    with pytest.raises(TypeError):
        assert Other("a") < Other("b")  # type: ignore[operator]


def test_copies_are_equal() -> None:
    ours = Ours("a", 2)
    assert copy.copy(ours) == copy.deepcopy(ours) == pickle.loads(pickle.dumps(ours)) == ours


@pytest.mark.parametrize("name", ["name", "count", "unknown"])
def test_it_is_frozen(name: str) -> None:
    ours = Ours("a", 2)
    with pytest.raises(dataclasses.FrozenInstanceError, match=name):
        setattr(ours, name, 3)
    with pytest.raises(dataclasses.FrozenInstanceError, match=name):
        delattr(ours, name)
    assert ours == Ours("a", 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda cls: cls(),
        lambda cls: cls("a", 1, 2),
        lambda cls: cls("a", name="b"),
        lambda cls: cls("a", unknown=1),
        lambda cls: cls(unknown="a"),
        lambda cls: cls(count=2),
    ],
)
def test_wrong_arguments_are_refused_as_by_a_dataclass(make: Callable[[type], object]) -> None:
    for cls in (Theirs, Ours):
        with pytest.raises(TypeError):
            make(cls)


def test_what_a_class_checks_itself_is_checked() -> None:
    with pytest.raises(ValueError, match="count is -1"):
        Ours("a", -1)
    with pytest.raises(ValueError, match="count is -1"):
        dataclasses.replace(Ours("a"), count=-1)


def test_a_default_factory_is_refused() -> None:
    with pytest.raises(TypeError, match="default_factory"):

        @value(frozen=True)
        class Refused:
            names: list[str] = dataclasses.field(default_factory=list)


def test_a_value_that_inherits_from_another_is_refused() -> None:
    with pytest.raises(TypeError, match="does not inherit"):

        @value(frozen=True)
        class Refused(Ours):
            more: int = 0


def test_threads_that_ask_for_the_fields_at_once_all_get_them() -> None:
    classes = [value(frozen=True)(type(f"Made{i}", (), {"__annotations__": {"name": "str"}})) for i in range(200)]
    start = threading.Barrier(4)

    def names() -> list[str]:
        start.wait()
        return [field.name for cls in classes for field in dataclasses.fields(cls)]

    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(names) for _ in range(4)]
        assert all(future.result() == ["name"] * 200 for future in found)


class Colour(Words):
    """Two words."""

    RED = "red"
    DARK_BLUE = "dark-blue"


def test_words_behave_as_members_of_an_enum_of_strings() -> None:
    assert list(Colour) == [Colour.RED, Colour.DARK_BLUE] == ["red", "dark-blue"] and len(Colour) == 2
    assert Colour("dark-blue") is Colour.DARK_BLUE is Colour["DARK_BLUE"] and Colour.DARK_BLUE.name == "DARK_BLUE"
    assert type(Colour.RED.value) is str and f"{Colour.RED} {Colour.RED!s} {Colour.RED!r}" == "red red Colour.RED"
    assert pickle.loads(pickle.dumps(Colour.RED)) is copy.deepcopy(Colour.RED) is Colour.RED
    assert json.dumps([Colour.RED]) == '["red"]'
    with pytest.raises(ValueError, match="'green' is not a valid Colour"):
        Colour("green")
