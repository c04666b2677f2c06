"""Builds csrc into libraries: one builder for wheels and for run-time builds. Knows nothing of what a host can load.

Both use the same functions, flags and cache, so a run-time build is the code that a wheel would have shipped. It covers
one family at one CPU level; a wheel holds all. ``setup.py`` imports this package, which it also installs.
"""
