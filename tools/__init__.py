"""The tools that build and check releases. Not shipped; ``python -m tools`` lists the verbs."""
