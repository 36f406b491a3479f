"""A unit's state on disk, its generations and its root."""
