"""Checkpoints: pulled, verified, kept, exported and imported."""
