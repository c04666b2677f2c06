"""A plugin for pytest: nothing prebuilt is used and no NVRTC is found, so that on a GPU the twins stand in.

``python -m pytest -p tests.ops.only_twins tests/ops/test_fused_gpu.py``
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from precast._load import probe

os.environ["PRECAST_JIT"] = "jit"
_probe_builders = probe.probe_builders


def _without_nvrtc(settings: Any) -> Any:
    return dataclasses.replace(_probe_builders(settings), nvrtc=None)


probe.probe_builders = _without_nvrtc
