"""The activation of image generators. Its class is next to its op, so that ``precast.compat`` can import it too."""

from precast.ops.image._module import FusedLeakyReLU

__all__ = ["FusedLeakyReLU"]
