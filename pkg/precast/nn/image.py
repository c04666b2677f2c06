"""The activation of image generators. The class is next to its op, so that ``precast.compat`` can have it too."""

from precast.ops.image._module import FusedLeakyReLU

__all__ = ["FusedLeakyReLU"]
