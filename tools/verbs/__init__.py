"""The verbs of ``python -m tools <verb>``: one module each, with a ``main(arguments) -> exit status``."""
