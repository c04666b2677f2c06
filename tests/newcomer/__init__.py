"""A stranger's machine, row by row: the README's own commands where nothing of ours was ever run. ``make newcomer``."""
