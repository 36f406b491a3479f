"""Work of others done again: some of their local steps, and what the comparison says."""
