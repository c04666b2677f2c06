"""The version, written once: ``setup.py`` reads this file, and the label (``+cu130``) is added to the wheel's name only."""

__version__ = "0.1.0"
