"""Benchmarks: each module measures one claim beside its peers, in one run, and has a ``main()``."""
