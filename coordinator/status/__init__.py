"""The host's page, metrics, status text and dry run."""
