"""All cards of one machine: what they are, which of them this peer takes, and how they train together."""
