"""The host's daemon."""
