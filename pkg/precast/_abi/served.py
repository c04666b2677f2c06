"""Which label serves which GPU. Only refusals and their fixes ask."""

from __future__ import annotations

from precast._abi import toolkits
from precast.core.capability import MINIMUM_CAPABILITY, ComputeCapability
from precast.core.version import CudaVersion, Label

# The wheel labels, such as cu126, that the fix of an error can recommend; oldest CUDA toolkit first.
LABELS = tuple(map(Label, toolkits.LABELS))
_SASS_FLOOR = {major: ComputeCapability.parse(gpu) for major, gpu in toolkits.SASS_FLOOR.items()}
_FIRST_TOOLKIT = {
    ComputeCapability.parse(gpu): CudaVersion.parse(toolkit) for gpu, toolkit in toolkits.FIRST_TOOLKIT.items()
}
_NEWEST_KNOWN = max(_FIRST_TOOLKIT)


def sass_floor(cuda: CudaVersion) -> ComputeCapability:
    """The oldest GPU that this toolkit's wheels serve."""
    return _SASS_FLOOR.get(cuda.major, MINIMUM_CAPABILITY)


def label_serves(label: Label, gpu: ComputeCapability, driver: CudaVersion | None) -> bool:
    """Whether a label's device code runs on this GPU as SASS under this driver; without a driver, under any."""
    cuda, first = label.cuda, _FIRST_TOOLKIT.get(gpu, CudaVersion(12, 1))
    if gpu > _NEWEST_KNOWN or cuda is None or cuda < first or gpu < sass_floor(cuda):
        return False
    return driver is None or driver.major >= cuda.major


def label_for(gpu: ComputeCapability, driver: CudaVersion | None) -> Label | None:
    """The newest label whose device code runs on this GPU as SASS under this driver, or None.

    Without a driver the label is chosen for the GPU alone.
    """
    return next((label for label in reversed(LABELS) if label_serves(label, gpu, driver)), None)


def served_range(gpu: ComputeCapability, label: Label) -> str:
    """A description of the labels that serve a GPU older than a label's floor."""
    cuda = label.cuda
    if cuda is not None and gpu < sass_floor(cuda):
        return f"; {label} serves {sass_floor(cuda)} and newer, labels below CUDA {cuda.major} serve this GPU"
    return ""
