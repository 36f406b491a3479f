"""How a lane forms, steps, loses a member and ends."""
