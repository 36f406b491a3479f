"""The round service: performs the orders of the round machine in `protocol/rounds`."""
