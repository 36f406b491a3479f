"""Learning at equal tokens by size, optimizer, members, local steps, codec and outer step."""
