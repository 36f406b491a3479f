"""Measures committed models when it is this peer's turn: the held-out loss, and scores on the run's tasks."""
