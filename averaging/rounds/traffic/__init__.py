"""What crosses between members of a round, and how it is shared out."""
