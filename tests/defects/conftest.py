"""What these tests stand on: a made-up installation, a loader that has loaded nothing, and a driver of our own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from precast._load import probe
from precast.core import gpus
from precast.core.host import Host
from tests.kit import hosts as ex
from tests.unit.csrc.test_launch import folder
from tests.unit.load.conftest import c_dir, toy_library
from tests.unit.load.test_loader import calls

__all__ = ["c_dir", "calls", "folder", "toy_library"]

Pretend = Callable[[Host], list[str]]


@pytest.fixture
def pretend(c_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Pretend:
    """Makes this process believe that it is on a host; the list grows with every look for compilers and NVRTC."""
    monkeypatch.delenv("PRECAST_JIT", raising=False)

    def pretend(host: Host) -> list[str]:
        looked: list[str] = []

        def probe_builders(settings: object) -> object:
            looked.append("builders")
            return host.builders or ex.builders(None, compiler=False, ninja=False)

        monkeypatch.setattr(probe, "probe_host", lambda *_, **__: dataclasses.replace(host, builders=None))
        monkeypatch.setattr(probe, "probe_builders", probe_builders)
        monkeypatch.setattr(gpus, "forecast", lambda *_: gpus.Forecast(host.gpus, certain=True, note=""))
        return looked

    return pretend
