"""Which parts of the model and of the text this peer has, and why."""
