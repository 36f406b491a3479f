"""Pure state machines of stages and lanes."""
