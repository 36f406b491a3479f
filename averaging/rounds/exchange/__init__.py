"""One attempt: contributions are sent and summed, and the results return."""
