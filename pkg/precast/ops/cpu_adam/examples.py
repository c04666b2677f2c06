"""Example calls of one Adam step."""

from __future__ import annotations

from precast.ops._folders import Examples

EXAMPLES: Examples = {
    "adam_": lambda some: (
        *([some(33)], [some(33)], [some(33)], [some(33).abs()], []),
        *(1e-2, 0.9, 0.99, 1e-8, 1e-2, 0.5, 0.5, 1.0, True, False),
    ),
}
