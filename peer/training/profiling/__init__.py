"""Records some steps of the training process with torch.profiler, and sums them up."""
