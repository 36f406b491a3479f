"""How fast bulk leaves: measured rate of a line, and the limits set for it."""
