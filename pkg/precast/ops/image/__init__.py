"""Ops of image generators: bias with activation in one pass, and upsampling and downsampling with a filter.

``bias_act`` and ``upfirdn2d`` have the semantics of the ops of these names in StyleGAN repositories, and their modules
under :mod:`precast.compat` have the names and arguments of both common layouts. A result of ``upfirdn2d`` is computed
from the pixels that its taps meet, without intermediate images.

The ops take float64 too, so ``torch.autograd.gradcheck`` can check gradients.
"""

from __future__ import annotations

from precast.ops.image._bias_act import ACTIVATIONS, Activation, bias_act, fused_leaky_relu
from precast.ops.image._upfirdn2d import downsample2d, filter2d, setup_filter, upfirdn2d, upsample2d

__all__ = [
    "ACTIVATIONS",
    "Activation",
    "bias_act",
    "downsample2d",
    "filter2d",
    "fused_leaky_relu",
    "setup_filter",
    "upfirdn2d",
    "upsample2d",
]
