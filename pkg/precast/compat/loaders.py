"""The older package's modules for the loaders: members for the families' loaders, and separate loaders.

A separate loader is described in the same way as in a family, with the families whose kernels its members call.
"""

from __future__ import annotations

from precast._builder.catalogue import Offer
from precast.compat import inference, lists, modules, moe, norms
from precast.compat.modules import Find, Members

_MEMBERS = {
    "CPUAdamLoader": modules.adam,
    "FusedOptimizerLoader": lists.members,
    "InferenceOpsLoader": inference.members,
    "LayerNormLoader": norms.members,
    "MoeLoader": moe.members,
    "RMSNormLoader": modules.norms,
    "ScaledMaskedSoftmaxLoader": modules.masked_softmax,
    "ScaledUpperTriangleMaskedSoftmaxLoader": modules.causal_softmax,
}
_SOFTMAX = ("softmax", "softmax_backward")

# Their docstrings are in precast.kernel_loader.
OFFERS: tuple[tuple[Offer, tuple[str, ...]], ...] = (
    (Offer("ScaledMaskedSoftmaxLoader", extensions="scaled_masked_softmax"), _SOFTMAX),
    (
        Offer("ScaledUpperTriangleMaskedSoftmaxLoader", extensions="scaled_upper_triangle_masked_softmax"),
        _SOFTMAX,
    ),
    (Offer("InferenceOpsLoader", extensions="inference_ops"), ("rms_norm", "activations")),
)


def members(loader: str, find: Find) -> Members:
    """The older package's functions and classes for one loader, by name."""
    return _MEMBERS[loader](find) if loader in _MEMBERS else {}
