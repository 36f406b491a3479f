"""What is looked at before a run starts: `doctor`, reachability, `--dry-run`."""
