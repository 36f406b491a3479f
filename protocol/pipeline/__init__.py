"""Pure machines of stages and lanes."""
