"""Containers that say when they are changed, and that an optimizer listens to its own only."""

from __future__ import annotations

import copy
import pickle
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast.optim import FusedAdamW  # noqa: E402
from precast.optim._watched import Params, Seen, State, States  # noqa: E402

pytestmark = pytest.mark.torch

# Everything that a plain container offers: what changes it, with arguments, and what does not.
OF_DICTS: dict[str, tuple[Any, ...]] = {
    "__setitem__": ("b", 2),
    "__delitem__": ("a",),
    "__ior__": ({"b": 2},),
    "clear": (),
    "pop": ("a",),
    "popitem": (),
    "setdefault": ("b", 2),
    "update": ({"b": 2},),
}
OF_LISTS: dict[str, tuple[Any, ...]] = {
    "__setitem__": (0, 2),
    "__delitem__": (0,),
    "__iadd__": ([2],),
    "__imul__": (2,),
    "append": (2,),
    "clear": (),
    "extend": ([2],),
    "insert": (0, 2),
    "pop": (),
    "remove": (1,),
    "reverse": (),
    "sort": (),
}
READING = {"copy", "count", "fromkeys", "get", "index", "items", "keys", "values"}
MAKERS: dict[type, tuple[Callable[[Callable[[], Any]], Any], dict[str, tuple[Any, ...]]]] = {
    State: (lambda changed: State({"a": 1}, changed), OF_DICTS),
    States: (lambda changed: States(defaultdict(dict, {"a": 1}), changed), OF_DICTS),
    Params: (lambda changed: Params([1], changed), OF_LISTS),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_every_change_is_told(kind: type) -> None:
    make, changing = MAKERS[kind]
    plain = list if kind is Params else dict
    assert {name for name in dir(plain) if not name.startswith("_")} <= {*changing, *READING}
    for name, arguments in changing.items():
        calls: list[int] = []
        container = make(lambda calls=calls: calls.append(1))
        same = plain(container)
        expected, found = getattr(same, name)(*arguments), getattr(container, name)(*arguments)
        assert calls == [1], name
        assert same == container
        assert found is container if name.startswith("__i") else found == expected


def test_a_change_that_fails_half_way_is_told() -> None:
    calls: list[int] = []
    params = Params([1], lambda: calls.append(1))
    with pytest.raises(ZeroDivisionError):
        params.extend(1 // (1 - i) for i in range(3))
    assert (params, calls) == ([1, 1], [1])


def test_a_missing_state_is_made_and_told() -> None:
    calls: list[int] = []
    states = States(defaultdict(dict), lambda: calls.append(1))
    assert states["new"] == {}
    assert calls == [1]


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), lambda x: x.copy()])
@pytest.mark.parametrize("kind", MAKERS)
def test_copies_are_plain(kind: type, way: Callable[[Any], Any]) -> None:
    original = MAKERS[kind][0](lambda: None)
    again = way(original)
    assert type(again) is {State: dict, States: defaultdict, Params: list}[kind]
    assert again == original
    assert kind is not States or again["missing"] == {}


def test_what_was_seen() -> None:
    def changed() -> None: ...

    one, other = [1.0], [1.0]
    for container in ([one, other], Params([one, other], changed)):
        seen = Seen(container, changed)
        assert seen.still(container)
        assert seen.still([one, other])
        assert not seen.still([other, one])  # equal, but not the same
        assert not seen.still([one])
    elsewhere = Params([one], lambda: None)
    seen = Seen(elsewhere, changed)
    elsewhere[0] = other  # told to somebody else
    assert not seen.still(elsewhere)


def test_an_optimizer_watches_its_own_containers() -> None:
    params = [torch.zeros(3), torch.zeros(3)]
    ours = FusedAdamW([{"params": params[:1]}, {"params": params[1:]}])
    again = copy.deepcopy(ours)
    again.load_state_dict(ours.state_dict())
    for optimizer in (ours, again, pickle.loads(pickle.dumps(ours))):
        containers = [optimizer.state, *(group["params"] for group in optimizer.param_groups)]
        assert [type(container) for container in containers] == [States, Params, Params]
        assert all(container.changed is optimizer._changed for container in containers)
        optimizer._plans = []
        optimizer.param_groups[1]["params"].append(torch.zeros(3))
        assert optimizer._plans is None
    assert [len(group["params"]) for group in ours.param_groups] == [1, 2]
    assert type(ours.state_dict()["param_groups"][0]["params"]) is list
