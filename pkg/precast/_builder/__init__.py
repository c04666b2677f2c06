"""Builds csrc into libraries: one builder for the wheel and for the JIT. Knows nothing of what a host can load."""
