"""Device code built ahead of time for a GPU that is not here, by a real NVRTC, and carried to another cache."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from precast._builder import elf

from .conftest import Install

pytestmark = [pytest.mark.wheel, pytest.mark.compiler, pytest.mark.torch]

COMMAND = "import sys; from precast.__main__ import main; sys.exit(main({}))"


def test_warm_without_a_gpu_and_import_elsewhere(
    install: Install, tree: Path, nvrtc_site: Path, tmp_path: Path
) -> None:
    installed = install(tree)
    path = f"{installed.site}{os.pathsep}{nvrtc_site}"

    def precast(*words: str, cache: str = "cache") -> str:
        code = COMMAND.format(list(words))
        return installed.python(code, PYTHONPATH=path, PRECAST_CACHE_DIR=tmp_path / cache, MAX_JOBS="2")

    said = precast("warm", "moe_routing", "--arch", "9.0+PTX")
    assert "moe_routing: sm_90: jit " in said and "1 of 1" in said
    assert "moe_routing: compute_90: cache " in said, "the compile for sm_90 has made it too"

    archive = tmp_path / "cache.tar.gz"
    assert precast("export-cache", str(archive)).startswith("3 entries")
    assert "3 entries added" in precast("import-cache", str(archive), cache="other")
    listed = json.loads(precast("cache", "list", "--json", cache="other"))
    images = {item["inputs"].get("target"): Path(item["path"]) for item in listed if item["inputs"]["kind"] == "device"}
    assert str(elf.read_cubin(images["sm_90"].read_bytes()).target) == "sm_90"
    assert b".target sm_90" in images["compute_90"].read_bytes()
    assert "host library: cache " in precast("warm", "moe_routing", cache="other"), "nothing is built there"
