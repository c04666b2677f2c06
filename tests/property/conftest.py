"""How Hypothesis runs here: no deadline, because a busy machine is not a failing test."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("precast", deadline=None, print_blob=True)
settings.load_profile("precast")
