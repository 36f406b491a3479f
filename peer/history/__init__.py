"""A volunteer's own history: the rounds that this peer saw, its part in them, and the time that it gave."""
