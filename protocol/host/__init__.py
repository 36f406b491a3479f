"""What peers and the coordinator tell each other."""
