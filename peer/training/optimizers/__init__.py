"""How a training process moves its parameters: the optimizers of a run, over parameters in the schema's order."""
