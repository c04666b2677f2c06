"""Proves that a compiled file fits this process, before anything of it is opened."""
