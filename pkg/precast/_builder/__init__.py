"""How csrc becomes a library: one builder for the wheel and for the JIT. Knows nothing of what a host can load."""
