"""Following the run: commits, lineages, holders, held-out loss."""
