"""Arithmetic, rounds, network and storage."""
