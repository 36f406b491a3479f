"""A peer as a member or the keeper of a lane."""
