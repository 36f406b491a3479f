"""The metrics of the host and its run."""
