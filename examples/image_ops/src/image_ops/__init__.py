"""One operation of image generators: bias with leaky ReLU in one pass."""

from image_ops.act import fused_leaky_relu

__all__ = ["fused_leaky_relu"]
