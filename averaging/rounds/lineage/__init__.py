"""A unit's chain of commits on this machine, and how a commit changes the trainer."""
