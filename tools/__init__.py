"""What builds are checked with. Not shipped; ``python -m tools`` lists the verbs."""
