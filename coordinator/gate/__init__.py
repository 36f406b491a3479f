"""Holds a run whose held-out loss rises, and takes it back to its last good commit."""
