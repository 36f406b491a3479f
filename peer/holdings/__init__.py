"""Which parts of the model and of the text this peer holds, and why."""
