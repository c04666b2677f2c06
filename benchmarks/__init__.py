"""Benchmarks: each module measures one claim against its peers, in one run, and has a ``main()``."""
