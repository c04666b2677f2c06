"""The older package's names: its modules, functions and classes, over the ops of this one."""
