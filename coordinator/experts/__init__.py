"""Experts at the host: kept units, merging."""
