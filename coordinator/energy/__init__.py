"""Energy that the peers report, added up, and its carbon."""
