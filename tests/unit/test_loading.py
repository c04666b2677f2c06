"""Kernels for all ranks of a job: who builds, who waits, and whose failure everybody hears of."""

from __future__ import annotations

import pytest

from precast import _loading
from precast._builder import catalogue
from precast.errors import BuildFailed, KernelError

NAMES = [family.name for family in catalogue.FAMILIES if "cpu" in family.devices]


def job(
    monkeypatch: pytest.MonkeyPatch, rank: int, nodes: list[object], *, broken: bool = False, said: object = None
) -> tuple[list[str], list[object]]:
    """Be one rank of a job; return what it loads and what it tells the others. ``said`` is what rank 0 answers."""
    loaded: list[str] = []
    told: list[object] = []

    def load(name: str, device: object) -> str:
        if broken:
            raise KernelError(f"no {name} on {device}")
        loaded.append(name)
        return f"{name} on {device}"

    def exchange(mine: object, group: object) -> list[object]:
        told.append(mine)
        return [said, *(None for _ in nodes[1:])]

    monkeypatch.setattr(_loading, "load", load)
    monkeypatch.setattr(_loading, "_meet", lambda group: (rank, nodes))
    monkeypatch.setattr(_loading, "_exchange", exchange)
    return loaded, told


def test_without_a_job_each_family_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, told = job(monkeypatch, 0, [None])
    assert _loading.prebuild() == tuple(f"{name} on None" for name in NAMES)
    assert (loaded, told) == (NAMES, [])
    del loaded[:]
    assert _loading.prebuild(ops=["rms_norm", "fused_add_rms_norm", "rms_norm"], device="cpu") == ("rms_norm on cpu",)
    assert loaded == ["rms_norm"]


def test_without_a_job_the_failure_is_raised_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    job(monkeypatch, 0, [None], broken=True)
    with pytest.raises(KernelError, match=r"^no rms_norm on cpu$"):
        _loading.prebuild(ops=["rms_norm"], device="cpu")


# Ranks 0 and 1 are on one node, rank 2 is alone on another: 0 and 2 build, then everybody loads.
@pytest.mark.parametrize(("rank", "times"), [(0, 2), (1, 1), (2, 2)])
def test_the_first_rank_of_a_node_builds_and_all_load(monkeypatch: pytest.MonkeyPatch, rank: int, times: int) -> None:
    loaded, told = job(monkeypatch, rank, ["a", "a", "b"])
    assert _loading.prebuild(ops=["rms_norm"], device="cpu") == ("rms_norm on cpu",)
    assert (loaded, told) == (["rms_norm"] * times, [None])


def test_a_rank_that_cannot_build_says_so_and_every_rank_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    _, told = job(monkeypatch, 0, ["a", "b"], broken=True, said="the compiler is gone")
    with pytest.raises(BuildFailed, match=r"^rank 0 could not prepare the kernels of its node\nthe compiler is gone$"):
        _loading.prebuild(ops=["rms_norm"], device="cpu")
    assert [str(failure) for failure in told] == ["no rms_norm on cpu"]
    loaded, told = job(monkeypatch, 1, ["a", "a"], said="the compiler is gone")
    with pytest.raises(BuildFailed, match=r"^rank 0 could not"):
        _loading.prebuild(ops=["rms_norm"], device="cpu")
    assert (loaded, told) == ([], [None])
