"""The round service: it carries out what the round machine in `protocol/rounds` decides."""
