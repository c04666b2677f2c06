"""Faults put into the code one at a time, to see that a test notices each."""
