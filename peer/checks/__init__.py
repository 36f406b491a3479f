"""Checks before a run starts: `doctor`, reachability, `--dry-run`."""
