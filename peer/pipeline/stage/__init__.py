"""Compute of one stage: its process, its passes, its sums."""
