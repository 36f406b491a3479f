"""One replica over several cards: a process on each, which take every step together."""
