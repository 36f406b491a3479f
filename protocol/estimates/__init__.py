"""Memory, traffic and time that a run will take, from its numbers."""
