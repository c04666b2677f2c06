"""Register what stands in for a family's kernels, by a choice that requires it. It is not imported before that."""

from __future__ import annotations

import logging
import time
from typing import Any

from precast._abi.decision import all_rejections
from precast._abi.twin import Twin
from precast._builder.catalogue import Family
from precast._load import handover
from precast._load.choose import Choice
from precast._load.source import Loaded, Source
from precast.core import explain

_log = logging.getLogger("precast")


def load(family: Family, device: str, choice: Choice, twin: Twin) -> Loaded:
    """Register the twin's kernels of all ops of the family for the device type, and warn why they stand in."""
    started = time.perf_counter()
    formulas = handover.formulas_of(family)
    handover.refuse_foreign_kernels(formulas.ops, device.upper())
    assert formulas.twins is not None, f"{family.name} promises a twin and hands none over"
    twins = formulas.twins()
    kernels = {name: twins.kernel(name) for name in formulas.ops}
    library: Any = formulas.library
    for name, kernel in kernels.items():
        library.impl(name, kernel, device.upper())
    why = explain.top_reason(all_rejections(choice.decision))
    what = "plain torch stands in" if twin.triton is None else "Triton kernels stand in, compiled at their first launch"
    _log.warning("%s on %s: %s: %s", family.name, device, what, why)
    source = Source(twin.kind, twins.path, str(twin))
    return Loaded(family.name, device, source, (), time.perf_counter() - started)
