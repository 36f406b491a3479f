"""The peer on this machine, run or not: its places, and how they are removed."""
