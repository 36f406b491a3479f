"""Plans and times of rounds: when one is due, its slices, when a silent peer is suspected, and the rule of the outer step."""
