"""The version, written once; a label (``+cu130``) is added to the name of a wheel only."""

__version__ = "0.1.0"
