"""The manifest of a run: its sections, defaults and limits."""
