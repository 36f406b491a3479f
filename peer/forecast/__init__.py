"""Foretells a run before anybody opens it: time, traffic, energy, loss (`potluck plan`)."""
