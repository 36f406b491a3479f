"""Activations and gradients between the members of a lane."""
