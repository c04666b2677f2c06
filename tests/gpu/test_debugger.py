"""What the debugger's words are taken for, and that its absence is said; a run needs a GPU and is not made here."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def debugger() -> ModuleType:
    spec = importlib.util.spec_from_file_location("debugger", Path(__file__).with_name("debugger.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["debugger"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


STOP = """
[Switching focus to CUDA kernel 0, grid 5, block (0,0,0), thread (0,0,0), device 0, sm 0, warp 0, lane 0]

CUDA thread hit Breakpoint 1.2, rms_norm_f32_v4<<<(4,1,1),(64,1,1)>>> (args=...)
    at /a/site/precast/csrc/norm/rms_norm.cu:61
61	  const uint32_t row = blockIdx.x;
"""


def test_a_stop_is_told_with_its_line(debugger: ModuleType) -> None:
    assert debugger.stopped_at(STOP.replace("1.2", "1")) == "/a/site/precast/csrc/norm/rms_norm.cu:61"
    assert debugger.stopped_at(STOP) == "/a/site/precast/csrc/norm/rms_norm.cu:61"
    assert debugger.stopped_at("Function not defined. Breakpoint 1 (rms_norm_f32_v4) pending.\nSUM 4096.0") is None
    assert debugger.stopped_at("fatal: The CUDA driver initialization failed.") is None


def test_no_debugger_is_said_so(
    debugger: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(debugger, "find_tool", lambda name: None)
    assert debugger.main(["--site", str(tmp_path)]) == 3
    assert "no cuda-gdb" in capsys.readouterr().err
