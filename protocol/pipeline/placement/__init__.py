"""Which peer holds which stage, and how a model is cut."""
