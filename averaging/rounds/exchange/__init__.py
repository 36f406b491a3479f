"""One attempt: contributions go out, are summed, and results come back."""
