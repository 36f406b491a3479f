"""Computation of one stage: its process, its passes and its inner steps."""
