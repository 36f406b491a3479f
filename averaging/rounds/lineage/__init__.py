"""A unit's chain of commits on this machine, and what a commit does to the trainer."""
