"""Which peer holds which stage, and where a model is cut."""
