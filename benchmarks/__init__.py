"""Benchmarks: each module compares one claim with its peers, in one run, and has a ``main()``."""
