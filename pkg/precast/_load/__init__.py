"""One pass from the host to a loaded kernel: probe, decide, verify, load, register."""
