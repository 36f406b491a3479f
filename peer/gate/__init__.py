"""Words of the host's loss gate: kept, passed on to other peers, and given to the rounds."""
