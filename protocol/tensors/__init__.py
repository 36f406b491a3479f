"""Schemas: which tensors a unit has, and where they stand in its flat vector."""
