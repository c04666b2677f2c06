"""What ``python -m tools <verb>`` runs: one module for each verb, with a ``main(arguments) -> exit status``."""
