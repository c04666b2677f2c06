"""A plugin for pytest: nothing prebuilt is used and no NVRTC is found, so that on a GPU plain torch stands in.

``python -m pytest -p tests.ops.only_plain tests/ops/test_fused_gpu.py``
"""

from __future__ import annotations

import dataclasses
from typing import Any

from precast._load import prebuilt, probe

_probe_builders = probe.probe_builders


def _without_nvrtc(settings: Any) -> Any:
    return dataclasses.replace(_probe_builders(settings), nvrtc=None)


def _nothing_prebuilt(folder: Any = None) -> None:
    """As in an installation from source."""


probe.probe_builders = _without_nvrtc
prebuilt.load_build_info = _nothing_prebuilt
