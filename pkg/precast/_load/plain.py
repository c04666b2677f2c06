"""Register a family's ops in plain torch in place of its kernels. A choice for it imports this."""

from __future__ import annotations

import logging
import time
from typing import Any

from precast._abi.decision import all_rejections
from precast._builder.catalogue import Family
from precast._load import handover
from precast._load.choose import Choice
from precast._load.source import Loaded, Source
from precast.core import explain

_log = logging.getLogger("precast")


def load(family: Family, device: str, choice: Choice) -> Loaded:
    """Register all ops of the family for the device type, and warn why plain torch stands in."""
    started = time.perf_counter()
    formulas = handover.formulas_of(family)
    handover.refuse_foreign_kernels(formulas.ops, device.upper())
    assert formulas.plain is not None, f"{family.name} promises plain torch and hands none over"
    plain = formulas.plain()
    kernels = {name: plain.kernel(name) for name in formulas.ops}
    library: Any = formulas.library
    for name, kernel in kernels.items():
        library.impl(name, kernel, device.upper())
    why = explain.top_reason(all_rejections(choice.decision))
    _log.warning("%s on %s: plain torch stands in: %s", family.name, device, why)
    return Loaded(family.name, device, Source("torch", plain.path, "plain torch"), (), time.perf_counter() - started)
