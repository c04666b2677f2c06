"""The requirements of a binary and the properties of a host, as values, and the one decision between them.

Standard library only, and no I/O: nothing in this package opens a file, reads the environment or starts a process.
"""
