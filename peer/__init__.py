"""The volunteer's daemon."""
