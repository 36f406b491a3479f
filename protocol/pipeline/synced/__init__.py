"""Synced steps: all replicas of a stage step together."""
