"""Two operations of image generators: bias with leaky ReLU in one pass, and up-/downsampling with a filter."""

from image_ops.act import fused_leaky_relu
from image_ops.resample import upfirdn2d

__all__ = ["fused_leaky_relu", "upfirdn2d"]
