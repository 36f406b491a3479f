"""A peer as member or keeper of a lane."""
