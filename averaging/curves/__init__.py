"""The curves of a run, round by round, and the tools that draw them: CSV, TensorBoard, Weights & Biases."""
